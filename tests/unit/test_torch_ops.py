# SPDX-License-Identifier: Apache-2.0
"""What torch did inside the ops of a loop, on its thread and by our clock."""

from __future__ import annotations

import sys
import threading

import pytest

from rcg.runtime.actor.torch_ops import Marks, TorchEvent, spans_of, torch_profiling

torch = pytest.importorskip("torch")

NAME = "rcg a0-123456"


def test_events_inside_the_marks_are_kept_with_times_of_our_clock():
    events = [
        TorchEvent(2, "aten::early", 900, 950),
        TorchEvent(2, NAME, 1000, 1100),
        TorchEvent(2, "aten::linear", 1010, 1050),
        TorchEvent(2, "aten::addmm", 1020, 1040),
        TorchEvent(3, "aten::elsewhere", 1020, 1040),
        TorchEvent(3, "rcg a1-123456", 1000, 1100),
        TorchEvent(2, "aten::between", 1150, 1160),
        TorchEvent(2, NAME, 1200, 1300),
        TorchEvent(2, "aten::relu", 1290, 1310),
    ]
    # The clocks differ by 500; the second time 3 went by between the two.
    assert spans_of(events, NAME, [(500, 7), (697, 8)]) == [
        ("aten::linear", 7, 510, 550),
        ("aten::addmm", 7, 520, 540),
        ("aten::relu", 8, 790, 800),
    ]


def test_without_marks_there_is_nothing():
    assert spans_of([TorchEvent(1, "aten::mm", 0, 1)], NAME, []) == []
    assert spans_of([], NAME, [(1, 0)]) == []


def test_marks_are_put_on_running_steps_and_taken_off():
    spans: list[tuple[str, int, int, int]] = []
    execution = 0
    ran = []

    def first() -> None:
        ran.append("first")

    def second() -> None:
        torch.ones(4) @ torch.ones(4)

    plain = [first, second]
    steps = list(plain)
    marks = Marks("a0-123456", lambda: execution)
    assert torch_profiling.start() == ""
    marks.put_on(steps, [1])
    assert steps[0] is first and steps[1] is not second

    def loop() -> None:
        nonlocal execution
        for execution in range(3):  # noqa: B007 - the marks read it
            for step in steps:
                step()

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    marks.take_off(steps)
    assert steps == plain
    marks.write(torch_profiling.stop(), lambda *span: spans.append(span))
    assert {span[1] for span in spans} == {0, 1, 2}
    assert "aten::dot" in {span[0] for span in spans}
    assert all(start_ns <= end_ns for _, _, start_ns, end_ns in spans)
    assert torch_profiling.stop(), "another loop of the process gets the same events"


def test_where_torch_is_not_loaded_there_is_nothing_to_profile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_profiling.start() == ""
    steps = [lambda: None]
    plain = list(steps)
    Marks("a0-1", int).put_on(steps, [0])
    assert steps == plain
