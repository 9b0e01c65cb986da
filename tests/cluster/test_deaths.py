# SPDX-License-Identifier: Apache-2.0
"""Deaths beside the matrix: which processes notice, what goes on, and what is no death."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

import rcg
from benchmarks.failures import measure_failures, measure_transfer_deaths
from rcg.bench.contestants import RcgGraph
from rcg.bench.record import RCG
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelTimeout
from tests.cluster.faults import (
    LIVES,
    NOTHING,
    Fate,
    Victim,
    check_ended,
    leaving_nothing,
    slay,
    until_driver_waits,
    until_seen,
)
from tests.cluster.nodes import near_driver
from tests.cluster.stage import GUARD_S, awaited, in_thread, mapped_by, segments_of, until
from tests.harness.circles import core_has
from tests.harness.peers import noted, suspend

pytestmark = pytest.mark.usefixtures("ray_session")

SOON_S = 0.05
MEGABYTES = 1_000_000  # float64: eight of them


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, survivors: list[Any]) -> Iterator[None]:
    with leaving_nothing(request.session, survivors):
        yield


def chain(victim, survivors, **options):
    one, two = survivors
    with InputNode() as inp:
        dag = two.double.bind(victim.first.bind(one.echo.bind(inp)))
    return dag.experimental_compile(**options)


def claimed_bytes(graph):
    """The bytes of the driver's own blocks that any process holds."""
    return graph._engine.session.node.memory().claimed_bytes


def raises_death(call):
    with pytest.raises(ActorDiedError) as raised:
        call()
    assert isinstance(raised.value, ray.exceptions.ActorDiedError)
    assert "Mortal" in str(raised.value)


# --- who notices


@pytest.mark.full
@pytest.mark.parametrize("use", ["teardown", "report", "statistics"])
def test_who_hears_of_a_death_may_use_the_graph(victims, survivors, gate, use):
    """On the thread that receives the news, where a ``__del__`` may run as well."""
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(None))
    graph = chain(victim, survivors)
    used = []
    graph.on_broken(lambda: used.append(getattr(graph, use)()))
    graph.check_health()
    os.kill(pid, signal.SIGKILL)
    until(lambda: used)
    if use != "teardown":
        raises_death(graph.check_health)
    graph.teardown()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kill -9", "exit"])
def test_a_child_of_the_dead_does_not_hide_its_death(victims, survivors, gate, kind):
    """The child inherits every socket and all memory, and sleeps for ever."""
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", kind, gate)))
    graph = chain(victim, survivors)
    waiting = in_thread(lambda: rcg.get(graph.execute(1)))
    gate.wait_for()
    until_driver_waits(graph)
    child = rcg.get(victim.leave_child.remote())
    try:
        slay(kind, victim, pid, gate)
        raises_death(waiting)
        check_ended(survivors)
        graph.teardown()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_death_is_noticed_where_processes_cannot_be_watched(
    victims, survivors, gate, monkeypatch
):
    """Without pidfd the end of the connection reports the death, as in some containers."""

    def pidfd_open(pid, flags=0):
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", "kill -9", gate)))
    graph = chain(victim, survivors)
    waiting = in_thread(lambda: rcg.get(graph.execute(1)))
    gate.wait_for()
    slay("kill -9", victim, pid, gate)
    raises_death(waiting)
    graph.teardown()


def test_every_way_to_wait_notices(victims, survivors, gate):
    """Whatever the policy of the loops, with the recorder and without."""
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", "kill -9", gate)))
    options: list[dict[str, Any]] = [{"wait": w} for w in ("auto", "futex", "yield", "spin")]
    options.append({"record": False})
    graphs = [chain(victim, survivors, concurrent=True, **each) for each in options]
    waiting = [in_thread(lambda graph=graph: rcg.get(graph.execute(1))) for graph in graphs]
    gate.wait_for(len(graphs))
    slay("kill -9", victim, pid, gate)
    for each, graph, result in zip(options, graphs, waiting, strict=True):
        with noted(str(each)):
            raises_death(result)
            graph.teardown()


