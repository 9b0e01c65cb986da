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
enters the communicator only when all readers have taken the frame. So it waits for them in the
ring, where poison ends the wait and the recorder has the peer's name; a wait inside the
communicator is ended by ``abort``. (It is faster, too: Gloo takes longer to match a send that comes
before its receive.)

A reader without memory for the tensors must receive them all the same, because the writer sends
them. Tensors are sent in pieces of ``PIECE_BYTES``; such a reader takes them into one piece of
memory, again and again, and its value is a failure.

Received tensors lie in private blocks of the process's arena, which are used again: memory that is
touched for the first time costs as much as the transfer.

The communicator carries the tensors on devices that it serves. They go from the memory of a device
to that of a device of the same type, and are moved after that if the hint says so. The frame
carries the tensors on other devices, through host memory. If the communicator serves the CPU, it
carries their copies in host memory instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby, repeat
from typing import Any, Final, NamedTuple

from rcg import comm
from rcg.channels.base import Endpoint, Signal, TransferFailed
from rcg.error_text import describe_error
from rcg.errors import CommError, TensorMismatch
from rcg.ir.channels import ChannelSpec
from rcg.serialization import KIND_BYTES, KIND_FAILURE, KIND_PICKLE, Failure, loads_to
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
from rcg.serialization.tensors import EVERY_DEVICE, Described, device_of, moved_to
from rcg.streams import keep_for_methods, keep_for_this_thread

__rcg_plumbing__ = True  # see rcg.frames

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
    """What is sent for a value."""

    frame: tuple[Any, ...]  # what the ring takes
    table: bytes | None  # the table that the readers have after that, with its first byte
    payloads: Sequence[Any] = ()  # the bytes of the tensors
    devices: Sequence[str] = ()  # the type of the device that each of these is on


