# SPDX-License-Identifier: Apache-2.0
"""``map``: the order of results, how many inputs are taken, and every way in which it ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcg.channels.base import GraphEnded
from rcg.errors import (
    CapacityExceededError,
    ChannelClosed,
    ChannelTimeout,
    GraphError,
    UnpicklableError,
)
from rcg.runtime.mapping import MapResults, map_over
from tests.harness.driven import Driven, run_once
from tests.harness.peers import GUARD_S, until

SOON_S = 0.02


class Refusal(Exception):
    """What the method raises."""


class Doubler:
    """An actor whose method waits for a permit before each call, if it has any."""

    def __init__(self) -> None:
        self.permits: threading.Semaphore | None = None
        self.calls: list[Any] = []

    def make(self, value: Any) -> Any:
        if self.permits is not None:
            assert self.permits.acquire(timeout=GUARD_S)
        self.calls.append(value)
        if value == "bad":
            raise Refusal(value)
        return 2 * value


class Working(Driven):
    """A graph whose actor works on a thread.

    Args:
        is_gated: Whether each call waits for ``permit``.
        **how: The arguments of ``Driven``.
    """

    def __init__(self, *, is_gated: bool = False, **how: Any) -> None:
        super().__init__(**how)
        self.actor = Doubler()
        if is_gated:
            self.actor.permits = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, args=(self.loop(self.actor),))
        self._thread.start()

    def _work(self, loop: Any) -> None:
        try:
            while True:
                run_once(loop)
        except GraphEnded:
            pass

    def permit(self, calls: int = 1) -> None:
        """Let so many calls go on."""
        assert self.actor.permits is not None
        self.actor.permits.release(calls)

    def map(self, *inputs: Any, in_flight: int | None = None, **keywords: Any) -> MapResults:
        return map_over(self.engine, inputs, keywords, in_flight, 4)

    def close(self) -> None:
        if self.actor.permits is not None:
            self.actor.permits.release(1000)
        super().close()
        self._thread.join(GUARD_S)


@pytest.fixture
def working() -> Iterator[Callable[..., Working]]:
    made: list[Working] = []

    def make(**how: Any) -> Working:
        made.append(Working(**how))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Source:
    """Counts endlessly, and notes what was taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken = number + 1
            yield number


def ask(results: MapResults) -> Future[Any]:
    """Ask for the next result on another thread."""
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(next, results)
    pool.shutdown(wait=False)
    return asked


# --- order, and how much is taken


@given(count=st.integers(0, 20), in_flight=st.integers(1, 4), outputs=st.integers(1, 2))
@settings(max_examples=15)
def test_results_come_in_order_and_no_more_are_in_flight(
    count: int, in_flight: int, outputs: int
) -> None:
    graph = Working(outputs=outputs, is_strict=True)
    yielded = 0

    def inputs() -> Iterator[int]:
        for number in range(count):
            assert number - yielded < in_flight
            yield number

    try:
        found = []
        for result in graph.map(inputs(), in_flight=in_flight):
            found.append(result)
            yielded += 1
        assert found == [2 * i if outputs == 1 else [2 * i] * 2 for i in range(count)]
        assert not graph.window.left
    finally:
        graph.close()


def test_inputs_are_taken_when_a_result_is_asked_for_and_only_as_there_is_room(
    working: Callable[..., Working],
) -> None:
    graph, source = working(is_gated=True), Source()
    results = graph.map(source, in_flight=3)
    assert source.taken == 0 and graph.submission.submitted == 0
    asked = ask(results)
    until(lambda: graph.submission.submitted == 3)
    assert source.taken == 3 and not asked.done()
    graph.permit()
    assert asked.result(GUARD_S) == 0
    assert source.taken == 3
    asked = ask(results)
    until(lambda: source.taken == 4)
    graph.permit()
    assert asked.result(GUARD_S) == 2


def test_one_input_is_taken_for_each_result_however_long_that_has_been_there(
    working: Callable[..., Working],
) -> None:
    """Else the actors of a caller that is slower would run out of work, and it would wait then."""
    graph, source = working(), Source()
    results = graph.map(source, in_flight=3)
    assert next(results) == 0
    for number in range(1, 6):
        until(partial(graph.buffers[0].has, source.taken - 1))
        taken = source.taken
        assert next(results) == 2 * number
        assert source.taken == taken + 1


def test_a_result_that_is_there_does_not_wait_for_many_inputs(
    working: Callable[..., Working],
) -> None:
    graph, taken = working(), []

    def slow() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            # As a source that waits for a moment: the result before is there by then.
            until(partial(graph.buffers[0].has, number - 1))
            yield number

    results = graph.map(slow(), in_flight=3)
    assert next(results) == 0
    assert taken == [0, 1]
    assert list(results) == [2, 4]


def test_with_one_in_flight_an_input_may_depend_on_the_result_before(
    working: Callable[..., Working],
) -> None:
    graph, last = working(), [1]

    def inputs() -> Iterator[int]:
        while last[0] < 100:
            yield last[0]

    for last[0] in graph.map(inputs(), in_flight=1):
        pass
    assert graph.actor.calls == [1, 2, 4, 8, 16, 32, 64]


