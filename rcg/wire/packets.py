# SPDX-License-Identifier: Apache-2.0
"""Whole packets over TCP: what ``SOCK_SEQPACKET`` is on one node, between nodes.

``PacketStream`` has the methods of a socket that ``sockets`` uses, so messages travel over it as
over a local one. Descriptors do not: what is a memfd on one node travels in pieces ahead of its
message. On the wire::

    length (4 bytes)   kind (1)   number (4)   content [length bytes, at most MAX_MESSAGE_BYTES]

    kind 0   a message
    kind 1   a piece of body ``number``; pieces of several bodies, and messages, may alternate
    kind 2   a message whose body was body ``number``
    kind 3   body ``number`` will not be completed

A message may say that bytes follow that are no packets, of a length that both sides know: tensors,
from memory to memory without a copy (``send_raw``, ``recv_raw_into``).

Receiving never reads beyond the packet, so ``poll`` shows whether there is more, and the socket can
be handed over between two packets. A part of a packet is kept until the rest comes, so a peer that
stalls in the middle does not block a call that must not wait.

Sending keeps packets whole without a lock, because a signal handler or ``__del__`` may send in the
middle of a send. Packets are queued. The thread that has the *turn* gives the socket what it takes,
and never waits meanwhile; it also sends what other threads, or code below a signal handler, queue
in the meantime. What is left when no caller waits is sent by a thread that lives until then. It
also checks on what the kernel has taken and cannot send because the peer does not read: see
``liveness``.
"""

from __future__ import annotations

import _thread
import array
import contextlib
import errno
import itertools
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, Final

