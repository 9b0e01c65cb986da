# SPDX-License-Identifier: Apache-2.0
"""Every kind of death at every moment of a rendezvous, in graphs whose tensors travel over Gloo.

A cell is one death that hits a graph of each shape in which the victim comes to that moment. The
survivors wait in different places then: for a frame, for a status, and inside the communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import ray

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError
from tests.cluster.faults import (
    KINDS,
    LIVES,
    NOTHING,
    Fate,
    Victims,
    check_ended,
    leaving_nothing,
    slay,
    until_driver_waits,
)
from tests.cluster.stage import in_thread
from tests.cluster.test_fault_matrix import check_broken, compile_all, getters
from tests.harness.circles import core_has, core_where
from tests.harness.peers import noted

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

# Elements: from a tensor that fits into the buffer of a socket to one that does not.
INPUTS = (10, 4_000_000, 1000)


def over_gloo(node: Any) -> Any:
    return node.with_tensor_transport(transport="gloo")


def edge_in(victim: Any, one: Any, two: Any, x: Any) -> Any:
    return victim.sum.bind(over_gloo(one.full.bind(x)))


def edge_out(victim: Any, one: Any, two: Any, x: Any) -> Any:
    return one.sum.bind(over_gloo(victim.full.bind(x)))


def chain(victim: Any, one: Any, two: Any, x: Any) -> Any:
    middle = victim.tripled.bind(over_gloo(one.full.bind(x)))
    return two.sum.bind(over_gloo(middle))


def broadcast_in(victim: Any, one: Any, two: Any, x: Any) -> Any:
    value = over_gloo(one.full.bind(x))
    return MultiOutputNode([victim.sum.bind(value), two.sum.bind(value)])


def broadcast_out(victim: Any, one: Any, two: Any, x: Any) -> Any:
    value = over_gloo(victim.full.bind(x))
    return MultiOutputNode([one.sum.bind(value), two.sum.bind(value)])


def allreduce(victim: Any, one: Any, two: Any, x: Any) -> Any:
    actors = one, victim, two
    found = collective.allreduce.bind([each.full.bind(x) for each in actors])
    return MultiOutputNode(
        [each.sum.bind(value) for each, value in zip(actors, found, strict=True)]
    )


def collective_and_edge(victim: Any, one: Any, two: Any, x: Any) -> Any:
    """Two groups that overlap, and an edge from one to the other."""
    first = collective.allgather.bind([one.full.bind(x), victim.full.bind(x)])
    moved = two.tripled.bind(over_gloo(victim.tripled.bind(first[1])))
    second = collective.allreduce.bind([first[0], moved])
    return MultiOutputNode([one.sum.bind(second[0]), two.sum.bind(second[1])])


SHAPES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(edge_in, edge_out, chain, broadcast_in, broadcast_out),
        *(allreduce, collective_and_edge),
    )
}
# Those that a replacement takes part in: together they have every kind of rendezvous.
AGAIN = ("broadcast_out", "collective_and_edge")
# What each shape makes of an input.
RESULTS: dict[str, Callable[[int], Any]] = {
    "edge_in": float,
    "edge_out": float,
    "chain": lambda n: 3.0 * n,
    "broadcast_in": lambda n: [1.0 * n] * 2,
    "broadcast_out": lambda n: [1.0 * n] * 2,
    "allreduce": lambda n: [3.0 * n] * 3,
    "collective_and_edge": lambda n: [20.0 * n] * 2,
}
# At each moment: the shapes in which the victim comes to it, and what the recorder has seen last.
READS = ("edge_in", "chain", "broadcast_in")
WRITES = ("edge_out", "chain", "broadcast_out", "collective_and_edge")
COLLECTIVES = ("allreduce", "collective_and_edge")
MOMENTS = {
    "tensor read": (READS, ""),
    "tensor write": (WRITES, r"in Mortal\.\w+ \(execution 1\), bound at "),
    "collective": (COLLECTIVES, r"in Mortal\.full \(execution 1\), bound at "),
    "status": (COLLECTIVES, r"in all(gather|reduce) \(execution 1\), bound at "),
    "transfer": (tuple(SHAPES), r"(in all(gather|reduce)|reading|sending) .*\(execution 1\)"),
}

# The kinds, and two of an actor whose transfers have a lane of their own.
WAYS = (*KINDS, "kill -9 of a lane", "exit of a lane")
IN_CORE = list(zip(MOMENTS, WAYS, strict=False))[::2]


@pytest.fixture(scope="module")
def victims(ray_session: None) -> Victims:
    return Victims(has_torch=True)


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
    for shape, dag in bind_all(AGAIN, replacement, survivors).items():
        with noted(f"{shape}, with a replacement"), dag.experimental_compile() as graph:
            found = [rcg.get(ref) for ref in [graph.execute(x) for x in INPUTS]]
            assert found == [RESULTS[shape](x) for x in INPUTS]
    victims.give_back(replacement)


def bind_all(shapes: Any, victim: Any, survivors: list[Any]) -> dict[str, Any]:
    bound = {}
    for shape in shapes:
        with InputNode() as inp:
            bound[shape] = SHAPES[shape](victim, *survivors, inp)
    return bound


@pytest.mark.parametrize(
    ("moment", "way"), core_where(IN_CORE.__contains__, product(MOMENTS, WAYS))
)
def test_a_death_in_a_rendezvous_ends_its_graphs_and_nothing_else(
    victims, survivors, gate, moment, way
):
    kind, overlap = way.removesuffix(" of a lane"), way.endswith(" of a lane")
    victim = victims.take()
    shapes, last_op = MOMENTS[moment]
    last_op = "" if overlap else last_op  # of several lanes, in any of their ops
    pid = rcg.get(victim.expect.remote(Fate(moment, kind, gate, 1)))
    graphs = compile_all(bind_all(shapes, victim, survivors), overlap=overlap)
    refs: dict[str, list[Any]] = {shape: [] for shape in graphs}
    fetched = {shape: graph.execute(INPUTS[0]) for shape, graph in graphs.items()}
    for shape, ref in fetched.items():
        assert rcg.get(ref) == RESULTS[shape](INPUTS[0])
    for x in INPUTS[1:]:
        for shape, graph in graphs.items():
            refs[shape].append(graph.execute(x))
    gate.wait_for(len(graphs))
    waiting = {shape: getters(refs[shape]) for shape in graphs}
    for graph in graphs.values():
        until_driver_waits(graph)
    slay(kind, victim, pid, gate)
    for shape, graph in graphs.items():
        with noted(shape):
            check_broken(graph, waiting[shape], refs[shape], last_op)
            assert rcg.get(fetched[shape]) == RESULTS[shape](INPUTS[0])
            assert rcg.get([each.echo.remote(shape) for each in survivors]) == [shape, shape]
    # The survivors' loops ended with the victim: that is not left to teardown.
    check_ended(survivors)
    for graph in graphs.values():
        graph.teardown()
    assert rcg.get([each.sum.remote() for each in survivors]) == [0, 0]


@pytest.mark.parametrize("kind", core_has("kill -9", KINDS))
def test_a_death_before_the_groups_are_open_is_raised_by_compile(
    victims, survivors, gate, kind, caplog
):
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("groups", kind, gate)))
    dags = bind_all(SHAPES, victim, survivors)
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
    # What the others had built of their groups is gone, without anybody's teardown.
    assert rcg.get([each.settle.remote() for each in survivors]) == [NOTHING, NOTHING]
    assert "teardown" not in caplog.text


@pytest.mark.full
def test_a_death_elsewhere_ends_a_transfer_between_two_that_live(victims, survivors, gates):
    """One of them waits inside Gloo for the other, which does not come yet."""
    one, two = survivors
    held, dies = victims.take(), victims.take()
    at_transfer, at_read = gates(), gates()
    rcg.get(held.expect.remote(Fate("transfer", LIVES, at_transfer)))
    pid = rcg.get(dies.expect.remote(Fate("read", "kill -9", at_read)))
    with InputNode() as inp:
        moved = held.sum.bind(over_gloo(one.full.bind(inp)))
        dag = MultiOutputNode([moved, dies.first.bind(two.double.bind(inp))])
    graph = dag.experimental_compile()
    refs = graph.execute(10)
    at_transfer.wait_for()
    at_read.wait_for()
    slay("kill -9", dies, pid, at_read)
    check_ended(survivors)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            rcg.get(ref)
    at_transfer.open()
    check_ended([held])
    graph.teardown()
    rcg.get(held.expect.remote(None))
    victims.give_back(held)
