# SPDX-License-Identifier: Apache-2.0
"""Submission with a session, an engine and channels that are real; the test is the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rcg.channels.base import NoMemory
from rcg.errors import (
    CapacityExceededError,
    ChannelClosed,
    ChannelTimeout,
    MessageTooLarge,
    OutOfSharedMemory,
    RcgError,
)
from rcg.runtime.failure import capture_own
from rcg.serialization import size_of
from tests.harness.driven import Driven

Drive = Callable[..., Driven]
MB = 1 << 20


def events(graph: Driven) -> list[tuple[int, int]]:
    """The op and the execution of what the driver recorded."""
    found = graph.session.node.newest_events("driver")
    return [(int(event["op"]), int(event["execution"])) for event in found]


# --- arguments


@pytest.mark.parametrize("make", [bytes, lambda size: [b"x" * size]], ids=["bytes", "pickled"])
def test_arguments_that_never_fit_are_refused_with_their_size(
    driven: Drive, make: Callable[[int], Any]
) -> None:
    graph = driven(memory_cap_bytes=MB)
    encode = graph.session.node.codec.encode
    more = size_of(encode(make(MB))) - MB
    size = MB - more
    assert size_of(encode(make(size))) == MB
    for call in (
        lambda value: graph.engine.execute(value),
        lambda value: asyncio.run(graph.engine.execute_async(value)),
    ):
        with pytest.raises(MessageTooLarge) as raised:
            call(make(size + 1))
        assert (raised.value.size_bytes, raised.value.limit_bytes) == (MB + 1, MB)
    assert graph.submission.submitted == 0
    graph.engine.execute(make(size))  # exactly the cap: it waits on the heap
    assert graph.submission.submitted == 1


# --- the window


def test_an_execution_is_complete_when_every_output_is(driven: Drive) -> None:
    graph = driven(outputs=3, limit=2)
    refs = [graph.engine.execute(i) for i in range(2)]
    graph.take()
    for output, order in enumerate((2, 0, 1)):
        assert graph.submission.complete() == 0
        assert graph.waits_for(9) == 0
        graph.answer(0, order)
        for buffer in graph.buffers:
            buffer.take_pending()
        assert graph.submission.complete() == (output == 2)
    assert graph.waits_for(9) == "nothing"
    assert graph.submission.submitted == 3
    assert [ref.get(timeout=0) for ref in refs[0]] == [0, 0, 0]


def test_a_full_window_waits_for_the_execution_that_makes_room(driven: Drive) -> None:
    graph = driven(limit=4, memory_cap_bytes=16 * MB)
    refs = []
    for number in range(6):
        while (waits := graph.waits_for(number)) != "nothing":
            assert waits == number - 4
            graph.echo()
            graph.buffers[0].take_pending()
        refs.append(number)
    # An execution that needs half the cap: from then on two are admitted, not four.
    graph.submission._admission.need_bytes = 8 * MB
    graph.echo()
    graph.buffers[0].take_pending()
    assert graph.submission.complete() == 3
    assert graph.waits_for(6) == 4
    assert graph.window.admitted == 2


def test_waiting_for_room_takes_results_off_every_output(driven: Drive) -> None:
    graph = driven(outputs=2, limit=1, submit_timeout_s=0)
    (one, _) = graph.engine.execute(0)
    value = graph.take()
    graph.answer(value, 0)
    inputs = graph.submission.encode((1,), {})
    with pytest.raises(ChannelTimeout):
        graph.submission.submit(inputs, graph.engine._refs())
    assert [buffer.arrived for buffer in graph.buffers] == [1, 0]
    assert graph.submission.submitted == 1
    graph.answer(value, 1)
    graph.submission.submit(inputs, graph.engine._refs())
    assert [buffer.arrived for buffer in graph.buffers] == [1, 1]
    assert graph.submission.submitted == 2
    assert one.get(timeout=0) == 0


def test_the_users_limit_counts_what_is_not_fetched(driven: Drive) -> None:
    """It may be more than the channels hold."""
    graph = driven(limit=4, slots=2, is_strict=True)
    assert (graph.window.limit, graph.session.plan.window) == (2, 2)
    refs = []
    for number in range(4):
        refs.append(graph.engine.execute(number))
        graph.echo()
    with pytest.raises(CapacityExceededError) as raised:
        graph.engine.execute(4)
    assert raised.value.limit == 4
    assert refs.pop().get() == 3
    graph.engine.execute(4)


def test_looking_for_room_discards_results_whose_refs_are_gone(driven: Drive) -> None:
    graph = driven(limit=1)
    ref = graph.engine.execute(0)
    graph.echo()
    (buffer,) = graph.buffers
    buffer.take_pending()
    assert len(buffer.frames) == 1
    del ref
    assert graph.waits_for(1) == "nothing"
    assert not buffer.frames
    assert 0 not in buffer.dropped


def test_a_reader_that_is_a_ring_behind_is_waited_for_once_by_time(driven: Drive) -> None:
    """The result is here, and the actor has not moved on in its input ring yet."""
    graph = driven(limit=2)
    writer = graph.submission._writers[0]
    while writer.seq < 16 and graph.waits_for(b"x") == "nothing":
        graph.answer(b"y")  # without taking the input
        graph.buffers[0].take_pending()
    attempts = graph.submission.attempts(graph.submission.encode((b"x",), {}), graph.engine._refs())
    assert next(attempts) is None
    assert next(attempts) is None  # still behind
    while graph.session.node.unread("c0") != [0]:
        graph.take()
    for _ in range(2):  # others are quicker
        graph.engine.execute(b"x")
    submitted = graph.submission.submitted
    # The window is full: it is an execution that is waited for now.
    assert next(attempts) == submitted - 2
    graph.take()
    graph.answer(b"y")
    graph.buffers[0].take_pending()
    assert next(attempts, "done") == "done"


# --- memory


def test_without_memory_an_execution_waits_for_the_others_and_alone_is_stashed(
    driven: Drive,
) -> None:
    graph = driven(limit=4, memory_cap_bytes=2 * MB)
    memory = graph.session.node.memory
    graph.engine.execute(np.ones(MB - 8192, np.uint8))
    kept = graph.take()
    graph.answer(b"")
    graph.buffers[0].take_pending()
    graph.engine.execute(b"small")
    graph.submission._admission.need_bytes = 1  # a guess that is far too low
    large = np.ones(MB + MB // 2, np.uint8)
    inputs = graph.submission.encode((large,), {})
    with pytest.raises(NoMemory):  # as asyncio does it first
        graph.submission.try_submit(inputs, graph.engine._refs())
    attempts = graph.submission.attempts(inputs, graph.engine._refs())
    assert next(attempts) == 1
    assert next(attempts) == 1  # another is under way: no copy on the heap
    assert memory().stashes == 0
    graph.take()
    graph.answer(b"")
    graph.buffers[0].take_pending()
    assert next(attempts, "done") == "done"
    assert memory().stashes == 1
    assert np.array_equal(graph.reader.read(None), large)  # it is pulled
    assert kept.all()


def test_what_has_no_memory_even_alone_is_an_error(driven: Drive) -> None:
    """Its bytes fit the cap, and with the table of its buffers they do not."""
    graph = driven(limit=16, memory_cap_bytes=4 * MB)  # of slots that its table does not fit
    encode = graph.session.node.codec.encode
    value = [np.zeros(5_000, np.uint8) for _ in range(700)]
    value.append(np.zeros(4 * MB - size_of(encode(value)) - 1_000, np.uint8))
    assert 4 * MB - 2_000 < size_of(encode(value)) <= 4 * MB
    with pytest.raises(OutOfSharedMemory):
        graph.engine.execute(value)
    assert graph.submission.submitted == 0


# --- the end


def test_a_graph_that_is_over_takes_no_execution(driven: Drive) -> None:
    graph = driven(limit=1)
    inputs = graph.submission.encode((1,), {})
    graph.session.close_nowait()
    with pytest.raises(ChannelClosed):
        graph.submission.submit(inputs, graph.engine._refs())
    with pytest.raises(ChannelClosed):
        graph.submission.submit_value(1, graph.engine._refs())
    with pytest.raises(ChannelClosed):
        graph.engine.execute(1)
    assert graph.submission.submitted == 0


# --- the recorder


@pytest.mark.parametrize("value", [b"not encoded", [1, 2]], ids=["bytes", "pickled"])
def test_encoding_is_recorded_with_the_execution_it_was_for(driven: Drive, value: Any) -> None:
    graph = driven(limit=2)
    inputs = graph.submission.encode((value,), {})
    assert graph.submission.try_submit(inputs, graph.engine._refs())
    written = events(graph).count((1, 0))
    assert written == (1 if type(value) is bytes else 2)


def test_nothing_is_recorded_of_an_execution_that_another_thread_was_quicker_with(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven(limit=2)
    inputs = graph.submission.encode(([1],), {})
    submit = graph.submission._submit

    def late(*args: Any) -> Any:
        monkeypatch.setattr(graph.submission, "_submit", submit)
        graph.engine.execute(0)
        graph.engine.execute(1)
        return submit(*args)

    monkeypatch.setattr(graph.submission, "_submit", late)
    assert not graph.submission.try_submit(inputs, graph.engine._refs())
    assert graph.submission.submitted == 2
    assert all(execution < 2 for _, execution in events(graph))


@pytest.mark.parametrize(
    "count",
    [
        lambda engine: engine.statistics().failures_dropped,
        lambda engine: engine.report(0.0).failures_dropped,
    ],
    ids=["statistics", "report"],
)
def test_a_dropped_failure_is_counted_while_it_lies_on_the_ring(
    driven: Drive, count: Callable[[Any], int]
) -> None:
    graph = driven(outputs=2)
    refs = graph.engine.execute(1)
    graph.take()
    for output in range(2):
        graph.answer(capture_own(RcgError("no")), output)
    del refs
    assert [buffer.arrived for buffer in graph.buffers] == [0, 0]
    assert count(graph.engine) == 2
