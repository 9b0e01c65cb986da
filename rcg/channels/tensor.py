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
enters the communicator only when all readers have taken the frame, so it waits for them where every
wait of a graph happens, and that ends as they all do: by poison, with the peer's name in the
recorder. What waits inside the communicator is ended by ``abort``. (It is faster, too: Gloo takes
longer to match a send that comes before its receive.)

A reader without memory for the tensors must receive them all the same, because the writer sends
them. Tensors are sent in pieces of ``PIECE_BYTES``; such a reader takes them into one piece of
memory, again and again, and its value is a failure.

Received tensors lie in private blocks of the process's arena, which are used again: memory that is
touched for the first time costs as much as the transfer (FACTS).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rcg import comm
from rcg.channels.base import Endpoint, Signal, TransferFailed
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
    LoneTable,
    Skeleton,
    Table,
    bytes_of,
    check_direct,
    described_text,
    is_plain_tensor,
    put_back,
    take_out,
)
from rcg.serialization.tensors import Described

__rcg_plumbing__ = True  # see rcg.frames

__all__ = [
    "PIECE_BYTES",
    "TensorReader",
    "TensorWriter",
    "copy_of",
    "failed_transfer",
    "nowhere",
    "open_reader",
    "open_writer",
    "pieces_of",
    "room_for",
]

PIECE_BYTES: Final = 16 << 20
"""So many bytes are sent at once, at most. Larger pieces are not faster; a reader without memory
needs so much."""

_FEW_BYTES: Final = 64 << 10
"""Memory for so many bytes comes from torch, which has it sooner than the arena has a block."""


# The first byte of a frame: what follows in it, and over the communicator.
_RAW: Final = b"\x00"  # bytes, and no tensor
_LONE: Final = b"\x01"  # the table of one tensor, and the tensor
_LONE_AGAIN: Final = b"\x02"  # one tensor, as the newest table says
_WHOLE: Final = b"\x03"  # a table, a pickle, and the tensors
_WHOLE_AGAIN: Final = b"\x04"  # a pickle, and tensors as the newest table says


class _Outgoing(NamedTuple):
    """What is sent for a value.

    Attributes:
        frame: What the ring takes.
        told: The table that the readers have after that, with its first byte.
        payloads: The bytes of the tensors.
    """

    frame: tuple[Any, ...]
    told: bytes | None
    payloads: list[Any]


