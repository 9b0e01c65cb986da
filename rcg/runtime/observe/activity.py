# SPDX-License-Identifier: Apache-2.0
"""What each process of a graph does at one moment, and what that comes to.

A process that waits names those that it waits for. From there the chain is followed to processes
that do not wait themselves: they hold up the others, and the verdict names them. Processes that do
the same and wait for the same are alike, and are one row of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rcg.frames import cell_name, is_of_library, place_text, source_of
from rcg.ir.ids import DRIVER
from rcg.ir.phrases import IN
from rcg.text import ACTOR, brief, count_text, plural, run_text, time_text
from rcg.trace.model import Mark

LONG_S: Final = 1.0
"""A process that others wait for is called stuck after this time."""

STUCK_AFTER_S: Final = 5.0
"""A graph may hang if an op that others wait for takes longer than this."""

SILENT: Final = "does not answer: it is stopped, or native code that it runs holds Python's lock"

LOST: Final = {
    "dead": "died",
    "failed": "failed",
    "unreachable": "cannot be reached",
}
"""The states of processes that broke the graph, and what is said of them."""

_FEW: Final = 3  # so many alike processes have a row each
_WAITS: Final = ("waiting", "gave up")
_FRAME: Final = re.compile(r"(.+):(\d+) in (.*)")


@dataclass(frozen=True, slots=True)
class Activity:
    """What one process of a graph does now.

    Attributes:
        process: Its name in the plan.
        label: Its displayed name: ``a0 (Stage)``.
        pid: Its process id; 0 before it has started.
        state: "running", "waiting", "idle" (the driver, between calls), "gave up" (the driver,
            after a get that timed out or was interrupted), "ended", or one of ``LOST``.
        op: The op it is in, or was in last, in the notation of plans; "-" before the first.
        where: The same as people say it: ``in work``, ``reading the result of a0.work``.
        execution: Index of the execution.
        for_s: Seconds since the op began; since it ended, when idle.
        waiting_for: Labels of the processes that it waits for, or "".
        exchange: The exchange of tensors that it is in: ``to receive tensors over gloo`` or ``for
            allreduce over gloo`` while it waits, ``with a1 (Stage) over gloo`` while it moves them;
            "" in none.
        shared_bytes: Shared memory that its arena takes.
        waits: How often it waited so far.
        waited_s: How long it waited so far, in seconds.
        stack: Where it is in the user's method, ``file:line in function``, innermost last; () in
            none. None if it did not answer, or was not asked.
        node: The node of the plan that it is on.
        site: Where the user bound the method or the collective that it is in: ``In [2] line 10``;
            "" in none.
        age_s: How many seconds ago this was so: of another node the newest snapshot is reported. 0
            on the driver's node; None if there is no snapshot yet.
    """

    process: str
    label: str
    pid: int
    state: str
    op: str
    where: str
    execution: int
    for_s: float
    waiting_for: str
    shared_bytes: int
    waits: int
    waited_s: float
    stack: tuple[str, ...] | None = None
    exchange: str = ""
    node: str = ""
    age_s: float | None = 0.0
    site: str = ""

    @property
    def kind(self) -> str:
        """Where it is, without the values: ``in work``, ``reading``."""
        return self.where if self.where.startswith(IN) else self.where.partition(" ")[0]

    @property
    def waiting_text(self) -> str:
        """The processes that it waits for, and the exchange of tensors that it is in."""
        return " ".join(filter(None, (self.waiting_for, self.exchange)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a report comes to, in one sentence.

    Attributes:
        text: The sentence, without a full stop.
        place: The line of the user's source that it is about, or "": ``In [7] line 4``.
        source: The source of that line, "" if it is not known here.
        causes: Labels of the processes that it blames, the first one that it names first.
    """

    text: str
    place: str = ""
    source: str = ""
    causes: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f", at {self.place}" if self.place else ""
        return f"{self.text}{at}{f': {self.source}' if self.source else ''}"


