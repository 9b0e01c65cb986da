# SPDX-License-Identifier: Apache-2.0
"""A Ray of three nodes on this machine, which these tests have for themselves: they change it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from tests.cluster.nodes import cluster_of

# As in tests/cluster.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The nodes have numbers, see ``cluster_of``; this process is on number 0."""
    with cluster_of(3, cpus=4) as made:
        ray.init(made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()
