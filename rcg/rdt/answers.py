# SPDX-License-Identifier: Apache-2.0
"""The answers of a process that holds tensors: what they say, and the bytes that come with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rcg.error_text import describe_error
from rcg.errors import Transfer
from rcg.log import Log
from rcg.rdt.connection import Connection
from rcg.rdt.envelope import Holder, Registered
from rcg.rdt.places import Places, raw_view
from rcg.rdt.runs import receive_in_runs
from rcg.wire.messages import Message, TensorsGone, TensorsRegistered
from rcg.wire.payloads import Room, open_buffers, open_payloads, room_for
from rcg.wire.sockets import Received

_log = Log()


class Refused(Exception):
    """An object cannot be sent; the connection goes on."""

    def __init__(self, text: str, is_system_error: bool) -> None:
        super().__init__(text)
        self.is_system_error = is_system_error

    def for_users(self) -> Transfer:
        """Return the error for users."""
        return Transfer(str(self))


def answer_to(received: Received, number: int, holder: Holder) -> Message | None:
    """Return the answer to a question.

    Raises:
        Refused: The tensors cannot be sent.
        Transfer: It is the answer to another question.
    """
    message = received.message
    if getattr(message, "number", None) != number:
        raise Transfer(f"{holder.label} gave the answer to another question")
    if isinstance(message, TensorsGone):
        text = f"{holder.label} cannot send tensors: {message.text}"
        raise Refused(text, message.is_system_error)
    return message


class Arriving:
    """Memory for the tensors of an object that come in a message, and the tensors over it.

    Raises:
        Transfer: There is no memory.
    """

    __slots__ = ("_room", "tensors")

    def __init__(self, sizes: Sequence[int]) -> None:
        import torch

        try:
            self._room: Room = room_for(sizes)
        except MemoryError as error:
            raise not_arrived(sizes, error) from error
        self.tensors = [torch.frombuffer(each, dtype=torch.uint8) for each in self._room.parts]

    def take(self, received: Received) -> Sequence[Any]:
        """Return the tensors that have come with a message.

        Raises:
            Transfer: They have not.
        """
        try:
            open_buffers(received, self._room)
        except (OSError, ValueError) as error:
            raise not_arrived(map(len, self._room.parts), error) from error
        return self.tensors


def try_to_read(connection: Connection, number: int, way: str, read: Callable[[], None]) -> bool:
    """Read what another process holds; if that fails, it is not tried again there.

    Returns:
        Whether it was read, and lay there until then.

    Raises:
        Refused: It did not lie there until then.
        ActorDiedError, Transfer: The connection is of no use any more.
    """
    problem = ""
    try:
        read()
    except Exception as error:  # noqa: BLE001 - of which the next question tells
        problem = describe_error(error)
    connection.end_reading(number)
    with connection.next() as received:
        answer_to(received, number, connection.holder)
    if problem:
        connection.failed.add(way)
        _log.warning("rcg: tensors do not come by %s: %s", way, problem)
    return not problem


def registered_in(answer: TensorsRegistered, received: Received) -> tuple[Registered, Places]:
    """Return how NIXL reads what another process has, and where each tensor lies there."""
    metadata, places = (each.decode() for each in open_payloads(received))
    about = Registered(answer.agent, bytes(metadata), answer.version, (), answer.kind)
    return about, np.frombuffer(places, "<i8").reshape(-1, 3)


def receive_after(
    connection: Connection, sizes: Sequence[int], into: Sequence[Any] | None
) -> Sequence[Any]:
    """Receive tensors whose bytes follow on the connection."""

    def receive(memory: Any) -> None:
        connection.recv_raw_into(raw_view(memory))

    try:
        return receive_in_runs(sizes, "cpu", into, receive)
    except (RuntimeError, ValueError) as error:  # the first of torch, which has no memory
        raise not_arrived(sizes, error) from error


def not_arrived(sizes: Iterable[int], error: Exception) -> Transfer:
    """Return the error for tensors of these sizes."""
    return Transfer(f"tensors of {sum(sizes)} bytes did not arrive: {error}")