def test_without_a_number_as_many_are_in_flight_as_the_graph_allows(
    working: Callable[..., Working],
) -> None:
    graph, source = working(is_gated=True), Source()
    asked = ask(graph.map(source))
    until(lambda: graph.submission.submitted == 4)
    graph.permit()
    assert asked.result(GUARD_S) == 0


def test_several_iterables_end_with_the_shortest(working: Callable[..., Working]) -> None:
    calls: list[Any] = []
    graph = working()

    class Recorded:
        has_ended = graph.engine.has_ended

        def execute(self, *args: Any, **keywords: Any) -> Any:
            calls.append((args, keywords))
            return graph.engine.execute(args[0])

    results = map_over(Recorded(), ("abc", [1, 2]), {"key": itertools.count()}, 2, 4)  # type: ignore[arg-type]
    assert list(results) == ["aa", "bb"]
    assert calls == [(("a", 1), {"key": 0}), (("b", 2), {"key": 1})]


@pytest.mark.parametrize(
    ("inputs", "in_flight", "error", "text"),
    [
        (
            [[1]],
            5,
            ValueError,
            "compile it with max_inflight_executions=5, or map with in_flight=4",
        ),
        ([[1]], 0, ValueError, "`in_flight` must be a positive integer, found 0"),
        ([[1]], "2", ValueError, "`in_flight` must be a positive integer, found '2'"),
        ([], 1, TypeError, "needs an iterable of inputs for each argument"),
        ([3], 1, TypeError, "for each argument of an execution, found a int"),
    ],
)
def test_what_cannot_be_mapped_is_refused_at_once(
    working: Callable[..., Working], inputs: Any, in_flight: Any, error: Any, text: str
) -> None:
    with pytest.raises(error) as raised:
        working().map(*inputs, in_flight=in_flight)
    assert text in str(raised.value)


# --- exceptions


def test_an_exception_is_raised_in_place_of_its_result_and_the_rest_comes(
    working: Callable[..., Working],
) -> None:
    graph = working(is_strict=True)
    results = graph.map([1, "bad", threading.Lock(), 4], in_flight=3)
    assert next(results) == 2
    with pytest.raises(Refusal):
        next(results)
    with pytest.raises(UnpicklableError):
        next(results)
    assert next(results) == 8
    assert list(results) == [] and not graph.window.left


def test_one_output_of_several_that_fails_is_the_result(working: Callable[..., Working]) -> None:
    graph = working(outputs=2, is_strict=True)
    results = graph.map(["bad", 2], in_flight=2)
    with pytest.raises(Refusal):
        next(results)
    assert list(results) == [[4, 4]] and not graph.window.left


def test_an_exception_of_the_inputs_comes_after_the_results_before_it_and_is_the_end(
    working: Callable[..., Working],
) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        yield 2
        raise Refusal("inputs")

    results = working().map(inputs(), in_flight=4)
    assert [next(results), next(results)] == [2, 4]
    with pytest.raises(Refusal, match="inputs"):
        next(results)
    assert list(results) == []


def test_after_a_timeout_the_same_result_is_waited_for_again(
    working: Callable[..., Working],
) -> None:
    graph = working(is_gated=True, get_timeout_s=SOON_S)
    results = graph.map([1, 2], in_flight=2)
    for _ in range(2):
        with pytest.raises(ChannelTimeout):
            next(results)
    graph.permit(2)
    graph.engine.get_timeout_s = GUARD_S
    assert list(results) == [2, 4]


def test_where_others_leave_no_room_nothing_is_lost(working: Callable[..., Working]) -> None:
    graph = working(is_strict=True)
    others = [graph.engine.execute(i) for i in range(3)]
    results = graph.map([1, 2, 3], in_flight=3)
    assert next(results) == 2  # one at a time, in the room that is left
    others.append(graph.engine.execute(3))
    with pytest.raises(CapacityExceededError):
        next(results)
    others.clear()
    assert list(results) == [4, 6]


def test_a_graph_that_ends_raises_once(working: Callable[..., Working]) -> None:
    graph = working(is_gated=True)
    results = graph.map(itertools.count(), in_flight=3)
    asked = ask(results)
    until(lambda: graph.submission.submitted == 3)
    graph.permit()
    assert asked.result(GUARD_S) == 0
    graph.session.begin_close()
    with pytest.raises(ChannelClosed):
        next(results)
    assert list(results) == []


def test_of_a_graph_that_has_ended_no_more_inputs_are_taken(
    working: Callable[..., Working],
) -> None:
    graph, source = working(), Source()
    graph.session.begin_close()
    results = graph.map(source, in_flight=4)
    with pytest.raises(ChannelClosed):
        next(results)
    assert source.taken == 1 and list(results) == []


def test_it_is_not_asked_twice_at_once(working: Callable[..., Working]) -> None:
    results: Any = None

    def inputs() -> Iterator[Any]:
        yield next(results)

    results = working().map(inputs())
    with pytest.raises(RuntimeError, match="is being asked for already"):
        next(results)
    assert list(results) == []


