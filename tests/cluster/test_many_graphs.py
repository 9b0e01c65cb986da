# SPDX-License-Identifier: Apache-2.0
"""Many graphs, threads and programs over the same actors, under load."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import rcg
from rcg.dag import InputNode
from tests.cluster.stage import Plain, Stage, in_thread, until
from tests.soak.performer import inspect_process

pytestmark = pytest.mark.usefixtures("ray_session")

EXECUTIONS = 200


class Room:
    """Counts the calls that are inside."""

    def __init__(self):
        self.inside = 0
        self.most_inside = 0
        self.visits = []

    def visit(self, x, gate=None):
        """Come in, let others come in if they can, and leave."""
        self.inside += 1
        self.visits.append(("in", x))
        if gate is not None:
            gate.pass_through()
        for _ in range(5):
            os.sched_yield()
            self.most_inside = max(self.most_inside, self.inside)
        self.visits.append(("out", x))
        self.inside -= 1
        return x

    def seen(self):
        return self.most_inside, self.visits

    def echo(self, x):
        return x

    def inspect(self):
        return inspect_process()

    def join_threads(self, graph_id):
        return Plain.join_threads(self, graph_id)


Visited = rcg.remote(num_cpus=0)(Room)


def chain(*methods, **options):
    """Compile a graph that passes its input through these methods."""
    with InputNode() as inp:
        node = inp
        for method in methods:
            node = method.bind(node)
    return node.experimental_compile(**options)


def load(graph, expected, threads=3, executions=EXECUTIONS // 3):
    """Execute from several threads at once, some executions ahead; every result is looked at."""

    def work(number):
        pending = []
        for i in range(executions):
            x = 1000 * number + i
            pending.append((x, graph.execute(x)))
            if len(pending) > i % 7:
                x, ref = pending.pop(0)
                assert rcg.get(ref) == expected(x)
        for x, ref in reversed(pending):
            assert rcg.get(ref) == expected(x)

    for end in [in_thread(lambda number=number: work(number)) for number in range(threads)]:
        end()


def load_all(graphs, expected):
    """``load`` on several graphs at once."""
    for end in [
        in_thread(lambda graph=graph, value=value: load(graph, value, threads=2))
        for graph, value in zip(graphs, expected, strict=True)
    ]:
        end()


def tear_down(graphs):
    for graph in graphs:
        graph.teardown()


# --- the lock around a call


def test_a_method_that_is_held_keeps_all_other_graphs_out(gate):
    """They have come to the call, and wait there: their reports say so."""
    actor = Visited.remote()
    with InputNode() as inp:
        held = actor.visit.bind(inp, gate).experimental_compile()
    others = [chain(actor.visit) for _ in range(3)]
    first = held.execute("held")
    gate.wait_for()
    refs = [graph.execute(i) for i, graph in enumerate(others)]
    until(lambda: all("visit" in str(graph.report()) for graph in others))
    gate.open()
    assert rcg.get([first, *refs]) == ["held", 0, 1, 2]
    most, visits = rcg.get(actor.seen.remote())
    assert most == 1
    assert visits[:2] == [("in", "held"), ("out", "held")]
    tear_down([held, *others])


def test_opposite_orders_with_both_first_methods_held_do_not_deadlock(stages, gates):
    """A's first and B's first are inside at once, and each has the other actor before it."""
    a, b = stages(2)
    first, second = gates(), gates()
    graphs = []
    for here, there, gate in ((a, b, first), (b, a, second)):
        with InputNode() as inp:
            dag = there.double.bind(here.pass_gate_when.bind(inp, 1, gate))
        graphs.append(dag.experimental_compile())
    refs = [graph.execute(1) for graph in graphs]
    first.wait_for()
    second.wait_for()
    more = [[graph.execute(i) for i in range(2, 8)] for graph in graphs]
    first.open()
    second.open()
    assert rcg.get(refs) == [2, 2]
    assert [rcg.get(each) for each in more] == [[2 * i for i in range(2, 8)]] * 2
    tear_down(graphs)


# --- kinds of actors, and ordinary calls beside


@pytest.mark.full
def test_a_main_thread_graph_beside_others_on_other_actors(stages):
    a, b = stages(2)
    mine = Stage.remote()
    graphs = [chain(mine.thread, thread="main"), chain(a.double, b.double), chain(b.double, a.echo)]
    assert rcg.get(graphs[0].execute(0)) == "MainThread"
    load_all(graphs, [lambda _: "MainThread", lambda x: 4 * x, lambda x: 2 * x])
    # It is not there for calls until it is torn down, and the others are.
    waiting = mine.echo.remote("later")
    assert rcg.get([a.echo.remote(1), b.echo.remote(2)]) == [1, 2]
    assert rcg.wait([waiting], timeout=0) == ([], [waiting])
    tear_down(graphs)
    assert rcg.get(waiting) == "later"


@pytest.mark.full
def test_threads_that_compile_and_tear_down_disturb_nobody(stages):
    """One graph is under load all the time, on the same actors."""
    a, b = stages(2)
    is_over = threading.Event()

    def come_and_go(one, two):
        rounds = 0
        while not is_over.is_set() or rounds < 3:
            with chain(one.double, two.double) as graph:
                assert rcg.get([graph.execute(i) for i in range(5)]) == [4 * i for i in range(5)]
            rounds += 1

    with chain(a.double, b.echo) as graph:
        others = [in_thread(lambda: come_and_go(a, b)), in_thread(lambda: come_and_go(b, a))]
        load(graph, lambda x: 2 * x, executions=500)
        is_over.set()
        for end in others:
            end()


# --- again and again


@pytest.mark.full
def test_a_thousand_compiles_leave_everything_flat():
    """Threads, files, shared memory and resident memory, of the driver and of both actors.

    A compile takes about 12 ms on a quiet machine, most of it the two calls to each actor.
    """
    a, b = Visited.remote(), Visited.remote()
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))

    def inspect():
        return [inspect_process(), *rcg.get([a.inspect.remote(), b.inspect.remote()])]

    def run(times):
        array = np.arange(10_000)  # so that every arena is used
        for i in range(times):
            graph = dag.experimental_compile()
            assert rcg.get(graph.execute(array))[-1] == 9_999
            graph.teardown()
            if i % 50 == 49:
                joined = [actor.join_threads.remote(graph.get_id()) for actor in (a, b)]
                assert rcg.get(joined) == [[], []]

    run(100)
    before = inspect()
    run(1000)
    for was, now in zip(before, inspect(), strict=True):
        assert now["segments"] <= was["segments"]
        # Ray's own threads, sockets and caches come and go; a thousand graphs would show.
        assert now["threads"] <= was["threads"] + 10
        assert now["files"] <= was["files"] + 20
        assert now["resident_mb"] <= was["resident_mb"] + 30


LARGE_CAP = 16 << 30  # nothing of it is taken before it is needed, but addresses for it are


@pytest.mark.full
def test_a_hundred_graphs_live_at_once(stages):
    a, b = stages(2)
    graphs = []
    try:
        for _ in range(100):
            graphs.append(chain(a.double, b.double, memory_cap_bytes=LARGE_CAP))
        refs = [graph.execute(i) for i, graph in enumerate(graphs)]
        assert rcg.get(refs) == [4 * i for i in range(100)]
        # One thread and one socket hear the members of all of them.
        assert control_threads() == listening_sockets() == 1
    finally:
        tear_down(graphs)
    assert control_threads() == listening_sockets() == 0


def control_threads():
    return sum(thread.name == "rcg-control" for thread in threading.enumerate())


def listening_sockets():
    rows = map(str.split, Path("/proc/net/unix").read_text().splitlines())
    own = f"@rcg-{os.getpid()}-"
    return sum(row[3] == "00010000" and row[-1].startswith(own) for row in rows)


# --- several programs

PROGRAM = """
import sys
from tests.cluster.stage import Passage
gate = Passage(*sys.argv[1:3])
number, forever = int(sys.argv[3]), sys.argv[4] == "forever"
actors = [ray.get_actor(name, namespace="many") for name in ("one", "two")]
if number % 2:
    actors.reverse()
