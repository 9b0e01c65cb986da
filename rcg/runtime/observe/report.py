# SPDX-License-Identifier: Apache-2.0
"""Reports and statistics: what each process does and has done, as data and as text.

They are read from the flight recorder in shared memory, so they cover processes that hang or died.
For a report live processes are asked for the lines of users' code that they are at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from rcg.display import Charted, Displayed, Mimebundle, Views
from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import Site
from rcg.ir.ops import Call, Collective, Op
from rcg.ir.phrases import phrase_of
from rcg.ir.plan import Plan
from rcg.runtime.node.layout import takers_of
from rcg.runtime.node.snapshot import NodeView
from rcg.runtime.observe.activity import (
    LOST,
    SILENT,
    Activity,
    Alike,
    Verdict,
    alike_of,
    holding_up,
    marks_of,
    trouble_of,
    verdict_of,
)
from rcg.table import Cell, Table, state_cell
from rcg.text import bytes_text, cut, graph_title, plural, stated, time_text, visible
from rcg.trace.model import Mark
from rcg.trace.recorder import State

STACKS_TIMEOUT_S: Final = 0.5  # how long live processes may take to say where they are
_OLD_S: Final = 0.6  # nodes that can be reached have answered before

_STATES: Final = {State.IDLE: "idle", State.RUNNING: "running", State.WAITING: "waiting"}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Values that were written to a channel and not read yet by one of its readers.

    Attributes:
        channel: Its id in the plan.
        writer: Label of the writing process.
        reader: Label of the reading process.
        length: How many frames wait.
        slots: How many frames may wait.
    """

    channel: str
    writer: str
    reader: str
    length: int
    slots: int


@dataclass(frozen=True, slots=True)
class SocketQueue:
    """A connection over which a node's host sends frames to another node.

    What other processes of that node have not sent yet is in the backlogs.

    Attributes:
        sender: Label of the host: the driver, or the first actor of its node.
        node: The name of the other node in the plan.
        sent_bytes: What the kernel has taken so far.
        waiting: How many frames wait to be sent.
    """

    sender: str
    node: str
    sent_bytes: int
    waiting: int


