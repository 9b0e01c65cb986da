# SPDX-License-Identifier: Apache-2.0
"""A scene: bars in rows over time, and every word about them. Painters know nothing of graphs.

```
rows   a0 (Stage)          |read c0|    fwd 3    |write c1|        bars: columns of numbers
          spans                     |attention|                    bars of a row never overlap
          queue            ▁▁▁▁▂▂▂▂▂▁▁▁▁▁                          steps
       a1 (Stage)                            |read c1|  fwd 3  |  links join the ends of a value
```

``rcg.views.scenes`` makes scenes, ``rcg.views.svg.scene`` paints them as pictures, and ``scene.js``
paints their payload in widgets and saved pages. So all of them say the same about a bar. What they
say is made from the templates here, by the same rules in Python and in JavaScript: a line whose
values are not all known is left out.

``str(scene)`` has a line per bar. Times are in nanoseconds from the beginning of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.table import Table
from rcg.text import brief, bytes_text, count_text, speed_text, time_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.ops import MAX_GB_PER_S
from rcg.views.data import ViewPayload
from rcg.views.data.colours import TITLES, Look
from rcg.views.data.edge_styles import COLLECTIVE as COLLECTIVE_EDGE
from rcg.views.data.edge_styles import TCP, style_of

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

SPANS, QUEUE, PREDICTION, IDEAL = "spans", "queue", "predicted", "ideal"
"""Parts of a process that have rows of their own; so has each stream of its devices."""

NOBODY: Final = (1 << 16) - 1
"""``peer`` of a bar that does not wait for another process."""

NO_OP: Final = (1 << 16) - 1
"""``op`` of a bar that is no op of a program."""

SUM: Final = -1
"""``execution`` of a bar that is a sum of many."""

NONE: Final = -1
"""No event, and no bar."""

VALUE, WIRE, EXCHANGE, COLLECTIVE = range(4)
"""Kinds of links: a value from its Write to its Read, or to the gate of another node; tensors over
a communicator; the ranks of a collective."""

NUMBER: Final = "0"
"""Stands for numbers of labels in a legend. It explains those that are not of an execution."""

CALL_NS: Final = 1_000_000
"""The length of a call on an axis that counts calls."""

_LINKS: Final = (
    {"title": "transfer", "light": "#b34e00", "dark": "#ff8a3d", "dashes": ""},
    {"title": "on the wire between nodes (TCP)", "dashes": style_of(TCP).dashes,
     "light": style_of(TCP).light, "dark": style_of(TCP).dark},
    {"title": "transfer", "light": "#b34e00", "dark": "#ff8a3d", "dashes": ""},
    {"title": "collective", "dashes": "", "light": style_of(COLLECTIVE_EDGE).light,
     "dark": style_of(COLLECTIVE_EDGE).dark},
)  # fmt: skip
LINK_LOOKS: Final[tuple[Mapping[str, str], ...]] = _LINKS
"""The title, the colours and the dashes of links, by kind."""

PATH_TITLE: Final = "critical path"
"""What the line of the critical path is, in a legend."""

_MAX_LINKS: Final = 4  # in a hover text

# --- words ---------------------------------------------------------------------------------------

_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_DOT: Final = "\N{MIDDLE DOT}"
_WITHIN: Final = "\N{PLUS-MINUS SIGN}"

LABELS: Final = {
    "call": ["{name} {number}", "{initial}{number}", "{number}"],
    "numbered": ["{name} {number}", "{initial}{number}"],  # by their call: methods begin at 0 each
    "batch": ["{initial}{batch}", "{batch}"],
    "waiting": ["waits for {peer}"],
    "serialization": [],
    "reference": ["{name}", "{bytes}"],
    "share": [],
    "other": ["{name}", "{short}"],
}
"""The possible labels of a bar, the preferred one first."""

WORDS: Final = {
    "call": "{row}.{name}",
    "op": "{row}: {name}",
    "waits": "{row} waits: {name}",
    "execution": "execution {execution}",
    "numbered": "call {call} of execution {execution}",
    "batch": "micro-batch {batch}",
    "took": f"{{kind}} {{took}} {_DOT} at {{at}}",
    "peer": "for {peer}",
    "rate": f"{{bytes}} {_DOT} {{rate}}",
    "bytes": "{bytes}",
    "median": "median of {count}, of {shortest} to {longest}",
    "link0": f"{{source}} {_ARROW} {{target}}: taken {{took}} after it was written",
    "link1": f"{{source}} {_ARROW} {{target}}: {{took}} on the wire",
    "within1": f"{{source}} {_ARROW} {{target}}: {{took}} on the wire, {_WITHIN}{{error}}",
    "link2": f"{{source}} {_ARROW} {{target}}: in {{took}}",
    "rate2": f"{{source}} {_ARROW} {{target}}: {{bytes}} in {{took}} {_DOT} {{rate}}",
    "link3": "all {ranks} ranks: in {took}",
    "rate3": f"all {{ranks}} ranks: {{bytes}} in {{took}} {_DOT} {{rate}}",
    "more": "and {count} more",
    "slots": "room in {channel}: {slots}",
    "rank": "@{group} ({library}), rank {rank} of {ranks}",
}
"""The lines of a hover text."""

_PLACE: Final = re.compile(r"\{(\w+)\}")


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its values; "" if one of them is not known."""
    names = _PLACE.findall(template)
    if any(values.get(name) is None for name in names):
        return ""
    return _PLACE.sub(lambda found: values[found[1]], template)


