# SPDX-License-Identifier: Apache-2.0
"""Messages over a connection, each with descriptors or bytes beside it.

A connection is a local socket, or a ``PacketStream`` to another node, where no descriptors go.
Nothing here is unpickled, and for a local socket the kernel says which process the peer is. Any
process of the same user may send messages: the descriptors that came with one have an owner before
it is decoded.
"""

from __future__ import annotations

import array
import select
import socket
import struct
import time
from collections.abc import Sequence
from itertools import starmap
from typing import Any, Final

from rcg.descriptors import close_all
from rcg.options import Deadline
from rcg.wire.codec import Message, decode, encode
from rcg.wire.packets import BODY, MAX_MESSAGE_BYTES, PacketStream

Connection = socket.socket | PacketStream
"""A local socket, or a connection to another node."""

_CONNECT_RETRY_S: Final = 0.01
_KIND: Final = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
# As plain numbers: the operators of `socket.MsgFlag` are functions of Python.
_BYTES_LOST: Final = int(socket.MSG_TRUNC)
_DESCRIPTORS_LOST: Final = int(socket.MSG_CTRUNC)
_CLOSES_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)


def listen(address: str) -> socket.socket:
    """Return a socket that listens on an abstract address; its ``accept`` does not wait.

    Raises:
        OSError: There is no descriptor left, or another process listens there.
    """
    listener = socket.socket(socket.AF_UNIX, _KIND)
    try:
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(address: str, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to an abstract address; its calls end after a timeout.

    Raises:
        OSError: Nobody listens there.
    """
    deadline = Deadline(timeout_s)
    connection = socket.socket(socket.AF_UNIX, _KIND)
    try:
        connection.settimeout(timeout_s)
        while True:
            try:
                connection.connect(address)
                return connection
            except BlockingIOError:  # many connect at once, and the kernel does not queue us
                if deadline.expired:
                    raise
                time.sleep(_CONNECT_RETRY_S)
    except BaseException:
        connection.close()
        raise


def peer_of(connection: Connection) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, as the kernel reports them.

    Of a process on another node it knows neither: (0, -1).
    """
    if isinstance(connection, PacketStream):
        return 0, -1
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def peer_name_of(connection: Connection) -> str:
    """Return where the other end of a connection is, for people."""
    if isinstance(connection, PacketStream):
        return connection.address
    return f"process {peer_of(connection)[0]}"


def pack_message(message: Message, body: bytes | bytearray | memoryview = b"") -> bytes:
    """Return a message and bytes as they are sent; raises ValueError for a wrong field."""
    return b"".join((encode(message), b"\0", body))


def send(
    connection: Connection,
    message: Message,
    fds: Sequence[int] = (),
    *,
    body: bytes | bytearray | memoryview = b"",
    may_wait: bool = True,
) -> None:
    """Send one message with descriptors and bytes, together at most ``MAX_MESSAGE_BYTES``.

    Raises:
        BlockingIOError: The peer does not read.
        OSError: The connection is over.
        ValueError: A field has a wrong value, or the connection takes no descriptors.
    """
    data = pack_message(message, body)
    flags = 0 if may_wait else socket.MSG_DONTWAIT
    if fds:
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)
        connection.sendmsg([data], [rights], flags)
    else:
        connection.send(data, flags)


def wait_for_message(connection: Connection, pidfd: int, timeout_s: float | None = None) -> bool:
    """Wait once for a message; see ``Waiter.wait``."""
    return Waiter(connection, pidfd).wait(timeout_s)