@dataclass(frozen=True, slots=True)
class Alike:
    """Processes that do the same and wait for the same, at least one.

    Attributes:
        members: What each of them does, in the order of the report.
        waiting_text: What they wait for: of several, those that hold all of them up.
        state: Their state; "ready" if nothing is executed that they could wait for.
    """

    members: tuple[Activity, ...]
    waiting_text: str
    state: str

    @property
    def first(self) -> Activity:
        """What the first of them does."""
        return self.members[0]

    @property
    def label(self) -> str:
        """Their names: ``a11 (Stage)``, ``a12 to a37 (Stage)``."""
        return _label_of(self.members)

    @property
    def op(self) -> str:
        """The op that they are in, in the notation of plans; of several, that of the first."""
        return self.first.op

    @property
    def where(self) -> str:
        """Where they are in their programs; of several, without the values."""
        return self.first.where if len(self.members) == 1 else self.first.kind

    @property
    def execution(self) -> str:
        """The executions that they are in; "-" before the first."""
        if self.first.op == "-":
            return "-"
        return _range_text(count_text, [each.execution for each in self.members])

    @property
    def since(self) -> str:
        """How long they have been in their op; "-" before the first."""
        if self.first.op == "-":
            return "-"
        return _range_text(time_text, [each.for_s * 1e9 for each in self.members])

    @property
    def stack(self) -> list[str]:
        """Where they are in the user's method, with the source of each line that is known here."""
        return [each for line in self.first.stack or () for each in shown_lines(line)]

    @property
    def users_line(self) -> str:
        """The innermost line of the user's own code, if they are in a method."""
        return next((shown_lines(line)[0] for line in users_first(self.first.stack or ())), "")

    @property
    def pid(self) -> str:
        """The process id, "-" for none and for several."""
        return str(self.first.pid or "-") if len(self.members) == 1 else "-"

    @property
    def shared_bytes(self) -> int:
        """Shared memory that their arenas take, together."""
        return sum(each.shared_bytes for each in self.members)


@dataclass(frozen=True, slots=True)
class Blame:
    """Who holds a graph up, by which every view of a running graph goes.

    Attributes:
        causes: The processes, the one that most others wait for first.
        held: How many others wait for them, directly or through others.
    """

    causes: tuple[Activity, ...] = ()
    held: int = 0

    @property
    def stuck(self) -> tuple[Activity, ...]:
        """Those of the causes that have been at it for long."""
        least_s = LONG_S if self.held else STUCK_AFTER_S
        return tuple([each for each in self.causes if each.for_s >= least_s])


def blame_of(processes: Sequence[Activity], *, asked: bool = False) -> Blame:
    """Return who holds a graph up.

    It is who is at work, and of these who has been for long and is waited for. If all wait, it is
    who does not answer: what it waits for may have come, and it is stopped.

    Args:
        processes: What each process does.
        asked: Whether live processes were asked for their stacks, while executions are in flight.
    """
    waiters = _waiters(processes)
    running = [each for each in processes if each.state == "running"]
    wanted = [each for each in running if each.label in waiters]
    causes = [each for each in wanted if each.for_s >= LONG_S]
    causes = causes or [each for each in running if each.for_s >= STUCK_AFTER_S]
    causes = causes or wanted or [each for each in running if each.for_s >= LONG_S]
    if causes:
        causes.sort(key=lambda each: (-len(waiters.get(each.label, ())), -each.for_s))
        held = set().union(*(waiters.get(each.label, ()) for each in causes))
        return Blame(tuple(causes), len(held - {each.label for each in causes}))
    circle = _circle(processes)
    waiting = circle or [each for each in processes if each.state == "waiting"]
    silent = [each for each in waiting if asked and each.stack is None and each.process != DRIVER]
    return Blame(tuple(silent), max(0, len(circle) - len(silent))) if silent else Blame()


def holding_up(processes: Sequence[Activity], *, asked: bool = False) -> list[bool]:
    """Return which processes are lost, or stuck."""
    stuck = blame_of(processes, asked=asked).stuck
    return [each.state in LOST or each in stuck for each in processes]


def verdict_of(state: str, processes: Sequence[Activity], in_flight: str, asked: bool) -> Verdict:
    """Return what holds a graph up, if anything does.

    Args:
        state: Of the graph.
        processes: What each process does.
        in_flight: How many executions are in flight, as text; "" for none.
        asked: Whether live processes were asked for their stacks.
    """
    for lost, how in LOST.items():
        found = [each for each in processes if each.state == lost]
        if found:
            ended = ". The graph is torn down" if state == "closed" else ""
            place = f"{_place_in_program(found[0])}{_bound(found[0])}"
            return Verdict(f"{_several(found)} {how}{place}{ended}")
    if state == "broken":
        return Verdict("The graph is broken: a process has left it")
    blame = blame_of(processes, asked=asked and bool(in_flight))
    if blame.causes:
        return _blaming(blame, state, asked)
    if state == "closed":
        return Verdict("The graph is torn down")
    if circle := _circle(processes):
        return Verdict(f"{', '.join(each.label for each in circle)} wait for each other")
    if in_flight:
        return Verdict(f"Nothing holds the graph up: {in_flight}")
    return Verdict("The graph is ready: no execution is in flight")


