# SPDX-License-Identifier: Apache-2.0
"""Refs let go of their results when they die, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from rcg.errors import ChannelTimeout
from rcg.refs import get
from rcg.runtime import watch
from rcg.runtime.refs import FAILED, NEW, PENDING, READY, CompiledDAGRef, TwinRef
from tests.harness.driven import Driven
from tests.harness.peers import GUARD_S

Drive = Callable[..., Driven]


class Output:
    """What a ref asks of an output."""

    channel = "c0"

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.frames: dict[int, object] = {}
        self.dropped: deque[int] = deque()


class Source:
    """What a ref asks of a graph when it is made."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}


def submitted(source: Source, output: Output, execution: int, wanted: int = 1) -> CompiledDAGRef:
    ref = CompiledDAGRef(source, output)
    ref.execution, ref.state = execution, PENDING
    source.left[execution] = wanted
    return ref


def test_a_ref_that_was_never_submitted_leaves_nothing_behind() -> None:
    source, output = Source(), Output()
    ref = CompiledDAGRef(source, output)
    assert (ref.state, ref.execution, ref.value, ref.channel_index) == (NEW, -1, None, None)
    del ref
    assert not output.dropped and not source.left


@pytest.mark.parametrize("number", [0, 1, 70])
def test_a_pending_ref_drops_its_output_and_no_other(number: int) -> None:
    source, output = Source(), Output(number)
    ref = submitted(source, output, 5, wanted=(1 << 80) - 1)
    del ref
    assert list(output.dropped) == [5]
    assert source.left == {5: ((1 << 80) - 1) & ~(1 << number)}


@pytest.mark.parametrize("state", [READY, FAILED])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_fetched_ref_drops_a_frame_only_if_it_is_still_kept(state: int, is_kept: bool) -> None:
    """A fetch that was interrupted between filling the ref and taking the frame keeps the frame."""
    source, output = Source(), Output()
    ref = submitted(source, output, 5)
    ref.state = state
    if is_kept:
        output.frames[5] = object()
    del ref
    assert list(output.dropped) == ([5] if is_kept else [])
    assert source.left == {}


def test_what_was_released_before_stays_released() -> None:
    source, output = Source(), Output()
    ref = submitted(source, output, 5)
    source.left.clear()
    del ref
    assert source.left == {} and list(output.dropped) == [5]


def test_a_twin_lets_go_of_nothing() -> None:
    source, output = Source(), Output()
    first = submitted(source, output, 5)
    twin = TwinRef(first, 1)
    twin.state = PENDING
    assert twin.execution == 5 and twin.channel_index == 1
    del twin
    assert not output.dropped and source.left == {5: 1}
    del first
    assert list(output.dropped) == [5]


def test_no_signal_handler_comes_between_the_steps_of_letting_go() -> None:
    """Handlers run where Python code does, and there is none in the death of a ref."""
    source, output = Source(), Output()
    refs = [submitted(source, output, execution) for execution in range(10)]
    entered: list[str] = []

    def interrupt(frame: Any, event: str, _: object) -> Any:
        entered.append(frame.f_code.co_name)
        raise KeyboardInterrupt

    gc.disable()  # which calls code of Hypothesis
    sys.settrace(interrupt)
    try:
        refs.clear()
    finally:
        sys.settrace(None)
        gc.enable()
    assert entered == [] and sorted(output.dropped) == list(range(10)) and not source.left


def test_a_ref_in_a_cycle_is_collected_and_lets_go() -> None:
    source, output = Source(), Output()
    ref = submitted(source, output, 5)
    ref.value = [ref]
    seen = weakref.ref(ref)
    del ref
    assert seen() is not None
    gc.collect()
    assert seen() is None and list(output.dropped) == [5] and not source.left


def test_refs_leak_neither_their_graph_nor_their_class() -> None:
    source, output = Source(), Output()
    counts = [sys.getrefcount(each) for each in (source, output, CompiledDAGRef, TwinRef)]
    for execution in range(1000):
        ref = submitted(source, output, execution)
        TwinRef(ref, 1)
    del ref
    assert [sys.getrefcount(each) for each in (source, output, CompiledDAGRef, TwinRef)] == counts


@pytest.mark.parametrize("bad", [{"left": []}, {"left": None}])
def test_what_is_no_graph_is_refused(bad: dict[str, Any]) -> None:
    source = Source()
    source.__dict__.update(bad)
    with pytest.raises(TypeError, match="a ref needs the dicts"):
        CompiledDAGRef(source, Output())
    with pytest.raises(AttributeError, match="left"):
        CompiledDAGRef(object(), Output())
    with pytest.raises(TypeError, match="2"):
        CompiledDAGRef(source)


def test_dropping_keeps_an_error_that_is_on_its_way() -> None:
    source, output = Source(), Output()

    def fail() -> None:
        ref = submitted(source, output, 5)
        raise ValueError(f"with {ref.execution}")

    with pytest.raises(ValueError, match="with 5"):
        fail()
    gc.collect()
    assert list(output.dropped) == [5]


def test_a_ref_without_its_execution_leaves_things_as_they_are() -> None:
    source, output = Source(), Output()
    ref = submitted(source, output, 5)
    del ref.execution
    del ref
    assert not output.dropped and source.left == {5: 1}


