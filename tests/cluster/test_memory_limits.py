# SPDX-License-Identifier: Apache-2.0
"""Graphs that may take little shared memory: nothing blocks for ever, nothing is overwritten."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import OutOfSharedMemory
from tests.cluster.stage import Refusal, in_thread, is_shared, until

pytestmark = pytest.mark.usefixtures("ray_session")

MB = 1 << 20


def numbered(i, size_bytes):
    """An array with its number in every element."""
    return np.full(size_bytes // 8, i, np.int64)


def used(graph):
    return graph._engine.session.node.memory().used_bytes


def execute_until_it_fits(graph, value):
    """Execute, again if memory was short somewhere on the way, as a patient user would."""
    while True:
        try:
            return rcg.get(graph.execute(value))
        except OutOfSharedMemory:
            gc.collect()


# --- many executions in flight


def test_many_threads_submit_large_inputs_at_the_cap(stages):
    (a,) = stages(1)
    with InputNode() as inp:
        dag = a.double.bind(inp)
    with dag.experimental_compile(memory_cap_bytes=16 * MB) as graph:

        def work(number):
            for i in range(20):
                x = 100 * number + i
                found = execute_until_it_fits(graph, numbered(x, 2 * MB))
                np.testing.assert_array_equal(found, numbered(2 * x, 2 * MB))

        for end in [in_thread(lambda number=number: work(number)) for number in range(8)]:
            end()
        assert used(graph) <= 16 * MB


# --- what is held


def test_results_held_for_ever_are_copied_above_half_the_cap_and_stay_right(stages):
    """Almost five times the cap is held while executions go on; the first need no copy."""
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.double.bind(a.double.bind(inp))
    with dag.experimental_compile(memory_cap_bytes=16 * MB) as graph:
        held = []
        for i in range(150):
            held.append(rcg.get(graph.execute(numbered(i, MB // 2))))
            assert used(graph) <= 16 * MB
        shared = [is_shared(array) for array in held]
        assert shared[0]
        assert not any(shared[-50:])
        for i, array in enumerate(held):
            np.testing.assert_array_equal(array, numbered(4 * i, MB // 2))
        # Let go of, they make room for blocks again.
        del held, array
        until(lambda: used(graph) <= 2 * MB)
        assert is_shared(rcg.get(graph.execute(numbered(1, MB // 2))))


@pytest.mark.full
def test_ten_thousand_sizes_stay_under_the_cap_and_come_back_when_idle(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([a.echo.bind(inp), b.double.bind(a.double.bind(inp))])
    cap = 12 * MB
    with dag.experimental_compile(memory_cap_bytes=cap) as graph:
        idle = used(graph)
        order = np.random.default_rng(1).permutation(10_000)
        most = 0
        for i in order.tolist():
            size = 8 * i + 8  # every one of them another
            first, second = rcg.get(graph.execute(numbered(i, size)))
            assert first.nbytes == second.nbytes == size
            assert first[0] == first[-1] == i
            assert second[0] == second[-1] == 4 * i
            most = max(most, used(graph))
        assert most <= cap
        del first, second
        # The driver keeps what it used last; the actors nothing.
        until(lambda: used(graph) <= idle + MB // 2)


def test_refs_that_are_dropped_unread_give_their_memory_back(stages):
    """All results arrive, and none is got."""
    (a,) = stages(1)
    with InputNode() as inp:
        dag = a.double.bind(inp)
    with dag.experimental_compile(memory_cap_bytes=64 * MB) as graph:
        refs = [graph.execute(numbered(i, MB)) for i in range(20)]
        rcg.wait(refs, num_returns=20)
        # 20 results, and inputs: how many the driver keeps depends on how fast they were taken.
        assert used(graph) >= 20 * MB
        del refs
        # The next execution finds them dropped, and the actor gives back what is free when idle;
        # the driver keeps the blocks of its inputs.
        assert rcg.get(graph.execute(1)) == 2
        until(lambda: used(graph) <= 15 * MB)


def test_results_that_nobody_reads_never_run_out_of_memory(stages):
    """Six caps' worth goes through, dropped before or after it has arrived."""
    (a,) = stages(1)
    with InputNode() as inp:
        dag = a.double.bind(inp)
    with dag.experimental_compile(memory_cap_bytes=32 * MB) as graph:
        for _ in range(10):
            refs = [graph.execute(numbered(i, MB)) for i in range(10)]
            rcg.wait(refs, num_returns=10)
            del refs
            for i in range(10):
                graph.execute(numbered(i, MB))
        assert rcg.get(graph.execute(numbered(3, 8 * MB)))[0] == 6


def test_a_caught_exception_keeps_no_other_results(stages):
    """Its traceback has the frame that held the refs; they were dropped all the same."""
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([a.fail.bind(inp), b.echo.bind(inp)])

    def give_up(graph):
        refs = graph.execute(1)
        with pytest.raises(Refusal):
            rcg.get(refs)

    gc.disable()  # nothing here may need the collector
    try:
        with dag.experimental_compile(_max_inflight_executions=1) as graph:
            for _ in range(3):
                give_up(graph)
    finally:
        gc.enable()