# --- what a scene has ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A row of bars, or of a queue's steps.

    Attributes:
        process: The process in the plan that it is about: ``a0``, or a lane of it: ``a0.comm``.
        label: The displayed name of that: ``a0 (Stage)``.
        part: "" for its ops; ``SPANS``, ``QUEUE``, ``PREDICTION``, ``IDEAL``, or a stream of its
            devices.
        detail: More facts.
        node: The name of its node of the cluster: ``n1 · 10.0.0.2``; "" if there is only one. Rows
            of a node follow each other.
        under: The process that a lane belongs to, and follows; "" for a process.
        short: The name of a lane below that of its process: ``comm``.
        height: Its height in pixels, if there is room.
        error_ns: How wrong its clock may be.
        members: The rows that it stands for, whose bars it has the medians of.
        note: A figure of it, at its right.
    """

    process: str
    label: str
    part: str = ""
    detail: str = ""
    node: str = ""
    under: str = ""
    short: str = ""
    height: float = 20.0
    error_ns: int = 0
    members: tuple[int, ...] = ()
    note: str = ""

    @property
    def has_ground(self) -> bool:
        """Whether time without a bar is idle time."""
        return self.part not in (SPANS, QUEUE, PREDICTION, IDEAL)


@dataclass(frozen=True, slots=True)
class Name:
    """What a bar is of.

    Attributes:
        text: The name of a method, of an op (``read c1``), of a span, or of a kernel.
        role: ``call``, ``read``, ``write``, ``input``, ``output``, ``build``, ``free``, ``span``,
            ``kernel``, ``reference``, ``share``; the kind of a collective; ``unknown``.
        channel: The channel that is read or written, or "".
        group: The group over which tensors are exchanged, or "".
        call: Which call of its method by its actor in an execution, from 0 on; None if each method
            is called once.
        initial: The letter of a method, if those of all methods differ, or "".
        is_other: Whether it is of another method than the first one of its actor.
        batch: Its micro-batch, from 0 on, in a view of these; else None.
    """

    text: str
    role: str
    channel: str = ""
    group: str = ""
    call: int | None = None
    initial: str = ""
    is_other: bool = False
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group: what its library is called, and its processes in the order of their ranks."""

    library: str
    processes: tuple[str, ...]


def _u1() -> Column:
    return np.empty(0, np.uint8)


def _u2() -> Column:
    return np.empty(0, np.uint16)


def _i4() -> Column:
    return np.empty(0, np.int32)