def test_everybody_who_waits_learns_of_it(victims, survivors, gate):
    """Threads that get, with and without a limit; wait; tasks that await; all ways to execute."""
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", "kill -9", gate)))
    graph, other = chain(victim, survivors), chain(victims.take(), survivors)
    refs = [graph.execute(i) for i in range(10)]
    gate.wait_for()

    async def await_all():
        awaits = [awaited(ref) for ref in refs for _ in range(2)]
        submits = [graph.execute_async(i) for i in range(10)]
        outcomes = await asyncio.gather(*awaits, *submits, return_exceptions=True)
        # The event loop is as good as before.
        assert await (await other.execute_async(1)) == 4
        return outcomes

    gets = [in_thread(lambda ref=ref: rcg.get(ref)) for ref in refs for _ in range(2)]
    gets += [
        in_thread(lambda: rcg.get(refs[3], timeout=GUARD_S)),
        in_thread(lambda: refs[3].get()),
        in_thread(lambda: rcg.get(refs)),
        in_thread(lambda: rcg.get([rcg.put(1), refs[0]])),
        in_thread(lambda: rcg.get([refs[0], survivors[0].hold_gate.remote(gate)])),
        in_thread(lambda: graph.execute(10)),
    ]
    # In two event loops at once.
    coroutines = [in_thread(lambda: asyncio.run(await_all())) for _ in range(2)]
    one = in_thread(lambda: rcg.wait(refs, num_returns=1))
    every = in_thread(lambda: rcg.wait(refs, num_returns=len(refs)))
    gate.wait_for()  # the ordinary call
    until_driver_waits(graph)
    slay("kill -9", victim, pid, gate)
    for result in gets:
        raises_death(result)
    for result in coroutines:
        outcomes = result()
        assert len(outcomes) == 30
        assert {type(outcome) for outcome in outcomes} == {ActorDiedError}
    assert [len(part) for part in one()] == [1, 9]
    assert every() == (refs, [])
    gate.open()
    graph.teardown()
    other.teardown()


def test_a_death_ends_a_compile_that_waits_for_somebody_else(victims, survivors, gates):
    """The dead actor had answered already; the other one may never answer."""
    victim, slow = victims.take(), victims.take()
    at_read, at_start = gates(), gates()
    pid = rcg.get(victim.expect.remote(Fate("read", "kill -9", at_read)))
    rcg.get(slow.expect.remote(Fate("start", LIVES, at_start)))
    with InputNode() as inp:
        dag = slow.second.bind(victim.first.bind(survivors[0].echo.bind(inp)))
    compiling = in_thread(dag.experimental_compile)
    at_start.wait_for()
    at_read.wait_for()
    rcg.get(victim.pid.remote())  # what was called before has been answered too
    slay("kill -9", victim, pid, at_read)
    raises_death(compiling)
    check_ended(survivors[:1])
    at_start.open()
    assert rcg.get(slow.settle.remote()) == NOTHING
    rcg.get(slow.expect.remote(None))
    victims.give_back(slow)


@pytest.mark.full
@pytest.mark.parametrize("moment", ["start", "read", "method"])
def test_a_loop_on_the_main_thread_dies_like_any_other(victims, survivors, gate, moment):
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate(moment, "kill -9", gate)))
    with InputNode() as inp:
        dag = victim.second.bind(victim.first.bind(inp))
    compiling = in_thread(lambda: dag.experimental_compile(thread="main"))
    if moment == "start":
        gate.wait_for()
        slay("kill -9", victim, pid, gate)
        raises_death(compiling)
        return
    graph = compiling()
    waiting = in_thread(lambda: rcg.get(graph.execute(1)))
    gate.wait_for()
    slay("kill -9", victim, pid, gate)
    raises_death(waiting)
    graph.teardown()


@pytest.mark.full
def test_the_bench_times_deaths_and_sees_the_survivors_answer(ray_session):
    figures = measure_failures({RCG: RcgGraph(RCG, "auto")}, kills=2)
    assert [figure.name for figure in figures] == ["kill-9", "ray.kill"]
    for figure in figures:
        assert 0 < figure.values[RCG] <= figure.values[f"{RCG}, longest"]
        [verdict] = figure.verdicts
        assert verdict.found == figure.values[f"{RCG}, longest"]