from rcg.options import Deadline
from rcg.threads import out_of_threads
from rcg.wire import liveness
from rcg.wire.liveness import close_in_children

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""The most bytes of a message, of whatever socket."""

BODY: Final = -1
"""The level of the ancillary item that is the body of a large message: bytes, or None if there was
no memory for them."""

UNREACHABLE: Final = "the peer cannot be reached any more"
"""Why a connection broke that was cut: the text of its error."""

_HEADER: Final = struct.Struct("!IBI")
_MESSAGE, _PIECE, _WITH_BODY, _DROPPED = range(4)
_MAX_NUMBER: Final = 1 << 32
_MAX_BODIES: Final = 64  # that have begun to arrive
_RAW_BYTES: Final = 32 << 20  # in one packet, whose parts are counted again and again
_MAX_QUEUED_BYTES: Final = 4 << 20  # posted to a peer that does not read
_LOOK_S: Final = 5.0  # between looks at a socket that takes nothing
_UNSENT_LOOK_S: Final = 0.5  # between looks at one that has taken all, after some shorter ones
_TURN_S: Final = 0.001  # between looks whether another thread has sent
_DONTWAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_CLOSED: Final = socket.socket()  # what a stream has once its socket is another's
_CLOSED.close()

_Received = tuple["bytes | bytearray", list[tuple[int, int, Any]], int, Any]


class _Packet:
    """A packet that is to be sent."""

    __slots__ = ("claim", "data", "taken")

    def __init__(self, kind: int, number: int, content: bytes | bytearray) -> None:
        self.data: bytes | memoryview = _HEADER.pack(len(content), kind, number) + content
        self.taken: list[int] = []  # what the socket took of it, in parts
        # Taken out by the thread that begins to send it, or by its sender to withdraw it.
        self.claim: deque[bool] = deque([True])

    @property
    def left(self) -> int:
        """The bytes that the socket has not taken yet."""
        return len(self.data) - sum(self.taken)

    @property
    def is_wanted(self) -> bool:
        """Whether it was not withdrawn."""
        return bool(self.claim or self.taken)

    def withdraw(self) -> bool:
        """Stop it from being sent; returns False if a thread has begun to send it."""
        try:
            self.claim.pop()
        except IndexError:
            return False
        return True


class _Raw(_Packet):
    """Bytes that are no packet, sent from where they lie."""

    def __init__(self, content: memoryview) -> None:
        super().__init__(_MESSAGE, 0, b"")
        self.data = content


class PacketStream:
    """A connection of whole packets. One thread receives; any thread may send, at any point.

    Args:
        connection: A connected stream socket; owned from here on.
        address: Where its other end is, for people; by default as the kernel says.

    Attributes:
        takes_bodies: Whether messages may have bodies beyond ``MAX_MESSAGE_BYTES``. A peer that has
            not proven who it is must not make this process keep them.
        is_proven: Whether the peer has proven who it is. Only then a thread watches what the kernel
            cannot send: strangers have a few seconds in any case.
    """

    __slots__ = (
        "__weakref__", "_bodies", "_data", "_ending", "_failure", "_has_ended", "_is_flushing",
        "_is_lifted", "_numbers", "_peer_timeout_s", "_queue", "_ready", "_socket", "_timeout_s",
        "_turn", "_why", "address", "is_proven", "takes_bodies"
    )  # fmt: skip

    def __init__(self, connection: socket.socket, address: str = "") -> None:
        self._socket = connection
        self._timeout_s: float | None = None
        self._peer_timeout_s: float | None = None
        self.takes_bodies = False
        self.is_proven = False
        self._data = bytearray()  # of the packet that arrives
        self._bodies: dict[int, bytearray | None] = {}
        self._ready: list[_Received] = []  # at most one: nothing is read beyond it
        self._has_ended = False
        self._why = ""  # it was ended here, by whatever thread
        self._ending: Deadline | None = None  # when no call waits any more
        self._failure: Exception | None = None
        self._queue: deque[_Packet] = deque()
        self._turn: deque[bool] = deque([True])  # empty while somebody sends
        self._is_flushing = False
        self._is_lifted = False  # the limit of the kernel
        self._numbers = itertools.count(1)
        connection.setblocking(False)  # waiting is done here
        with contextlib.suppress(OSError):  # no TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address or peer_name(connection)
        close_in_children(self)

    # --- as a socket

    def fileno(self) -> int:
        """Return the descriptor, -1 after ``close``."""
        return self._socket.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        """Set how long each call waits; None for any time, 0 for not at all."""
        self._timeout_s = timeout_s

    def setblocking(self, flag: bool) -> None:
        """Set whether calls wait."""
        self._timeout_s = None if flag else 0.0

    def shutdown(self, how: int) -> None:
        """End one or both directions, for every process that has the socket."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close it; idempotent. What was sent still arrives."""
        self._socket.close()

    def __enter__(self) -> PacketStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- beyond a socket

    def keep_alive(self, peer_timeout_s: float) -> None:
        """End the connection if its peer is unreachable for so long: ``liveness.keep_alive``."""
        self._peer_timeout_s = peer_timeout_s
        liveness.keep_alive(self._socket, peer_timeout_s)

    def end_within(self, timeout_s: float) -> None:
        """Let no call wait for longer from now on. Any thread; returns at once."""
        self._ending = Deadline(timeout_s)

    def linger(self) -> None:
        """Wait until the peer has read what was sent and has closed its end: before ``close``.

        Another thread may still be sending a packet. And the kernel drops what the peer has not
        read if a socket is closed that holds bytes from the peer. Waits as ``end_within`` says.
        """
        with contextlib.suppress(OSError, ValueError):
            while self._queue:
                if self._drain():
                    self._wait_for_room(Deadline(None))
                else:
                    time.sleep(_TURN_S)
                    self._check_ending()
            self._socket.shutdown(socket.SHUT_WR)
            while True:
                self._wait(select.POLLIN, Deadline(None))
                self._check_ending()
                if not self._socket.recv(MAX_MESSAGE_BYTES, _DONTWAIT):
                    break

    def detach(self) -> socket.socket:
        """Return the bare socket, between two packets; this object is closed.

        Raises:
            ConnectionError: There is a part of a packet under way, so bytes would be lost.
        """
        self._drain()
        if self._queue or self._data or self._ready or self._bodies:
            raise ConnectionResetError(errno.ECONNRESET, "a packet is still under way")
        bare, self._socket = self._socket, _CLOSED
        bare.setblocking(True)
        return bare

    # --- receiving

    def recvmsg(self, size: int, ancillary_size: int = 0, flags: int = 0) -> _Received:
        """Return the next packet, b"" at the end; as ``socket.recvmsg``.

        A large message comes with an ancillary item of the level ``BODY``. Of the arguments only
        ``MSG_DONTWAIT`` in ``flags`` counts.

        Raises:
            BlockingIOError: It is not all there yet, and the call must not wait.
            TimeoutError: The time was up.
            ConnectionError: The connection broke, in the middle of a packet or because the peer is
                unreachable.
            ValueError: What came is no packet.
        """
        deadline = Deadline(0.0 if flags & socket.MSG_DONTWAIT else self._timeout_s)
        while not self.fill():
            if deadline.timeout_s == 0:
                raise BlockingIOError(errno.EAGAIN, "the packet is not complete")
            self._wait(select.POLLIN, deadline)
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)  # a raised one keeps the frames
        return self._ready.pop() if self._ready else (b"", [], 0, None)

    def recv_raw_into(self, memory: memoryview) -> None:
        """Receive bytes that follow the last packet, without a header, until the memory is full.

        Raises:
            TimeoutError: The time was up; the connection is of no use any more.
            ConnectionError: The connection broke.
        """
        deadline = Deadline(self._timeout_s)
        at = 0
        while at < len(memory):
            try:
                count = self._socket.recv_into(memory[at:], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise _broken_error(error) from error
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, self._why or "it ended in the middle")
            at += count

    def fill(self) -> bool:
        """Read what is there, at most one message; returns whether ``recvmsg`` need not wait."""
        while not self._ready and not self._has_ended and self._failure is None:
            try:
                if not self._read_packet():
                    return False
            except (OSError, ValueError) as problem:
                self._failure = problem
        return True

    def _read_packet(self) -> bool:
        """Read on in a packet, and take it in if it is complete; returns False to come back."""
        data = self._data
        if len(data) < _HEADER.size and not self._read(_HEADER.size):
            return False
        if self._has_ended:
            return True
        length, kind, number = _HEADER.unpack_from(data)
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a packet has at most {MAX_MESSAGE_BYTES} bytes")
        end = _HEADER.size + length
        if len(data) < end and not self._read(end):
            return False
        if not self._has_ended:
            self._take_in(kind, number)
        return True

    def _read(self, end: int) -> bool:
        """Read until there are so many bytes; returns whether they, or the end, are there."""
        data = self._data
        while len(data) < end:
            before = len(data)
            wanted = end - before, socket.MSG_DONTWAIT
            try:
                # Received and stored within one call into C, where no signal handler runs.
                any(map(data.extend, starmap(self._socket.recv, (wanted,))))
            except BlockingIOError:
                return False
            except OSError as error:
                raise _broken_error(error) from error
            if len(data) == before:
                if data or self._bodies:
                    raise ConnectionResetError(
                        errno.ECONNRESET, "the connection ended in the middle of a packet"
                    )
                if self._why:
                    raise self._cut_error()
                self._has_ended = True
                return True
        return True

    def _take_in(self, kind: int, number: int) -> None:
        """Take in the packet that is complete, or raise ValueError if it cannot come here."""
        data, bodies = self._data, self._bodies
        if kind != _MESSAGE and not self.takes_bodies:
            raise ValueError("a packet of this kind is not expected here")
        if kind == _PIECE:
            if number not in bodies and len(bodies) >= _MAX_BODIES:
                raise ValueError("too many bodies have begun and are not complete")
            body = bodies.setdefault(number, bytearray())
            if body is not None:
                try:
                    body += memoryview(data)[_HEADER.size :]
                except MemoryError:
                    bodies[number] = None  # this one is lost, nothing else
        elif kind == _DROPPED:
            bodies.pop(number, None)
        elif kind in (_MESSAGE, _WITH_BODY):
            content = bytes(memoryview(data)[_HEADER.size :])
            if not content or (kind == _WITH_BODY and number not in bodies):
                raise ValueError("a message is empty, or its body did not come")
            items = [] if kind == _MESSAGE else [(BODY, 0, bodies.pop(number))]
            self._ready.append((content, items, 0, None))
        else:
            raise ValueError("a packet is of no known kind")
        data.clear()

    # --- sending

    def send(self, data: bytes | bytearray, flags: int = 0) -> int:
        """Send a packet of at most ``MAX_MESSAGE_BYTES``; as ``socket.send``.

        With the flag ``MSG_DONTWAIT`` a packet of which the socket takes a part counts as sent; the
        rest follows later.

        Raises:
            BlockingIOError: The socket takes nothing, and the call must not wait.
            TimeoutError: The time was up before the socket took anything of it.
            ConnectionError: The connection is over.
        """
        self._send(_Packet(_MESSAGE, 0, _check(data)), flags)
        return len(data)

    def sendmsg(
        self,
        buffers: Iterable[bytes | bytearray],
        ancillary: Sequence[tuple[int, int, array.array[int]]] = (),
        flags: int = 0,
    ) -> int:
        """As ``send``; raises ValueError for descriptors, which cannot leave this machine."""
        if ancillary:
            raise ValueError("descriptors cannot travel to another node")
        return self.send(b"".join(buffers), flags)

    def send_raw(self, content: memoryview) -> None:
        """Send bytes without a header, from where they lie; no other thread may send meanwhile.

        Memory that is not there any more is sent as zeros; the caller has to check that. Returns
        when the memory is not needed any more, also by the thread that sends the rest of packets.

        Raises:
            TimeoutError, ConnectionError: As ``send``; the connection is of no use any more.
        """
        for start in range(0, len(content), _RAW_BYTES):
            packet = _Raw(content[start : start + _RAW_BYTES])
            self._send(packet, 0)
            while packet.left:
                if not self._drain():
                    time.sleep(_TURN_S)
                    self._check_ending()
                elif packet.left and not self._queue:
                    raise ConnectionAbortedError(errno.ECONNABORTED, "the connection was ended")
                elif packet.left:
                    self._wait_for_room(Deadline(self._timeout_s))

    def post(self, data: bytes | bytearray) -> None:
        """Send a packet without waiting: what the socket does not take is sent later.

        Raises:
            ConnectionError: The connection is over, or the peer has not read for so long that some
                MiB wait: then it counts as lost.
        """
        packet = _Packet(_MESSAGE, 0, _check(data))
        queued = [each.left for each in self._queue.copy() if each.is_wanted]
        if sum(queued) > _MAX_QUEUED_BYTES:
            self._break()
            raise ConnectionAbortedError(errno.ECONNABORTED, "the peer does not read")
        try:
            self._queue.append(packet)
            self._drain()
        finally:
            self._leave_rest()

    def _send(self, packet: _Packet, flags: int) -> None:
        may_wait = not flags & socket.MSG_DONTWAIT and self._timeout_s != 0
        if not may_wait:
            self._drain()
            if self._queue:
                raise BlockingIOError(errno.EAGAIN, "the peer does not read")
        deadline = Deadline(self._timeout_s if may_wait else 0.0)
        try:
            self._queue.append(packet)
            # Without the turn there is nothing to do: the thread that has it sends this packet too.
            while self._drain() and packet.left:
                if may_wait:
                    try:
                        self._wait_for_room(deadline)
                        continue
                    except TimeoutError:
                        if not deadline.expired:  # it is that of a signal handler
                            raise
                if not packet.withdraw():
                    break  # a part of it was sent, or another thread is about to: so is the rest
                if may_wait:
                    raise TimeoutError("timed out")
                raise BlockingIOError(errno.EAGAIN, "the peer does not read")
        except BaseException:
            packet.withdraw()
            raise
        finally:
            self._leave_rest()

    def _drain(self) -> bool:
        """Give the socket what it takes of the queue; returns False if another has the turn."""
        held: list[bool] = []
        is_full = False
        while self._queue and not is_full:
            try:
                # Taken and stored within one call into C, so that it is given back in any case.
                held.extend(starmap(self._turn.pop, ((),)))
            except IndexError:
                return False
            try:
                is_full = not self._push()
            except OSError as error:
                self._break()
                raise (self._cut_error() if self._why else _broken_error(error)) from error
            finally:
                self._turn.extend(held)
                held.clear()
            # Looked at again: a packet may have come before the turn was given back.
        return True

    def _push(self) -> bool:
        """With the turn: send until the queue is empty; returns False if the socket is full."""
        while self._queue:
            packet = self._queue[0]
            if not packet.left:
                self._queue.popleft()
                continue
            rest = memoryview(packet.data)[sum(packet.taken) :]
            claim: list[bool] = []
            try:
                with contextlib.suppress(IndexError):
                    claim.extend(starmap(packet.claim.pop, ((),)))
                if not claim and not packet.taken:
                    self._queue.popleft()  # its sender has withdrawn it
                    continue
                # Sent and counted within one call into C, where no signal handler runs.
                packet.taken.extend(starmap(self._socket.send, ((rest, _DONTWAIT),)))
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                packet.data = bytes(len(packet.data))
            finally:
                if not packet.taken:
                    packet.claim.extend(claim)
        return True

    def _break(self) -> None:
        """End a connection that is of no use any more: who receives from it learns so."""
        self._queue.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- the rest, when nobody waits

    def _leave_rest(self) -> None:
        """Have a thread send what is still in the queue, and wait until the kernel has sent it."""
        is_held_up = self._is_held_up()
        has_packets = any(each.is_wanted for each in self._queue.copy())
        if not self._is_flushing and (has_packets or is_held_up):
            self._is_flushing = True
            try:
                _thread.start_new_thread(self._flush, ())
            except (RuntimeError, MemoryError) as error:
                self._is_flushing = False
                if has_packets:  # one may be cut, and nobody would ever send its rest
                    self._why = out_of_threads(error, "to send what the peer has not read").message
                    self._break()

    def _is_held_up(self) -> bool:
        """Whether the kernel has bytes that it cannot send yet; then its limit is lifted."""
        limit_s = self._peer_timeout_s
        if limit_s is None:
            return False
        if not liveness.has_unsent(self._socket):
            if self._is_lifted:
                self._restore_limit(limit_s)
            return False
        if not self.is_proven:
            return False
        self._lift_limit()
        return True

    def _flush(self) -> None:
        try:
            while self._queue or self._is_held_up():
                while self._queue:
                    self._drain()
                    if self._queue:
                        self._wait_for_room(Deadline(None))
                self._wait_until_sent()
                self._is_flushing = False
                if self._queue or self._is_held_up():  # it came before that was said
                    self._is_flushing = True
        except (OSError, ValueError):
            self._break()
        finally:
            self._is_flushing = False

    # --- waiting

    def _wait_for_room(self, deadline: Deadline) -> None:
        """Wait until the socket takes more; raises when the time is up or the peer unreachable."""
        limit_s = self._peer_timeout_s
        if limit_s is None:
            while True:
                try:
                    self._wait(select.POLLOUT, deadline, look_s=_LOOK_S)
                    return
                except InterruptedError:
                    pass  # ``end_within`` may have been called
        try:
            while True:
                self._lift_limit()
                try:
                    self._wait(select.POLLOUT, deadline, look_s=min(_LOOK_S, limit_s / 3))
                    return
                except InterruptedError:
                    self._check_cut(limit_s)
        finally:
            self._restore_limit(limit_s)

    def _wait_until_sent(self) -> None:
        """Wait until the kernel has sent all that it took, or there is more for it."""
        limit_s = self._peer_timeout_s
        if limit_s is None:
            return
        look_s = 0.01
        try:
            while not self._queue and self._is_held_up():
                try:
                    self._wait(0, Deadline(None), look_s=look_s)
                except InterruptedError:
                    self._check_cut(limit_s)
                else:
                    raise ConnectionAbortedError(errno.ECONNABORTED, "the connection has ended")
                look_s = min(2 * look_s, _UNSENT_LOOK_S)
        finally:
            self._restore_limit(limit_s)

    def _restore_limit(self, limit_s: float) -> None:
        """Restore the limit of the kernel, unless it has bytes that it cannot send yet.

        With the limit the kernel would end the connection at its next probe. ``_leave_rest``
        watches what remains unsent.
        """
        if not liveness.has_unsent(self._socket):
            liveness.restore_limit(self._socket, limit_s)
            self._is_lifted = False

    def _lift_limit(self) -> None:
        self._is_lifted = True
        liveness.lift_limit(self._socket)

    def _check_ending(self) -> None:
        """Raise ConnectionError if no call may wait any more."""
        if self._ending is not None and self._ending.expired:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the connection was ended here")

    def _check_cut(self, limit_s: float) -> None:
        """Raise ConnectionError if the peer is unreachable; who receives learns of it, too."""
        if liveness.is_cut(self._socket, limit_s):
            self._why = UNREACHABLE
            raise self._cut_error() from None

    def _cut_error(self) -> ConnectionError:
        return ConnectionResetError(errno.ECONNRESET, self._why)

    def _wait(self, event: int, deadline: Deadline, *, look_s: float | None = None) -> None:
        """Wait for an event of the socket.

        Raises:
            TimeoutError: The time was up.
            InterruptedError: It is time to look around.
            ConnectionError: The socket was closed here.
        """
        fd = self._socket.fileno()
        if fd < 0:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the connection was closed here")
        poller = select.poll()
        poller.register(fd, event)
        left = deadline.remaining_s()
        ending_s = None if self._ending is None else self._ending.remaining_s()
        within = min((each for each in (left, look_s, ending_s) if each is not None), default=None)
        if not poller.poll(None if within is None else within * 1000):
            self._check_ending()
            if left is not None and deadline.expired:
                raise TimeoutError("timed out")
            if look_s is not None:
                raise InterruptedError


