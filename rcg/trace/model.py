# SPDX-License-Identifier: Apache-2.0
"""A recording: the merged record of what the processes of some graphs did, as plain data.

```
Recording ── GraphTrace ── LaneTrace, one per process ── events, one per op of an execution
             plan          its program is in the plan    start, end, waited, coded, ...
```

The duration of an event has three parts: waiting for its peer (``waited_ns``), encoding or decoding
(``coded_ns``), and the rest, which is the method for a Call, and moving bytes for a Read or Write.
In an actor, an event ends where the next one begins.

The record stores times as they were measured, in nanoseconds of the driver's monotonic clock:
``events``, ``start_ns`` and ``end_ns``. A lane states how well its clock was aligned. Everything
that displays or exports a time counts it from ``start_ns`` of the recording: pictures, pages and
widgets, ``to_chrome``, ``to_pandas``, and ``executions()``, ``critical_path()`` and ``summary`` of
a profile.

This room must know neither Ray nor how graphs run. Tests make traces by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rcg.display import Displayed
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.text import graph_title, plural, stated, time_text

SPAN = "span"
"""The word for a user's span. The words for ops are ``Op.word``."""

KERNEL = "kernel"
"""The word for what a device did: a kernel, or a copy of its memory."""

UNKNOWN = "unknown"
"""The word and the name of an op that its program does not have."""

EVENT: Final = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("waited_ns", "<i8"),
        ("coded_ns", "<i8"),
        ("execution", "<i8"),
        ("bytes", "<i8"),
        ("op", "<u4"),
        ("peer", "<u4"),
    ]
)
"""One event. ``op`` is an index in the program of its process; from ``SPAN_BASE`` on it is a span
of the user. ``peer`` is the index of the lane for which it waited, or ``NO_PEER``."""

Events = npt.NDArray[np.void]

SPAN_BASE: Final = 1 << 31
"""``op`` of the first user span of a lane. The others follow in the order of its ``spans``."""

NO_PEER: Final = (1 << 32) - 1
"""``peer`` of an event that did not wait for another process."""

_STREAMS: Final = 1 << 16  # of a device, as far as one tells them apart


def stream_number(device: int, stream: int) -> int:
    """Return the number, never 0, under which a recorder keeps a stream of a device."""
    return 1 + device * _STREAMS + stream % _STREAMS


def stream_name(number: int) -> str:
    """Return what people call the stream with a number of ``stream_number``.

    >>> stream_name(stream_number(0, 7))
    'GPU 0, stream 7'
    """
    device, stream = divmod(number - 1, _STREAMS)
    return f"GPU {device}, stream {stream}"


@dataclass(frozen=True, slots=True)
class Clock:
    """How the monotonic clock of a process was aligned with the driver's.

    Attributes:
        offset_ns: The offset that was added to its times.
        error_ns: Largest error of the offset.
    """

    offset_ns: int = 0
    error_ns: int = 0


@dataclass(frozen=True, slots=True)
class OpenOp:
    """The op that a process was executing when the trace ended.

    Attributes:
        op: Index in its program.
        execution: Index of the execution.
        since_ns: When the op began.
        waiting_since_ns: When it began to wait; 0 if it did not wait.
        peer: Index of the lane for which it waited, or ``NO_PEER``.
    """

    op: int
    execution: int
    since_ns: int
    waiting_since_ns: int = 0
    peer: int = NO_PEER

    def moved(self, offset_ns: int) -> OpenOp:
        """Return the same with times of a clock that is ahead by an offset."""
        waiting = self.waiting_since_ns and self.waiting_since_ns + offset_ns
        return replace(self, since_ns=self.since_ns + offset_ns, waiting_since_ns=waiting)


@dataclass(frozen=True, eq=False)
class LaneTrace:
    """The record of one process of a graph.

    Attributes:
        process: Its name in the plan: ``driver``, ``a0``.
        label: Its displayed name, unique in its graph: ``a0 (Stage)``.
        events: Rows of ``EVENT``, by start. Spans lie inside the calls that they belong to.
        spans: Names of the user's spans, by number.
        node: Address of its node.
        pid: Its process id; 0 if it is not known.
        clock: How its clock was aligned.
        lost: Number of events that were overwritten before they were read, or left out because of a
            limit.
        open: The op that it was executing when the trace ended, if any.
        kernels: What its devices did for it: rows of ``EVENT``, by start. Their names are in
            ``spans``, and ``peer`` is an index in ``streams``. They are begun in an op and may run
            after it; kernels of one stream do not overlap.
        streams: Names of the streams of its devices: ``GPU 0, stream 7``.
        processor_ns: How long the thread of its methods was on a processor during the recording,
            and all threads of its process together; None if that is not known.
    """

    process: str
    label: str
    events: Events
    spans: tuple[str, ...] = ()
    node: str = ""
    pid: int = 0
    clock: Clock = Clock()
    lost: int = 0
    open: OpenOp | None = None
    kernels: Events = field(default_factory=lambda: np.empty(0, EVENT))
    streams: tuple[str, ...] = ()
    processor_ns: tuple[int, int] | None = None

    def span_name(self, op: int) -> str:
        """Return the name of a span, or of a kernel, by its ``op``."""
        number = op - SPAN_BASE
        return self.spans[number] if 0 <= number < len(self.spans) else f"span {number}"