@pytest.mark.parametrize("word", ["time_out", "fetch_local"])
def test_get_refuses_options_that_it_does_not_know(word: str) -> None:
    ref = submitted(Source(), Output(), 5)
    for refs in (ref, [ref], [ref, ref]):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}': it takes time"):
            get(refs, **{word: 3})
    with pytest.raises(TypeError, match=r"out= takes the tensors of one TensorRef$"):
        get(ref, out="memory")
    with pytest.raises(TypeError, match="get them one by one"):
        get([ref], out="memory")


# --- a get that waits long says why, once


class Asked:
    """An inquiry with this answer."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def wait(self, timeout_s: float) -> None:
        pass


SOON_S = 0.001
SAID = "rcg: get() has waited 1 ms. "


def late(graph: Driven, ref: Any) -> None:
    with pytest.raises(ChannelTimeout):
        get(ref, timeout=20 * SOON_S)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    for thread in threading.enumerate():
        if thread.name == "rcg-watch":
            thread.join()
    found = capsys.readouterr()
    assert not found.out
    return found.err.splitlines()


@pytest.mark.parametrize("is_list", [False, True])
def test_it_is_said_once_for_each_hang(
    driven: Drive, capsys: pytest.CaptureFixture[str], is_list: bool
) -> None:
    graph = driven(report_after_s=SOON_S)
    first, second = graph.engine.execute(1), graph.engine.execute(2)
    wanted = [first, second] if is_list else first
    late(graph, wanted)
    (line,) = said(capsys)
    assert line.startswith(SAID) and "\n" not in line
    assert line.removeprefix(SAID) == str(graph.engine.report(0.0).verdict)
    late(graph, wanted)
    late(graph, second)
    assert said(capsys) == []  # it is the same hang
    graph.echo()
    assert get(first) == 1
    late(graph, second)
    assert len(said(capsys)) == 1  # another one
    graph.echo()
    assert get([first, second]) == [1, 2]
    assert said(capsys) == []


def test_nothing_is_said_by_short_gets_or_if_the_option_says_so(
    driven: Drive, capsys: pytest.CaptureFixture[str]
) -> None:
    for after_s in (None, GUARD_S):
        graph = driven(report_after_s=after_s)
        late(graph, graph.engine.execute(1))
        late(graph, [graph.engine.execute(1), graph.engine.execute(1)])
    assert said(capsys) == []


def test_a_graph_whose_executions_take_long_is_not_said_to_hang_each_time(
    driven: Drive, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven(report_after_s=SOON_S)
    say = watch.notice

    def say_and_answer(text: str) -> None:
        say(text)
        graph.echo()

    monkeypatch.setattr(watch, "notice", say_and_answer)
    assert get(graph.engine.execute(1)) == 1
    assert len(said(capsys)) == 1
    assert graph.engine.report_after_s is not None and graph.engine.report_after_s >= 2 * SOON_S


def test_nothing_is_said_of_a_result_that_came_meanwhile(
    driven: Drive, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven(report_after_s=SOON_S)
    asked = Asked(lambda: graph.echo() or "a verdict")
    monkeypatch.setattr(graph.engine, "inquire", lambda _: asked)
    assert get(graph.engine.execute(1)) == 1
    assert said(capsys) == []


def test_an_event_loop_has_it_said_on_another_thread(
    driven: Drive, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven(report_after_s=SOON_S)
    threads: list[threading.Thread] = []

    def report() -> str:
        threads.append(threading.current_thread())
        return "a verdict\nand more"

    monkeypatch.setattr(graph.engine, "inquire", lambda _: Asked(report))
    errors: list[str] = []
    said = threading.Event()

    class Stream:
        write = errors.append
        flush = said.set

    monkeypatch.setattr(sys, "stderr", Stream)

    async def main() -> Any:
        waiting = asyncio.ensure_future(got(graph.engine.execute(1)))
        await asyncio.to_thread(said.wait)
        graph.echo()
        return await waiting

    async def got(ref: Any) -> Any:
        return await ref

    assert asyncio.run(main()) == 1
    assert "".join(errors) == f"{SAID}a verdict\n"
    assert threads and threads[0] is not threading.main_thread()


# --- Ctrl-C


class Interrupted(Source):
    """A graph of which a ``get`` ends by Ctrl-C, and whose report does as well if that is asked."""

    get_timeout_s = report_after_s = quiet_ns = None
    answers_within_s = 0.0

    def __init__(self, report: Any) -> None:
        super().__init__()
        self._report = report

    def try_fetch(self, ref: CompiledDAGRef, longest_ns: int | None, deadline: Any = None) -> bool:
        raise KeyboardInterrupt

    def inquire(self, within_s: float) -> Any:
        def text() -> str:
            if isinstance(self._report, BaseException):
                raise self._report
            return str(self._report)

        return Asked(text)


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize(
    ("report", "notes"),
    [
        ("a0 holds up 2 others\nand more", ["rcg: a0 holds up 2 others"]),
        (KeyboardInterrupt(), None),
        (RuntimeError("no report"), None),
    ],
)
def test_ctrl_c_says_what_was_waited_for_and_shows_no_frame_of_ours(
    report: Any, notes: list[str] | None, is_list: bool
) -> None:
    source: Any = Interrupted(report)
    ref = submitted(source, Output(), 5)
    with pytest.raises(KeyboardInterrupt) as raised:
        get([ref, ref] if is_list else ref)
    assert getattr(raised.value, "__notes__", None) == notes
    assert raised.value.__context__ is None
    assert {frame.filename for frame in traceback.extract_tb(raised.tb)} == {__file__}
