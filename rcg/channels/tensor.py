# SPDX-License-Identifier: Apache-2.0
"""Channels whose tensors travel over a communicator.

::

    writer                                    reader
    encode; take the tensors out
    frame: skeleton, table        ──ring──>   take the frame
    wait until every reader took it           make room for the tensors
    send, or broadcast     ──communicator──>  receive
                                              put the tensors back; decode

The frame is the status of the value. If the value is a ``Failure``, or cannot be encoded, the frame
says so and nothing follows, so a failed value never leaves a peer inside a rendezvous. The writer
enters the communicator only when all readers have taken the frame, so waiting for a peer happens
where every wait of a graph happens, and ends as they do: by poison, with the peer's name in the
recorder.

A reader without memory for the tensors must receive them all the same, because the writer sends
them. Tensors are sent in pieces of ``PIECE_BYTES``; such a reader takes them into one piece of
memory, again and again, and its value is a failure.

Received tensors lie in private blocks of the process's arena, which are used again: memory that is
touched for the first time costs as much as the transfer (FACTS).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from rcg import comm
from rcg.channels.base import Endpoint, TransferFailed
from rcg.error_text import describe_error
from rcg.errors import CommError, TensorMismatch
from rcg.ir.channels import ChannelSpec
from rcg.serialization import (
    KIND_BYTES,
    KIND_FAILURE,
    KIND_PICKLE,
    Failure,
    loads_to,
)
from rcg.serialization.devices import moved_to
from rcg.serialization.payloads import (
    DirectTable,
    Skeleton,
    Table,
    described_text,
    put_back,
    take_out,
)
from rcg.serialization.tensors import Described

__rcg_plumbing__ = True  # see rcg.frames

__all__ = [
    "PIECE_BYTES",
    "TensorReader",
    "TensorWriter",
    "nowhere",
    "open_reader",
    "open_writer",
    "pieces_of",
    "room_for",
]

PIECE_BYTES: Final = 16 << 20
"""So many bytes are sent at once, at most. Larger pieces are not faster; a reader without memory
needs so much."""


class _Arrived:
    """A frame that was taken; its tensors are still to come."""

    __slots__ = ("buffers", "data")

    def __init__(self, data: bytes | memoryview, buffers: Sequence[Any] = ()) -> None:
        self.data = data
        self.buffers = buffers


def room_for(endpoint: Endpoint, size_bytes: int) -> Any:
    """Return a tensor of uint8 [size_bytes] for what arrives, in recycled memory if there is some.

    Raises:
        MemoryError, RuntimeError: There is no memory.
    """
    torch = sys.modules["torch"]
    loan = endpoint.member.loan(size_bytes, True)
    if loan is None:
        return torch.empty(size_bytes, dtype=torch.uint8)
    return torch.frombuffer(loan, dtype=torch.uint8)


def pieces_of(payloads: Sequence[Any]) -> list[Any]:
    """Return payloads in pieces of ``PIECE_BYTES`` at most."""
    pieces: list[Any] = []
    for payload in payloads:
        if payload.numel() <= PIECE_BYTES:
            pieces.append(payload)
        else:
            pieces += payload.split(PIECE_BYTES)
    return pieces


def nowhere(sizes: Sequence[int]) -> list[Any]:
    """Return pieces for payloads that nobody keeps: all of them are the same memory.

    Raises:
        TransferFailed: There is no memory even for that.
    """
    torch = sys.modules["torch"]
    try:
        piece = torch.empty(min(PIECE_BYTES, max(sizes)), dtype=torch.uint8)
    except (MemoryError, RuntimeError) as error:
        raise failed_transfer(error) from error
    return [
        piece[: min(PIECE_BYTES, size - start)]
        for size in sizes
        for start in range(0, max(size, 1), PIECE_BYTES)
    ]


def failed_transfer(error: Exception) -> TransferFailed:
    """Return the signal for an exception that a communicator raised, also a user's."""
    if not isinstance(error, CommError):
        error = CommError(f"the communicator failed: {describe_error(error)}")
    return TransferFailed(error)


def open_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> TensorWriter:
    """Return the writing end; ``op`` is its Write in the program."""
    return TensorWriter(spec, op, endpoint)


def open_reader(spec: ChannelSpec, op: int, endpoint: Endpoint) -> TensorReader:
    """Return the reading end; ``op`` is its Read in the program."""
    return TensorReader(spec, op, endpoint)


