# SPDX-License-Identifier: Apache-2.0
"""What this process holds references to: where the tensors are, how large, and who waits for them.

The services of the processes that hold them are asked, so it works while these are busy. One that
is stopped does not answer, and is said to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.display import Displayed, Mimebundle, Views
from rcg.error_text import shortened
from rcg.rdt.connection import ASK_TIMEOUT_S, ask_all
from rcg.rdt.envelope import Envelope, Holder, closed
from rcg.rdt.process import Here, existing
from rcg.rdt.transports import NIXL
from rcg.table import Cell, Table, state_cell
from rcg.text import bytes_text, count_text, plural, short_label, time_text, visible
from rcg.wire.messages import AskHeld

_MOST_TEXT: Final = 160  # characters of Ray's reason
_ENDED: Final = "its process has ended"
_SILENT: Final = "does not answer: it is stopped, is being started, or can start no thread"
_LOST: Final = ("failed", "lost", "dead", "unreachable", "unknown")


@dataclass(frozen=True, slots=True)
class LiveTensors:
    """One reference that this process looks after.

    Attributes:
        ref: The id of Ray's reference, in hex.
        key: The id of the object at its owner.
        owner: The process that holds the tensors.
        transport: How they travel; "" while they are being made.
        bytes: Of the tensors.
        state: "being made", "held", "failed" (their method raised, or its actor died), "no tensors"
            (the value has none), "lost" (their owner has freed them), "dead" (its process has
            ended), or "unknown": their owner does not answer.
        age_s: How long ago they were made, in seconds.
        pulls: How often they were pulled; 0 by NIXL, whose reads their owner does not see.
        waiters: Who waits for them: processes that are getting them, and calls that take them.
    """

    ref: str
    key: str
    owner: str
    transport: str
    bytes: int
    state: str
    age_s: float
    pulls: int
    waiters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds tensors.

    Attributes:
        label: Its name.
        pid: Its process id; 0 if it does not answer.
        objects: How many objects it holds, also for other processes.
        bytes: The bytes of their tensors.
        freed: How many it has freed.
        unkept: How many of these because nobody had said to keep them.
        answers: Whether it answered within half a second.
        death: Why it is dead, as far as that is known; "" if it may live.
        refused: The connections that it has refused, by reason, as text.
        registered: How many pieces of memory it has registered with NIXL.
        registered_bytes: Their bytes.
        registering_s: How long registering took in all, in seconds.
        ahead: How many values it has got before the calls that take them ran.
        ahead_bytes: Their bytes.
        ahead_used: How many of them calls have taken.
    """

    label: str
    pid: int
    objects: int
    bytes: int
    freed: int
    unkept: int
    answers: bool
    death: str = ""
    refused: str = "none"
    registered: int = 0
    registered_bytes: int = 0
    registering_s: float = 0.0
    ahead: int = 0
    ahead_bytes: int = 0
    ahead_used: int = 0


@dataclass(frozen=True)
class TensorsReport(Displayed):
    """The references to tensors that this process looks after; prints as text.

    Attributes:
        refs: The references, the largest first.
        owners: The processes that hold their tensors.
    """

    refs: tuple[LiveTensors, ...]
    owners: tuple[Owner, ...]

    def __str__(self) -> str:
        return "\n".join(map(visible, self._lines()))

    __repr__ = __str__

    @property
    def about(self) -> str:
        """One sentence about it."""
        if not self.refs:
            return "no reference is alive in this process"
        size = sum(each.bytes for each in self.refs)
        return (
            f"{plural(len(self.refs), 'reference')} to {bytes_text(size)}, "
            f"held by {plural(len(self.owners), 'process')}"
        )

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.reports([], str(self), self)

    def _lines(self) -> list[str]:
        tables = [each.text() for each in (self.table(), self.owners_table()) if each.rows]
        table = "\n".join(tables).split("\n") if tables else []
        return [f"Tensors by reference: {self.about}", *table]

    def table(self, most: int | None = None) -> Table:
        """Return a table of so many references; those whose tensors are lost are marked."""
        shown = self.refs[:most]
        head = ("reference", "owner", "transport", "size", "state", "age", "sent", "waited for by")
        rows = [
            (
                Cell(_short(each.ref), "code", each.ref),
                Cell(short_label(each.owner), "strong", each.owner),
                each.transport,
                bytes_text(each.bytes) if each.transport else "",
                state_cell(each.state),
                time_text(each.age_s * 1e9) if each.transport else "",
                count_text(each.pulls) if each.transport not in ("", NIXL) else "",
                ", ".join(each.waiters),
            )
            for each in shown
        ]
        marked = [at for at, each in enumerate(shown) if each.state in _LOST]
        return Table(head, rows, "nnwfwffw", marked)

    def owners_table(self) -> Table:
        """Return a table of the processes that hold them; those that do not answer are marked."""
        head = ("owner", "objects", "size", "freed", "freed unasked", "pid", "")
        marked = [at for at, each in enumerate(self.owners) if not each.answers]
        return Table(head, [_owner_row(each) for each in self.owners], "nfffffw", marked)


def _short(ref: str) -> str:
    """Return an id in 16 characters; one that is not Ray's ends in a number."""
    start, dash, number = ref.partition("-")
    return f"{start[: 15 - len(number)]}-{number}" if dash else ref[:16]


