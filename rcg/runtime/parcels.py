# SPDX-License-Identifier: Apache-2.0
"""Encoded values on their way through a local socket: in the packet or, if large, in a memfd.

A memfd is mapped by whoever receives it, so arrays of any size arrive without a copy and may be
held for ever; nothing of it is left when the last array over it dies.
"""

from __future__ import annotations

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

__all__ = ["Parcel", "encoded_failure", "open_parcel", "send_parcel"]

# With the packet's JSON this stays below the limit of a packet.
_MOST_INSIDE: Final = 32 * 1024
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """One encoded value that arrived.

    Attributes:
        encoded: As the codec made it; its buffers lie in the packet or in the mapped memfd.
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


def send_parcel(
    connection: socket.socket, packet: Packet, values: Sequence[Encoded], *, may_wait: bool = True
) -> None:
    """Send a packet with encoded values; ``open_parcel`` is its other end.

    Raises:
        BlockingIOError: The peer does not read.
        OSError: The connection is over, or there is no memory for a memfd.
    """
    table: list[list[Any]] = []
    parts: list[tuple[int, Any]] = []
    end = 0
    for kind, data, buffers, writable in values:
        views = [pickle.PickleBuffer(buffer).raw() for buffer in buffers or ()]
        flags = [bool(f) for f in writable] if isinstance(writable, bytes) else int(writable)
        row: list[Any] = [kind, end, len(data), None if buffers is None else [], flags]
        parts.append((end, data))
        end += len(data)
        for view in views:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            row[3].append([end, view.nbytes])
            parts.append((end, view))
            end += view.nbytes
        table.append(row)
    packet = {**packet, "values": table, "bytes": end}
    if end <= _MOST_INSIDE:
        body = bytearray(end)
        for at, part in parts:
            body[at : at + len(part)] = part
        packets.send(connection, packet, body=bytes(body), may_wait=may_wait)
        return
    fd = os.memfd_create("rcg-parcel", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, end)  # no room is an error here and not a SIGBUS later
        with mmap.mmap(fd, end) as memory:
            for at, part in parts:
                memory[at : at + len(part)] = part
        packets.send(connection, packet, [fd], may_wait=may_wait)
    finally:
        os.close(fd)


def open_parcel(packet: Packet, body: bytes, fds: Sequence[int]) -> list[Parcel]:
    """Return the values that came with a packet; closes the descriptors."""
    memory: Any = body
    try:
        if fds:
            # Private: who may write to a value writes to his own copy of its pages.
            memory = mmap.mmap(fds[0], int(packet["bytes"]), mmap.MAP_PRIVATE)
    finally:
        for fd in fds:
            os.close(fd)
    whole = memoryview(memory)
    found = []
    for kind, start, size, spans, flags in packet["values"]:
        data: Any = whole[start : start + size].toreadonly()
        buffers: Any = None
        if spans is not None:
            buffers = []
            for i, (at, length) in enumerate(spans):
                part: Any = whole[at : at + length]
                if not (flags[i] if isinstance(flags, list) else flags >> i & 1):
                    part = part.toreadonly()
                elif part.readonly:
                    part = bytearray(part)
                buffers.append(part)
        writable = bytes(flags) if isinstance(flags, list) else flags
        found.append(Parcel((kind, bytes(data) if not fds else data, buffers, writable)))
    return found
