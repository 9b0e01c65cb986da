# SPDX-License-Identifier: Apache-2.0
"""TLS by Ray's certificates, for connections between nodes: ``RAY_USE_TLS=1``.

Both sides show a certificate and check that of the other. Names are not compared: the certificates
say that a machine belongs to the cluster, and the graph's secret says the rest (``proof``).

The user of the connection gets one end of a pair of local sockets; a thread moves bytes between the
other end and the TLS connection. So packets, ``poll``, and native code that takes a bare socket
over are the same with TLS and without. The thread encrypts without Python's lock, and waits for
both sides at once: a peer that never shakes hands, or does not read, delays nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
from collections.abc import Callable
from typing import Final

from rcg.errors import OutOfThreads, PlacementError
from rcg.options import TlsFiles, tls_files
from rcg.threads import start_owner
from rcg.wire import liveness
from rcg.wire.liveness import close_in_children

_PIECE_BYTES: Final = 256 * 1024
_LOOK_S: Final = 5.0  # between looks at a connection that takes nothing


def context_of(make: Callable[[TlsFiles], ssl.SSLContext]) -> ssl.SSLContext | None:
    """Return the context of this side by Ray's files, None if Ray does not use TLS.

    Raises:
        PlacementError: A file of this machine is missing, or contains something else.
    """
    try:
        files = tls_files()
        return None if files is None else make(files)
    except ValueError as error:
        raise PlacementError(f"TLS cannot be used on this machine: {error}") from error


def shake_hands(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a connection over TLS, of the connecting side; waits as the socket's timeout says.

    Raises:
        OSError: The other side has no certificate of this cluster's, or does not accept ours.
    """
    return context.wrap_socket(connection)


def secure(
    connection: socket.socket, context: ssl.SSLContext, peer_timeout_s: float
) -> socket.socket:
    """Return the local end of a connection over TLS; a thread serves its other end.

    Args:
        connection: Either what ``shake_hands`` returned, or one that was accepted, with which the
            thread shakes hands. Owned from here on, also if this raises.
        context: Of this side.
        peer_timeout_s: How long the peer may be unreachable.

    Raises:
        OSError: The connection is over, or there is no descriptor or no thread left.
    """
    ours: socket.socket | None = None
    try:
        liveness.keep_alive(connection, peer_timeout_s)
        if not isinstance(connection, ssl.SSLSocket):
            connection.setblocking(False)
            connection = context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        ours, theirs = socket.socketpair()
        pump = _Pump(connection, theirs, peer_timeout_s)
    except BaseException:
        connection.close()
        if ours is not None:
            ours.close()
            theirs.close()
        raise
    try:
        start_owner(pump.run, pump.close, "rcg-tls", "for a connection over TLS")
        return ours
    except BaseException as error:
        ours.close()  # which also ends the thread, if it runs
        if isinstance(error, OutOfThreads):
            raise OSError(errno.EAGAIN, error.message) from error
        raise


class _Pump:
    """Moves bytes between a connection over TLS and a local socket, on a thread of its own."""

    def __init__(self, tls: ssl.SSLSocket, local: socket.socket, peer_timeout_s: float) -> None:
        self._tls = tls
        self._local = local
        self._peer_timeout_s = peer_timeout_s
        self._arrived = memoryview(b"")  # for the local side
        self._leaving = memoryview(b"")  # for the peer
        self._has_peer_ended = False
        self._has_local_ended = False
        self._is_lifted = False  # the kernel's limit
        for each in (tls, local):
            each.setblocking(False)
        close_in_children(self)

    def run(self) -> None:
        """Move bytes until both sides have ended, or one is gone."""
        try:
            while not self._try_handshake():
                pass
            while not (self._has_peer_ended and self._has_local_ended):
                if not (self._move_in() | self._move_out()) and self._wait(self._events()):
                    break
        except (OSError, ValueError):
            pass  # the other side learns that the connection ended
        finally:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()  # says that this is the end; the answer is not waited for
            self.close()

    def close(self) -> None:
        """Close this process's descriptors."""
        self._local.close()
        self._tls.close()

    def _try_handshake(self) -> bool:
        try:
            self._tls.do_handshake()
            return True
        except ssl.SSLWantReadError:
            wanted = select.POLLIN
        except ssl.SSLWantWriteError:
            wanted = select.POLLOUT
        if self._wait((wanted, 0)):
            raise ConnectionAbortedError(errno.ECONNABORTED, "it was given up")
        return False

    def _move_in(self) -> bool:
        """Move bytes from the peer; returns whether any moved."""
        has_moved = False
        if not self._arrived and not self._has_peer_ended:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._arrived = memoryview(self._tls.recv(_PIECE_BYTES))
                has_moved = True
                if not self._arrived:
                    self._has_peer_ended = True
                    self._local.shutdown(socket.SHUT_WR)
        if self._arrived:
            with contextlib.suppress(BlockingIOError):
                self._arrived = self._arrived[self._local.send(self._arrived) :]
                has_moved = True
        return has_moved

    def _move_out(self) -> bool:
        """Move bytes to the peer; returns whether any moved."""
        has_moved = False
        if not self._leaving and not self._has_local_ended:
            with contextlib.suppress(BlockingIOError):
                self._leaving = memoryview(self._local.recv(_PIECE_BYTES))
                has_moved = True
                self._has_local_ended = not self._leaving
        if self._leaving:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._leaving = self._leaving[self._tls.send(self._leaving) :]
                has_moved = True
        return has_moved

    def _events(self) -> tuple[int, int]:
        """Return what to wait for, of the peer and of the local side."""
        peer = 0 if self._arrived or self._has_peer_ended else select.POLLIN
        local = 0 if self._leaving or self._has_local_ended else select.POLLIN
        if self._leaving:
            peer |= select.POLLOUT
        if self._arrived:
            local |= select.POLLOUT
        return peer, local

    def _wait(self, events: tuple[int, int]) -> bool:
        """Wait for one of these events; returns whether the local side is closed."""
        poller = select.poll()
        peer, local = events
        if peer:
            poller.register(self._tls.fileno(), peer)
        # Once the local side has said all, it is looked at for its end: without an event for that.
        if local or not self._leaving:
            poller.register(self._local.fileno(), local)
        limit_s = self._peer_timeout_s
        # A peer that does not read is not one that cannot be reached.
        is_full = bool(self._leaving) or liveness.has_unsent(self._tls)
        if is_full and not self._is_lifted:
            liveness.lift_limit(self._tls)
        elif self._is_lifted and not is_full:
            liveness.restore_limit(self._tls, limit_s)
        self._is_lifted = is_full
        ready = poller.poll(min(_LOOK_S, limit_s / 3) * 1000 if is_full else None)
        if not ready and liveness.is_cut(self._tls, limit_s):
            raise ConnectionResetError(errno.ECONNRESET, "the peer cannot be reached any more")
        return not local and (self._local.fileno(), select.POLLHUP) in ready
