# SPDX-License-Identifier: Apache-2.0
"""Processes of other machines that die, and machines: the error names what died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rcg
from rcg.dag import InputNode
from rcg.errors import ActorDiedError
from tests.cluster.faults import NOTHING, settled
from tests.cluster.stage import GUARD_S, Gate, compile_echo, until
from tests.netns.machines import Cluster

# Compiled graphs over actors a (machine 0), b (host of machine 1) and c (machine 1).
Fresh = Callable[..., Any]


def chained(a: Any, b: Any, c: Any, **options: Any) -> Any:
    with InputNode() as inp:
        dag = a.echo.bind(c.echo.bind(b.echo.bind(inp)))
    return dag.experimental_compile(**options)


def gated(a: Any, b: Any, c: Any, gate: Gate, at: int) -> Any:
    """As ``chained``; the value 0 stops at a gate in one of the actors."""
    with InputNode() as inp:
        value = inp
        for number, each in enumerate((b, c, a)):
            if number == at:
                value = each.pass_gate_when.bind(value, 0, gate)
            else:
                value = each.echo.bind(value)
    return value.experimental_compile()


def use_until_it_fails(graph: Any) -> None:
    """Execute a graph again and again."""
    while True:
        rcg.get(graph.execute(1), timeout=GUARD_S)


def assert_nothing_left(survivors: list[Any]) -> None:
    """The driver and the survivors hold nothing for graphs any more."""
    for held in rcg.get([each.settle.remote() for each in survivors]):
        assert held == NOTHING
    until(lambda: settled()["threads"] == [] and settled()["sockets"] == 0)


@pytest.mark.parametrize("dead", [0, 1, 2], ids=["host", "member", "near"])
@pytest.mark.parametrize("moment", ["idle", "waiting", "method"])
def test_an_actor_that_is_killed_is_named(
    cluster: Cluster, fresh: Fresh, gate: Gate, dead: int, moment: str
):
    b, c, a = (fresh(1), fresh(1), fresh(0))
    actors = {0: (1, b), 1: (1, c), 2: (0, a)}
    graph = gated(a, b, c, gate, dead if moment == "method" else (dead + 1) % 3)
    assert rcg.get(graph.execute(1), timeout=GUARD_S) == 1
    machine, victim = actors[dead]
    pid = rcg.get(victim.pid.remote())
    if moment == "idle":
        cluster.kill(machine, pid)
        with pytest.raises(ActorDiedError) as caught:
            use_until_it_fails(graph)
    else:
        ref = graph.execute(0)
        gate.wait_for()
        cluster.kill(machine, pid)
        with pytest.raises(ActorDiedError) as caught:
            rcg.get(ref, timeout=GUARD_S)
        gate.open()
    assert caught.value.actor == graph.plan.label(f"a{dead}")
    graph.teardown()
    others = [each for _, each in actors.values() if each is not victim]
    assert_nothing_left(others)
    with compile_echo(others[0]) as again:
        assert rcg.get(again.execute("still"), timeout=GUARD_S) == "still"