def _undecoded(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> tuple[Any, Sequence[Any]]:
    """Return a frame as it is: its tensors are still to come."""
    return bytes(data), buffers


def room_for(endpoint: Endpoint, size_bytes: int) -> Any:
    """Return a tensor of uint8 [size_bytes] for what arrives, in recycled memory if that pays.

    Raises:
        MemoryError, RuntimeError: There is no memory.
    """
    torch = sys.modules["torch"]
    loan = None if size_bytes <= _FEW_BYTES else endpoint.member.loan(size_bytes, True)
    if loan is None:
        return torch.empty(size_bytes, dtype=torch.uint8)
    return torch.frombuffer(loan, dtype=torch.uint8)


def copy_of(value: Any, endpoint: Endpoint) -> Any:
    """Return a value as a reader would get it now, from memory of its own.

    Raises:
        UnpicklableError: It cannot be copied, and so not be sent.
        MemoryError, RuntimeError: There is no memory.
    """
    if type(value) is bytes:
        return value
    skeleton, table, payloads = take_out(endpoint.encode(value))
    kept = [bytes(each.raw()) for each in skeleton.buffers]
    rooms = []
    for size, payload in zip(table.sizes, payloads, strict=True):
        rooms.append(room_for(endpoint, size).copy_(payload))
    return put_back(Skeleton(skeleton.data, kept), table, rooms, loads_to("default"))


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
    except Exception as error:
        raise failed_transfer(error) from error
    return [
        piece[: min(PIECE_BYTES, size - start)]
        for size in sizes
        for start in range(0, max(size, 1), PIECE_BYTES)
    ]


def failed_transfer(error: BaseException) -> TransferFailed:
    """Return the signal for what ended a transfer: a communicator's exception, an interrupt."""
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

    __slots__ = ("_communicator", "_endpoint", "_group", "devices", "is_broadcast", "root", "tag")

    def __init__(self, spec: ChannelSpec, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._group = str(spec.group)
        self._communicator: comm.Communicator | None = None
        members = endpoint.groups.members(self._group)
        self.devices = endpoint.groups.devices(self._group)
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
        "_like",
        "_lone",
        "_lone_told",
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
        # The tensors of the first execution, if later ones must be the same; and the table that the
        # readers have from an earlier frame.
        self._expected: list[Described] | None = None
        self._told: bytes | None = None
        # What the newest lone tensor was like, its table and the table as bytes: mostly the next
        # one is like it.
        self._like: object = None
        self._lone = LoneTable("uint8", (), False, 0)
        self._lone_told = b""

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
            outgoing = self._outgoing(value)
        except BaseException:
            ring.shut()
            raise
        before = ring.seq
        try:
            ring.write(*outgoing.frame)
            self._told = outgoing.told
            payloads = outgoing.payloads
            size = 0
            if payloads:
                size = sum([each.numel() for each in payloads])
                ring.wait_taken()
                self._send(payloads)
            self._member.transferred(size, False)
        except Signal:
            raise
        except BaseException as error:
            if ring.seq == before:
                raise
            raise failed_transfer(error) from error  # the readers wait for what follows the frame

    def _outgoing(self, value: Any) -> _Outgoing:
        """Return what is sent for a value."""
        spec = self._spec
        if spec.is_direct_return:
            check_direct(value, self._route.devices)
        if spec.is_direct_return or is_plain_tensor(value):
            like = (value.dtype, value.shape, value.requires_grad)
            if like != self._like:
                self._lone = LoneTable.of(value)
                self._lone_told = _LONE + self._lone.written()
                self._like = like
            lone, told, raw = self._lone, self._lone_told, bytes_of(value)
            if spec.is_static_shape:
                self._check([(lone.dtype, lone.shape)])
            data = _LONE_AGAIN if told == self._told else told
            return _Outgoing((KIND_BYTES, data), told, [raw] if lone.size else [])
        if type(value) is bytes:
            if spec.is_static_shape:
                self._check([])
            return _Outgoing((KIND_BYTES, _RAW + value), self._told, [])
        described: list[Described] | None = [] if spec.is_static_shape else None
        skeleton, table, payloads = take_out(self._encode(value, described))
        if described is not None:
            self._check(described)
        told = _WHOLE + table.written()
        head = _WHOLE_AGAIN if told == self._told else told
        # A frame that has no buffers needs no decoding yet.
        kind = KIND_PICKLE if skeleton.buffers else KIND_BYTES
        frame = (kind, head + skeleton.data, skeleton.buffers or None, 0)
        return _Outgoing(frame, told, payloads)

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

    __slots__ = (
        "_endpoint",
        "_loads",
        "_lone",
        "_lone_told",
        "_member",
        "_ring",
        "_route",
        "_spec",
        "_table",
    )

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._spec = spec
        self._ring = endpoint.member.reader(endpoint.rings[spec.id], op, _undecoded, Failure)
        self._member = endpoint.member
        self._endpoint = endpoint
        self._route = _Route(spec, endpoint)
        self._loads = loads_to(spec.device)
        # The newest tables: a frame has none if nothing changed.
        self._table = Table((), ())
        self._lone = LoneTable("uint8", (), False, 0)
        self._lone_told = b""

    @property
    def seq(self) -> int:
        """See ``base.Reader``."""
        return int(self._ring.seq)

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """See ``base.Reader``. It blocks until the tensors are here.

        Raises:
            TransferFailed: The communicator failed.
        """
        before = self._ring.seq
        try:
            arrived = self._ring.read(timeout_ns)
            if type(arrived) is Failure:
                return arrived
            data, buffers = (arrived, ()) if type(arrived) is bytes else arrived
            kind = data[:1]
            if kind == _RAW:
                return data[1:]
            end, sizes = self._announced(kind, data)
            payloads = self._receive(sizes)
        except Signal:
            raise
        except BaseException as error:
            if self._ring.seq == before:
                raise
            raise failed_transfer(error) from error  # what follows may not have been taken
        if isinstance(payloads, Exception):
            try:
                raise payloads
            finally:
                del payloads  # it would hold itself, and the frame, by its traceback
        if kind in (_LONE, _LONE_AGAIN):
            tensor = self._lone.put_back(payloads[0] if payloads else None)
            return moved_to(tensor, self._spec.device)
        skeleton = Skeleton(memoryview(data)[end:], list(buffers))
        return put_back(skeleton, self._table, payloads, self._loads)

    def _announced(self, kind: bytes, data: Any) -> tuple[int, tuple[int, ...]]:
        """Return where the table of a frame ends, and the sizes of the payloads."""
        if kind == _WHOLE:
            self._table, size = Table.read(memoryview(data)[1:])
            return 1 + size, self._table.sizes
        if kind == _WHOLE_AGAIN:
            return 1, self._table.sizes
        if kind == _LONE and data != self._lone_told:
            self._lone = LoneTable.read(memoryview(data)[1:])
            self._lone_told = data
        size = self._lone.size
        return 0, (size,) if size else ()

    def _receive(self, sizes: Sequence[int]) -> list[Any] | Exception:
        """Return the payloads, tensors of uint8 [n] in memory of this process.

        Where there is no memory, they are taken all the same, because the writer sends; what says
        so is returned.
        """
        if not sizes:
            return []
        self._member.transferring()
        try:
            payloads = [room_for(self._endpoint, size) for size in sizes]
        except Exception as error:  # noqa: BLE001 - whatever it is, the writer sends
            self._take(nowhere(sizes))
            return error
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
