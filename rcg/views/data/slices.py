# SPDX-License-Identifier: Apache-2.0
"""Slices: what the processes of one graph did and when, as columns, and the transfers of frames.

```
event   Read c1, execution 7     waited 30 µs    moved 4 µs      decoded 2 µs
slices  "read c1"                WAITING         COMMUNICATION   SERIALIZATION     three
```

A slice is one part of an event, so a slice has one kind of time. A trace has millions of slices.
They are stored as columns of numbers, which both SVG files and a widget's canvas are drawn from.
This file must not know how anything is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.text import time_text
from rcg.views.data import ViewPayload
from rcg.views.data.edge_styles import style_of

SPAN: Final = 5
"""The kind of a user's span."""

HIDDEN: Final = 6
"""The kind of communication in a lane while a method of its actor runs."""

DEVICE_COMPUTE: Final = 7
"""The kind of what a device computes."""

DEVICE_COMMUNICATION: Final = 8
"""The kind of a device's copies, and of NCCL's kernels. The other kinds are those of
``TimeKind``."""

OPS: Final = 0
"""The track of a lane's ops."""

SPANS: Final = 1
"""The track of the user's spans."""

STREAMS: Final = 2
"""The track of the first stream of a lane's devices. The others follow."""

NOBODY: Final = (1 << 16) - 1
"""``peer`` of a slice that does not wait for another process."""

NO_OP: Final = (1 << 16) - 1
"""``op`` of a span, and of an op that the plan does not have."""

COLUMNS: Final = (
    ("start", "<f8"),
    ("duration", "<f8"),
    ("lane", "<u2"),
    ("track", "u1"),
    ("kind", "u1"),
    ("name", "<u2"),
    ("peer", "<u2"),
    ("execution", "<f8"),
    ("bytes", "<f8"),
    ("op", "<u2"),
    ("transfers", "<i4"),
    ("transfer_times", "<f8"),
    ("is_wire", "u1"),
    ("collectives", "<i4"),
    ("collective_first", "<i4"),
    ("collective_times", "<f8"),
)
"""The columns of a payload. ``start``, ``duration`` and all ``_times`` are in microseconds.
``transfers`` has two rows per transfer, and ``transfer_times`` the times when its frame left the
first and arrived in the second; ``is_wire`` has one number per transfer. The slices of collective
``i`` are ``collectives`` from ``collective_first[i]`` to ``collective_first[i + 1]``, and
``collective_times`` has the times when it began and ended. Each other column has one number per
slice."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The head of a lane.

    Attributes:
        process: Its process.
        label: Its displayed name.
        detail: More facts.
        node: The name of its node of the cluster: ``n1 · 10.0.0.2``; "" if there is only one. Lanes
            of a node follow each other.
        error_ns: How wrong its clock may be.
        under: The process of the actor that it belongs to, and follows; "" for a process.
        short: Its name below that of the actor: ``comm``; "" for a process.
        streams: Names of the streams of its devices: the tracks from ``STREAMS`` on.
        count: How many processes it stands for; see ``alike``.
    """

    process: str
    label: str
    detail: str
    node: str = ""
    error_ns: int = 0
    under: str = ""
    short: str = ""
    streams: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True, slots=True)
