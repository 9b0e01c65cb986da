# SPDX-License-Identifier: Apache-2.0
"""The experiment of fresh starts: what it measures, on few of them."""

from __future__ import annotations

import pytest

from benchmarks.lifetime import measure_fresh
from rcg.bench.contestants import RcgGraph
from rcg.bench.record import RCG


@pytest.mark.full
def test_each_start_has_an_actor_of_its_own_and_the_worst_is_reported(ray_session) -> None:
    graph = RcgGraph(RCG, "auto")
    started = []
    start_one = graph.start_one
    graph.start_one = lambda: started.append(start_one()) or started[-1]
    (figure,) = measure_fresh({RCG: graph}, starts=2, settling=5, timed=5)
    assert len(set(started)) == 2
    times = figure.values
    assert 0 < times[f"{RCG}, best"] <= times[f"{RCG}, median"] <= times[f"{RCG}, worst"]
    assert figure.verdicts == ()  # without Ray's graph there is nothing to compare with
