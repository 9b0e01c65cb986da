# SPDX-License-Identifier: Apache-2.0
"""Every kind of death at every moment in graphs of every shape.

A cell is one death that hits a graph of each shape at the same moment of its program: the victim
runs one loop for each. A failure names the shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError
from tests.cluster.faults import (
    KINDS,
    Fate,
    Victims,
    check_ended,
    leaving_nothing,
    slay,
    until_driver_waits,
    until_reading,
)
from tests.cluster.nodes import tells_last_op
from tests.cluster.stage import Gate, in_thread, until
from tests.harness.circles import core_has, in_turn
from tests.harness.peers import noted

pytestmark = pytest.mark.usefixtures("ray_session")

SCATTER = "scatter and gather"
INPUTS = (0, 10, 20)
# What each shape makes of an input.
RESULTS: dict[str, Callable[[int], Any]] = {
    "chain of three": lambda x: 2 * (2 * x + 1),
    SCATTER: lambda x: [2 * x, x + 1],
    "two methods": lambda x: 10 * (x + 1),
    "there and back": lambda x: 10 * 2 * (x + 1),
}


@pytest.fixture(autouse=True)
def all_is_well_afterwards(
    request: pytest.FixtureRequest, survivors: list[Any], victims: Victims
) -> Iterator[None]:
    """Nothing is left of the graphs; the survivors and a replacement make new ones."""
    failed = request.session.testsfailed
    with leaving_nothing(request.session, survivors):
        yield
    if request.session.testsfailed > failed:
        return
    replacement = victims.take()
    for shape, dag in bind_all(replacement, survivors).items():
        with noted(f"{shape}, with a replacement"), dag.experimental_compile() as graph:
            found = [rcg.get(ref) for ref in [graph.execute(x) for x in INPUTS]]
            assert found == [RESULTS[shape](x) for x in INPUTS]
    victims.give_back(replacement)


def bind_all(victim: Any, survivors: list[Any], held: Gate | None = None) -> dict[str, Any]:
    """The DAG of each shape; a survivor stops at ``held`` with what is not small."""
    one, two = survivors

    def double(node: Any) -> Any:
        return one.double.bind(node) if held is None else one.double_held.bind(node, held)

    shapes: dict[str, Callable[[Any], Any]] = {
        "chain of three": lambda x: two.double.bind(victim.first.bind(double(x))),
        SCATTER: lambda x: MultiOutputNode([double(x), victim.first.bind(x)]),
        "two methods": lambda x: victim.second.bind(victim.first.bind(x)),
        "there and back": lambda x: victim.second.bind(double(victim.first.bind(x))),
    }
    bound = {}
    for shape, bind in shapes.items():
        with InputNode() as inp:
            bound[shape] = bind(inp)
    return bound


def compile_all(dags: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {shape: dag.experimental_compile(**options) for shape, dag in dags.items()}


def check_error(error: BaseException, last_op: str) -> None:
    """The error has the class that programs catch, and names the dead actor and its last op."""
    assert isinstance(error, ray.exceptions.ActorDiedError)
    assert isinstance(error, ActorDiedError)
    text = str(error)
    assert "(Mortal)" in text and "Living" not in text
    assert tells_last_op(text, f"last seen {last_op}"), text


def check_broken(graph: Any, waiting: list[Callable[[], Any]], refs: list[Any], op: str) -> None:
    """Waiting and later calls raise the death; nothing is submitted any more."""
    for result in waiting:
        with pytest.raises(ActorDiedError) as raised:
            result()
        check_error(raised.value, op)
    for use in (*(functools.partial(rcg.get, ref) for ref in refs), lambda: graph.execute(1)):
        with pytest.raises(ActorDiedError) as raised:
            use()
        check_error(raised.value, op)


def getters(refs: list[Any]) -> list[Callable[[], Any]]:
    return [in_thread(functools.partial(rcg.get, ref)) for ref in refs]


# --- while it runs

# What the recorder has seen last, at each moment.
LAST_OPS = {
    "read": "",
    "method": r"in Mortal\.first \(execution 1\), bound at test_fault_matrix\.py:\d+\.",
    "write": r"in Mortal\.\w+ \(execution 1\), bound at test_fault_matrix\.py:\d+\.",
    "next": r"sending the result of .*\(execution 0\)\.",
}


@pytest.mark.parametrize(("moment", "kind"), in_turn(LAST_OPS, KINDS))
def test_a_death_in_the_loop_ends_its_graphs_and_nothing_else(
    victims, survivors, gate, moment, kind
):
    victim = victims.take()
    fate = Fate(moment, kind, gate, 1 if moment in ("method", "write") else 0)
    pid = rcg.get(victim.expect.remote(fate))
    graphs = compile_all(bind_all(victim, survivors), concurrent=moment == "method")
    refs: dict[str, list[Any]] = {shape: [] for shape in graphs}
    fetched = {}
    for i, x in enumerate(INPUTS):
        for shape, graph in graphs.items():
            ref = graph.execute(x)
            if moment == "read" or i > 0:
                refs[shape].append(ref)
            else:
                fetched[shape] = ref
                assert rcg.get(ref) == RESULTS[shape](x)
    gate.wait_for(len(graphs))
    waiting = {shape: getters(refs[shape]) for shape in graphs}
    for graph in graphs.values():
        until_driver_waits(graph)
    slay(kind, victim, pid, gate)
    for shape, graph in graphs.items():
        with noted(shape):
            check_broken(graph, waiting[shape], refs[shape], LAST_OPS[moment])
            if shape in fetched:
                assert rcg.get(fetched[shape]) == RESULTS[shape](INPUTS[0])
            assert rcg.get([each.echo.remote(shape) for each in survivors]) == [shape, shape]
    # The survivors' loops ended with the victim: that is not left to teardown.
    check_ended(survivors)
    for graph in graphs.values():
        graph.teardown()


@pytest.mark.parametrize("kind", core_has("ray.kill", KINDS))
def test_a_death_while_it_waits_itself_ends_its_graphs_and_nothing_else(
    victims, survivors, gates, kind
):
    """The get waits for a survivor that is in a method, and the victim has nothing to do."""
    victim, gate, unused = victims.take(), gates(), gates()
    pid = rcg.get(victim.expect.remote(None))
    graphs = compile_all(bind_all(victim, survivors, gate), concurrent=True)
    fetched = {shape: graph.execute(INPUTS[0]) for shape, graph in graphs.items()}
    for shape, ref in fetched.items():
        assert rcg.get(ref) == RESULTS[shape](INPUTS[0])
    refs = {
        shape: [] if shape == "two methods" else [graph.execute(x) for x in INPUTS[1:]]
        for shape, graph in graphs.items()
    }
    gate.wait_for(3)
    for shape, graph in graphs.items():
        until_reading(graph, "Mortal", 3 if shape == SCATTER else 1)
    waiting = {shape: getters(refs[shape]) for shape in graphs}
    for shape, graph in graphs.items():
        if waiting[shape]:
            until_driver_waits(graph)
    if kind in ("exit", "segfault"):
        victim.perish.remote(kind)
    slay(kind, victim, pid, unused)
    for shape, graph in graphs.items():
        with noted(shape):
            if not waiting[shape]:
                # No call waits for it, so the driver notices a moment later.
                until(lambda graph=graph: graph._engine.session.is_broken)
            check_broken(graph, waiting[shape], refs[shape], "reading the ")
            assert rcg.get(fetched[shape]) == RESULTS[shape](INPUTS[0])
            assert rcg.get([each.echo.remote(shape) for each in survivors]) == [shape, shape]
    gate.open()
    for graph in graphs.values():
        graph.teardown()


# --- while it starts


@pytest.mark.parametrize(("moment", "kind"), in_turn(["inspect", "start"], KINDS))
def test_a_death_during_compile_is_raised_by_compile(
    victims, survivors, gate, moment, kind, caplog
):
    victim = victims.take(threads=len(RESULTS) + 1)  # so that all of them get there
    pid = rcg.get(victim.expect.remote(Fate(moment, kind, gate)))
    dags = bind_all(victim, survivors)
    compiling = {shape: in_thread(dag.experimental_compile) for shape, dag in dags.items()}
    gate.wait_for(len(compiling))
    slay(kind, victim, pid, gate)
    for shape, result in compiling.items():
        with noted(shape):
            with pytest.raises(ActorDiedError) as raised:
                result()
            assert isinstance(raised.value, ray.exceptions.ActorDiedError)
            assert "Mortal" in str(raised.value)
    assert rcg.get([each.echo.remote(1) for each in survivors]) == [1, 1]
    # Cleaning up did not wait for the dead actor.
    assert "teardown" not in caplog.text


# --- while it ends


@pytest.mark.parametrize("kind", core_has("exit", KINDS))
def test_a_death_while_its_loops_end_does_not_disturb_teardown(
    victims, survivors, gate, kind, caplog
):
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("stop", kind, gate)))
    graphs = compile_all(bind_all(victim, survivors))
    for shape, graph in graphs.items():
        assert rcg.get(graph.execute(INPUTS[1])) == RESULTS[shape](INPUTS[1])
    ends = {shape: in_thread(graph.teardown) for shape, graph in graphs.items()}
    gate.wait_for(len(graphs))
    slay(kind, victim, pid, gate)
    for shape, end in ends.items():
        with noted(shape):
            end()
    assert rcg.get([each.echo.remote(1) for each in survivors]) == [1, 1]
    assert not caplog.records


@pytest.mark.parametrize("kind", core_has("segfault", KINDS))
def test_a_death_in_a_method_that_teardown_waits_for_ends_the_wait(victims, survivors, gate, kind):
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", kind, gate)))
    graphs = compile_all(bind_all(victim, survivors), concurrent=True, teardown_timeout=None)
    refs = {shape: graph.execute(INPUTS[1]) for shape, graph in graphs.items()}
    gate.wait_for(len(graphs))
    ends = {shape: in_thread(graph.teardown) for shape, graph in graphs.items()}
    until(lambda: all(graph.is_teardown for graph in graphs.values()))
    slay(kind, victim, pid, gate)
    for shape, end in ends.items():
        with noted(shape):
            end()
            with pytest.raises(rcg.errors.ChannelClosed):
                rcg.get(refs[shape])
    assert rcg.get([each.echo.remote(1) for each in survivors]) == [1, 1]