class Waiter:
    """Waits again and again for messages of one connection, or for the end of the peer's process.

    ``pidfd`` becomes readable at that end; -1 for none.
    """

    __slots__ = ("_fd", "_poll", "_stream")

    def __init__(self, connection: Connection, pidfd: int) -> None:
        self._stream = connection if isinstance(connection, PacketStream) else None
        self._fd = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is something to receive, be it the end of the connection.

        Returns:
            False when the peer's process has ended instead, even if a child of it keeps the
            connection open.

        Raises:
            TimeoutError: Neither happened in time.
        """
        if self._stream is not None:
            return self._wait_for_packet(self._stream, Deadline(timeout_s))
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> bool:
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            raise TimeoutError
        return ready[0][0] == self._fd or ready[-1][0] == self._fd  # there are at most two

    def _wait_for_packet(self, stream: PacketStream, deadline: Deadline) -> bool:
        """Wait for a whole packet: its beginning says nothing about when the rest comes."""
        while not stream.fill():
            if not self._wait(deadline.remaining_s()):
                return False
        return True


class Received:
    """A received message; it owns its descriptors, and closes them at the end of ``with``."""

    __slots__ = (
        "_fds", "_messages", "body", "is_reset", "is_short", "lacks_memory", "message", "why"
    )  # fmt: skip

    def __init__(self) -> None:
        # As it came, and then its descriptors: one of the two owns them at any moment.
        self._messages: list[Any] = []
        self._fds: list[int] | None = None
        self.message: Message | None = None  # at the end of the connection there is none
        self.body: bytes | bytearray = b""  # what came with it
        self.lacks_memory = False  # for that
        self.is_short = False  # descriptors are missing: this process had none left for them
        self.is_reset = False  # the peer ended the connection before it read all messages
        self.why = ""  # how a connection to another node broke

    @property
    def fds(self) -> Sequence[int]:
        """The descriptors that came with it, until it is closed."""
        return tuple(self._own_descriptors())

    def _take_from(self, connection: Connection, descriptors: int, may_wait: bool) -> None:
        space = socket.CMSG_LEN(descriptors * _DESCRIPTOR_BYTES) if descriptors else 0
        flags = _CLOSES_ON_EXEC | (0 if may_wait else socket.MSG_DONTWAIT)
        try:
            # Received and stored within one call into C, where no signal handler of Python runs.
            self._messages.extend(starmap(connection.recvmsg, ((MAX_MESSAGE_BYTES, space, flags),)))
        except ConnectionError as error:
            self.is_reset = True
            self.why = error.strerror or "" if isinstance(connection, PacketStream) else ""
            return
        data, ancillary, flags, _ = self._messages[0]
        if not ancillary:
            self._fds = []
        if not data and not self._own_descriptors():
            return
        if flags & _BYTES_LOST:
            raise ValueError(f"a message has at most {MAX_MESSAGE_BYTES} bytes")
        if flags & _DESCRIPTORS_LOST:
            if len(self._own_descriptors()) >= descriptors:
                raise ValueError("the message has more descriptors than any message may have")
            self.is_short = True
        head, _, self.body = data.partition(b"\0")
        for level, _, content in ancillary:
            if level == BODY:
                self.body = content or b""
                self.lacks_memory = content is None
        self.message = decode(head)

    def _own_descriptors(self) -> list[int]:
        if self._fds is None:
            found = array.array("i")
            for _, ancillary, _, _ in self._messages:
                for level, kind, data in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        found.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
            self._fds = found.tolist()
        return self._fds

    def close(self) -> None:
        """Close the descriptors that came with it; idempotent."""
        fds = self._own_descriptors()
        if fds:
            close_all(fds)

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except AttributeError:  # never completely made, or the interpreter ends
            pass


def receive(connection: Connection, descriptors: int = 0, *, may_wait: bool = True) -> Received:
    """Return the next message, to be used in a ``with``.

    At most so many ``descriptors`` may come with it; the kernel closes others.

    Raises:
        BlockingIOError: There is none, or only a part of one.
        OSError: The time was up, or the socket is closed here.
        ValueError: It was no message of ours, or had descriptors that do not belong to it.
    """
    received = Received()
    try:
        received._take_from(connection, descriptors, may_wait)
    except BaseException:
        received.close()
        raise
    return received