class SliceName:
    """The name of a slice.

    Attributes:
        text: The name: ``fwd``, ``read c1``, or the name that the user gave to a span.
        role: ``call``, ``read``, ``write``, ``input``, ``output``, ``build``, ``free``, ``span``;
            the kind of a collective; ``unknown`` for an op that the plan does not have.
        channel: The channel that is read or written, or "".
        group: The group over which tensors are exchanged, or "".
    """

    text: str
    role: str
    channel: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class GroupHead:
    """A group: the library that carries its tensors, and its lanes in the order of the ranks."""

    backend: str
    lanes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TransferEnds:
    """The writes, or the reads, of one process at one channel: the ends of its transfers.

    ``row`` is the slice of each, and ``at`` when its frame was written or taken.
    """

    row: Ints
    at: Ints
    execution: Ints


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices of one graph, sorted by lane and then by start. Spans come after the ops.

    Attributes:
        graph_id: Hex id of the graph.
        start_ns: When the window begins, on the driver's monotonic clock.
        end_ns: When it ends.
        origin_ns: When the trace began. Displayed times count from here.
        heads: One per lane.
        names: The names; ``name`` is an index in it.
        lane: Index of the lane.
        track: ``OPS``, ``SPANS``, or from ``STREAMS`` on a stream of a device.
        name: Index of the name.
        kind: The kind of time: ``TimeKind``, ``SPAN``, ``HIDDEN``, ``DEVICE_COMPUTE``,
            ``DEVICE_COMMUNICATION``.
        peer: Index of the lane that it waited for, or ``NOBODY``.
        start: When it began, in nanoseconds from ``start_ns``.
        duration: Its duration in nanoseconds.
        execution: Index of its execution.
        bytes: Number of bytes that the whole event moved.
        op: Index of the op in the program of its process, or ``NO_OP``.
        written: The ends of the writes, by channel. Tensor channels are left out: they hold no
            frames, because their writer waits until a frame is taken.
        taken: When frames were taken, by channel and by index of the reading lane.
        transfers: The rows of the write and of the read of each transfer [number of transfers, 2].
        transfer_times: When each of these frames left and arrived [number of transfers, 2], in
            nanoseconds from ``start_ns``. No frame arrives before it left. Tensors leave when the
            last end has arrived.
        reads: The lanes that read each channel that carries values.
        slots: The number of slots of each of these channels.
        collectives: The rows of the ranks of each collective, one array per collective.
        collective_times: When each collective began, because its last rank had arrived, and when it
            ended [number of collectives, 2].
        groups: The groups, by id.
        is_wire: Which transfers are those to another node: from a write to the Pass of its gate.
        lengths: The shortest and the longest duration of what each slice stands for [number of
            slices, 2], if lanes stand for several processes; else nothing.
    """

    graph_id: str
    start_ns: int
    end_ns: int
    origin_ns: int
    heads: tuple[LaneHead, ...]
    names: tuple[SliceName, ...]
    lane: npt.NDArray[np.uint16]
    track: npt.NDArray[np.uint8]
    name: npt.NDArray[np.uint16]
    kind: npt.NDArray[np.uint8]
    peer: npt.NDArray[np.uint16]
    start: Ints
    duration: Ints
    execution: Ints
    bytes: Ints
    op: npt.NDArray[np.uint16]
    written: dict[str, TransferEnds]
    taken: dict[tuple[str, int], TransferEnds]
    transfers: npt.NDArray[np.int32]
    transfer_times: Ints
    reads: dict[str, tuple[int, ...]]
    slots: dict[str, int]
    collectives: tuple[Ints, ...] = ()
    collective_times: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))
    groups: dict[str, GroupHead] = field(default_factory=dict)
    is_wire: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    lengths: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.start_ns

    def clock_words(self) -> list[str]:
        """Return how wrong the clocks of other nodes may be, as text; nothing on one node."""
        error_ns = max((head.error_ns for head in self.heads if head.node), default=0)
        return [f"clocks of nodes to within {time_text(error_ns)}"] if error_ns else []

    def where(self, role: str) -> npt.NDArray[np.bool_]:
        """Return which slices have a role."""
        has = np.array([name.role == role for name in self.names] or [False])
        return np.asarray(has[self.name])

    def exchanges(self) -> Ints:
        """Return the transfers over communicators [number, 4]: their two rows and two times."""
        has_group = np.array([bool(name.group) for name in self.names] or [False])
        kept = has_group[self.name[self.transfers[:, 0]]]
        return np.column_stack([self.transfers[kept], self.transfer_times[kept]])

    def rank_text(self, row: int) -> str:
        """Return the group over which a slice exchanges tensors, and its rank; "" for others."""
        name = self.names[self.name[row]].group
        if not name:
            return ""
        group = self.groups[name]
        rank = f"rank {group.lanes.index(int(self.lane[row]))} of {len(group.lanes)}"
        return f"@{name} ({style_of(group.backend).title}), {rank}"

    def ranks_of(self, row: int) -> int:
        """Return how many ranks the group has over which a slice exchanges tensors."""
        return len(self.groups[self.names[self.name[row]].group].lanes)

    def to_payload(self) -> ViewPayload:
        """Return a head and the columns.

        The head has ``version``, ``graph_id``, ``start_us`` (on the driver's clock) and
        ``duration_us``, ``count`` and ``transfers`` (the numbers of each), ``lanes``, ``names``,
        ``channels`` and ``groups``. The columns are those of
        ``COLUMNS``.
        """
        values = vars(self) | {
            "start": self.start / 1e3,
            "duration": self.duration / 1e3,
            "transfers": self.transfers.ravel(),
            "transfer_times": self.transfer_times.ravel() / 1e3,
            "collectives": np.concatenate([np.empty(0, np.int64), *self.collectives]),
            "collective_first": np.cumsum([0, *map(len, self.collectives)]),
            "collective_times": self.collective_times.ravel() / 1e3,
        }
        head = {
            "version": 1,
            "graph_id": self.graph_id,
            "start_us": self.start_ns / 1e3,
            "duration_us": self.duration_ns / 1e3,
            "count": len(self),
            "transfers": len(self.transfers),
            "lanes": [
                {
                    "process": head.process,
                    "label": head.label,
                    "detail": head.detail,
                    "node": head.node,
                    "under": head.under,
                    "short": head.short,
                    "streams": list(head.streams),
                    "clock_us": head.error_ns / 1e3,
                }
                for head in self.heads
            ],
            "names": [asdict(name) for name in self.names],
            "channels": {
                channel: {"slots": self.slots[channel], "readers": list(readers)}
                for channel, readers in self.reads.items()
            },
            "groups": {
                group: {"title": style_of(each.backend).title, "lanes": list(each.lanes)}
                for group, each in self.groups.items()
            },
        }
        columns = {name: np.asarray(values[name]).astype(dtype) for name, dtype in COLUMNS}
        return ViewPayload(head, columns)
