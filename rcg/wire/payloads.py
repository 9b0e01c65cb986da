# SPDX-License-Identifier: Apache-2.0
"""Encoded values on their way through a connection: in the message or, if large, in a memfd.

To another node no memfd can be passed. There its bytes travel in pieces (``packets.LargeBody``),
and the receiver takes memory for each piece as it comes. A received payload is copied to the heap
once, so held values keep no mapping and no descriptor.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from rcg.descriptors import Descriptor
from rcg.serialization import KIND_BYTES, KIND_FAILURE, KIND_PICKLE, Encoded, Failure, loads
from rcg.wire import sockets
from rcg.wire.messages import Carrying, Message
from rcg.wire.packets import LargeBody, PacketStream
from rcg.wire.sockets import Connection, Received

# With the message's JSON this stays below the limit of a message.
_MAX_INLINE_BYTES: Final = 32 * 1024
_ALIGNMENT: Final = 64
_BLOCK_BYTES: Final = 512  # the unit of the size that a file reports
_KINDS: Final = (KIND_PICKLE, KIND_FAILURE, KIND_BYTES)


@dataclass(frozen=True, slots=True)
class Payload:
    """One encoded value that arrived."""

    encoded: Encoded  # its buffers lie in memory of the payload's own

    def decode(self) -> Any:
        """Return the value, or a ``Failure`` in its place."""
        kind, data, buffers, _ = self.encoded
        if kind == KIND_FAILURE:
            return Failure(bytes(data))
        if kind == KIND_BYTES:
            return bytes(data)
        return loads(data) if buffers is None else loads(data, buffers=buffers)


class _Prepared:
    """A message and bytes beside it, which can be sent in several attempts that do not wait.

    The parts are bytes and where they begin; ``size`` includes the gaps between them.

    Raises:
        OSError: There is no memory, or no descriptor, for a memfd.
    """

    def __init__(self, message: Message, parts: Iterable[tuple[int, Any]], size: int) -> None:
        self._message: Any = message
        self._size = size
        self._memfd = Descriptor()
        self._large: LargeBody | None = None  # on its way to another node
        self._body = bytearray()
        if size <= _MAX_INLINE_BYTES:
            self._body = bytearray(size)
            for at, part in parts:
                self._body[at : at + len(part)] = part
            return
        self._memfd = Descriptor(os.memfd_create, "rcg-payload", os.MFD_CLOEXEC)
        try:
            fd = self._memfd.fd
            os.posix_fallocate(fd, 0, size)  # no room is an error here, not a SIGBUS later
            for at, part in parts:
                _write_all(fd, part, at)
        except BaseException:
            self.close()
            raise

    def send(self, connection: Connection, *, may_wait: bool = True, **changes: int) -> None:
        """Send it, with ``changes`` to fields of the message.

        Raises:
            BlockingIOError: The peer does not read. Another attempt goes on from there.
            OSError: The connection is over.
        """
        message = replace(self._message, **changes) if changes else self._message
        if self._memfd.fd < 0:
            sockets.send(connection, message, body=self._body, may_wait=may_wait)
        elif isinstance(connection, PacketStream):
            if self._large is None or self._large.stream is not connection:
                self._drop()
                self._large = LargeBody(connection, self._memfd.fd, self._size)
            self._large.send(sockets.pack_message(message), 0 if may_wait else socket.MSG_DONTWAIT)
            self._large = None
        else:
            sockets.send(connection, message, [self._memfd.fd], may_wait=may_wait)

    def close(self) -> None:
        """Let go of it; idempotent."""
        self._drop()
        self._memfd.close()

    def _drop(self) -> None:
        """Give up what was sent only in part."""
        if self._large is not None:
            self._large.drop()
            self._large = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PreparedPayloads(_Prepared):
    """Packed values in a message; see ``open_payloads`` for the other end.

    Layout: a table in JSON with the position of each part, then pickles and buffers.

    Raises:
        OSError: There is no memory, or no descriptor, for a memfd.
    """

    def __init__(self, message: Carrying, values: Sequence[Encoded]) -> None:
        table: list[list[Any]] = []
        parts: list[tuple[int, Any]] = []
        end = 0
        for kind, data, buffers, writable in values:
            flags = list(map(bool, writable)) if isinstance(writable, bytes) else int(writable)
            spans: list[tuple[int, int]] = []
            table.append([kind, end, len(data), None if buffers is None else spans, flags])
            parts.append((end, data))
            end += len(data)
            for buffer in buffers or ():
                raw = pickle.PickleBuffer(buffer).raw()
                end = _align(end)
                spans.append((end, raw.nbytes))
                parts.append((end, raw))
                end += raw.nbytes
        head = json.dumps(table).encode()
        start = _align(len(head))
        size = start + end
        message = replace(message, size_bytes=size, table_bytes=len(head))
        super().__init__(message, [(0, head), *((start + at, part) for at, part in parts)], size)


def _write_all(fd: int, part: Any, at: int) -> None:
    """Write bytes to a file at a place; other threads run meanwhile."""
    left = memoryview(part).cast("B")
    while left:
        count = os.pwrite(fd, left, at)
        left, at = left[count:], at + count


def send_payloads(
    connection: Connection,
    message: Carrying,
    values: Sequence[Encoded],
    check: Callable[[], object] = bool,
) -> None:
    """Send a message with encoded values; ``open_payloads`` is its other end.

    ``check`` is called when they have been copied; if it raises, nothing is sent.

    Raises:
        OSError: As for ``PreparedPayloads`` and its ``send``.
    """
    with PreparedPayloads(message, values) as prepared:
        check()
        prepared.send(connection)


def open_payloads(received: Received) -> list[Payload]:
    """Return the values that came with a message; closes the descriptors.

    Everything is checked before memory is allocated or a value is made, because any process may
    have sent the message.

    Raises:
        OSError: The memfd did not arrive, because this process has no descriptor left.
        ValueError: It is not a payload.
        MemoryError: There is no memory for it.
    """
    message = received.message
    if not isinstance(message, Carrying):
        raise ValueError("a message without a payload")
    size, table_bytes = message.size_bytes, message.table_bytes
    if table_bytes > size:
        raise ValueError("the payload's table is larger than the payload")
    if received.is_short:
        raise OSError(errno.EMFILE, "a value did not arrive")
    whole = memoryview(_contents(received, size))
    received.close()
    try:
        table = json.loads(bytes(whole[:table_bytes]))
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, list):
        raise ValueError("the payload has no table")
    start = _align(table_bytes)
    return [_payload(whole[start:], row) for row in table]


def send_buffers(
    connection: Connection,
    message: Message,
    buffers: Sequence[memoryview],
    check: Callable[[], object] = bool,
) -> None:
    """Send a message with bytes, of which the other side knows the sizes; see ``open_buffers``.

    ``check`` is called when they have been copied; if it raises, nothing is sent.

    Raises:
        OSError: The connection is over, or there is no memory, or no descriptor, for a memfd.
    """
    starts, size = _places([each.nbytes for each in buffers])
    with _Prepared(message, zip(starts, buffers, strict=True), size) as prepared:
        check()
        prepared.send(connection)


class Room(NamedTuple):
    """Memory for the bytes that come with a message."""

    whole: bytearray
    parts: list[memoryview]  # the place of each part in it


def room_for(sizes: Sequence[int]) -> Room:
    """Return memory for parts of these sizes."""
    starts, size = _places(sizes)
    whole = bytearray(size)
    view = memoryview(whole)
    return Room(whole, [view[at : at + each] for at, each in zip(starts, sizes, strict=True)])


def open_buffers(received: Received, room: Room) -> None:
    """Take the bytes that came with a message into memory; closes its descriptors.

    Raises:
        OSError: The memfd did not arrive, because this process has no descriptor left.
        ValueError: They are not of this size.
    """
    if received.is_short:
        raise OSError(errno.EMFILE, "a value did not arrive")
    _check_size(received, len(room.whole))
    _take_into(received, room.whole)
    received.close()


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where parts of these sizes begin, and the size of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(_align(end))
        end = starts[-1] + size
    return starts, end


def _contents(received: Received, size: int) -> bytearray:
    """Return the bytes of a payload, from the message's body or from the file that came with it."""
    if received.lacks_memory:
        raise MemoryError("there is no memory for a value")
    _check_size(received, size)
    if not received.fds and isinstance(received.body, bytearray):
        return received.body  # what came in pieces lies in memory of its own already
    memory = bytearray(size)
    _take_into(received, memory)
    return memory