# --- the end


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_nothing_is_kept_when_it_ends_early(working: Callable[..., Working], how: str) -> None:
    graph, source = working(is_strict=True), Source()
    inputs = iter(source)
    results: Any = graph.map(inputs, in_flight=4)
    assert next(results) == 0
    if how == "break":
        for _ in results:
            break
    if how == "close":
        results.close()
        assert list(results) == []
        results.close()
    gone = weakref.ref(inputs)
    del results, inputs
    gc.collect()
    assert gone() is None
    until(lambda: not graph.window.left)
    started = graph.submission.submitted
    assert list(graph.map(range(20), in_flight=4)) == list(range(0, 40, 2))
    assert graph.submission.submitted == started + 20


def test_a_thread_that_waits_ends_with_its_result_when_another_closes(
    working: Callable[..., Working],
) -> None:
    graph = working(is_gated=True)
    results = graph.map(itertools.count(), in_flight=2)
    asked = ask(results)
    until(lambda: graph.submission.submitted == 2)
    results.close()
    graph.permit()
    assert asked.result(GUARD_S) == 0
    assert list(results) == [] and graph.submission.submitted == 2


# --- asyncio


async def counting(source: Source, gate: asyncio.Event | None = None) -> AsyncIterator[int]:
    """Count; wait at the gate after the first."""
    for number in source:
        if number and gate is not None:
            await gate.wait()
        yield number


def run(main: Callable[[], Any]) -> Any:
    async def guarded() -> Any:
        return await asyncio.wait_for(main(), GUARD_S)

    return asyncio.run(guarded())


def test_it_is_iterated_asynchronously_with_inputs_of_either_kind(
    working: Callable[..., Working],
) -> None:
    graph = working(is_strict=True)

    async def main() -> None:
        found = [result async for result in graph.map([1, "bad-", 3], in_flight=2)]
        assert found == [2, "bad-bad-", 6]
        results = graph.map(counting(Source()), "ab", in_flight=2)
        with pytest.raises(
            GraphError, match="1 positional args, got 2"
        ):  # as `execute` says it, in its place
            await anext(results)
        results = graph.map(counting(Source()), in_flight=3)
        assert [await anext(results) for _ in range(5)] == [0, 2, 4, 6, 8]
        await results.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(results)

    run(main)
    until(lambda: not graph.window.left)


def test_a_result_comes_while_an_input_is_waited_for(working: Callable[..., Working]) -> None:
    graph, source = working(), Source()

    async def main() -> None:
        gate = asyncio.Event()
        inputs = counting(source, gate)
        results = graph.map(inputs, in_flight=3)
        assert await anext(results) == 0
        assert source.taken == 2
        gate.set()
        assert [await anext(results) for _ in range(3)] == [2, 4, 6]
        await results.aclose()
        await inputs.aclose()

    run(main)


def test_a_cancelled_wait_loses_nothing(working: Callable[..., Working]) -> None:
    graph, source = working(is_gated=True), Source()

    async def main() -> None:
        gate = asyncio.Event()
        results = graph.map(counting(source, gate), in_flight=2)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(results), SOON_S)
        graph.permit(2)
        assert await anext(results) == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(results), SOON_S)
        gate.set()
        assert await anext(results) == 2
        await results.aclose()

    run(main)
    assert graph.actor.calls[:2] == [0, 1]


@pytest.mark.parametrize("how", ["aclose", "drop"])
def test_a_source_that_is_waited_for_ends_with_the_iteration(
    working: Callable[..., Working], how: str
) -> None:
    graph, ended = working(), []

    async def inputs() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> None:
        results: Any = graph.map(inputs(), in_flight=3)
        assert await anext(results) == 2
        assert not ended
        if how == "aclose":
            await results.aclose()
        else:
            del results
            gc.collect()
            while not ended:
                await asyncio.sleep(0)
        assert ended

    run(main)


def test_an_asynchronous_source_needs_an_asynchronous_loop(
    working: Callable[..., Working],
) -> None:
    with pytest.raises(TypeError, match="iterate its results with `async for`"):
        next(working().map(counting(Source())))


def test_an_exception_of_an_asynchronous_source_comes_in_its_place(
    working: Callable[..., Working],
) -> None:
    async def inputs() -> AsyncIterator[int]:
        yield 1
        raise Refusal("inputs")

    async def main() -> None:
        results = working().map(inputs(), in_flight=4)
        assert await anext(results) == 2
        with pytest.raises(Refusal, match="inputs"):
            await anext(results)
        assert [result async for result in results] == []

    run(main)


def test_the_results_of_one_map_are_inputs_of_another(working: Callable[..., Working]) -> None:
    first, second = working(), working()
    assert list(second.map(first.map([1, 2, 3], in_flight=2))) == [4, 8, 12]

    async def main() -> list[Any]:
        chained = second.map(first.map([1, 2, 3], in_flight=2), in_flight=2)
        return [result async for result in chained]

    assert run(main) == [4, 8, 12]
