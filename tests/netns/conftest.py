# SPDX-License-Identifier: Apache-2.0
"""One Ray cluster over machines for all tests here; a test that breaks it says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rcg
from tests.cluster.fixtures import driver, gate  # noqa: F401 - fixtures
from tests.netns.hands import Hands
from tests.netns.machines import Cluster, actor_on

_HANDS = Hands.of_this_process()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests need machines, which only ``make test-netns`` has."""
    if _HANDS is None:
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="run by `make test-netns`"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Ray on two machines; a test may ``grow`` it."""
    assert _HANDS is not None
    made = Cluster(_HANDS)
    made.grow(2)
    os.environ["RAY_ADDRESS"] = made.address
    ray.init(made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()


@pytest.fixture(scope="session")
def ray_session(cluster: Cluster) -> None:
    """The Ray that programs join."""


@pytest.fixture(scope="module")
def workers(cluster: Cluster) -> Iterator[list[Any]]:
    """Two actors of each of two machines that the tests of a module share: 0, 0, 1, 1."""
    made = [actor_on(number) for number in (0, 0, 1, 1)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Makes actors that are killed when the test ends, with the arguments of ``actor_on``."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(actor_on(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(Exception):
            rcg.kill(each)