def _check_size(received: Received, size: int) -> None:
    """Check that so many bytes came: in the message's body, or in the file that came with it.

    The sender has taken memory for so much, so a number alone makes this process take none.
    """
    fits = len(received.body) == size
    if received.fds:
        found = os.fstat(received.fds[0])
        fits = stat.S_ISREG(found.st_mode) and size <= min(
            found.st_size, found.st_blocks * _BLOCK_BYTES
        )
    if not fits:
        raise ValueError("the payload does not have the size in its header")


def _take_into(received: Received, memory: bytearray) -> None:
    if not received.fds:
        memoryview(memory)[:] = received.body
        return
    fd, size = received.fds[0], len(memory)
    with memoryview(memory) as view:
        at = 0
        while at < size:
            count = os.preadv(fd, [view[at:]], at)
            if not count:
                raise ValueError("the payload is shorter than it says")
            at += count


def _payload(content: memoryview, row: Any) -> Payload:
    """Return the value that a row of the table describes."""
    if not isinstance(row, list) or len(row) != 5:
        raise ValueError("a row of the payload's table is not valid")
    kind, offset, length, spans, flags = row
    if type(kind) is not int or kind not in _KINDS:
        raise ValueError("a value of the payload is of no known kind")
    data: Any = _part(content, offset, length).toreadonly()
    if spans is None:
        if type(flags) is not int or flags:
            raise ValueError("a value of the payload has flags for no buffers")
        return Payload((kind, data, None, 0))
    if not isinstance(spans, list):
        raise ValueError("the buffers of the payload are not valid")
    writable = _flags(flags, len(spans))
    buffers: Any = []
    for span, is_writable in zip(spans, writable, strict=True):
        if not isinstance(span, list) or len(span) != 2:
            raise ValueError("a buffer of the payload is not valid")
        part = _part(content, *span)
        buffers.append(part if is_writable else part.toreadonly())
    return Payload((kind, data, buffers, bytes(writable) if isinstance(flags, list) else flags))


def _part(content: memoryview, offset: object, length: object) -> memoryview:
    if type(offset) is not int or type(length) is not int:
        raise ValueError("a part of the payload is not valid")
    if offset < 0 or length < 0 or offset + length > len(content):
        raise ValueError("a part of the payload lies outside of it")
    return content[offset : offset + length]


def _flags(flags: object, count: int) -> list[bool]:
    """Return which buffers may be written to: as a list, or as the bits of a number."""
    if isinstance(flags, list) and len(flags) == count and all(type(f) is bool for f in flags):
        return flags
    if type(flags) is int and 0 <= flags < 1 << min(count, 64):
        return [bool(flags >> i & 1) for i in range(count)]
    raise ValueError("the flags of the payload's buffers are not valid")


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
