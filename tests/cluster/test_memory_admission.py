# SPDX-License-Identifier: Apache-2.0
"""A memory cap holds a graph back and never starves it."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import MessageTooLarge, OutOfSharedMemory

pytestmark = pytest.mark.usefixtures("ray_session")

MB = 1 << 20


class Maker:
    """Returns a new array each time, of a size that was asked for."""

    def make(self, given, sizes, index):
        """Return ``(number, array)``; the array has the number at both ends."""
        number, _ = given if isinstance(given, tuple) else (given, None)
        made = np.zeros(sizes[number % len(sizes)][index], np.uint8)
        made[0] = made[-1] = number % 251
        return number, made

    def join(self, first, second, sizes, index):
        assert first[0] == second[0]
        return self.make(first, sizes, index)

    def ends(self, *arrays):
        """Return the length and both ends of each array."""
        return [(a.nbytes, a[0], a[-1]) for a in arrays]

    def keep(self, given):
        self.kept = given
        return given


@pytest.fixture(scope="module")
def makers(ray_session):
    remote = rcg.remote(num_cpus=0)(Maker)
    return [remote.remote() for _ in range(4)]


def pipeline(makers, sizes):
    """A chain of new arrays; ``sizes`` has those of each stage, one execution after another."""
    with InputNode() as inp:
        value = inp
        for index in range(len(sizes[0])):
            value = makers[index].make.bind(value, sizes, index)
    return value


def diamond(makers, sizes):
    """A -> b, a -> c, b + c -> d."""
    a, b, c, d = makers
    with InputNode() as inp:
        first = a.make.bind(inp, sizes, 0)
        left, right = b.make.bind(first, sizes, 1), c.make.bind(first, sizes, 2)
        dag = MultiOutputNode([d.join.bind(left, right, sizes, 3), left])
    return dag


def check(found, number, size):
    assert found[0] == number
    array = found[1]
    assert array.nbytes == size
    assert array[0] == array[-1] == number % 251


def used(graph):
    return graph._engine.session.node.memory().used_bytes


SIZES = st.sampled_from([1, 3_000, 6_000, 70_000, MB // 3, MB, 3 * MB // 2, 2 * MB, 3 * MB])


@pytest.mark.full
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=st.sampled_from([pipeline, diamond]),
    sizes=st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=3),
    cap=st.sampled_from([3 * MB + 4096, 4 * MB, 9 * MB]),  # of which the pickle takes some
    window=st.sampled_from([None, 1, 2, 5, 30]),
    inputs=SIZES,
    holds=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_any_pipeline_completes_in_any_order_of_gets(
    makers, shape, sizes, cap, window, inputs, holds, order
):
    """No value is larger than the cap; sizes may change from one execution to the next."""
    options = {} if window is None else {"_max_inflight_executions": window}
    count = 25 if window is None else window
    graph = shape(makers, sizes).experimental_compile(memory_cap_bytes=cap, **options)
    with graph:
        refs = {}
        for i in range(count):
            refs[i] = graph.execute((i, np.zeros(inputs, np.uint8)))
            assert used(graph) <= cap
        numbers = list(refs)
        order.shuffle(numbers)
        held = []
        for i in numbers:
            found = rcg.get(refs.pop(i))
            expected = sizes[i % len(sizes)]
            if shape is diamond:
                check(found[0], i, expected[3])
                check(found[1], i, expected[1])
            else:
                check(found, i, expected[3])
            if holds:
                held.append(found)
            assert used(graph) <= cap
        if holds:  # and with all of them held, one more
            found = rcg.get(graph.execute((7, np.zeros(inputs, np.uint8))))
            check(found[0] if shape is diamond else found, 7, sizes[7 % len(sizes)][3])


def test_a_value_that_cannot_fit_says_how_much_would_do(makers):
    with pipeline(makers, [[1, 5 * MB], [1, 1]]).experimental_compile(
        memory_cap_bytes=4 * MB
    ) as graph:
        for _ in range(3):
            refs = [graph.execute(0), graph.execute(1)]
            with pytest.raises(OutOfSharedMemory, match="raise `memory_cap_bytes` to") as caught:
                rcg.get(refs[0])
            assert caught.value.size_bytes >= 5 * MB
            check(rcg.get(refs[1]), 1, 1)
        with pytest.raises(MessageTooLarge, match="memory_cap_bytes"):
            graph.execute((0, np.zeros(5 * MB, np.uint8)))
        enough = caught.value.size_bytes
    with pipeline(makers, [[1, 5 * MB]]).experimental_compile(memory_cap_bytes=enough) as graph:
        check(rcg.get(graph.execute(0)), 0, 5 * MB)


def test_what_actors_keep_takes_no_room_from_others(makers):
    """They keep what they were given, under a cap that holds one value more or less."""
    with InputNode() as inp:
        value = inp
        for maker in makers:
            value = maker.keep.bind(value)
    with value.experimental_compile(memory_cap_bytes=5 * MB) as graph:
        for i in range(20):
            found = rcg.get(graph.execute((i, np.full(4 * MB, i, np.uint8))))
            assert found[1][0] == found[1][-1] == i
    for maker in makers:
        rcg.get(maker.keep.remote(None))


def test_the_window_narrows_to_what_fits_and_widens_again(makers):
    sizes = [[3 * MB]] * 20 + [[1000]] * 60
    with pipeline(makers, sizes).experimental_compile(memory_cap_bytes=10 * MB) as graph:
        window = graph._engine._submission.window
        for i in range(20):
            check(rcg.get(graph.execute(i)), i, 3 * MB)
        refs = [graph.execute(i) for i in range(6)]
        assert window.admitted <= 3
        del refs
        for i in range(20, 80):
            check(rcg.get(graph.execute(i)), i, 1000)
        assert window.admitted == window.limit
        gc.collect()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(SIZES, min_size=2, max_size=5).filter(lambda sizes: sum(sizes) <= 5 * MB),
    held=st.lists(SIZES, max_size=4),
    count=st.integers(1, 8),
    is_async=st.booleans(),
)
def test_no_execution_fails_for_memory_at_a_later_input(makers, sizes, held, count, is_async):
    """Whatever is held: inputs that fit together are submitted together, or wait together."""
    with InputNode() as inp:
        dag = MultiOutputNode(
            [
                makers[0].ends.bind(*[inp[i] for i in range(len(sizes))]),
                makers[1].keep.bind(inp[len(sizes) - 1]),
            ]
        )
    graph = dag.experimental_compile(memory_cap_bytes=6 * MB)

    def inputs(number):
        return [np.full(size, number + i, np.uint8) for i, size in enumerate(sizes)]

    def check_all(executions):
        for number, (ends, last) in enumerate(executions):
            expected = [(size, number + i, number + i) for i, size in enumerate(sizes)]
            assert rcg.get(ends) == expected
            kept.append(rcg.get(last))
            assert used(graph) <= 6 * MB

    async def submit_all():
        return [await graph.execute_async(*inputs(number)) for number in range(count)]

    with graph:
        kept = []
        for size in held:
            arrays = [np.zeros(1, np.uint8)] * (len(sizes) - 1) + [np.zeros(size, np.uint8)]
            kept.append(rcg.get(graph.execute(*arrays)[1]))
        if is_async:
            executions = asyncio.run(submit_all())
        else:
            executions = [graph.execute(*inputs(number)) for number in range(count)]
        assert {refs[0].execution_index for refs in executions} == {
            len(held) + number for number in range(count)
        }
        check_all(executions)
    rcg.get(makers[1].keep.remote(None))


def test_inputs_that_never_fit_together_leave_nothing_behind(makers):
    with InputNode() as inp:
        dag = makers[0].ends.bind(inp[0], inp[1], inp[2])
    with dag.experimental_compile(memory_cap_bytes=4 * MB) as graph:
        before = used(graph)
        for _ in range(3):
            with pytest.raises(MessageTooLarge, match="memory_cap_bytes"):
                graph.execute(*[np.zeros(3 * MB // 2, np.uint8)] * 3)
            assert used(graph) == before
        ref = graph.execute(*[np.ones(MB, np.uint8)] * 3)
        assert ref.execution_index == 0
        assert rcg.get(ref) == [(MB, 1, 1)] * 3