class LargeBody:
    """The body of a large message on its way through one stream; several attempts may not wait.

    ``fd`` is a file of ``size`` bytes, which stays open until ``send`` has returned.
    """

    def __init__(self, stream: PacketStream, fd: int, size: int) -> None:
        self.stream = stream
        self._fd = fd
        self._size = size
        self._at = 0
        self._number = next(stream._numbers) % _MAX_NUMBER

    def send(self, message: bytes, flags: int = 0) -> None:
        """Send what is left of the body, and its message last.

        Raises:
            BlockingIOError: The socket takes nothing more, and the call must not wait. Another call
                goes on from there.
            OSError: As ``PacketStream.send``.
        """
        while self._at < self._size:
            piece = os.pread(self._fd, min(MAX_MESSAGE_BYTES, self._size - self._at), self._at)
            if not piece:
                raise OSError(errno.EIO, "a value is shorter than it was")
            self.stream._send(_Packet(_PIECE, self._number, piece), flags)
            self._at += len(piece)
        self.stream._send(_Packet(_WITH_BODY, self._number, _check(message)), flags)

    def drop(self) -> None:
        """Tell the other side that the rest will not come."""
        with contextlib.suppress(OSError):
            self.stream._send(_Packet(_DROPPED, self._number, b""), socket.MSG_DONTWAIT)


def _check(data: bytes | bytearray) -> bytes | bytearray:
    if len(data) > MAX_MESSAGE_BYTES:
        raise OSError(errno.EMSGSIZE, f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    return data


def _broken_error(error: OSError) -> OSError:
    """Return the error for a connection that broke; a wait that was too long is another thing."""
    if isinstance(error, ConnectionError) or error.errno == errno.EBADF:
        return error
    if isinstance(error, TimeoutError):
        return ConnectionResetError(errno.ECONNRESET, UNREACHABLE)
    return ConnectionResetError(error.errno, os.strerror(error.errno or errno.ECONNRESET))


def peer_name(connection: socket.socket) -> str:
    """Return where the other end of a connection is, for people."""
    try:
        found = connection.getpeername()
    except OSError:
        return "a peer that has gone"
    if isinstance(found, tuple):
        host, port = found[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "a peer"
