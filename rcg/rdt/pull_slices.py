# SPDX-License-Identifier: Apache-2.0
"""Pulling slices of the tensors of a process, the same ones again and again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Final

import numpy as np

from rcg.error_text import without_frames
from rcg.errors import Transfer
from rcg.rdt.answers import (
    Arriving,
    Refused,
    answer_to,
    not_arrived,
    receive_after,
    registered_in,
    try_to_read,
)
from rcg.rdt.connection import Connection, Patience, Silent
from rcg.rdt.envelope import Holder
from rcg.rdt.places import Places, Spans, check_memory, places_of
from rcg.rdt.pull import Connections
from rcg.rdt.runs import fresh_memory
from rcg.rdt.slices import Region, Runs, rows_of, runs_of
from rcg.rdt.transports import NIXL
from rcg.threads import held
from rcg.wire.messages import (
    READ_BY_KERNEL,
    SlicesAt,
    TensorsFollow,
    TensorsHere,
    TensorsRegistered,
)
from rcg.wire.payloads import open_payloads


class Withdrawn(Transfer):
    """An object is not there any more, or was written to while it was pulled."""


class Slices:
    """Slices of the tensors of a process, and where they go here: pulled again and again.

    Args:
        holder: The process.
        pairs: Each slice there, and here.
        targets: The tensors here, of uint8 [n].
        scratch: Memory for those that come in one piece and go to several places, if they come from
            another node; None for fresh memory each time.
    """

    def __init__(
        self,
        holder: Holder,
        pairs: Sequence[tuple[Region, Region]],
        targets: Sequence[Any],
        scratch: Any = None,
    ) -> None:
        self.holder: Final = holder
        self.table: Final = rows_of([there for there, _ in pairs])
        used = {number: at for at, number in enumerate(dict.fromkeys(h.tensor for _, h in pairs))}
        self.pairs: Final = [(there, h._replace(tensor=used[h.tensor])) for there, h in pairs]
        self.targets: Final = [targets[number] for number in used]
        self.scratch: Final = scratch
        self.sizes: Final = [there.size for there, _ in pairs]
        # How they are called on the newest connection.
        self.noted: tuple[Connection, int] | None = None

    @cached_property
    def runs(self) -> Runs:
        """The runs of bytes that are read, if they are read where they lie."""
        return runs_of(self.pairs)

    def spans(self, there: Places) -> Spans:
        """Return what is read where it lies, and where it goes now; raises as ``Runs.spans``."""
        return self.runs.spans(there, places_of(self.targets))

    def places(self) -> list[Any]:
        """Return where each slice goes: part of a tensor; raises as ``places_of``."""
        for each in self.targets:
            check_memory(each)
        return [here.of(self.targets[here.tensor]) for _, here in self.pairs]


def pull_slices(connections: Connections, slices: Slices, key: str, patience: Patience) -> int:
    """Pull slices of the tensors of an object into memory of this process.

    Returns:
        When the first byte came, in nanoseconds of the monotonic clock.

    Raises:
        ActorDiedError: The process that holds them is gone.
        TimeoutError: It does not answer in time; some of the memory may have been written to.
        Transfer: They cannot be had; some of the memory may have been written to. The object
            is not there any more, or it was written to meanwhile, if it is a ``Withdrawn``.
    """
    while True:
        try:
            connection = connections.to(slices.holder, patience.left_s())
        except Transfer as error:
            if isinstance(error.__cause__, TimeoutError) and patience.left_s() is not None:
                raise Silent(str(error)) from error
            raise
        is_other = f"another transfer from {slices.holder.label} is not done yet"
        with held(connection.lock, patience.left_s(), is_other):
            if not connection.has_ended:
                usual, connection.patience = connection.patience, patience
                try:
                    return _pull_by(connections, connection, slices, key)
                finally:
                    connection.patience = usual
        connections.drop(connection)


def _pull_by(connections: Connections, connection: Connection, slices: Slices, key: str) -> int:
    try:
        if slices.noted is None or slices.noted[0] is not connection:
            slices.noted = connection, connection.note_slices(slices.table)
        while True:
            reads = READ_BY_KERNEL if connection.may_read else connections.by_nixl(connection)
            number = connection.ask_for_slices(key, slices.noted[1], reads=reads)
            came_ns = _take(connections, connection, slices, number)
            if came_ns:
                return came_ns
    except Refused as refused:
        text = str(refused)
    except BaseException:  # what comes on it now is not known
        connections.drop(connection)
        raise
    raise Withdrawn(text)


def _take(connections: Connections, connection: Connection, slices: Slices, number: int) -> int:
    """Take the slices that were asked for.

    Returns:
        When they began to come; 0 if they did not, and must be asked for again.
    """
    holder = slices.holder
    problem: Exception | None = None
    with connection.next() as received:
        came_ns = time.monotonic_ns()
        answer = answer_to(received, number, holder)
        if isinstance(answer, TensorsHere):
            _put(slices, Arriving(slices.sizes).take(received))
            return came_ns
        if isinstance(answer, SlicesAt):
            there = np.frombuffer(open_payloads(received)[0].decode(), "<i8").reshape(-1, 3)
        elif isinstance(answer, TensorsRegistered):
            registered, places = registered_in(answer, received)
    if isinstance(answer, TensorsRegistered):
        spans = slices.spans(places)
        read = partial(connections.read_by_nixl, holder, registered, slices.targets, spans)
        return came_ns if try_to_read(connection, number, NIXL, read) else 0
    if isinstance(answer, TensorsFollow):
        _receive_slices(connection, slices)
    elif isinstance(answer, SlicesAt):
        try:
            connection.read(slices.spans(there))
        except (OSError, ValueError) as error:
            problem = without_frames(error)
        connection.end_reading(number)
    else:
        raise Transfer(f"{holder.label} gave an answer that was not expected")
    with connection.next() as received:  # says that they lay there until then
        answer_to(received, number, holder)
    if problem is not None:
        raise not_arrived(slices.sizes, problem)
    return came_ns


def _put(slices: Slices, payloads: Iterable[Any]) -> None:
    """Put the bytes of slices where they go."""
    for place, payload in zip(slices.places(), payloads, strict=True):
        if place.data_ptr() != payload.data_ptr():
            place.copy_(payload.view(place.shape))


def _receive_slices(connection: Connection, slices: Slices) -> None:
    """Receive slices whose bytes follow on the connection; where they are one run, in place."""
    places = slices.places()
    ends = list(accumulate(0 if each.dim() == 1 else each.numel() for each in places))
    scattered = fresh_memory(ends[-1], "cpu") if slices.scratch is None else slices.scratch
    flat = [
        each if each.dim() == 1 else scattered[end - each.numel() : end]
        for each, end in zip(places, ends, strict=True)
    ]
    _put(slices, receive_after(connection, slices.sizes, flat))
