# SPDX-License-Identifier: Apache-2.0
"""What torch did inside the ops of a graph: its profiler's events as spans of the flight recorder.

While a profile asks for it, one profiler of torch runs in the process, for all threads, and each op
of a loop is marked by an event of torch's::

    ours    | Call a0.forward                          |
    torch   | mark: "rcg a0-3f09ac"                    |      on the loop's thread
            |   | aten::linear          |  | aten::relu |

The marks tell which of torch's threads is the loop's, and how its clock relates to ours. At the end
the events inside them are written to the recorder as spans, so whatever shows spans shows them.

This room must know neither profiles nor how they are asked for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rcg.trace.clocks import now_ns

__rcg_plumbing__ = True  # see rcg.frames

_MARK: Final = "rcg "
_MAX_EVENTS: Final = 200_000  # of one loop
# How many are written at once; in between, the profile's thread copies them from the recorder.
_CHUNK: Final = 1000
_PAUSE_S: Final = 0.01

_Step = Callable[[], None]


class TorchEvent(NamedTuple):
    """One event of torch's profiler, with times of its clock."""

    thread: int
    name: str
    start_ns: int
    end_ns: int


class _TorchProfiling:
    """The profiler of torch in this process, which all loops share. Any thread.

    The first loop that starts it starts it for all; so does the first that stops it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Any = None
        self._events: list[TorchEvent] = []

    def start(self) -> str:
        """Start it, unless it runs or torch is not loaded; returns what is in the way, or ""."""
        if "torch" not in sys.modules:
            return ""
        with self._lock:
            try:
                if self._running is None:
                    self._running = _start()
            except Exception as error:  # noqa: BLE001 - the user's own profiler runs here
                return f"torch's profiler does not start: {error}"
        return ""

    def stop(self) -> list[TorchEvent]:
        """Stop it, if it runs, and return the events of its last run."""
        with self._lock:
            if self._running is not None:
                running, self._running = self._running, None
                running.stop()
                self._events = _events_of(running)
            return self._events


def _start() -> Any:
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    running = profile(
        activities={ProfilerActivity.CPU},
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
        acc_events=True,  # or it warns
    )
    running.start()
    return running


def _events_of(running: Any) -> list[TorchEvent]:
    results = running.profiler.kineto_results
    return [
        TorchEvent(event.start_thread_id(), event.name(), event.start_ns(), event.end_ns())
        for event in results.events()
    ]


torch_profiling: Final = _TorchProfiling()


class Marks:
    """Marks the ops of one loop, of a name of its own, and writes what torch did inside them."""

    def __init__(self, name: str, execution_now: Callable[[], int]) -> None:
        self._name = f"{_MARK}{name}"
        self._execution_now = execution_now
        self._marked: list[tuple[int, int]] = []  # of each mark: when it began, and its execution
        self._plain: dict[int, _Step] = {}

    def put_on(self, steps: list[_Step], which: Sequence[int]) -> None:
        """Mark some steps of a loop that runs; each is marked from its next turn on."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return
        for index in which:
            self._plain[index] = steps[index]
            steps[index] = self._marking(steps[index], torch.autograd.profiler.record_function)

    def take_off(self, steps: list[_Step]) -> None:
        """Unmark the steps."""
        for index, step in self._plain.items():
            if index < len(steps):
                steps[index] = step
        self._plain.clear()

    def write(self, events: Sequence[TorchEvent], record: Callable[..., None]) -> None:
        """Write what torch did inside the marks.

        ``record`` gets the name, execution, start and end in ns of each span.
        """
        for number, span in enumerate(spans_of(events, self._name, self._marked)[:_MAX_EVENTS]):
            if number % _CHUNK == _CHUNK - 1:
                time.sleep(_PAUSE_S)
            record(*span)

    def _marking(self, step: _Step, record_function: Any) -> _Step:
        name, marked, execution_now = self._name, self._marked, self._execution_now

        def marking_step() -> None:
            at = now_ns(), execution_now()
            with record_function(name):
                step()
            marked.append(at)

        return marking_step


def spans_of(
    events: Sequence[TorchEvent], name: str, marked: Sequence[tuple[int, int]]
) -> list[tuple[str, int, int, int]]:
    """Return the events inside the marks of a loop, on its thread, with times of our clock.

    Args:
        events: All events of torch's in this process.
        name: The name of the marks.
        marked: When each mark began on our clock, and its execution, in order.

    Returns:
        For each event its name, execution, start and end, in the order of their starts.
    """
    marks = sorted((each for each in events if each.name == name), key=lambda each: each.start_ns)
    if not marks or not marked:
        return []
    thread = marks[0].thread
    inside = sorted(
        (each for each in events if each.thread == thread and not each.name.startswith(_MARK)),
        key=lambda each: (each.start_ns, -each.end_ns),
    )
    both = list(zip(marks, marked, strict=False))
    # We look at our clock first, so what comes in between makes single offsets too small.
    offset_ns = max(start_ns - mark.start_ns for mark, (start_ns, _) in both)
    found: list[tuple[str, int, int, int]] = []
    at = 0
    for mark, (_, execution) in both:
        while at < len(inside) and inside[at].start_ns < mark.start_ns:
            at += 1
        while at < len(inside) and inside[at].start_ns < mark.end_ns:
            each = inside[at]
            end_ns = min(each.end_ns, mark.end_ns)
            found.append((each.name, execution, each.start_ns + offset_ns, end_ns + offset_ns))
            at += 1
    return found
