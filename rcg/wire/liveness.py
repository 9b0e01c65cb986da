# SPDX-License-Identifier: Apache-2.0
"""Whether a peer is alive, as the kernel reports it: its process, and a TCP connection to it.

A process on this node has a descriptor that reports its end. Between nodes only the end of a
connection tells of the end of a process, and a connection ends when the last process closes it. A
forked child that lives on would hide the death of its parent, so children close their copies.

Whether the other end of a connection can be reached is checked without a Python thread as long as
nothing waits to be sent: a method may hold Python's lock for minutes. The kernel asks a peer that
is silent, and ends the connection when nothing was acknowledged for the whole timeout. A stall of a
third of that only delays messages.

A peer that does not *read* is another case: it may be suspended, or have no room for another
execution, and its kernel answers all the time. Linux does not tell the two apart
(``TCP_USER_TIMEOUT`` also limits how long a peer's window may be closed). So the limit is lifted
while there is something that the kernel cannot send, and a thread checks whether the peer's kernel
still answers: one that waits to send more, or one that exists for that alone.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import select
import socket
import struct
import weakref
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from rcg.descriptors import Descriptor, exhaustion_in

# How long after its connection a process may take to end: the kernel closes sockets first.
EXIT_TIMEOUT_S: Final = 0.25

SETTLE_S: Final = 0.5
"""How long after the first news of an end the news of its cause may come.

On one node the kernel reports a death within a millisecond. Between nodes it takes as long as a
message of the other node's host, which is one process among many there."""

_INTERVALS: Final = 3  # silence for one of these makes the kernel ask
_PROBES_PER_INTERVAL: Final = 5
_INFO: Final = struct.Struct("8B13I")  # the beginning of Linux's ``struct tcp_info``
_RETRANSMITS, _PROBES, _LAST_ACK_MS = 2, 3, 20  # places in it
_RTO_MAX_MS: Final = 44  # TCP_RTO_MAX_MS, since Linux 6.15
_QUESTIONS: Final = 2  # without an answer
_UNSENT: Final = 0x894B  # SIOCOUTQNSD
_LEAST_RTO_MAX_MS: Final = 1000


# --- processes


class How(enum.Enum):
    """How a process left; the value is the text for people."""

    DIED = "its process ended"
    LEFT = "it closed its connection"
    FAILED = "its loop failed"  # the process lives on
    EXITED = "it called exit_actor()"  # the process is about to end
    UNREACHABLE = "it cannot be reached"  # on another node; it may live


@dataclass(frozen=True, slots=True)
class Ending:
    """How and why a process left a graph."""

    how: How
    why: str = ""  # the reason that a failed loop reported, or the known part of it

    def __str__(self) -> str:
        return f"{self.how.value}: {self.why}" if self.why else self.how.value


def pidfd_of(pid: int) -> Descriptor:
    """Return a descriptor that becomes readable when the process ends.

    It is empty for this very process, for an unknown one (0), for one of another namespace, and on
    an old kernel: there only the end of a socket shows it.

    Raises:
        OSError: This process has no descriptor left, so a death would go unseen.
    """
    if pid in (0, os.getpid()):
        return Descriptor()
    try:
        return Descriptor(os.pidfd_open, pid)
    except OSError as error:
        if exhaustion_in(error):
            raise
        return Descriptor()


def ends_within(pidfd: int, timeout_s: float | None) -> bool:
    """Wait for the end of a process; returns whether it came."""
    poller = select.poll()  # `select.select` takes no descriptor above 1023
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1e3))


def how_it_ended(pidfd: int) -> How:
    """Return whether a process whose connection ended has ended too; that may take a moment."""
    return How.DIED if pidfd >= 0 and ends_within(pidfd, EXIT_TIMEOUT_S) else How.LEFT


# --- connections between nodes


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Have the kernel end a connection whose peer was unreachable for ``timeout_s`` (from 1).

    Raises:
        OSError: The connection is over.
    """
    idle_s = max(1, int(timeout_s / _INTERVALS))
    between_s = max(1, int(timeout_s / _INTERVALS / _PROBES_PER_INTERVAL))
    count = max(1, int((timeout_s - idle_s) / between_s))
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, between_s)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, min(127, count))
    with contextlib.suppress(OSError):  # an older kernel asks a closed window less and less often
        longest_ms = max(_LEAST_RTO_MAX_MS, int(timeout_s * 1000 / _INTERVALS))
        connection.setsockopt(tcp, _RTO_MAX_MS, min(120_000, longest_ms))
    restore_limit(connection, timeout_s)


def restore_limit(connection: socket.socket, timeout_s: float) -> None:
    """Have the kernel end the connection when what was sent is not acknowledged in time."""
    _limit(connection, int(timeout_s * 1000))


def lift_limit(connection: socket.socket) -> None:
    """Let a peer not read for any time; ``is_cut`` is the caller's from now on."""
    _limit(connection, 0)


def has_unsent(connection: socket.socket) -> bool:
    """Whether the kernel holds bytes that it has not sent yet, mostly for want of room there."""
    with contextlib.suppress(OSError, ValueError):  # it is over
        found = fcntl.ioctl(connection.fileno(), _UNSENT, bytes(4))
        return bool(struct.unpack("i", found)[0])
    return False


def is_cut(connection: socket.socket, timeout_s: float) -> bool:
    """Whether the peer's kernel has not answered for ``timeout_s``, although it was asked."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return False  # no TCP connection, or one that is over: sending says so
    if len(found) < _INFO.size:
        return False
    facts = _INFO.unpack(found)
    # A kernel answers to a closed window twice a second at most: one question may stay open.
    asked = max(facts[_RETRANSMITS], facts[_PROBES])
    return bool(asked >= _QUESTIONS and facts[_LAST_ACK_MS] >= timeout_s * 1000)


def _limit(connection: socket.socket, limit_ms: int) -> None:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOPROTOOPT, errno.EBADF):
            raise


# --- their copies in forked children


class _Closable(Protocol):
    def close(self) -> Any: ...


_C = TypeVar("_C", bound=_Closable)

_open: Final[weakref.WeakSet[_Closable]] = weakref.WeakSet()


def close_in_children(connection: _C) -> _C:
    """Have forked children close a connection; returns it."""
    _open.add(connection)
    return connection


def forget_accepted(listener: socket.socket) -> None:
    """In a forked child, let go of all connections that a listener has accepted.

    They have its address. Their descriptors stay, as ones of nothing: an object that is not known
    here may close its own later, which must not be another's then.
    """
    address = listener.getsockname()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # no socket
                if int(name) != listener.fileno() and _address_of(int(name)) == address:
                    os.dup2(null, int(name), inheritable=False)
    finally:
        os.close(null)


def _address_of(fd: int) -> object:
    """Return the local address of a socket; raises OSError for other descriptors."""
    probe = socket.socket(fileno=fd)
    try:
        return probe.getsockname()
    finally:
        probe.detach()


def _close_all() -> None:
    for each in list(_open):
        each.close()


os.register_at_fork(after_in_child=_close_all)