def _owner_row(owner: Owner) -> tuple[str | Cell, ...]:
    name = Cell(short_label(owner.label), "strong", owner.label)
    if not owner.answers:
        state = f"is dead: {owner.death}" if owner.death else _SILENT
        return (name, "", "", "", "", "", Cell(state, "bad"))
    more = []
    if owner.registered:
        more.append(
            f"NIXL has {plural(owner.registered, 'piece')} of its memory, "
            f"{bytes_text(owner.registered_bytes)}, registered in "
            f"{time_text(owner.registering_s * 1e9)}"
        )
    if owner.ahead:
        more.append(
            f"has got {plural(owner.ahead, 'value')} of {bytes_text(owner.ahead_bytes)} ahead, "
            f"of which calls have taken {owner.ahead_used}"
        )
    if owner.refused != "none":
        more.append(f"refused connections: {owner.refused}")
    return (
        name,
        count_text(owner.objects),
        bytes_text(owner.bytes),
        count_text(owner.freed),
        count_text(owner.unkept) if owner.unkept else "",
        Cell(str(owner.pid), "dim"),
        "; ".join(more),
    )


def report_tensors() -> TensorsReport | None:
    """Return the report of this process; None if it has never had to do with such tensors."""
    ours = existing()
    if ours is None:
        return None
    kept = ours.keeper.entries()
    holders = {each.holder.key: each.holder for each in kept}
    takers = {each.key: each for each in ours.keeper.takers() if each.key not in holders}
    holders |= takers
    answers, deaths = _ask(ours, holders.values())
    waiters = ours.keeper.waiters()
    refs = []
    for each in kept:
        found = answers[each.holder.key]
        entry = None if found is None else found["entries"].get(each.key)
        transport, size, age_s, pulls, pullers = entry or ("", 0, 0.0, 0, [])
        state = "held" if entry else _state_of(each.id) if each.id else "lost"
        if state == "lost" and found is None:  # there was a process that made them
            state = "dead" if each.holder.key in deaths else "unknown"
            if state == "dead":
                deaths[each.holder.key] = deaths[each.holder.key] or _ENDED
        refs.append(
            LiveTensors(
                ref=each.id.hex() or each.key,
                key=each.key,
                owner=each.holder.label,
                transport=transport,
                bytes=size,
                state=state,
                age_s=age_s,
                pulls=pulls,
                waiters=(
                    *[f"{ours.label_of(key)} gets it" for key in pullers],
                    *waiters.get(each.key, ()),
                ),
            )
        )
    refs.sort(key=lambda each: -each.bytes)
    owners = [_owner(holder, answers[key], deaths.get(key, "")) for key, holder in holders.items()]
    owners = [
        each for each, key in zip(owners, holders, strict=True) if key not in takers or each.ahead
    ]
    return TensorsReport(tuple(refs), tuple(owners))


def _state_of(ref: bytes) -> str:
    """Return what became of a value of which no tensors are held."""
    try:
        with closed(True):
            return "lost" if type(cluster.value_of(ref)) is Envelope else "no tensors"
    except TimeoutError:
        return "being made"
    except Exception:  # noqa: BLE001 - the user's, or the death of an actor
        return "failed"


def _owner(holder: Holder, found: dict[str, Any] | None, death: str) -> Owner:
    if found is None:
        return Owner(holder.label, 0, 0, 0, 0, 0, answers=False, death=death)
    objects, size, freed, unkept = found["counts"]
    counts = objects, size, freed, unkept
    _, registered, registered_bytes, registering_s = found["nixl"]
    ahead, ahead_bytes, ahead_used = found["ahead"]
    return Owner(
        *(holder.label, found["pid"], *counts),
        answers=True,
        refused=found["refused"],
        registered=registered,
        registered_bytes=registered_bytes,
        registering_s=registering_s,
        ahead=ahead,
        ahead_bytes=ahead_bytes,
        ahead_used=ahead_used,
    )


def _death_of(ours: Here, holder: Holder) -> str | None:
    """Return why a process is dead that is not there; "" if it may start, None if it lives."""
    if not holder.actor:
        return _ENDED
    handle = ours.handles.get(holder.actor)
    if handle is None or not cluster.is_connected():
        return ""
    reason = cluster.death_of(handle, ASK_TIMEOUT_S)
    if reason is None:  # on another node
        return None
    return shortened(cluster.why_dead(reason), _MOST_TEXT)


def _ask(
    ours: Here, holders: Iterable[Holder]
) -> tuple[dict[str, dict[str, Any] | None], dict[str, str]]:
    """Ask holders what they hold; None for one that does not answer.

    Returns:
        This, by the ids of their stores, and why those are dead that are not there any more.
    """
    several = {each.key: each for each in holders}
    others = [each for each in several.values() if each.key != ours.holder.key]
    texts, deaths = ask_all(
        others,
        lambda connection: connection.observe(lambda number: AskHeld(number=number)),
        lambda holder: _death_of(ours, holder),
    )
    if ours.holder.key in several:
        texts[ours.holder.key] = ours.service.describe()
    answers: dict[str, dict[str, Any] | None] = dict.fromkeys(several)
    for key, text in texts.items():
        read = answers[key] = json.loads(text)
        read["entries"] = {name: rest for name, *rest in read["entries"]}
    return answers, deaths