def _i8() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars as columns, sorted by row and then by start.

    Attributes:
        row: The index of its row.
        start: When it began.
        duration: How long it took.
        kind: The kind of time.
        look: The index of its look.
        name: The index of its name.
        peer: The index of the row of the process that it waited for, or ``NOBODY``.
        execution: The index of its execution, or ``SUM``.
        bytes: How many bytes the whole op moved, of which it may be a part.
        op: The index of the op in the program of its process, or ``NO_OP``.
        count: How many bars it stands for. This and the rest are empty if each stands for itself.
        shortest: The shortest of them.
        longest: The longest of them.
        total: What they take in all.
        event: The row of its event in the ``EventTable``, or ``NONE``; empty if none has one. No
            painter needs it.
    """

    row: Column = field(default_factory=_u2)
    start: Column = field(default_factory=_i8)
    duration: Column = field(default_factory=_i8)
    kind: Column = field(default_factory=_u1)
    look: Column = field(default_factory=_u1)
    name: Column = field(default_factory=_u2)
    peer: Column = field(default_factory=_u2)
    execution: Column = field(default_factory=_i8)
    bytes: Column = field(default_factory=_i8)
    op: Column = field(default_factory=_u2)
    count: Column = field(default_factory=_i4)
    shortest: Column = field(default_factory=_i8)
    longest: Column = field(default_factory=_i8)
    total: Column = field(default_factory=_i8)
    event: Ints = field(default_factory=_i8)

    @classmethod
    def of(cls, **columns: Column) -> Bars:
        """Return bars with some columns: of no op, of the first execution, that wait for nobody."""
        nothing = np.zeros(len(columns["start"]))
        rest = {
            "look": columns.get("kind", nothing),
            "peer": nothing + NOBODY,
            "op": nothing + NO_OP,
        }
        rest |= dict.fromkeys(("kind", "name", "execution", "bytes"), nothing)
        return cls().with_columns(**rest | columns)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Ints:
        """When each ended."""
        return np.asarray(self.start + self.duration)

    def take(self, which: Column) -> Bars:
        """Return some of them."""
        columns = ((each.name, getattr(self, each.name)) for each in fields(self))
        return Bars(**{name: each[which] if len(each) else each for name, each in columns})

    def with_columns(self, **columns: Column) -> Bars:
        """Return the same with other columns, of the types of these."""
        own = {name: np.asarray(each).astype(_TYPES[name]) for name, each in columns.items()}
        return replace(self, **own)

    @staticmethod
    def joined(parts: Sequence[Bars]) -> tuple[Bars, Ints]:
        """Return all bars, sorted, and the place of each of them, part after part."""
        if any(len(each.count) for each in parts):
            parts = [each if len(each.count) else each.counted() for each in parts]
        if any(len(each.event) for each in parts):
            parts = [each if len(each.event) else each.without_events() for each in parts]
        names = [each.name for each in fields(Bars)]
        columns = {name: [getattr(each, name) for each in parts] for name in names}
        bars = Bars(**{name: np.concatenate([np.empty(0, _TYPES[name]), *each])
                       for name, each in columns.items()})  # fmt: skip
        order = np.lexsort((bars.start, bars.row))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return bars.take(order), place

    def counted(self) -> Bars:
        """Return the same, where each bar says that it stands for itself."""
        took = self.duration
        return self.with_columns(count=np.ones(len(self)), shortest=took, longest=took, total=took)

    def without_events(self) -> Bars:
        """Return the same, of which no bar has an event."""
        return self.with_columns(event=np.full(len(self), NONE))


_TYPES: Final = {
    "row": "<u2", "start": "<i8", "duration": "<i8", "kind": "u1", "look": "u1", "name": "<u2",
    "peer": "<u2", "execution": "<i8", "bytes": "<i8", "op": "<u2", "count": "<i4",
    "shortest": "<i8", "longest": "<i8", "total": "<i8", "event": "<i8",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Links:
    """Links between bars: the bars of link ``i`` are ``ends`` from ``first[i]`` to ``first[i+1]``.

    The first end of a transfer is where the value comes from.

    Attributes:
        kind: ``VALUE``, ``WIRE``, ``EXCHANGE`` or ``COLLECTIVE``.
        begin: When it left. Tensors leave when the last end has arrived.
        until: When it arrived, never before it left.
        first: The position of its first end [number of links + 1].
        ends: The bars.
    """

    kind: Column = field(default_factory=_u1)
    begin: Ints = field(default_factory=_i8)
    until: Ints = field(default_factory=_i8)
    first: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    ends: Ints = field(default_factory=_i8)

    def __len__(self) -> int:
        return len(self.kind)

    def ends_of(self, link: int) -> Ints:
        """Return the bars of a link."""
        return np.asarray(self.ends[self.first[link] : self.first[link + 1]])

    def moved(self, place: Ints) -> Links:
        """Return the links with other numbers of bars; without those of which a bar is -1."""
        ends = place[self.ends]
        sizes = np.diff(self.first)
        lacks = np.zeros(len(self), np.int64)
        np.add.at(lacks, np.repeat(np.arange(len(self)), sizes), ends < 0)
        kept = lacks == 0
        return Links(
            self.kind[kept],
            self.begin[kept],
            self.until[kept],
            np.cumsum([0, *sizes[kept]]),
            ends[np.repeat(kept, sizes)],
        )

    @staticmethod
    def of(parts: Sequence[tuple[int, Column, Column]]) -> Links:
        """Return links of parts: the kind, the bars [links, ends] and the times [links, 2]."""
        parts = [part for part in parts if len(part[1])]
        if not parts:
            return Links()
        times = np.concatenate([part[2] for part in parts]).astype(np.int64)
        sizes = np.concatenate([np.full(len(rows), rows.shape[1]) for _, rows, _ in parts])
        return Links(
            np.concatenate([np.full(len(rows), kind, np.uint8) for kind, rows, _ in parts]),
            times[:, 0],
            times[:, 1],
            np.cumsum([0, *sizes]),
            np.concatenate([rows.ravel() for _, rows, _ in parts]).astype(np.int64),
        )


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a queue in a row: its depth from each time on, and its slots."""

    row: int
    at: Ints
    depth: Ints
    slots: int

    @property
    def most(self) -> int:
        """The largest depth."""
        return int(self.depth.max(initial=0))


