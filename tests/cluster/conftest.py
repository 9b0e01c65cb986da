# SPDX-License-Identifier: Apache-2.0
"""One Ray session for each module of tests on a real cluster: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Workers of a test session start faster without these, and nothing here is about them.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    """A local Ray with room for 16 actors, whatever the machine has, and no dashboard."""
    import ray

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
