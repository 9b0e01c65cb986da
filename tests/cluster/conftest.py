# SPDX-License-Identifier: Apache-2.0
"""One Ray session for all tests on a real cluster: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.faults import Survivor, Victims
from tests.cluster.fixtures import driver, gate, gates  # noqa: F401 - fixtures
from tests.cluster.nodes import session_of, spread_actors
from tests.cluster.stage import Company

# Workers of a test session start faster without these, and nothing here is about them.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Actors of other programs go to the node with the fewest, not to the first until that is half full.
os.environ.setdefault("RAY_scheduler_spread_threshold", "0.0")
# A machine that is busy with other things is slow to start Ray; that is not what is tested.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")


@pytest.fixture(scope="session")
def ray_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A local Ray with room for 16 actors, whatever the machine has, and no dashboard.

    With ``--nodes 2`` it has two nodes. Actors of a module go with its fixtures, or with the test
    that made them.
    """
    with session_of(request.config.getoption("--nodes")):
        yield


@pytest.fixture(scope="module", autouse=True)
def turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where Ray has several nodes, each module gives them actors in turn."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--nodes") > 1:
            spread_actors(patch, request.config.getoption("--first-node"))
        yield


@pytest.fixture(scope="session")
def stages(ray_session: None) -> Company:
    """Gives tests so many actors, which all share: to start one costs a second of a processor."""
    return Company()


@pytest.fixture(scope="module")
def victims(ray_session: None) -> Victims:
    """Actors that a test may kill."""
    return Victims()


@pytest.fixture(scope="session")
def survivors(ray_session: None) -> list[Any]:
    """Two actors that live on."""
    return [Survivor.remote(), Survivor.remote()]