@dataclass(frozen=True, eq=False)
class CriticalPaths:
    """Critical paths of executions: the parts of each in one row each, by time.

    ``executions[i]`` has the parts up to ``until[i]``. The first path, of None, is through all
    executions.
    """

    executions: tuple[int | None, ...] = ()
    row: Ints = field(default_factory=_i8)
    begin: Ints = field(default_factory=_i8)
    end: Ints = field(default_factory=_i8)
    until: Ints = field(default_factory=_i8)

    def moved(self, place: Ints) -> CriticalPaths:
        """Return the paths with other numbers of rows."""
        return replace(self, row=place[self.row])


@dataclass(frozen=True, slots=True)
class Sums:
    """Until when bars are sums, how long the bin of each is, and how many bars are in sums."""

    until: int
    bin: int
    bars: int


@dataclass(frozen=True, eq=False)
class Scene:
    """Bars in rows over time.

    Attributes:
        view: Which view it is: ``timeline``, ``schedule``, ``pipeline``, ``references``, ``heat``,
            ``shares`` or ``memory``.
        about: What it shows, in a line.
        begin: When the shown time begins.
        end: When it ends. Bars may reach beyond both.
        rows: The rows, from top to bottom.
        names: What bars are of.
        looks: How they are drawn.
        ground: What time without bars is.
        bars: The bars.
        links: What joins them.
        steps: The queues. All have one scale: the depth of the deepest one.
        queued: What is in the queues, in words.
        paths: The critical paths.
        causes: The bar that each one waited for, or that is before it, or ``NONE``; empty if that
            is not known.
        groups: The groups, by id.
        slots: How many frames a channel holds.
        repeats: How often an actor calls one method in an execution, at most.
        in_bytes: Whether queues are of bytes.
        in_calls: Whether its unit of time is a call; see ``CALL_NS``.
        is_part: Whether it has a part of a recording alone, and so have its queues.
        window: What a view shows at first; None for all.
        sums: Which of the bars are sums of many; None if none are.
        title: What stands out, as a title; "" for the name of the view.
        noted: What the notes of rows are.
    """

    view: str
    about: str
    begin: int
    end: int
    rows: tuple[Row, ...]
    names: tuple[Name, ...]
    looks: tuple[Look, ...]
    ground: str
    bars: Bars
    links: Links = field(default_factory=Links)
    steps: tuple[Steps, ...] = ()
    queued: str = ""
    paths: CriticalPaths = field(default_factory=CriticalPaths)
    causes: Ints = field(default_factory=_i8)
    groups: Mapping[str, Group] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    repeats: int = 1
    in_bytes: bool = False
    in_calls: bool = False
    is_part: bool = False
    window: tuple[int, int] | None = None
    sums: Sums | None = None
    title: str = ""
    noted: str = ""

    # Rows

    @cached_property
    def standing(self) -> Ints:
        """The row that stands for each row: its own, or that of several which it is one of."""
        found = np.arange(len(self.rows))
        for at, row in enumerate(self.rows):
            found[list(row.members)] = at
        return found

    @property
    def folded(self) -> list[int]:
        """The rows without those that another one stands for."""
        return [at for at in range(len(self.rows)) if self.standing[at] == at]

    @property
    def window_us(self) -> list[float] | None:
        """What a view shows at first, in microseconds."""
        return None if self.window is None else [each / 1e3 for each in self.window]

    @property
    def num_executions(self) -> int:
        """How many executions have bars."""
        return len(np.unique(self.bars.execution))

    def where(self, role: str) -> npt.NDArray[np.bool_]:
        """Return which bars have a role."""
        has = np.array([name.role == role for name in self.names] or [False])
        return np.asarray(has[self.bars.name])

    @cached_property
    def is_numbered(self) -> npt.NDArray[np.bool_]:
        """Which bars are calls or parts of them, with a number in their label."""
        is_around = np.isin(self.bars.kind, (TimeKind.WAITING, TimeKind.SERIALIZATION))
        return np.asarray(self.where("call") & ~is_around)

    @cached_property
    def signs(self) -> dict[str, str]:
        """What parts of labels mean: initials, and ``NUMBER``. A legend has those in use."""
        if self.view == "pipeline":  # whose methods have a colour each
            return {NUMBER: "number of the micro-batch"}
        initials = {name.initial: name.text for name in self.names if name.initial}
        is_counted = any(name.call is not None for name in self.names)
        return initials | ({NUMBER: "number of the call in its execution"} if is_counted else {})

    @cached_property
    def depth(self) -> int:
        """The scale of all queues: the depth of the deepest one."""
        return max((each.most for each in self.steps), default=0)

    # Words

    def time_text(self, time_ns: float) -> str:
        """Return a time in the unit of the axis."""
        if not self.in_calls:
            return time_text(time_ns)
        count = count_text(time_ns / CALL_NS)
        return f"{count} call{'' if count == '1' else 's'}"

    @property
    def queue_text(self) -> str:
        """What the steps of queues are, and how many are drawn as high as the row; "" without any.

        A view of a whole recording keeps this scale when it zooms.
        """
        where = "in this part" if self.is_part else "in the whole recording"
        return f"{self.queued}, up to {self.depth_text(self.depth)} {where}" if self.depth else ""

    def depth_text(self, depth: int) -> str:
        """Return a depth of a queue."""
        return bytes_text(depth) if self.in_bytes else str(depth)

    def most_text(self, steps: Steps) -> str:
        """Return the largest depth of a queue, and of how many slots if it has some."""
        return f"{self.depth_text(steps.most)}{f' of {steps.slots}' if steps.slots else ''}"

    def labels(self, bar: int) -> list[str]:
        """Return the possible labels of a bar, the preferred one first."""
        name, kind = self.names[self.bars.name[bar]], self.bars.kind[bar]
        key = name.role if name.role in LABELS else "other"
        if name.batch is not None:
            key = "batch"
        elif name.call is not None:
            key = "numbered" if name.initial else "call"
        if kind == TimeKind.WAITING:
            key = "waiting"
        elif kind == TimeKind.SERIALIZATION:
            key = "serialization"
        values = self._values(bar)
        return [text for each in LABELS[key] if (text := filled(each, values))]

    def hover(self, bar: int) -> list[str]:
        """Return what is said about a bar, line by line."""
        return list(filter(None, self._lines(bar)))

    def _values(self, bar: int) -> dict[str, str]:
        bars, name = self.bars, self.names[self.bars.name[bar]]
        size, took = int(bars.bytes[bar]), int(bars.duration[bar])
        row = self.rows[bars.row[bar]]
        values = {
            "row": brief(row.label),
            "name": brief(name.text),
            "initial": name.initial,
            "execution": str(bars.execution[bar]),
            "number": str(bars.execution[bar] if name.call is None else name.call),
            "kind": TITLES[int(bars.kind[bar])],
            "took": self.time_text(took),
            "at": self.time_text(int(bars.start[bar])),
        }
        if name.group:
            values["short"] = brief(name.text.replace(f" {name.group}", ""))
        if name.call is not None:
            values["call"] = str(name.call)
        if name.batch is not None:
            values["batch"] = str(name.batch)
        if bars.peer[bar] != NOBODY:
            values["peer"] = brief(self.rows[bars.peer[bar]].label)
        # An exchange says its bytes in its link.
        is_moving = bars.kind[bar] == TimeKind.COMMUNICATION
        if size and not (name.group and is_moving):
            values["bytes"] = bytes_text(size)
            # Reading copies nothing, and a bar of a lane may be a part of what moved these bytes.
            is_whole = is_moving and name.role in ("write", "reference") and not row.under
            if is_whole and size <= took * MAX_GB_PER_S:
                values["rate"] = speed_text(size / took)
        if row.members:
            values["count"] = str(bars.count[bar])
            values["shortest"] = self.time_text(int(bars.shortest[bar]))
            values["longest"] = self.time_text(int(bars.longest[bar]))
        return values

    def _lines(self, bar: int) -> Iterator[str]:
        values, name = self._values(bar), self.names[self.bars.name[bar]]
        if name.role == "share":  # of no execution, and at no time
            yield filled(WORDS["op"], values)
            return
        is_waiting = self.bars.kind[bar] == TimeKind.WAITING
        head = "waits" if is_waiting else "call" if name.role == "call" else "op"
        yield filled(WORDS[head], values)
        if name.role != "reference":
            yield filled(WORDS["numbered"], values) or filled(WORDS["execution"], values)
        yield filled(WORDS["batch"], values)
        yield filled(WORDS["took"], values)
        yield filled(WORDS["peer"], values)
        yield filled(WORDS["rate"], values) or filled(WORDS["bytes"], values)
        yield filled(WORDS["median"], values)
        moving = self.moving_bar(bar)
        links = self.links_of(moving).tolist()
        yield from (self._link_line(link) for link in links[:_MAX_LINKS])
        if len(links) > _MAX_LINKS:
            yield filled(WORDS["more"], {"count": str(len(links) - _MAX_LINKS)})
        if links and not name.group and name.channel in self.slots:
            slots = str(self.slots[name.channel])
            yield filled(WORDS["slots"], {"channel": name.channel, "slots": slots})
        process = self.rows[self.bars.row[bar]].process
        if name.group and process in self.groups[name.group].processes:
            group = self.groups[name.group]
            rank, ranks = group.processes.index(process), len(group.processes)
            values |= {"rank": f"{rank}", "ranks": f"{ranks}"}
            values |= {"group": name.group, "library": group.library}
            yield filled(WORDS["rank"], values)

    def _link_line(self, link: int) -> str:
        kind, ends = int(self.links.kind[link]), self.links.ends_of(link)
        took = int(self.links.until[link] - self.links.begin[link])
        rows = [self.rows[self.bars.row[bar]] for bar in ends]
        values = {
            "source": brief(rows[0].label),
            "target": brief(rows[-1].label),
            "took": self.time_text(took),
            "ranks": str(len(ends)),
        }
        of = ends if kind == COLLECTIVE else ends[:1]
        size = int(self.bars.bytes[of].max())
        if size and took and not self.in_calls:
            values |= {"bytes": bytes_text(size), "rate": speed_text(size / took)}
        if error := rows[0].error_ns + rows[-1].error_ns:
            values["error"] = time_text(error)
        better = {WIRE: "within1", EXCHANGE: "rate2", COLLECTIVE: "rate3"}.get(kind)
        found = filled(WORDS[better], values) if better else ""
        return found or filled(WORDS[f"link{kind}"], values)

    # Links

    @cached_property
    def _links_by_bar(self) -> tuple[Ints, Ints]:
        """The links of each bar: where they begin in the second array."""
        number = np.repeat(np.arange(len(self.links)), np.diff(self.links.first))
        order = np.argsort(self.links.ends, kind="stable")
        first = np.searchsorted(self.links.ends[order], np.arange(len(self.bars) + 1))
        return first, number[order]

    def links_of(self, bar: int) -> Ints:
        """Return the links that a bar is an end of."""
        first, links = self._links_by_bar
        return np.asarray(links[first[bar] : first[bar + 1]])

    def moving_bar(self, bar: int) -> int:
        """Return the bar of the same event that has links, if another one has them."""
        if len(self.links_of(bar)) or self.bars.op[bar] == NO_OP:
            return bar
        for by in (1, -1):
            near = bar + by
            while self._is_same_event(near, bar):
                if len(self.links_of(near)):
                    return near
                near += by
        return bar

    def _is_same_event(self, one: int, other: int) -> bool:
        bars = self.bars
        return 0 <= one < len(bars) and all(
            column[one] == column[other] for column in (bars.row, bars.name, bars.execution)
        )

    # Text and payload

    def __str__(self) -> str:
        """Return a line per bar, link and queue, for people and for comparing."""
        lines = [
            f"{self.view}: {' - '.join(filter(None, [self.title, self.about]))}",
            f"shown: {self.time_text(self.begin)} to {self.time_text(self.end)}",
        ]
        for at in self.folded:
            row = self.rows[at]
            node = f"  [{row.node}]" if row.node else ""
            note = f", {self.noted} {row.note}" if row.note else ""
            lines += ["", f"{row.label}{f' {_DOT} {row.part}' if row.part else ''}{note}{node}"]
            own = np.flatnonzero(self.bars.row == at).tolist()
            cells = [self._cells(bar) for bar in own]
            lines += Table(("",) * 6, cells, "wwwwwf").text("  ").splitlines()
            for each in self.steps:
                if each.row == at:
                    pairs = zip(each.at.tolist(), each.depth.tolist(), strict=True)
                    depths = [
                        f"{self.depth_text(depth)} at {self.time_text(time)}"
                        for time, depth in pairs
                    ]
                    lines.append(f"  up to {self.most_text(each)}: {', '.join(depths)}")
        if len(self.links):
            lines += ["", "links"]
            for link in range(len(self.links)):
                of = self.names[self.bars.name[self.links.ends_of(link)[0]]]
                when = f"at {self.time_text(int(self.links.begin[link]))}, {of.text}"
                lines.append(f"  {when}: {self._link_line(link)}")
        if len(self.paths.until):
            lines += ["", "critical path"]
            for at in range(int(self.paths.until[0])):
                begin, end = (
                    self.time_text(int(times[at])) for times in (self.paths.begin, self.paths.end)
                )
                lines.append(f"  {self.rows[self.paths.row[at]].label} {begin} to {end}")
        caused = self._caused().tolist()
        lines += ["", "waited for"] if caused else []
        for bar in caused:
            of, cause = (
                f"{self.rows[self.bars.row[at]].label}: {self.names[self.bars.name[at]].text}"
                for at in (bar, int(self.causes[bar]))
            )
            lines.append(f"  {of} at {self.time_text(int(self.bars.start[bar]))}: {cause}")
        return "\n".join(lines) + "\n"

    def _caused(self) -> Ints:
        """Return the bars whose causes are in other rows."""
        known = np.flatnonzero(self.causes >= 0)
        return np.asarray(known[self.bars.row[self.causes[known]] != self.bars.row[known]])

    def _cells(self, bar: int) -> tuple[str, ...]:
        """Return when a bar begins, how long it is, and what it is, for a table."""
        values, look = self._values(bar), self.looks[self.bars.look[bar]]
        label = next(iter(self.labels(bar)), "")
        when = filled(WORDS["numbered"], values) or filled(WORDS["execution"], values)
        is_op = self.names[self.bars.name[bar]].role not in ("reference", "share")
        more = [f"for {values['peer']}"] if "peer" in values else []
        more += [values["bytes"]] if "bytes" in values else []
        more += [values["rate"]] if "rate" in values else []
        more += [filled(WORDS["median"], values)] if "count" in values else []
        return (
            values["at"],
            values["took"],
            f"{values['kind']}, {look.colour or look.style}",
            f"{values['name']}, {when}" if is_op else values["name"],
            f'"{label}"' if label else "",
            ", ".join(more),
        )

    def to_payload(self) -> ViewPayload:
        """Return a head and columns; times are in microseconds.

        The head has the attributes of the scene, and what is said about bars as templates.
        """
        steps = self.steps
        bars = {name: getattr(self.bars, name) for name in _TYPES if name != "event"}
        for name in ("start", "duration", "shortest", "longest", "total"):
            bars[name] = bars[name] / 1e3
        for name in ("execution", "bytes"):
            bars[name] = bars[name].astype("<f8")  # more than 31 bits
        links, paths = self.links, self.paths
        arrays = {
            **bars,
            "cause": self.causes.astype("<f8"),
            "link_kind": links.kind,
            "link_begin": links.begin / 1e3,
            "link_until": links.until / 1e3,
            "link_first": links.first.astype("<i4"),
            "link_ends": links.ends.astype("<i4"),
            "step_at": _together([each.at for each in steps]) / 1e3,
            "step_depth": _together([each.depth for each in steps]).astype("<u2"),
            "path_row": paths.row.astype("<u2"),
            "path_begin": paths.begin / 1e3,
            "path_end": paths.end / 1e3,
            "path_until": paths.until.astype("<i4"),
        }
        head = {
            "view": self.view,
            "about": self.about,
            "range": [self.begin / 1e3, self.end / 1e3],
            "rows": [{**asdict(row), "error_us": row.error_ns / 1e3, "has_ground": row.has_ground}
                     for row in self.rows],
            "names": [asdict(name) for name in self.names],
            "looks": [{**asdict(look), "share": look.share} for look in self.looks],
            "kinds": [TITLES[kind] for kind in range(len(TITLES))],
            "ground": self.ground,
            "noted": self.noted,
            "steps": [{"row": each.row, "count": len(each.at), "most": each.most,
                       "slots": each.slots} for each in steps],
            "depth": self.depth,
            "queued": self.queued,
            "queue_key": self.queue_text,
            "signs": list(self.signs.items()),
            "path_title": PATH_TITLE,
            "paths": list(paths.executions),
            "groups": {name: asdict(each) for name, each in self.groups.items()},
            "slots": dict(self.slots),
            "in_calls": self.in_calls,
            "link_looks": LINK_LOOKS,
            "labels": LABELS,
            "words": WORDS,
            "sums": self.sums and {
                "until_us": self.sums.until / 1e3,
                "bin_us": self.sums.bin / 1e3,
                "bars": self.sums.bars,
            },
        }  # fmt: skip
        return ViewPayload(head, arrays)


def _together(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])
