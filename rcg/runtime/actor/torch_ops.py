# SPDX-License-Identifier: Apache-2.0
"""What torch did inside the ops of a graph, and what a device did for them, in the flight recorder.

While a profile asks for it, one profiler of torch runs in the process, for all threads, and each op
of a loop is marked by an event of torch's::

    ours    | Call a0.forward                          |
    torch   | mark: "rcg a0-3f09ac"                    |      on the loop's thread
            |   | aten::linear          |  | aten::relu |
    device               | sgemm                 | relu |     on a stream of the device

The marks tell which of torch's threads is the loop's, and how its clock relates to ours. At the end
the events inside them are written to the recorder as spans, so whatever shows spans shows them.
Kernels and copies of the device run later than the op that started them: each is written with the
execution in which it was started, and its stream.

Torch has one profiler for a process. If another one is at work when ours starts, the process ends
by SIGSEGV as soon as that one stops: so ours does not start. If another one starts while ours runs,
that one gets all events, and ours has none.

This room must know neither profiles nor how they are asked for.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from rcg.trace.clocks import now_ns
from rcg.trace.model import stream_number

__rcg_plumbing__ = True  # see rcg.frames

_MARK: Final = "rcg "
_MAX_EVENTS: Final = 200_000  # of one loop, and of its devices
# How many are written at once; in between, the profile's thread copies them from the recorder.
_CHUNK: Final = 1000
_PAUSE_S: Final = 0.01
_MAX_NAME: Final = 56  # characters of a kernel's name
_CALLS: Final = ("cuda", "cuLaunch", "cuMem", "hip")  # how names of calls of a device begin
_ANOTHER: Final = "another profiler of torch's runs in this process, which it was left to"
_SCOPE: Final = re.compile(r"(?:\w+|\(anonymous namespace\))::")

_Step = Callable[[], None]


class TorchEvent(NamedTuple):
    """One event of torch's profiler, with times of its clock.

    Attributes:
        thread: The thread that it is of.
        name: Its name.
        start_ns: When it began.
        end_ns: When it ended.
        number: Its correlation id. What a device did has that of the call of the device's library
            that started it, if that was recorded.
        cause: The correlation id of the op of torch's in which that call was; 0 without.
        stream: What ``rcg.trace.model.stream_number`` says; 0 for what the CPU did.
    """

    thread: int
    name: str
    start_ns: int
    end_ns: int
    number: int = 0
    cause: int = 0
    stream: int = 0


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
            if self._running is None and _is_another_at_work():
                return _ANOTHER
            try:
                if self._running is None:
                    self._running = _start()
            except Exception as error:  # noqa: BLE001 - whatever torch says
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


def _is_another_at_work() -> bool:
    """Return whether a profiler records, or warms up, on any thread of this process.

    Torch's flag is reset by the first profiler that stops, and not set by one that warms up.
    """
    from torch.autograd import profiler

    def is_at_work(each: Any) -> bool:
        begun, ended = (getattr(each, f"profiling_{end}_time_ns", 0) for end in ("start", "end"))
        return each.entered and (each.kineto_results is None or begun > ended)

    found = (each for each in gc.get_objects() if type(each) is profiler.profile)
    return profiler._is_profiler_enabled or any(map(is_at_work, found))


def _start() -> Any:
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = {ProfilerActivity.CPU}
    if torch.cuda.is_initialized():  # it isn't ours to take a GPU that the actor does not use
        activities.add(ProfilerActivity.CUDA)
    running = profile(
        activities=activities,
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
        acc_events=True,  # or it warns
    )
    running.start()
    return running


def _events_of(running: Any) -> list[TorchEvent]:
    from torch.autograd import DeviceType

    return [
        TorchEvent(
            event.start_thread_id(),
            event.name(),
            event.start_ns(),
            event.end_ns(),
            event.correlation_id(),
            event.linked_correlation_id(),
            0
            if event.device_type() == DeviceType.CPU
            else stream_number(event.device_index(), event.device_resource_id()),
        )
        for event in running.profiler.kineto_results.events()
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

    def write(self, events: Sequence[TorchEvent], record: Callable[..., None]) -> str:
        """Write what torch and its devices did inside the marks; return what was in the way, or "".

        ``record`` gets the name, execution, start and end in ns of each, and its stream.
        """
        found = Marked(events, self._name, self._marked)
        if self._marked and not found.count:
            return _ANOTHER
        both = [*found.spans()[:_MAX_EVENTS], *found.kernels()[:_MAX_EVENTS]]
        for number, each in enumerate(both):
            if number % _CHUNK == _CHUNK - 1:
                time.sleep(_PAUSE_S)
            record(*each)
        return ""

    def _marking(self, step: _Step, record_function: Any) -> _Step:
        name, marked, execution_now = self._name, self._marked, self._execution_now

        def marking_step() -> None:
            at = now_ns(), execution_now()
            with record_function(name):
                step()
            marked.append(at)

        return marking_step


class Found(NamedTuple):
    """One event inside an op, or a device's for it, with times of our clock."""

    name: str
    execution: int
    start_ns: int
    end_ns: int
    stream: int = 0