def _undecoded(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> tuple[Any, Sequence[Any]]:
    """Return a frame as it is: its tensors are still to come."""
    return bytes(data), buffers


def room_for(endpoint: Endpoint, size_bytes: int, device: str = "cpu") -> Any:
    """Return a tensor of uint8 [size_bytes] for what arrives on a device of this type.

    On the CPU it lies in recycled memory if that pays; torch recycles the memory of most others.

    Raises:
        MemoryError, RuntimeError: There is no memory.
    """
    torch = sys.modules["torch"]
    if device != "cpu":
        made = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        keep_for_methods(made)
        return made
    loan = None if size_bytes <= _FEW_BYTES else endpoint.member.loan(size_bytes, True)
    if loan is None:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(loan, dtype=torch.uint8)


def copy_of(value: Any, endpoint: Endpoint) -> Any:
    """Return a value as a reader would get it now, from memory of its own, on the same devices.

    Raises:
        MemoryError: There is no memory.
        BaseException: It cannot be pickled, and so not be sent.
    """
    if type(value) is bytes:
        return value
    skeleton, table, payloads = take_out(endpoint.encode(value, None, EVERY_DEVICE), EVERY_DEVICE)
    try:
        kept = [bytes(each.raw()) for each in skeleton.buffers]
        rooms = []
        for size, device, payload in zip(table.sizes, table.devices, payloads, strict=True):
            rooms.append(room_for(endpoint, size, device).copy_(payload))
    except RuntimeError as error:  # of torch
        raise MemoryError(describe_error(error)) from error
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


def calls_of(pieces: list[Any], devices: Sequence[str]) -> list[list[Any]]:
    """Return the pieces for each call of a communicator: neighbours on devices of one type.

    The payloads of the pieces are on ``devices``.
    """
    if len(devices) == 1 or len(set(devices)) == 1:
        return [pieces]
    return [list(neighbours) for _, neighbours in groupby(pieces, device_of)]


def nowhere(sizes: Sequence[int], devices: Sequence[str]) -> list[Any]:
    """Return pieces for payloads of these sizes that are not kept: one memory for each device.

    Raises:
        TransferFailed: There is no memory even for that.
    """
    torch = sys.modules["torch"]
    longest: dict[str, int] = {}
    for size, device in zip(sizes, devices, strict=True):
        longest[device] = min(PIECE_BYTES, max(size, longest.get(device, 0)))
    try:
        memory = {
            device: torch.empty(size, dtype=torch.uint8, device=device)
            for device, size in longest.items()
        }
    except Exception as error:
        raise failed_transfer(error) from error
    return [
        memory[device][: min(PIECE_BYTES, size - start)]
        for size, device in zip(sizes, devices, strict=True)
        for start in range(0, max(size, 1), PIECE_BYTES)
    ]


def failed_transfer(error: BaseException) -> TransferFailed:
    """Return the signal for what ended a transfer: a communicator's exception, an interrupt."""
    if not isinstance(error, CommError):
        error = CommError(f"the communicator failed: {describe_error(error)}")
    return TransferFailed(error)


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
    """The writing end; see ``base.Writer`` and ``channels.open_writer``."""

    __slots__ = (
        "_encode", "_endpoint", "_expected", "_like", "_lone", "_lone_table", "_member", "_peer",
        "_ring", "_route", "_sent_table", "_spec"
    )  # fmt: skip

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._spec = spec
        self._ring = endpoint.member.writer(endpoint.rings[spec.id], op, True)
        endpoint.carry(spec.id, self._ring)
        self._member = endpoint.member
        self._encode = endpoint.encode
        self._endpoint = endpoint
        self._route = _Route(spec, endpoint)
        self._peer = endpoint.groups.members(str(spec.group)).index(spec.readers[0])
        # The tensors of the first execution, if later ones must be the same; and the table that the
        # readers have from an earlier frame.
        self._expected: list[Described] | None = None
        self._sent_table: bytes | None = None
        # What the newest lone tensor was like, its table and the table as bytes: mostly the next
        # one is like it.
        self._like: object = None
        self._lone = LoneTable("uint8", (), False, 0, "cpu")
        self._lone_table = b""

    @property
    def seq(self) -> int:
        """See ``base.End``."""
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
            self._sent_table = outgoing.table
            payloads = outgoing.payloads
            size = 0
            if payloads:
                size = sum([each.numel() for each in payloads])
                ring.wait_taken()
                self._send(payloads, outgoing.devices)
            self._member.transferred(size, False)
        except Signal:
            raise
        except BaseException as error:
            if ring.seq == before:
                raise
            raise failed_transfer(error) from error  # the readers wait for what follows the frame

    def _outgoing(self, value: Any) -> _Outgoing:
        """Return what is sent for a value."""
        spec, devices = self._spec, self._route.devices
        if spec.is_direct_return:
            check_direct(value, devices)
        if spec.is_direct_return or is_plain_tensor(value, devices):
            like = (value.dtype, value.shape, value.requires_grad, value.is_cpu or value.device)
            if like != self._like:
                self._lone = LoneTable.of(value)
                self._lone_table = _LONE + self._lone.to_bytes()
                self._like = like
            lone, written, raw = self._lone, self._lone_table, bytes_of(value)
            if spec.is_static_shape:
                self._check([(lone.dtype, lone.shape)])
            data = _LONE_AGAIN if written == self._sent_table else written
            frame: tuple[Any, ...] = (KIND_BYTES, data)
            if not lone.size:
                return _Outgoing(frame, written)
            return _Outgoing(frame, written, (raw,), (lone.device,))
        if type(value) is bytes:
            if spec.is_static_shape:
                self._check([])
            return _Outgoing((KIND_BYTES, _RAW + value), self._sent_table)
        described: list[Described] | None = [] if spec.is_static_shape else None
        skeleton, table, payloads = take_out(self._encode(value, described, devices), devices)
        if described is not None:
            self._check(described)
        written = _WHOLE + table.to_bytes()
        head = _WHOLE_AGAIN if written == self._sent_table else written
        # A frame that has no buffers needs no decoding yet.
        kind = KIND_PICKLE if skeleton.buffers else KIND_BYTES
        frame = (kind, head + skeleton.data, skeleton.buffers or None, skeleton.writable)
        return _Outgoing(frame, written, payloads, table.devices)

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

    def _send(self, payloads: Sequence[Any], devices: Sequence[str]) -> None:
        route = self._route
        try:
            communicator = route.communicator
            for payload in payloads:
                keep_for_this_thread(payload)
            for pieces in calls_of(pieces_of(payloads), devices):
                if route.is_broadcast:
                    communicator.broadcast(pieces, route.root)
                else:
                    communicator.send(pieces, self._peer, route.tag)
        except Exception as error:
            raise failed_transfer(error) from error


class TensorReader:
    """The reading end; see ``base.Reader`` and ``channels.open_reader``."""

    __slots__ = (
        "_endpoint", "_loads", "_lone", "_lone_table", "_member", "_ring", "_route", "_spec",
        "_table"
    )  # fmt: skip

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._spec = spec
        self._ring = endpoint.member.reader(endpoint.rings[spec.id], op, _undecoded, Failure)
        self._member = endpoint.member
        self._endpoint = endpoint
        self._route = _Route(spec, endpoint)
        self._loads = loads_to(spec.device)
        # The newest tables: a frame has none if nothing changed.
        self._table = Table((), (), ())
        self._lone = LoneTable("uint8", (), False, 0, "cpu")
        self._lone_table = b""

    @property
    def seq(self) -> int:
        """See ``base.End``."""
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
            end, sizes, devices = self._read_table(kind, data)
            payloads = self._receive(sizes, devices)
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

    def _read_table(self, kind: bytes, data: Any) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
        """Return where the table of a frame ends, and the sizes and devices of the payloads."""
        if kind == _WHOLE:
            self._table, size = Table.read(memoryview(data)[1:])
            return 1 + size, self._table.sizes, self._table.devices
        if kind == _WHOLE_AGAIN:
            return 1, self._table.sizes, self._table.devices
        if kind == _LONE and data != self._lone_table:
            self._lone = LoneTable.read(memoryview(data)[1:])
            self._lone_table = data
        size = self._lone.size
        return (0, (size,), (self._lone.device,)) if size else (0, (), ())

    def _receive(self, sizes: tuple[int, ...], devices: tuple[str, ...]) -> list[Any] | Exception:
        """Return the payloads: tensors of uint8 [n] on these devices.

        Without memory they are received all the same, because the writer sends them, and the error
        is returned. So is the error of a user's communicator that brought something else.
        """
        if not sizes:
            return []
        self._member.transferring()
        try:
            payloads = list(map(room_for, repeat(self._endpoint), sizes, devices))
        except Exception as error:  # noqa: BLE001 - whatever it is, the writer sends
            self._take(nowhere(sizes, devices), devices)
            return error
        wrong = self._take(pieces_of(payloads), devices)
        self._member.transferred(sum(sizes), True)
        return wrong or payloads

    def _take(self, pieces: list[Any], devices: Sequence[str]) -> TensorMismatch | None:
        """Receive all pieces; returns the error if some are not what was asked for."""
        route = self._route
        wrong: list[TensorMismatch] = []  # the first
        for call in calls_of(pieces, devices):
            try:
                if route.is_broadcast:
                    route.communicator.broadcast(call, route.root)
                else:
                    route.communicator.recv(call, route.root, route.tag)
            except TensorMismatch as error:
                wrong = wrong or [error]  # and take the rest, which the writer sends
            except Exception as error:
                raise failed_transfer(error) from error
        return wrong.pop() if wrong else None  # no local name may hold it: it holds this frame
