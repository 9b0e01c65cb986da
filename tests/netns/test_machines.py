# SPDX-License-Identifier: Apache-2.0
"""Whole machines that are lost, and drivers that die: what is left, and what goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, ChannelBroken
from tests.cluster.faults import NOTHING
from tests.cluster.stage import GUARD_S, Driver, compile_echo, until
from tests.netns.machines import Cluster, actor_on
from tests.netns.test_deaths import assert_nothing_left, chained, use_until_it_fails
from tests.netns.world import address_of

Fresh = Callable[..., Any]

PROGRAM = """
a, b, c = (ray.get_actor(name, namespace="netns") for name in "abc")
with InputNode() as inp:
    dag = a.echo.bind(c.echo.bind(b.echo.bind(inp)))
graph = dag.experimental_compile()
assert ray.get(graph.execute(1)) == 1
say("runs")
if "executes" in sys.argv:
    while True:
        ray.get(graph.execute(bytes(100_000)))
sys.stdin.read()
"""


@pytest.mark.parametrize("does", ["waits", "executes"])
def test_a_driver_that_is_killed_ends_the_loops_of_all_machines(
    driver: Callable[..., Driver], does: str
):
    kept = {"namespace": "netns", "lifetime": "detached"}
    actors = [
        actor_on(number, name=name, **kept) for number, name in ((0, "a"), (1, "b"), (1, "c"))
    ]
    try:
        rcg.get([each.pid.remote() for each in actors])
        program = driver(PROGRAM, does)
        program.expect("runs")
        program.kill()
        for each in actors:
            until(lambda each=each: rcg.get(each.settle.remote()) == NOTHING)
        with chained(*actors) as graph:
            assert rcg.get(graph.execute("next"), timeout=GUARD_S) == "next"
    finally:
        for each in actors:
            rcg.kill(each)


@pytest.mark.parametrize("cable", ["plugged", "out"])
def test_a_machine_without_power(
    cluster: Cluster, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, cable: str
):
    """It is lost in the middle of a graph; others go on with what is there until it is back."""
    monkeypatch.setenv("RCG_PEER_TIMEOUT", "3")
    a, b, c = fresh(0), fresh(1), fresh(1)
    rcg.get([each.set.remote("RCG_PEER_TIMEOUT", "3") for each in (a, b, c)])
    graph = chained(a, b, c)
    assert rcg.get(graph.execute(1), timeout=GUARD_S) == 1
    if cable == "out":  # so that its kernel says nothing when its processes end
        cluster.unplug(1)
    cluster.hands.renew(1)
    with pytest.raises((ActorDiedError, ChannelBroken)) as caught:
        use_until_it_fails(graph)
    assert "a0 (Tenant)" in str(caught.value) or "a1 (Tenant)" in str(caught.value)
    report = graph.report()
    assert report.state == "broken"
    assert {each.label for each in report.processes} >= {"a0 (Tenant)", "a1 (Tenant)"}
    graph.teardown()
    assert_nothing_left([a])
    with compile_echo(a) as again:
        assert rcg.get(again.execute("still"), timeout=GUARD_S) == "still"

    def alive() -> int:
        return sum(n["Alive"] and n["NodeManagerAddress"] == address_of(1) for n in ray.nodes())

    until(lambda: alive() == 0)  # or actors would be sent to the node that is no more
    cluster.start(1)
    until(lambda: alive() == 1)
    with chained(fresh(0), fresh(1), fresh(1)) as graph:
        assert rcg.get(graph.execute("back"), timeout=GUARD_S) == "back"
