# SPDX-License-Identifier: Apache-2.0
"""Whether the other end of a TCP connection can still be reached, as the kernel knows it.

No thread of Python's takes part as long as nobody waits to send: a method may hold Python's lock
for minutes. The kernel asks a peer that is silent, and ends the connection when nothing was
acknowledged for the whole timeout. A stall of a third of that is no more than late.

A peer that does not *read* is another case: it may be suspended, or not have room for another
execution, and its kernel answers all the time. Linux does not tell the two apart
(``TCP_USER_TIMEOUT`` also limits how long a peer's window may be closed). So the limit is lifted
while there is something that the kernel cannot send, and a thread looks whether the peer's kernel
still answers: one that waits to send more, or one that is there for that alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from typing import Final

_INTERVALS: Final = 3  # silence for one of these makes the kernel ask
_PROBES_PER_INTERVAL: Final = 5
_INFO: Final = struct.Struct("8B13I")  # the beginning of Linux's ``struct tcp_info``
_RETRANSMITS, _PROBES, _LAST_ACK_MS = 2, 3, 20  # places in it
_RTO_MAX_MS: Final = 44  # TCP_RTO_MAX_MS, since Linux 6.15
_QUESTIONS: Final = 2  # without an answer
_UNSENT: Final = 0x894B  # SIOCOUTQNSD
_LEAST_RTO_MAX_MS: Final = 1000


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