class Mark(NamedTuple):
    """What is wrong with an actor, in its box in pictures.

    Attributes:
        kind: ``lost``, ``stuck``, or ``over`` if the graph was torn down.
        text: In a few words.
    """

    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class GraphTrace:
    """The record of one graph.

    Attributes:
        graph_id: Hex id of the graph.
        plan: Its plan.
        lanes: One per program of the plan, in the order of the plan: the driver first. ``peer`` is
            an index in it.
        limit: The limit of executions in flight.
        name: What people call it, or "".
        state: What was wrong with it at the end, in a few words, or "".
        marks: The same of each actor with which something was wrong, by its id in the plan.
    """

    graph_id: str
    plan: Plan
    lanes: tuple[LaneTrace, ...]
    limit: int = 10
    name: str = ""
    state: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<GraphTrace of {self.graph_id[:8]!a}: {plural(self.num_events, 'event')}>"

    @property
    def title(self) -> str:
        """Its name and the beginning of its id, for people, and what was wrong with it."""
        return stated(graph_title(self.name, self.graph_id), self.state)

    def program(self, lane: LaneTrace) -> Program:
        """Return the program of a lane's process."""
        return self.plan.program(lane.process)

    def op(self, lane: LaneTrace, op: int) -> Op:
        """Return one op of a lane's program."""
        return self.plan.program(lane.process).ops[op]

    def lane(self, process: str) -> LaneTrace:
        """Return the lane of a process of the plan."""
        return next(lane for lane in self.lanes if lane.process == process)

    @property
    def driver(self) -> LaneTrace:
        """The lane of the driver."""
        return self.lane(DRIVER)

    @property
    def num_events(self) -> int:
        """The number of events in all lanes."""
        return sum(len(lane.events) + len(lane.kernels) for lane in self.lanes)

    @property
    def is_active(self) -> bool:
        """Whether an op ended, an actor is in a call, or the driver is in an op."""
        return self.num_events > 0 or any(
            lane.open is not None and (lane is self.driver or self.op(lane, lane.open.op).is_call)
            for lane in self.lanes
        )


@dataclass(frozen=True, slots=True)
class TensorTransfer:
    """One value with tensors that a process got from the process that held them.

    Attributes:
        object: The id of the value at its source.
        source: The process that held the tensors.
        target: The process that got them.
        transport: How they travelled.
        bytes: The bytes of the tensors.
        start_ns: When the target began to wait for this value; before that it got others.
        waited_ns: How long it waited until the source began to send.
        end_ns: When all was there.
        error: Why it did not arrive, or "".
    """

    object: str
    source: str
    target: str
    transport: str
    bytes: int
    start_ns: int
    waited_ns: int
    end_ns: int
    error: str = ""

    @property
    def moved_ns(self) -> int:
        """How long the tensors moved."""
        return max(0, self.end_ns - self.start_ns - self.waited_ns)


@dataclass(frozen=True, eq=False)
class Recording(Displayed):
    """A record of what the processes of some graphs did during a recording.

    Attributes:
        graphs: One record per graph.
        start_ns: When the recording began, on the driver's monotonic clock.
        end_ns: When it ended.
        info: Information for people: ``host``, ``time`` (of the start, in seconds since 1970),
            ``versions``, ``cores``.
        transfers: The tensors by reference that the processes got meanwhile, the earliest first.
    """

    graphs: tuple[GraphTrace, ...]
    start_ns: int
    end_ns: int
    info: dict[str, Any] = field(default_factory=dict)
    transfers: tuple[TensorTransfer, ...] = ()

    def __repr__(self) -> str:
        count = len(self.transfers)
        more = f" and {plural(count, 'transfer')} of tensors" if count else ""
        return (
            f"<Trace of {plural(len(self.graphs), 'graph')}: {plural(self.num_events, 'event')}"
            f"{more} in {time_text(self.duration_ns)}>"
        )

    @property
    def duration_ns(self) -> int:
        """The length of the recording."""
        return self.end_ns - self.start_ns

    @property
    def num_events(self) -> int:
        """The number of events."""
        return sum(graph.num_events for graph in self.graphs)

    @property
    def lost(self) -> int:
        """The number of events that are missing."""
        return sum(lane.lost for graph in self.graphs for lane in graph.lanes)

    @property
    def active(self) -> Self:
        """The recording with only the graphs that did something; all graphs if none did."""
        graphs = tuple(graph for graph in self.graphs if graph.is_active)
        is_all = len(graphs) in (0, len(self.graphs))
        return self if is_all else replace(self, graphs=graphs)

    @property
    def inactive_text(self) -> str:
        """A sentence about the graphs that ``active`` leaves out; empty if there are none."""
        count = len(self.graphs) - len(self.active.graphs)
        return f"{plural(count, 'more graph')} did nothing during the recording" if count else ""


def actor_labels(plan: Plan) -> dict[str, str]:
    """Return the class names of a plan's actors by their ids."""
    return {actor.id: actor.label for actor in plan.actors}
