# SPDX-License-Identifier: Apache-2.0
"""Graphs that end while their actors are in a rendezvous, for other reasons than a death.

A member holds at a gate before it enters the communicator (``Fate``), or is stopped by SIGSTOP; the
others wait for it inside Gloo, where poison does not reach. Their loops must end all the same.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ChannelClosed, ChannelTimeout
from tests.cluster.faults import (
    LIVES,
    Fate,
    Victims,
    check_ended,
    heard_without,
    leaving_nothing,
)
from tests.cluster.stage import in_thread, until
from tests.cluster.test_fault_matrix import compile_all
from tests.cluster.test_fault_matrix_tensors import (
    INPUTS,
    RESULTS,
    SHAPES,
    allreduce,
    bind_all,
    over_gloo,
)
from tests.harness.peers import noted, suspend

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def victims(ray_session: None) -> Victims:
    return Victims(has_torch=True)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, survivors: list[Any]) -> Iterator[None]:
    with leaving_nothing(request.session, survivors):
        yield


def held_in_transfer(victims: Victims, survivors: list[Any], gate: Any, **options: Any) -> Any:
    """Graphs of every shape whose victim stands before the communicator, others inside it."""
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("transfer", LIVES, gate, 1)))
    graphs = compile_all(bind_all(SHAPES, victim, survivors), **options)
    for shape, graph in graphs.items():
        assert rcg.get(graph.execute(INPUTS[0])) == RESULTS[shape](INPUTS[0])
    refs = {shape: graph.execute(INPUTS[1]) for shape, graph in graphs.items()}
    gate.wait_for(len(graphs))
    return victim, pid, graphs, refs


# --- teardown


@pytest.mark.full
@pytest.mark.parametrize("state", ["held", "stopped"])
def test_teardown_ends_pending_transfers(victims, survivors, gate, state):
    """Those of the survivors soon; the member that holds them up ends when it can."""
    victim, pid, graphs, refs = held_in_transfer(victims, survivors, gate, teardown_timeout=None)
    hear = survivors
    if state == "stopped":
        hear = heard_without(victim, survivors)
        suspend(pid)
    ends = {shape: in_thread(graph.teardown) for shape, graph in graphs.items()}
    check_ended(hear)
    for shape, ref in refs.items():
        with noted(shape), pytest.raises(ChannelClosed):
            rcg.get(ref)
    gate.open()
    if state == "stopped":
        os.kill(pid, signal.SIGCONT)
    for end in ends.values():
        end()
    check_ended([victim, *survivors])
    rcg.get(victim.expect.remote(None))
    victims.give_back(victim)


@pytest.mark.full
@pytest.mark.parametrize("shape", ["broadcast_out", "allreduce", "collective_and_edge"])
def test_teardown_while_large_tensors_move_leaves_nothing(victims, survivors, shape):
    """Executions are in flight, and nobody waits for them."""
    victim = victims.take()
    rcg.get(victim.expect.remote(None))
    for _ in range(4):
        with InputNode() as inp:
            graph = SHAPES[shape](victim, *survivors, inp).experimental_compile()
        refs = [graph.execute(12_000_000) for _ in range(4)]
        rcg.get(refs[0])
        graph.teardown()
        check_ended([*survivors, victim])
    victims.give_back(victim)


@pytest.mark.full
def test_teardown_while_a_member_never_comes_to_the_rendezvous(victims, survivors, gates):
    """It is in its method: the others wait for its frame or status, or already in the op before."""
    one, two = survivors
    gate, victim = gates(), victims.take()
    rcg.get(victim.expect.remote(None))
    with InputNode() as inp:
        edge = one.sum.bind(over_gloo(victim.full_held.bind(inp, gate)))
    with InputNode() as inp:
        values = [one.full.bind(inp), victim.full_held.bind(inp, gate), two.full.bind(inp)]
        found = rcg.collective.allreduce.bind(values)
        group = MultiOutputNode([one.sum.bind(found[0]), two.sum.bind(found[2])])
    graphs = [dag.experimental_compile(concurrent=True) for dag in (edge, group)]
    refs = [graph.execute(10) for graph in graphs]
    gate.wait_for(len(graphs))
    ends = [in_thread(graph.teardown) for graph in graphs]
    check_ended(survivors)
    for ref in (refs[0], *refs[1]):
        with pytest.raises(ChannelClosed):
            rcg.get(ref)
    gate.open()
    for end in ends:
        end()
    check_ended([victim])
    victims.give_back(victim)


# --- stopped, not dead


@pytest.mark.full
def test_a_stopped_member_is_not_dead_and_the_report_says_who_waits(victims, survivors, gate):
    victim, pid, graphs, refs = held_in_transfer(victims, survivors, gate)
    suspend(pid)
    gate.open()
    for shape, ref in refs.items():
        with noted(shape):
            with pytest.raises(ChannelTimeout) as raised:
                rcg.get(ref, timeout=0.05)
            assert "Mortal" in str(raised.value.report)
    os.kill(pid, signal.SIGCONT)
    for shape, ref in refs.items():
        with noted(shape):
            assert rcg.get(ref) == RESULTS[shape](INPUTS[1])
            assert rcg.get(graphs[shape].execute(INPUTS[2])) == RESULTS[shape](INPUTS[2])
    for graph in graphs.values():
        graph.teardown()
    rcg.get(victim.expect.remote(None))
    victims.give_back(victim)


# --- compile


@pytest.mark.full
def test_compile_names_the_actor_that_does_not_come_and_leaves_no_half_built_group(
    victims, survivors, gates
):
    """Before it is asked, before it starts, and before it opens its groups."""
    for moment in ("inspect", "start", "groups"):
        gate, victim = gates(), victims.take()
        rcg.get(victim.expect.remote(Fate(moment, LIVES, gate)))
        with InputNode() as inp:
            dag = allreduce(victim, *survivors, inp)
        with noted(moment):
            compiling = in_thread(lambda dag=dag: dag.experimental_compile(timeout=1))
            gate.wait_for()
            with pytest.raises(ChannelTimeout, match=r"waited 1 s.*\(Mortal|Mortal") as raised:
                compiling()
            assert "Mortal" in str(raised.value)
            check_ended(survivors)
            gate.open()
            check_ended([victim])
            rcg.get(victim.expect.remote(None))
            with dag.experimental_compile() as graph:
                assert rcg.get(graph.execute(5)) == [15.0] * 3
        victims.give_back(victim)


# --- the driver

DETACHED = """
import os, sys, threading
from tests.cluster.test_fault_matrix_tensors import INPUTS, RESULTS, SHAPES

