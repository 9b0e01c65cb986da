# SPDX-License-Identifier: Apache-2.0
"""What torch did inside the ops of a loop, on its thread and by our clock."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from rcg.runtime.actor.torch_ops import Marked, Marks, TorchEvent, torch_profiling
from rcg.trace.model import stream_number

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
    assert Marked(events, NAME, [(500, 7), (697, 8)]).spans() == [
        ("aten::linear", 7, 510, 550, 0),
        ("aten::addmm", 7, 520, 540, 0),
        ("aten::relu", 8, 790, 800, 0),
    ]


def test_what_a_device_did_is_of_the_execution_that_began_it():
    stream, other = stream_number(0, 7), stream_number(0, 20)
    events = [
        TorchEvent(2, NAME, 1000, 1100, 1),
        TorchEvent(2, "aten::mm", 1010, 1050, 2),
        TorchEvent(2, "cudaLaunchKernel", 1020, 1030, 50, 2),
        TorchEvent(2, NAME, 1200, 1300, 3),
        TorchEvent(2, "cudaMemcpyAsync", 1210, 1220, 51, 3),
        TorchEvent(4, "aten::mul", 1230, 1240, 5),  # autograd's thread
        TorchEvent(6, "rcg a1-9", 1200, 1300, 6),
        TorchEvent(6, "cudaLaunchKernel", 1250, 1260, 53, 6),  # of another loop
        TorchEvent(2, "cudaLaunchKernel", 1150, 1160, 54, 0),  # between two ops
        # After the op, in the time of the next one.
        TorchEvent(0, "void sgemm<float>(int)", 1250, 1350, 50, 2, stream),
        TorchEvent(0, "Memcpy DtoH (Device -> Pinned)", 1360, 1380, 51, 3, stream),
        TorchEvent(0, "mul_kernel", 1400, 1410, 52, 5, other),  # its call was not recorded
        TorchEvent(0, "elsewhere", 1400, 1410, 53, 6, stream),
        TorchEvent(0, "between", 1500, 1510, 54, 0, stream),
        TorchEvent(0, "unknown", 1500, 1510, 99, 98, stream),
        TorchEvent(0, NAME, 1250, 1380, 0, 1, stream),  # the range of the mark, on the device
    ]
    assert Marked(events, NAME, [(500, 7), (700, 8)]).kernels() == [
        ("sgemm<float>", 7, 750, 850, stream),
        ("Memcpy DtoH (Device -> Pinned)", 8, 860, 880, stream),
        ("mul_kernel", 8, 900, 910, other),
    ]


RECORDED = json.loads((Path(__file__).parent / "kineto_h100.json").read_text())


@pytest.mark.parametrize(
    ("key", "loop", "wanted"),
    [
        (
            "nccl",
            "a0-877525",
            {0: "Memcpy sm80 sm80 vector", 1: "nccl", 3: "Memcpy sm80 sm80 vector"},
        ),
        ("overlap", "a1-96a5f7", {0: "Kernel vector " * 3, 1: "Memset reduce Memcpy"}),
        ("overlap", "a1.comm-96a5f7", {1: "Memcpy", 3: "Memcpy"}),
    ],
)
def test_what_was_recorded_on_a_gpu_is_of_the_op_that_began_it(key, loop, wanted):
    """NCCL's calls have no op of torch's, so torch says a wrong thread; one calls in a0's write."""
    events = [TorchEvent(*row) for row in RECORDED[key]]
    marks = [each for each in events if each.name == f"rcg {loop}" and not each.stream]
    marked = [(mark.start_ns + 1000, number) for number, mark in enumerate(marks)]
    kernels = Marked(events, f"rcg {loop}", marked).kernels()
    names: dict[int, list[str]] = {}
    for each in kernels:
        names.setdefault(each.execution, []).append(each.name)
    assert names.keys() == wanted.keys()
    for number, found in names.items():
        for name, begins in zip(found, wanted[number].split(), strict=True):
            assert name.startswith(begins)
    assert all(each.start_ns >= marks[each.execution].start_ns + 1000 for each in kernels)


def test_without_marks_there_is_nothing():
    for found in Marked([TorchEvent(1, "aten::mm", 0, 1)], NAME, []), Marked([], NAME, [(1, 0)]):
        assert found.spans() == found.kernels() == []


def test_marks_are_put_on_running_steps_and_taken_off():
    spans: list[tuple[str, int, int, int, int]] = []
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
    assert all(start_ns <= end_ns for _, _, start_ns, end_ns, _ in spans)
    assert torch_profiling.stop(), "another loop of the process gets the same events"


def test_where_torch_is_not_loaded_there_is_nothing_to_profile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_profiling.start() == ""
    steps = [lambda: None]
    plain = list(steps)
    Marks("a0-1", int).put_on(steps, [0])
    assert steps == plain


@pytest.mark.parametrize("is_warming_up", [False, True])
def test_a_profiler_of_the_users_is_left_alone(is_warming_up: bool):
    """Of another thread, recording or about to; torch would end the process when it stops."""
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1) if is_warming_up else None
    theirs = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, acc_events=True
    )
    trouble = []
    theirs.start()
    thread = threading.Thread(target=lambda: trouble.append(torch_profiling.start()))
    thread.start()
    thread.join()
    theirs.step()
    torch.ones(4) @ torch.ones(4)
    theirs.stop()
    assert "another profiler" in trouble[0]
    assert torch_profiling.start() == ""
    torch_profiling.stop()
    assert any(event.key == "aten::dot" for event in theirs.key_averages())


def test_a_profiler_that_starts_meanwhile_gets_the_events_and_marks_say_so():
    """Also while that runs on: the next profile must not start beside it."""
    steps = [lambda: None]
    marks = Marks("a0-123456", lambda: 0)
    starting = threading.Thread(target=torch_profiling.start)
    starting.start()
    starting.join()
    marks.put_on(steps, [0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        steps[0]()
        found = []
        ending = threading.Thread(target=lambda: found.append(torch_profiling.stop()))
        ending.start()
        ending.join()
        assert "another profiler" in marks.write(found[0], lambda *span: None)
        assert "another profiler" in torch_profiling.start()
