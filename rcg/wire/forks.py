# SPDX-License-Identifier: Apache-2.0
"""Connections to other nodes in forked children, which close their copies.

Between nodes nothing but the end of a connection tells of the end of a process, and a connection
ends when the last process closes it: a child that lives on would hide the death of its parent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Any, Final, Protocol, TypeVar


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
    """Return the local address of a socket.

    Raises:
        OSError: It is none.
    """
    probe = socket.socket(fileno=fd)
    try:
        return probe.getsockname()
    finally:
        probe.detach()


def _close_all() -> None:
    for each in list(_open):
        each.close()


os.register_at_fork(after_in_child=_close_all)