def trouble_of(
    state: str, processes: Sequence[Activity], *, asked: bool = False, least_s: float = 0.0
) -> str:
    """Return what is wrong with a graph in a few words, for titles of pictures; "" if nothing is.

    Args:
        state: Of the graph.
        processes: What each process does.
        asked: Whether live processes were asked for their stacks.
        least_s: For how long an actor must have been stuck to be mentioned.
    """
    for lost, how in LOST.items():
        found = [each for each in processes if each.state == lost]
        if found:
            ended = "; torn down" if state == "closed" else ""
            return f"{_several(found)} {how}{ended}"
    if state == "broken":
        return "broken"
    if state == "closed":
        return "torn down"
    blame = blame_of(processes, asked=asked)
    stuck = [each for each in blame.stuck if each.for_s >= least_s]
    if not stuck:
        return ""
    held = f", {plural(blame.held, 'other')} {'waits' if blame.held == 1 else 'wait'}"
    return f"{_several(stuck)} {_stuck_text(stuck[0])}{held if blame.held else ''}"


def marks_of(
    state: str, processes: Sequence[Activity], *, asked: bool = False, least_s: float = 0.0
) -> dict[str, Mark]:
    """Return what is wrong with each actor, for its box in pictures, by its id in the plan.

    Actors with which nothing is wrong are not in it. The arguments are those of ``trouble_of``.
    """
    stuck = () if state != "running" else blame_of(processes, asked=asked).stuck
    found: dict[str, Mark] = {}
    for each in processes:
        if not ACTOR.fullmatch(each.process):
            continue
        actor = each.process.partition(".")[0]  # a lane is drawn in the box of its actor
        if each.state in LOST:
            found[actor] = Mark("lost", LOST[each.state])
        elif each in stuck and each.for_s >= least_s:
            text = _stuck_text(each)
            text = f"stuck {text}" if each.state == "running" else text
            found.setdefault(actor, Mark("stuck", text))
        elif state == "closed":
            found.setdefault(actor, Mark("over", "torn down"))
    return found


def _stuck_text(activity: Activity) -> str:
    if activity.state == "waiting":  # and yet it is blamed
        return "does not answer"
    return f"{activity.kind} for {time_text(activity.for_s * 1e9)}"


def _circle(processes: Sequence[Activity]) -> list[Activity]:
    """Return the processes that wait for each other, and for nobody else."""
    waiting = [each for each in processes if each.state in _WAITS]
    ends = {each.label: set(ends_of(each, by_label(processes))) for each in waiting}
    endless = {label for label, found in ends.items() if not found}
    return [each for each in waiting if ends[each.label] <= endless]


def _blaming(blame: Blame, state: str, asked: bool) -> Verdict:
    causes, held = blame.causes, blame.held
    first = causes[0]
    who, is_one = _several(causes), len(causes) == 1
    if state == "closed":
        text = f"The graph is torn down, and {who} still {'runs' if is_one else 'run'}"
    elif not held and first.state == "waiting":
        text = f"{who} {'hangs' if is_one else 'hang'}"
    elif not held:
        text = f"{who} {'is' if is_one else 'are'} at work"
    elif first.for_s >= LONG_S:
        text = f"{who} {'holds' if is_one else 'hold'} up {plural(held, 'other')}"
    else:
        text = f"{plural(held, 'other')} {'waits' if held == 1 else 'wait'} for {who}"
    text += f":{_place_in_program(first, f' for {time_text(first.for_s * 1e9)}')}"
    text += "" if first.stack else _bound(first)  # the stack has the line that it is at
    if asked and first.stack is None:
        text += f"; it {SILENT}"
    place = source = ""
    for line in users_first(first.stack or ())[:1]:
        found = _FRAME.fullmatch(line)
        if found is None:  # a remark in place of a stack
            text += f" {line}"
        else:
            file, number = found[1], int(found[2])
            place, source = place_text(file, number), brief(source_of(file, number))
    return Verdict(text, place, source, tuple([each.label for each in causes]))