class Marked:
    """What torch and its devices did inside the marks of a loop.

    Args:
        events: All events of torch's in this process.
        name: The name of the marks.
        marked: When each mark began on our clock, and its execution, in order.
    """

    def __init__(
        self, events: Sequence[TorchEvent], name: str, marked: Sequence[tuple[int, int]]
    ) -> None:
        self._name = name
        self._marked = marked
        self._on_cpu = sorted(
            (each for each in events if not each.stream),
            key=lambda each: (each.start_ns, -each.end_ns),
        )
        self._on_devices = sorted(
            (each for each in events if each.stream), key=lambda each: each.start_ns
        )
        self._marks: dict[str, list[TorchEvent]] = {}  # by their name: of one loop each
        for each in self._on_cpu:
            if each.name.startswith(_MARK):
                self._marks.setdefault(each.name, []).append(each)
        self._starts = {
            loop: [mark.start_ns for mark in found] for loop, found in self._marks.items()
        }
        mine = self._marks.get(name, [])
        self.count = min(len(mine), len(marked))  # of marks that torch has, too
        self._thread = mine[0].thread if mine else 0
        # We look at our clock first, so what comes in between makes single offsets too small.
        offsets = (ours - mark.start_ns for mark, (ours, _) in zip(mine, marked, strict=False))
        self._offset_ns = max(offsets, default=0)

    def spans(self) -> list[Found]:
        """Return the events on the thread of the loop, by their starts."""
        found: list[Found] = []
        for each in self._on_cpu if self.count else ():
            at = self._around(each, self._name)
            if at is not None and each.thread == self._thread and not each.name.startswith(_MARK):
                end_ns = min(each.end_ns, self._marks[self._name][at].end_ns)
                found += self._found(each, at, each.name, end_ns)
        return found

    def kernels(self) -> list[Found]:
        """Return what devices did for the loop, by their starts.

        Torch does not know the thread of a call that no op of its own made, such as NCCL's, and it
        runs backward passes on threads of their own. What these begin is of the loop whose mark
        began last.
        """
        if not self.count:
            return []
        # A device repeats the names of ranges of the CPU; these are no work of its own.
        names = {each.name for each in self._on_cpu}
        calls = {each.number: each for each in self._on_cpu if each.name.startswith(_CALLS)}
        ops = {each.number: each for each in self._on_cpu if not each.name.startswith(_CALLS)}
        threads = {found[0].thread for found in self._marks.values()}
        found: list[Found] = []
        for each in self._on_devices:
            op = ops.get(each.cause) if each.cause else None
            begun = op or calls.get(each.number)
            if begun is None or each.name in names:
                continue
            knows_thread = op is not None and op.thread in threads
            if begun.thread == self._thread if knows_thread else self._is_last(begun):
                at = self._around(begun, self._name)
                found += self._found(each, at, kernel_name(each.name), each.end_ns)
        return found

    def _around(self, each: TorchEvent, loop: str) -> int | None:
        """Return the number of the mark of a loop during which an event began."""
        at = bisect_right(self._starts[loop], each.start_ns) - 1
        return at if at >= 0 and each.start_ns < self._marks[loop][at].end_ns else None

    def _is_last(self, each: TorchEvent) -> bool:
        """Return whether this loop's mark is the last one that had begun."""
        begun = {loop: at for loop in self._marks if (at := self._around(each, loop)) is not None}
        last = max(begun, key=lambda loop: self._starts[loop][begun[loop]], default="")
        return last == self._name

    def _found(self, each: TorchEvent, at: int | None, what: str, end_ns: int) -> Iterator[Found]:
        if at is not None and at < self.count:
            times = each.start_ns + self._offset_ns, end_ns + self._offset_ns
            yield Found(what, self._marked[at][1], *times, each.stream)


def kernel_name(name: str) -> str:
    """Return the name of a kernel without return type, scopes and parameters, not too long.

    >>> kernel_name("void at::native::reduce_kernel<512, at::native::ReduceOp<float> >(float*)")
    'reduce_kernel<512, ReduceOp<float> >'
    >>> kernel_name("Memcpy HtoD (Pinned -> Device)")
    'Memcpy HtoD (Pinned -> Device)'
    """
    if not name.startswith(("Memcpy ", "Memset ")):
        name = _SCOPE.sub("", name.removeprefix("void "))
        depth = 0
        for at, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0 and at:
                name = name[:at]
                break
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
