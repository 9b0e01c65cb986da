# SPDX-License-Identifier: Apache-2.0
"""What this process holds references to: where the tensors are, how large, and who waits for them.

The services of the processes that hold them are asked, so it works while these are busy. One that
is stopped does not answer, and is said to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rcg import cluster
from rcg.display import Displayed, Mimebundle, Views
from rcg.errors import RcgError
from rcg.rdt.connection import Connection
from rcg.rdt.envelope import Envelope, Holder, closed
from rcg.rdt.process import Here, actor_holder, existing
from rcg.text import bytes_text, plural, short_label, table, visible
from rcg.threads import run_together
from rcg.trace.model import TensorTransfer
from rcg.wire.messages import AskHeld, AskTransfers, Message

__all__ = ["LiveTensors", "Owner", "TensorsReport", "report_tensors", "transfers_between"]

_ASK_TIMEOUT_S: Final = 0.5


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
            (the value has none), "lost" (their owner has freed them), or "unknown": their owner
            does not answer.
        age_s: How long ago they were made, in seconds.
        pulls: How often they were pulled.
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
        objects: How many objects it holds, whoever has references to them.
        bytes: The bytes of their tensors.
        freed: How many it has freed.
        unkept: How many of these because nobody had said to keep them.
        answers: Whether it answered within half a second.
    """

    label: str
    pid: int
    objects: int
    bytes: int
    freed: int
    unkept: int
    answers: bool


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
        lines = [
            f"Tensors by reference: {self.about}",
            *table(
                ("ref", "owner", "transport", "size", "state", "age", "sent", "waited for by"),
                [
                    (
                        each.ref[:16],
                        short_label(each.owner),
                        each.transport,
                        bytes_text(each.bytes) if each.transport else "",
                        each.state,
                        f"{each.age_s:.3g} s" if each.transport else "",
                        str(each.pulls) if each.transport else "",
                        ", ".join(each.waiters),
                    )
                    for each in self.refs
                ],
            ),
        ]
        return [*lines, *map(_owner_line, self.owners)]


def _owner_line(owner: Owner) -> str:
    name = short_label(owner.label)
    if not owner.answers:
        return f"{name} does not answer: it is stopped, has ended, or can start no thread"
    line = f"{name} holds {plural(owner.objects, 'object')} of {bytes_text(owner.bytes)}"
    line += f", has freed {owner.freed}"
    return line + (f", {owner.unkept} because nobody kept them" if owner.unkept else "")


def report_tensors() -> TensorsReport | None:
    """Return the report of this process; None if it has never had to do with such tensors."""
    ours = existing()
    if ours is None:
        return None
    kept = ours.keeper.kept()
    holders = {each.holder.key: each.holder for each in kept}
    told = _ask(ours, holders.values())
    waiters = ours.keeper.waiters()
    refs = []
    for each in kept:
        found = told[each.holder.key]
        entry = None if found is None else found["entries"].get(each.key)
        transport, size, age_s, pulls, pullers = entry or ("", 0, 0.0, 0, [])
        state = "held" if entry else _state_of(each.id)
        if state == "lost" and found is None:
            state = "unknown"
        refs.append(
            LiveTensors(
                ref=each.id.hex(),
                key=each.key,
                owner=each.holder.label,
                transport=transport,
                bytes=size,
                state=state,
                age_s=age_s,
                pulls=pulls,
                waiters=(
                    *[f"{ours.label_of(key)} gets it" for key in pullers],
                    *waiters.get(each.id, ()),
                ),
            )
        )
    refs.sort(key=lambda each: -each.bytes)
    return TensorsReport(tuple(refs), tuple(_owner(holders[key], told[key]) for key in holders))


def transfers_between(start_ns: int, end_ns: int) -> tuple[TensorTransfer, ...]:
    """Return what this process, and the actors that it called with tensors, got in a time.

    Those that have ended took their record with them.
    """
    ours = existing()
    if ours is None:
        return ()
    holders = [actor_holder(actor, label) for actor, label in ours.peers.items()]

    def question(number: int) -> Message:
        return AskTransfers(number=number, start_ns=start_ns, end_ns=end_ns)

    answers = _answers_of([each for each in holders if each.key != ours.holder.key], question)
    found = [TensorTransfer(*_with_target(each, ours.holder.label)) for each in list(ours.got)]
    found = [each for each in found if start_ns <= each.start_ns < end_ns]
    for holder in holders:
        got = json.loads(answers.get(holder.key) or "[]")
        found += [TensorTransfer(*_with_target(each, holder.label)) for each in got]
    return tuple(found)


def _with_target(got: Sequence[Any], target: str) -> tuple[Any, ...]:
    name, source, *rest = got
    return name, source, target, *rest


def _state_of(ref: bytes) -> str:
    """Return what became of a value of which no tensors are held."""
    try:
        with closed(True):
            return "lost" if type(cluster.value_of(ref)) is Envelope else "no tensors"
    except TimeoutError:
        return "being made"
    except Exception:  # noqa: BLE001 - the user's, or the death of an actor
        return "failed"


def _owner(holder: Holder, found: dict[str, Any] | None) -> Owner:
    if found is None:
        return Owner(holder.label, 0, 0, 0, 0, 0, answers=False)
    objects, size, freed, unkept = found["counts"]
    return Owner(holder.label, found["pid"], objects, size, freed, unkept, answers=True)


def _ask(ours: Here, holders: Iterable[Holder]) -> dict[str, dict[str, Any] | None]:
    """Ask holders what they hold; None for one that does not answer."""
    several = {each.key: each for each in holders}
    others = [each for each in several.values() if each.key != ours.holder.key]
    told = _answers_of(others, lambda number: AskHeld(number=number))
    if ours.holder.key in several:
        told[ours.holder.key] = ours.store.told()
    answers: dict[str, dict[str, Any] | None] = dict.fromkeys(several)
    for key, text in told.items():
        read = answers[key] = json.loads(text)
        read["entries"] = {name: rest for name, *rest in read["entries"]}
    return answers


def _answers_of(holders: Sequence[Holder], make: Callable[[int], Message]) -> dict[str, bytes]:
    """Ask processes at the same time; returns the answers by the ids of their stores."""
    answers: dict[str, bytes] = {}

    def ask(holder: Holder) -> None:
        try:
            connection = Connection(holder, "", _ASK_TIMEOUT_S)
        except (OSError, RcgError):
            return
        try:
            answers[holder.key] = connection.observe(make, _ASK_TIMEOUT_S)
        except (OSError, RcgError):
            pass
        finally:
            connection.close()

    run_together([partial(ask, each) for each in holders], "rcg-tensors-ask")
    return answers