one, two, victim = (
    ray.get_actor(name, namespace="rendezvous") for name in ("one", "two", "victim")
)
graphs = {}
for shape in sys.argv[1:]:
    with InputNode() as inp:
        graphs[shape] = SHAPES[shape](victim, one, two, inp).experimental_compile()
for shape, graph in graphs.items():
    assert ray.get(graph.execute(INPUTS[0])) == RESULTS[shape](INPUTS[0])
refs = {shape: graph.execute(INPUTS[1]) for shape, graph in graphs.items()}
"""


@pytest.fixture
def detached(ray_session: None) -> Iterator[list[Any]]:
    from tests.cluster.faults import Victim

    options = {"namespace": "rendezvous", "lifetime": "detached"}
    names = ("one", "two", "victim")
    made = [Victim.options(name=name, **options).remote() for name in names]
    yield made
    for actor in made:
        rcg.kill(actor)


@pytest.mark.full
def test_loops_end_when_their_driver_is_killed_in_a_rendezvous(detached, driver, gate):
    *others, victim = detached
    rcg.get([each.full.remote(0) for each in detached])
    rcg.get(victim.expect.remote(Fate("transfer", LIVES, gate, 1)))
    program = driver(DETACHED + "signal.pause()", *SHAPES)
    gate.wait_for(len(SHAPES))
    program.kill()
    check_ended(others)
    gate.open()
    check_ended([victim])
    rcg.get(victim.expect.remote(None))
    with InputNode() as inp:
        dag = allreduce(victim, *others, inp)
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute(5)) == [15.0] * 3


DIES_MEANWHILE = """
say("all wait")
for shape, ref in refs.items():
    try:
        ray.get(ref)
    except Exception as error:
        say(type(error).__name__, str(error).partition(" It was")[0])
"""


@pytest.mark.full
def test_a_driver_that_was_suspended_while_a_member_died_tells_the_cause(detached, driver, gate):
    """The survivors' transfers fail long before it can see the death, and their loops end."""
    *others, victim = detached
    rcg.get([each.full.remote(0) for each in detached])
    pid = rcg.get(victim.expect.remote(Fate("transfer", "kill -9", gate, 1)))
    shapes = ("edge_in", "edge_out", "allreduce")  # each survivor is inside Gloo
    program = driver(DETACHED + DIES_MEANWHILE, *shapes)
    gate.wait_for(len(shapes))
    program.expect("all wait")
    # Every survivor is inside Gloo, in as many threads as its graphs have there.
    until(lambda: rcg.get([each.threads_in_gloo.remote() for each in others]) == [5, 1])
    suspend(program.pid)
    os.kill(pid, signal.SIGKILL)
    check_ended(others)
    os.kill(program.pid, signal.SIGCONT)
    for _ in shapes:
        said = program.line()
        assert re.fullmatch(r"ActorDiedError The actor a\d \(Mortal\) died unexpectedly: .*", said)
    program.finish()