@pytest.mark.full
def test_the_bench_times_deaths_in_transfers(ray_session):
    pytest.importorskip("torch")
    figure = measure_transfer_deaths(RcgGraph(RCG, "auto"), kills=2)
    assert 0 < figure.values[RCG] <= figure.values[f"{RCG}, longest"]
    [verdict] = figure.verdicts
    assert verdict.found == figure.values[f"{RCG}, longest"]


# --- what goes on


def test_only_the_graphs_of_the_dead_end(victims, survivors, gates):
    """A graph of the survivors that runs meanwhile loses nothing."""
    one, two = survivors
    victim, at_method, held = victims.take(), gates(), gates()
    with InputNode() as inp:
        other = two.echo.bind(one.pass_gate_when.bind(inp, 0, held)).experimental_compile()
    pid = rcg.get(victim.expect.remote(Fate("method", "kill -9", at_method)))
    with InputNode() as inp:
        scatter = MultiOutputNode([victim.first.bind(inp), two.echo.bind(inp)])
    graphs = [scatter.experimental_compile(concurrent=True), chain(victim, survivors[::-1])]
    refs = [other.execute(i) for i in range(5)]
    held.wait_for()
    waiting = [in_thread(lambda: rcg.get(graphs[0].execute(1)))]
    at_method.wait_for()
    slay("kill -9", victim, pid, at_method)
    raises_death(waiting[0])
    until(lambda: graphs[1]._engine.session.is_broken)
    raises_death(lambda: graphs[1].execute(1))
    held.open()
    assert rcg.get(refs) == list(range(5))
    for i in range(100):
        value = rcg.get(other.execute(np.full(10_000, i)))
        assert value[0] == value[-1] == i
    for graph in (*graphs, other):
        graph.teardown()


@pytest.mark.parametrize("kind", core_has("ray.kill", ["kill -9", "ray.kill"]))
def test_an_actor_that_restarts_is_dead_to_its_graph_and_may_join_another(survivors, gate, kind):
    victim = Victim.options(max_restarts=1).remote()
    pid = rcg.get(victim.expect.remote(Fate("method", kind, gate)))
    graph = chain(victim, survivors)
    waiting = in_thread(lambda: rcg.get(graph.execute(1)))
    gate.wait_for()
    if kind == "kill -9":
        slay(kind, victim, pid, gate)
    else:
        rcg.kill(victim, no_restart=False)
    raises_death(waiting)
    raises_death(lambda: graph.execute(1))
    graph.teardown()
    with chain(victim, survivors) as again:
        assert rcg.get(again.execute(1)) == 4
    rcg.kill(victim)


# --- several deaths, memory of the dead


def test_what_the_dead_had_not_read_or_still_held_goes_back_to_its_writer(survivors, gates):
    """For every actor that dies, not only the first; here they read from the driver."""
    both, moment = [near_driver(Victim).remote() for _ in range(2)], gates()
    pids = rcg.get([victim.expect.remote(Fate("next", "kill -9", moment)) for victim in both])
    with InputNode() as inp:
        # Each holds the first array, and the others wait to be read.
        kept = [victim.keep.bind(inp) for victim in both]
        dag = MultiOutputNode([*kept, survivors[0].double.bind(inp)])
    graph = dag.experimental_compile()
    before = claimed_bytes(graph)
    refs = [graph.execute(np.full(MEGABYTES, i)) for i in range(3)]
    assert rcg.get(refs[0][:2]) == [1, 1]
    moment.wait_for(2)
    results = [rcg.get(run[2]) for run in refs]
    assert claimed_bytes(graph) >= before + 3 * 8 * MEGABYTES
    for victim, pid in zip(both, pids, strict=True):
        slay("kill -9", victim, pid, moment)
        raises_death(lambda: rcg.get(refs[1][0]))
    until(lambda: claimed_bytes(graph) == before)
    graph.teardown()
    # The results lie in blocks of the survivor's, which outlive the graph.
    assert [result[-1] for result in results] == [0, 2, 4]


# --- what is no death