@dataclass(frozen=True)
class Report(Charted, Displayed):
    """What a graph does at one moment; prints as text.

    Attributes:
        graph_id: Hex id of the graph.
        state: "running", "broken" (a member died) or "closed".
        processes: What each process does, the driver first.
        backlogs: Channels with frames that wait.
        used_bytes: Shared memory that the graph's values take.
        cap_bytes: Shared memory that they may take.
        in_flight: Executions that are in flight.
        limit: Executions that may be in flight.
        completed: Executions whose every output has arrived.
        failures_dropped: Failures whose refs were dropped unread.
        last_dropped: What failed, in the newest of these.
        name: What people call the graph.
        asked: Whether live processes were asked for their stacks.
        sockets: The connections to other nodes of each node's host.
        refused: How many connections each node's host has refused, for all graphs of its process,
            by reason: a text, by node. Empty on one node if it has refused none.
    """

    graph_id: str
    state: str
    processes: tuple[Activity, ...]
    backlogs: tuple[Backlog, ...]
    used_bytes: int
    cap_bytes: int
    in_flight: int = 0
    limit: int = 0
    completed: int = 0
    failures_dropped: int = 0
    last_dropped: str = ""
    name: str = ""
    asked: bool = False
    sockets: tuple[SocketQueue, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Report:
        """Return the report that ``dataclasses.asdict`` made plain, such as from JSON.

        Raises:
            ValueError: It is not one of this version of rcg.
        """
        parts = {"processes": Activity, "backlogs": Backlog, "sockets": SocketQueue}
        try:
            made = {name: tuple(kind(**row) for row in found[name]) for name, kind in parts.items()}
            made["processes"] = tuple(
                each if each.stack is None else replace(each, stack=tuple(each.stack))
                for each in made["processes"]
            )
            return cls(**{**found, **made})
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is no report of this version of rcg: {error}") from error

    @property
    def ages(self) -> tuple[str, ...]:
        """A line for each node that has not answered: how old what is reported of it is."""
        found = {each.node: each.age_s for each in self.processes}
        return tuple(
            f"{node} as it was {time_text(age_s * 1e9)} ago"
            if age_s is not None
            else f"{node} has not reported yet what its processes do"
            for node, age_s in found.items()
            if age_s is None or age_s >= _OLD_S
        )

    def __str__(self) -> str:
        return "\n".join(map(visible, self._lines()))  # names are the user's

    __repr__ = __str__

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.reports([self], str(self))

    @property
    def network(self) -> tuple[str, ...]:
        """Lines about the connections to other nodes, and those that were refused."""
        lines = [
            f"sent by {each.sender} to node {each.node}: {bytes_text(each.sent_bytes)}, "
            f"{plural(each.waiting, 'value')} waiting"
            for each in self.sockets
        ]
        if self.refused:
            refused = "; ".join(f"node {node}: {text}" for node, text in self.refused.items())
            lines.append(f"connections that were refused: {refused}")
        return tuple(lines)

    @property
    def verdict(self) -> Verdict:
        """What holds the graph up, in one sentence, with the line of source if it is known."""
        in_flight = f"{self.in_flight} of {self.limit} executions in flight"
        return verdict_of(
            self.state, self.processes, in_flight if self.in_flight else "", self.asked
        )

    @property
    def trouble(self) -> str:
        """What is wrong with the graph in a few words, as titles of pictures say; "" if nothing."""
        return trouble_of(self.state, self.processes, asked=self._should_answer)

    @property
    def marks(self) -> dict[str, Mark]:
        """What is wrong with each actor, by its id in the plan, as pictures say it in its box."""
        return marks_of(self.state, self.processes, asked=self._should_answer)

    @property
    def _should_answer(self) -> bool:
        """Whether processes that wait would have answered if they were not stopped."""
        return self.asked and self.in_flight > 0

    @property
    def rows(self) -> list[Alike]:
        """The processes, those that do the same and wait for the same together."""
        return alike_of(self.processes, holding_up(self.processes, asked=self._should_answer))

    @property
    def held_up_by(self) -> tuple[str, ...]:
        """Labels of the processes that are dead, or stuck."""
        marks = holding_up(self.processes, asked=self._should_answer)
        return tuple(
            [each.label for each, is_marked in zip(self.processes, marks, strict=True) if is_marked]
        )

    def queue_of(self, labels: Collection[str]) -> tuple[int, int]:
        """Return how many values wait to be read by some processes, and how many may wait there.

        Each value counts for one process, so that the queues of all add up.
        """
        read = [each for each in self.backlogs if each.reader.partition(", ")[0] in labels]
        return sum(each.length for each in read), sum(each.slots for each in read)

    def silent(self, activity: Activity) -> bool:
        """Return whether a live process was asked for its stack and has not answered."""
        is_live = activity.state in ("running", "waiting")
        return self.asked and activity.stack is None and is_live

    @property
    def title(self) -> str:
        """What views call the graph."""
        return graph_title(self.name, self.graph_id)

    @property
    def stated_title(self) -> str:
        """The same, with what is wrong with the graph, if anything is."""
        return stated(self.title, self.trouble)

    def table(self, rows: Sequence[Alike]) -> Table:
        """Return a table of processes; those that hold up others are marked."""
        held_up_by = self.held_up_by
        marked = [at for at, row in enumerate(rows) if row.first.label in held_up_by]
        head = (
            *("process", "state", "where", "execution", "since", "waiting for"),
            *("queue", "memory", "pid"),
        )
        cells = [self._cells(row, is_marked=at in marked) for at, row in enumerate(rows)]
        return Table(head, cells, "nwwffwfff", marked)

    def _cells(self, row: Alike, *, is_marked: bool) -> tuple[str | Cell, ...]:
        where = ""
        if row.first.stack:  # its line has the name of the file; the whole stack is shown elsewhere
            where = f"\n{row.users_line.rpartition('/')[2]}"
        elif self.silent(row.first):
            where = "\ndoes not answer"
        members = "\n".join(f"{each.label}: {each.waiting_text}" for each in row.members)
        return (
            Cell(row.label, "strong", members if len(row.members) > 1 else ""),
            state_cell("stuck" if is_marked and row.state not in LOST else row.state),
            Cell(f"{row.where}{where}", "op", hover=row.op),
            row.execution,
            row.since,
            row.waiting_text,
            self._queue(row),
            bytes_text(row.shared_bytes),
            Cell(row.pid, "dim"),
        )

    def _queue(self, row: Alike) -> Cell:
        """Return how many values wait to be read, with each channel in the hover text."""
        labels = [each.label for each in row.members]
        length, slots = self.queue_of(labels)
        if not slots:
            return Cell("0" if self.backlogs else "", "dim")
        hover = "\n".join(
            f"{each.channel}: {each.length} of {each.slots} wait"
            for each in self.backlogs
            if each.reader.partition(", ")[0] in labels
        )
        return Cell(f"{length} / {slots}", hover=hover)

    def _lines(self) -> list[str]:
        rows = self.rows
        lines = [
            str(self.verdict),
            f"{self.title}, {self.state}: {self.in_flight} of {self.limit} "
            f"executions in flight, {bytes_text(self.used_bytes)} of "
            f"{bytes_text(self.cap_bytes)} shared memory",
            *self.table(rows).text().split("\n"),
            *self.ages,
        ]
        if self.backlogs:
            lines.append("written and not read yet:")
        waiting = [
            f"  {each.channel}: {each.writer} -> {each.reader}: {each.length} of {each.slots}"
            for each in self.backlogs
        ]
        lines += cut(waiting, lambda count: f"  ({plural(count, 'more channel')})")
        lines += self.network
        if self.failures_dropped:
            lines.append(
                f"failures that were dropped unread: {self.failures_dropped}, the last: "
                f"{self.last_dropped}"
            )
        for row in rows:
            are = "is" if len(row.members) == 1 else "are"
            if row.first.stack:
                lines.append(f"{row.label} {are} in:")
                lines += [f"  {each}" for each in row.stack]
            elif self.silent(row.first):
                lines.append(f"{row.label} {SILENT}")
        return lines


class Reports(tuple[Report, ...], Displayed):
    """The reports of several graphs; prints as text.

    Attributes:
        tensors: The report of the references to tensors that this process looks after, or None.
        weights: The report of publishers and readers of weights; None if this process has none.
    """

    tensors: Any = None
    weights: Any = None

    def __str__(self) -> str:
        found = [*self, *(each for each in (self.tensors, self.weights) if each is not None)]
        return "\n\n".join(map(str, found)) or "no compiled graph is alive in this process"

    __repr__ = __str__

    def _mimebundle(self, views: Views) -> Mimebundle:
        found = views.reports(self, str(self), self.tensors)
        if self.weights is not None:
            others = found["text/html"] if self or self.tensors is not None else ""
            found["text/html"] = others + self.weights.html()
        return found


@dataclass(frozen=True, slots=True)
class ProcessStatistics:
    """What one process of a graph has done so far.

    Attributes:
        process: Its name in the plan.
        label: Its displayed name: ``a0 (Stage)``.
        pid: Its process id; 0 before it has started.
        execution: Index of the execution it was in last.
        waits: How often it had to wait, for input or for room.
        waited_s: Seconds it spent waiting.
        shared_bytes: Shared memory that its arena takes.
    """

    process: str
    label: str
    pid: int
    execution: int
    waits: int
    waited_s: float
    shared_bytes: int

    @classmethod
    def of(cls, activity: Activity) -> ProcessStatistics:
        """Return the facts of an activity that have the same names here."""
        return cls(**{each.name: getattr(activity, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a compiled graph has done so far and holds now; prints as text.

    Attributes:
        executions: Executions that were submitted.
        completed: Of these, those whose every output has arrived here.
        in_flight: Executions that were submitted and not completed.
        buffered: Completed executions with results that were neither fetched nor dropped.
        failures_dropped: Failures whose refs were dropped unread.
        limit: Executions that may be in flight at once.
        used_bytes: Shared memory that the graph's values take, including free blocks.
        cap_bytes: Shared memory that they may take.
        stashes: Values that passed through a process's heap, because there was no shared memory.
        processes: Each process of the graph, the driver first.
    """

    executions: int
    completed: int
    in_flight: int
    buffered: int
    failures_dropped: int
    limit: int
    used_bytes: int
    cap_bytes: int
    stashes: int
    processes: tuple[ProcessStatistics, ...]

    def __str__(self) -> str:
        ending = "" if self.executions == 1 else "s"
        lines = [
            f"{self.executions} execution{ending}, {self.completed} completed, {self.in_flight} of "
            f"{self.limit} in flight, {self.buffered} buffered; {bytes_text(self.used_bytes)} of "
            f"{bytes_text(self.cap_bytes)} shared memory"
            + (f", {self.stashes} values passed on without any" if self.stashes else ""),
            Table(
                ("process", "pid", "execution", "waits", "waited", "memory"),
                [
                    (
                        each.label,
                        str(each.pid or "-"),
                        str(each.execution),
                        str(each.waits),
                        time_text(each.waited_s * 1e9),
                        bytes_text(each.shared_bytes),
                    )
                    for each in self.processes
                ],
                "nfffff",
            ).text(),
        ]
        return "\n".join(lines)


def activities(
    nodes: Iterable[NodeView],
    plan: Plan,
    *,
    stacks: Mapping[str, list[str]] | None = None,
    left: Mapping[str, str] | None = None,
    sites: Mapping[int, Site] | None = None,
) -> list[Activity]:
    """Return what every process of the graph does, from their recorders.

    Args:
        nodes: Every node of the graph, as this process sees it.
        plan: What runs.
        stacks: The stacks of live processes.
        left: The state of each process that has left the graph: see ``Activity.state``.
        sites: Where the user bound each node of the graph, as far as that is known.
    """
    stacks, left, sites = stacks or {}, left or {}, sites or {}
    found = []
    for node in nodes:
        for process in node.layout.members:
            stack = () if process == DRIVER else stacks.get(process)
            found.append(_activity(node, plan, process, _Known(left.get(process), stack, sites)))
    return found


class _Known(NamedTuple):
    """What is known of a process otherwise than from its recorder.

    Attributes:
        state: Its state, if it has left the graph.
        stack: Its stack; see ``Activity``.
        sites: Where the user bound each node of the graph.
    """

    state: str | None
    stack: Sequence[str] | None
    sites: Mapping[int, Site]


def _activity(node: NodeView, plan: Plan, process: str, known: _Known) -> Activity:
    """Return what one process does."""
    now, counted = node.now(process), node.counters(process)
    ops = plan.program(process).ops
    channel = node.layout.channel(now.ring)
    state = now.state
    if process == DRIVER and channel is None:
        state = State.IDLE  # the thread that serves asyncio waits for nothing particular
    op = ops[now.op] if now.since_ns and now.op < len(ops) else None
    waiting_for: tuple[str, ...] = ()
    if known.state is None and state is State.WAITING and channel is not None:
        spec = plan.channels_by_id()[channel]
        waiting_for = (spec.writer,)
        if node.layout.writer_of(channel) == process:
            takers = takers_of(node.layout, plan, channel)
            waiting_for = tuple(chain(*takers))
            if spec.kind == TENSOR:
                # Those that have not taken its frame.
                unread = zip(takers, node.unread(channel), strict=True)
                late = chain(*[each for each, count in unread if count])
                waiting_for = tuple(late) or waiting_for
    site = known.sites.get(op.node) if isinstance(op, Call | Collective) else None
    exchange = ""
    if known.state is None and op is not None and state is not State.IDLE:
        exchange = _exchange(plan, process, op, is_waiting=bool(waiting_for))
    return Activity(
        process=process,
        label=plan.label(process),
        pid=now.pid,
        state=known.state or _STATES[state],
        op="-" if op is None else str(op),
        where="-" if op is None else phrase_of(plan, process, now.op),
        execution=now.execution,
        for_s=(time.monotonic_ns() - now.since_ns) / 1e9 if now.since_ns else 0.0,
        waiting_for=", ".join(map(plan.label, waiting_for)),
        shared_bytes=counted.shared_bytes,
        waits=counted.waits,
        waited_s=counted.waited_ns / 1e9,
        stack=None if known.stack is None else tuple(known.stack),
        exchange=exchange,
        node=node.layout.node,
        age_s=node.age_s,
        site=str(site or ""),
    )


def _exchange(plan: Plan, process: str, op: Op, *, is_waiting: bool) -> str:
    """Return the exchange of tensors that a process is in as text; "" if the op has none."""
    if isinstance(op, Collective):
        others = [other for group in plan.groups if group.id == op.group for other in group.members]
        what, group = f"for {op.word}", op.group
    else:
        specs = plan.channels_by_id()
        spec = next((specs[each] for each in (*op.values_in, *op.values_out)), None)
        if spec is None or spec.kind != TENSOR or spec.group is None:
            return ""
        others = [spec.writer, *spec.readers]
        verb = "send" if spec.writer == process else "receive"
        what, group = f"to {verb} tensors", spec.group
    over = next(f"over {each.backend}" for each in plan.groups if each.id == group)
    if is_waiting:
        return f"{what} {over}"
    return f"with {', '.join(plan.label(each) for each in others if each != process)} {over}"


def socket_queues(nodes: Iterable[NodeView], plan: Plan) -> tuple[SocketQueue, ...]:
    """Return the connections of each node's host to other nodes."""
    return tuple(
        SocketQueue(plan.label(next(iter(node.layout.members))), to, sent_bytes, waiting)
        for node in nodes
        for to, (sent_bytes, waiting) in node.queued().items()
    )


def backlogs(nodes: Iterable[NodeView], plan: Plan) -> list[Backlog]:
    """Return the channels on which values wait to be read. Statuses of collectives are none.

    Of a channel that crosses, each node has a part: what waits to be sent to other nodes waits for
    their gates, and what has arrived comes from the gate there.
    """
    found = []
    for node in nodes:
        for channel in plan.channels:
            if channel.kind == STATUS or channel.id not in node.layout.rings:
                continue
            writer = plan.label(node.layout.writer_of(channel.id))
            takers = takers_of(node.layout, plan, channel.id)
            for names, length in zip(takers, node.unread(channel.id), strict=True):
                if length > 0:
                    reader = ", ".join(map(plan.label, names))
                    found.append(Backlog(channel.id, writer, reader, length, channel.slots))
    return found