class _Route:
    """How the tensors of a channel travel, seen from one end."""

    __slots__ = ("_communicator", "_endpoint", "_group", "is_broadcast", "root", "tag")

    def __init__(self, spec: ChannelSpec, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._group = str(spec.group)
        self._communicator: comm.Communicator | None = None
        members = endpoint.groups.members(self._group)
        self.is_broadcast = len(spec.readers) > 1
        self.root = members.index(spec.writer)
        self.tag = int(spec.id[1:])

    @property
    def communicator(self) -> comm.Communicator:
        """The communicator, which the loop opens before its first op."""
        found = self._communicator
        if found is None:
            found = self._communicator = self._endpoint.groups.communicator(self._group)
        return found


class TensorWriter:
    """The writing end; see ``base.Writer``.

    Args:
        spec: The channel.
        op: Its Write in the program.
        endpoint: This process's place on its node.
    """

    __slots__ = (
        "_encode",
        "_endpoint",
        "_expected",
        "_member",
        "_peer",
        "_ring",
        "_route",
        "_spec",
        "_told",
    )

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._spec = spec
        self._ring = endpoint.member.writer(endpoint.rings[spec.id], op, True)
        self._member = endpoint.member
        self._encode = endpoint.encode
        self._endpoint = endpoint
        self._route = _Route(spec, endpoint)
        self._peer = endpoint.groups.members(str(spec.group)).index(spec.readers[0])
        # The tensors of the first execution, if later ones must be the same, and the table that the
        # readers have.
        self._expected: list[Described] | None = None
        self._told: bytes | None = None

    @property
    def seq(self) -> int:
        """See ``base.Writer``."""
        return int(self._ring.seq)

    def write(self, value: Any, /) -> None:
        """See ``base.Writer``. It blocks until every reader has the tensors.

        Raises:
            TensorMismatch: The value is not what the hint promised; nothing was written.
            TransferFailed: The communicator failed.
        """
        ring = self._ring
        if type(value) is Failure:
            ring.write(KIND_FAILURE, value.data)
            self._member.transferred(0, False)
            return
        ring.open()  # encoding is part of the write
        try:
            is_direct = self._spec.is_direct_return
            table, frame, payloads = self._direct(value) if is_direct else self._whole(value)
        except BaseException:
            ring.shut()
            raise
        ring.write(*frame)
        self._told = table
        if payloads:
            ring.wait_taken()
            self._send(payloads)
        self._member.transferred(sum(each.numel() for each in payloads), False)

    def _whole(self, value: Any) -> tuple[bytes | None, tuple[Any, ...], list[Any]]:
        """Return the table that readers know after the frame, the frame, and the payloads."""
        if type(value) is bytes:
            return self._told, (KIND_BYTES, value), []
        described: list[Described] | None = [] if self._spec.is_static_shape else None
        skeleton, table, payloads = take_out(self._encode(value, described))
        if described is not None:
            self._check(described)
        told = table.written()
        head = self._news(told)
        data = b"".join((bytes((bool(head),)), head, skeleton.data))
        return told, (KIND_PICKLE, data, skeleton.buffers or None, 0), payloads

    def _direct(self, value: Any) -> tuple[bytes | None, tuple[Any, ...], list[Any]]:
        """As ``_whole``, for a value that is exactly one tensor."""
        table, raw = DirectTable.of(value)
        if self._spec.is_static_shape:
            self._check([(table.dtype, table.shape)])
        told = table.written()
        return told, (KIND_BYTES, self._news(told)), [raw] if table.size else []

    def _news(self, table: bytes) -> bytes:
        """Return a table, or nothing if the readers have it from an earlier frame."""
        return b"" if self._spec.is_static_shape and table == self._told else table

    def _check(self, found: list[Described]) -> None:
        """Compare tensors with those of the first execution."""
        if self._expected is None:
            self._expected = found
        expected = self._expected
        if found != expected:
            raise TensorMismatch(
                f"Expected torch.Tensors with shapes and dtypes: {described_text(expected)} found: "
                f"{described_text(found)}. The value has the hint `_static_shape=True`: return "
                "tensors of the same shapes in every execution, or leave the hint out",
                expected=described_text(expected),
                found=described_text(found),
            )

    def _send(self, payloads: Sequence[Any]) -> None:
        route = self._route
        try:
            communicator = route.communicator
            if route.is_broadcast:
                communicator.broadcast(pieces_of(payloads), route.root)
            else:
                communicator.send(pieces_of(payloads), self._peer, route.tag)
        except Exception as error:
            raise failed_transfer(error) from error


class TensorReader:
    """The reading end; see ``base.Reader``.

    Args:
        spec: The channel.
        op: Its Read in the program.
        endpoint: This process's place on its node.
    """

    __slots__ = ("_direct", "_endpoint", "_loads", "_member", "_ring", "_route", "_spec", "_table")

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._spec = spec
        self._ring = endpoint.member.reader(endpoint.rings[spec.id], op, _Arrived, Failure)
        self._member = endpoint.member
        self._endpoint = endpoint
        self._route = _Route(spec, endpoint)
        self._loads = loads_to(spec.device)
        # The newest tables: frames with a static shape have none if nothing changed.
        self._table = Table((), ())
        self._direct = DirectTable("uint8", (), False, 0)

    @property
    def seq(self) -> int:
        """See ``base.Reader``."""
        return int(self._ring.seq)

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """See ``base.Reader``. It blocks until the tensors are here.

        Raises:
            TransferFailed: The communicator failed.
        """
        arrived = self._ring.read(timeout_ns)
        if type(arrived) is Failure:
            return arrived
        if self._spec.is_direct_return:
            return self._read_direct(arrived)
        if type(arrived) is bytes:
            return arrived
        data = memoryview(arrived.data)
        end = 1
        if data[0]:
            self._table, size = Table.read(data[1:])
            end += size
        payloads = self._receive(self._table.sizes)
        skeleton = Skeleton(data[end:], arrived.buffers)
        return put_back(skeleton, self._table, payloads, self._loads)

    def _read_direct(self, head: bytes) -> Any:
        table = self._direct = DirectTable.read(head) if head else self._direct
        payloads = self._receive((table.size,) if table.size else ())
        tensor = table.put_back(payloads[0] if payloads else None)
        return moved_to(tensor, self._spec.device)

    def _receive(self, sizes: Sequence[int]) -> list[Any]:
        """Return the payloads, tensors of uint8 [n] in memory of this process."""
        if not sizes:
            return []
        self._member.transferring()
        try:
            payloads = [room_for(self._endpoint, size) for size in sizes]
        except (MemoryError, RuntimeError):  # torch raises the second
            self._take(nowhere(sizes))
            raise
        self._take(pieces_of(payloads))
        self._member.transferred(sum(sizes), True)
        return payloads

    def _take(self, pieces: Sequence[Any]) -> None:
        route = self._route
        try:
            if route.is_broadcast:
                route.communicator.broadcast(pieces, route.root)
            else:
                route.communicator.recv(pieces, route.root, route.tag)
        except Exception as error:
            raise failed_transfer(error) from error
