# SPDX-License-Identifier: Apache-2.0
"""One Ray session for all tests on a real cluster: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.cluster.faults import Survivor, Victims
from tests.cluster.nodes import cluster_of, spread_actors
from tests.cluster.stage import Company, Driver, Gate

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

    With ``--nodes 2`` it has two nodes, which get the actors in turn. Actors of a module go with
    its fixtures, or with the test that made them.
    """
    nodes = request.config.getoption("--nodes")
    if nodes == 1:
        ray.init(
            "local",  # not one that another program has started on this machine
            num_cpus=16,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
        yield
        ray.shutdown()
        return
    with cluster_of(nodes, cpus=16 // nodes) as cluster:
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        with pytest.MonkeyPatch.context() as patch:
            spread_actors(patch)
            yield
        ray.shutdown()


@pytest.fixture(scope="module")
def stages(ray_session: None) -> Company:
    """Gives the tests of a module so many actors, which they share."""
    return Company()


@pytest.fixture(scope="module")
def victims(ray_session: None) -> Victims:
    """Actors that a test may kill."""
    return Victims()


@pytest.fixture(scope="module")
def survivors(ray_session: None) -> list[Any]:
    """Two actors that live on."""
    return [Survivor.remote(), Survivor.remote()]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A closed gate."""
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes closed gates."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def driver(ray_session: None, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts a program that joins this Ray session; it is gone when the test ends."""
    started: list[Driver] = []

    def start(source: str, *arguments: Any, **options: Any) -> Driver:
        folder = tmp_path / f"driver{len(started)}"
        folder.mkdir()
        started.append(Driver(source, folder, *arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()