def test_a_stopped_process_is_not_dead(victims, survivors, gates):
    victim, gate = victims.take(), gates()
    pid = rcg.get(victim.expect.remote(Fate("method", LIVES, gate)))
    with chain(victim, survivors) as graph:
        ref = graph.execute(1)
        gate.wait_for()
        until_seen(graph, "Mortal", "first")
        suspend(pid)
        gate.open()
        with pytest.raises(ChannelTimeout) as raised:
            rcg.get(ref, timeout=SOON_S)
        assert "Mortal" in str(raised.value.report)
        assert "first" in str(raised.value.report)
        os.kill(pid, signal.SIGCONT)
        assert rcg.get(ref) == 4
        assert rcg.get(graph.execute(2)) == 6
    rcg.get(victim.expect.remote(None))
    victims.give_back(victim)


@pytest.mark.full
def test_a_stopped_process_can_be_killed(victims, survivors, gate):
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("method", "kill -9", gate)))
    graph = chain(victim, survivors)
    ref = graph.execute(1)
    gate.wait_for()
    suspend(pid)
    waiting = in_thread(lambda: rcg.get(ref))
    slay("kill -9", victim, pid, gate)
    raises_death(waiting)
    graph.teardown()


# --- the driver dies

DRIVER = """
import os, sys, threading
from tests.cluster.faults import Fate
from tests.cluster.stage import Passage

gate = Passage(*sys.argv[1:3])
one, two = (ray.get_actor(name, namespace="deaths") for name in ("one", "two"))
with InputNode() as inp:
    held = two.echo.bind(one.pass_gate_when.bind(inp, 0, gate)).experimental_compile()
with InputNode() as inp:
    idle = MultiOutputNode([two.echo.bind(one.echo.bind(inp)), one.echo.bind(inp)])
    idle = idle.experimental_compile()
ray.get(idle.execute(1))
ref = held.execute(0)
threading.Thread(target=lambda: ray.get(ref), daemon=True).start()
"""

LEAVES_A_CHILD = """
child = os.fork()
if not child:
    signal.pause()
say(child)
signal.pause()
"""

COMPILES = """
with InputNode() as inp:
    dag = two.second.bind(one.echo.bind(inp))
dag.experimental_compile()
"""


@pytest.fixture
def detached(ray_session: None) -> Iterator[list[Any]]:
    options = {"namespace": "deaths", "lifetime": "detached"}
    made = [Victim.options(name=name, **options).remote() for name in ("one", "two")]
    yield made
    for actor in made:
        rcg.kill(actor)


def test_loops_end_with_a_driver_whose_child_lives_on(detached, driver, gate):
    """The child has the driver's sockets; one loop waits for an actor, not for the driver."""
    one, two = detached
    rcg.get([actor.expect.remote(None) for actor in detached])
    program = driver(DRIVER + LEAVES_A_CHILD, *gate.paths)
    gate.wait_for()
    child = int(program.line())
    try:
        segments = segments_of(program.pid)
        assert segments
        program.kill()
        # The other one is in its method until the gate is open.
        assert rcg.get(two.settle.remote()) == NOTHING
        gate.open()
        assert rcg.get(one.settle.remote()) == NOTHING
        until(lambda: set(mapped_by(segments)) <= {child})
    finally:
        os.kill(child, signal.SIGKILL)
    until(lambda: not mapped_by(segments))
    with InputNode() as inp:
        dag = two.double.bind(one.first.bind(inp))
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute(1)) == 4


@pytest.mark.full
def test_what_a_driver_had_begun_to_compile_when_it_died_ends(detached, driver, gates):
    one, two = detached
    held, gate = gates(), gates()
    held.open()
    rcg.get(one.expect.remote(None))
    source = DRIVER + "say('two graphs'); input()\n" + COMPILES
    program = driver(source, *held.paths, stdin=subprocess.PIPE)
    program.expect("two graphs")
    rcg.get(two.expect.remote(Fate("start", LIVES, gate)))
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    gate.wait_for()
    program.kill()
    program.process.stdin.close()
    assert rcg.get(one.settle.remote()) == NOTHING
    gate.open()
    assert rcg.get(two.settle.remote()) == NOTHING