def users_first(stack: Sequence[str]) -> list[str]:
    """Return the lines of a stack from the innermost one of the user's own code outwards."""
    inwards = [line for line in stack if not is_of_library(line)] or list(stack[:1])
    return inwards[::-1]


def shown_lines(line: str) -> list[str]:
    """Return a line of a stack, and its source if it is known here: cells of a notebook are."""
    found = _FRAME.fullmatch(line)
    if found is None:
        return [line]
    file, number = found[1], int(found[2])
    source = source_of(file, number)
    is_cell = cell_name(file) is not None
    shown = f"{place_text(file, number)} in {found[3]}" if is_cell else line
    return [shown, *([f"    {source}"] if source else [])]


def alike_of(processes: Sequence[Activity], marked: Sequence[bool]) -> list[Alike]:
    """Return the processes, those that are alike together if they are more than a few.

    Those that are marked stand alone.
    """
    known = by_label(processes)
    rows: list[Alike] = []
    keys: list[object] = []
    for at, each in enumerate(processes):
        ends = ends_of(each, known) if each.state in _WAITS else []
        is_ready = bool(ends) and all(known[label].state == "idle" for label in ends)
        row = Alike((each,), ", ".join(ends), "ready" if is_ready else each.state)
        found = ACTOR.fullmatch(each.process)
        name = each.label.removeprefix(each.process)
        shape = re.sub(r"\d+", "", each.exchange)
        does = (name, found and found[2], row.state, row.waiting_text, each.kind, shape)
        rows.append(row)
        keys.append((*does, each.stack) if found and not marked[at] else at)
    grouped: dict[object, list[int]] = {}
    for at, key in enumerate(keys):
        grouped.setdefault(key if keys.count(key) > _FEW else at, []).append(at)
    return [
        replace(rows[ats[0]], members=tuple([processes[at] for at in ats]))
        if len(ats) > 1
        else replace(rows[ats[0]], waiting_text=processes[ats[0]].waiting_text)
        for ats in grouped.values()
    ]


def by_label(processes: Sequence[Activity]) -> dict[str, Activity]:
    """Return the processes by their labels."""
    return {each.label: each for each in processes}


def _waiters(processes: Sequence[Activity]) -> dict[str, set[str]]:
    """Return who waits for each process that does not wait, directly or through others."""
    known = by_label(processes)
    found: dict[str, set[str]] = {}
    for each in processes:
        if each.state in _WAITS:
            for label in ends_of(each, known):
                found.setdefault(label, set()).add(each.label)
    return found


def ends_of(activity: Activity, known: Mapping[str, Activity]) -> list[str]:
    """Return the processes that a process waits for, through others, and that do not wait.

    Who waits for the driver has nothing to do: its chain ends there.
    """
    found: dict[str, None] = {}
    ahead, seen = _waits_for(activity)[::-1], {activity.label}
    while ahead:
        label = ahead.pop()
        other = known.get(label)
        if other is None or label in seen:
            continue
        seen.add(label)
        if other.state in _WAITS and other.process != DRIVER:
            ahead += _waits_for(other)[::-1]
        else:
            found[label] = None
    return list(found)


def _waits_for(activity: Activity) -> list[str]:
    return [label for label in activity.waiting_for.split(", ") if label]


def _place_in_program(activity: Activity, for_text: str = "") -> str:
    if activity.op == "-":
        return f" before its first execution{for_text}"
    exchange = f" {activity.exchange}" if activity.exchange else ""
    execution = count_text(activity.execution)
    return f" {activity.where}{exchange}{for_text}, execution {execution}"


def _bound(activity: Activity) -> str:
    return f", bound at {activity.site}" if activity.site else ""


def _several(activities: Sequence[Activity]) -> str:
    more = len(activities) - 1
    return activities[0].label + (f" and {more} more" if more else "")


def _label_of(members: Sequence[Activity]) -> str:
    first = members[0]
    if len(members) == 1:
        return first.label
    names = run_text([each.process for each in members])
    return names + first.label.removeprefix(first.process)


def _range_text(text: Callable[[float], str], values: Iterable[float]) -> str:
    texts = list(map(text, sorted(values)))
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