a, b = actors
with InputNode() as inp:
    dag = MultiOutputNode([b.double.bind(a.double.bind(inp)), a.echo.bind(inp)])
graph = dag.experimental_compile()
gate.pass_through()
turn = 0
while forever or turn < 50:
    values = [10_000 * number + 10 * turn + i for i in range(10)]
    refs = [graph.execute(value) for value in values]
    assert [ray.get(pair) for pair in refs] == [[4 * value, value] for value in values]
    if turn == 20:
        say("in the middle")
    turn += 1
graph.teardown()
say("done")
"""


@pytest.fixture
def detached(ray_session):
    actors = [
        Stage.options(name=name, namespace="many", lifetime="detached").remote()
        for name in ("one", "two")
    ]
    yield actors
    for actor in actors:
        rcg.kill(actor)


@pytest.mark.full
def test_programs_use_the_same_actors_at_once(driver, gate, detached):
    """Two that finish, in opposite orders, one that is killed in the middle, and this one."""
    programs = [
        driver(PROGRAM, *gate.paths, number, "forever" if number == 2 else "once")
        for number in range(3)
    ]
    gate.wait_for(3)
    gate.open()
    with chain(detached[0].double, detached[1].echo) as graph:
        programs[2].expect("in the middle")
        programs[2].kill()
        load(graph, lambda x: 2 * x)
    for program in programs[:2]:
        program.expect("in the middle", "done")
        program.finish()
    with chain(detached[1].double, detached[0].echo) as graph:
        load(graph, lambda x: 2 * x)
