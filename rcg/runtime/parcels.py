# SPDX-License-Identifier: Apache-2.0
"""Encoded values on their way through a local socket: in the packet or, if large, in a memfd.

What is received is copied to the heap once, so nothing of a parcel (no mapping, no descriptor) is
left while its values are held.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg import _native
from rcg.channels.shm import Failure
from rcg.runtime import packets
from rcg.runtime.packets import Packet
from rcg.values import Encoded, loads

__all__ = ["Parcel", "Prepared", "encoded_failure", "open_parcel", "send_parcel"]

# With the packet's JSON this stays below the limit of a packet.
_MOST_INSIDE: Final = 32 * 1024
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """One encoded value that arrived.

    Attributes:
        encoded: As the codec made it; its buffers lie in memory of the parcel's own.
    """

    encoded: Encoded

    def decode(self) -> Any:
        """Return the value, or a ``Failure`` in its place."""
        kind, data, buffers, _ = self.encoded
        if kind == _native.KIND_FAILURE:
            return Failure(bytes(data))
        if kind == _native.KIND_BYTES:
            return bytes(data)
        return loads(data) if buffers is None else loads(data, buffers=buffers)


def encoded_failure(failure: Failure) -> Encoded:
    """Return a failure as what stands for it in a channel."""
    return _native.KIND_FAILURE, failure.data, None, 0


class Prepared:
    """Values that are packed and can be sent, also after an attempt that would have had to wait.

    Layout: a table in JSON that says where everything is, then pickles and buffers.

    Args:
        packet: What goes with them.
        values: As the codec made them.

    Raises:
        OSError: There is no memory, or no descriptor, for a memfd.
    """

    def __init__(self, packet: Packet, values: Sequence[Encoded]) -> None:
        table: list[list[Any]] = []
        parts: list[tuple[int, Any]] = []
        end = 0
        for kind, data, buffers, writable in values:
            flags = list(map(bool, writable)) if isinstance(writable, bytes) else int(writable)
            spans: list[tuple[int, int]] | None = None if buffers is None else []
            row: list[Any] = [kind, end, len(data), spans, flags]
            parts.append((end, data))
            end += len(data)
            for buffer in buffers or ():
                raw = pickle.PickleBuffer(buffer).raw()
                end = _aligned(end)
                row[3].append((end, raw.nbytes))
                parts.append((end, raw))
                end += raw.nbytes
            table.append(row)
        head = json.dumps(table).encode()
        start = _aligned(len(head))
        size = start + end
        self._packet = {**packet, "table_bytes": len(head), "bytes": size}
        self._fd = -1
        self._body = b""
        parts = [(0, head), *((start + at, part) for at, part in parts)]
        if size <= _MOST_INSIDE:
            body = bytearray(size)
            for at, part in parts:
                body[at : at + len(part)] = part
            self._body = bytes(body)
            return
        self._fd = os.memfd_create("rcg-parcel", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self._fd, 0, size)  # no room is an error here, not a SIGBUS later
            with mmap.mmap(self._fd, size) as memory:
                for at, part in parts:
                    memory[at : at + len(part)] = part
        except BaseException:
            self.close()
            raise

    def send(self, connection: socket.socket, *, may_wait: bool = True, number: int = 0) -> None:
        """Send it.

        Args:
            connection: Where to.
            may_wait: Whether to wait while the peer does not read.
            number: What the peer answers by.

        Raises:
            BlockingIOError: The peer does not read.
            OSError: The connection is over.
        """
        fds = [self._fd] if self._fd >= 0 else []
        packet = {**self._packet, "number": number}
        packets.send(connection, packet, fds, body=self._body, may_wait=may_wait)

    def close(self) -> None:
        """Let go of it; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send_parcel(connection: socket.socket, packet: Packet, values: Sequence[Encoded]) -> None:
    """Send a packet with encoded values; ``open_parcel`` is its other end.

    Raises:
        OSError: As for ``Prepared`` and its ``send``.
    """
    with Prepared(packet, values) as prepared:
        prepared.send(connection, number=packet.get("number", 0))


def open_parcel(packet: Packet, body: bytes, fds: Sequence[int]) -> list[Parcel]:
    """Return the values that came with a packet; closes the descriptors.

    Raises:
        OSError: The memfd did not arrive, because this process has no descriptor left.
        ValueError, KeyError, TypeError: It is no parcel.
    """
    size = int(packet["bytes"])
    memory = bytearray(body)
    try:
        if fds:
            memory = bytearray(size)
            view = memoryview(memory)
            at = 0
            while at < size and (count := os.preadv(fds[0], [view[at:]], at)):
                at += count
            view.release()
            if at < size:
                raise ValueError("the parcel is shorter than it says")
    finally:
        for fd in fds:
            os.close(fd)
    if len(memory) != size:
        raise OSError("a value did not arrive: this process has no file descriptor left for it")
    whole = memoryview(memory)
    table_bytes = int(packet["table_bytes"])
    start = _aligned(table_bytes)
    found = []
    for kind, offset, length, spans, flags in json.loads(bytes(whole[:table_bytes])):
        data: Any = whole[start + offset : start + offset + length].toreadonly()
        buffers: Any = None
        if spans is not None:
            buffers = []
            for i, (at, count) in enumerate(spans):
                part = whole[start + at : start + at + count]
                is_writable = flags[i] if isinstance(flags, list) else (flags >> i) & 1
                buffers.append(part if is_writable else part.toreadonly())
        writable = bytes(flags) if isinstance(flags, list) else flags
        found.append(Parcel((kind, data, buffers, writable)))
    return found


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
