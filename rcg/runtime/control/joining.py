# SPDX-License-Identifier: Apache-2.0
"""Connecting to the endpoint of another process: the same for members of graphs and for handles.

Both sides prove that they know the secret of the service before they look at anything else of each
other (``rcg.wire.proof``). On one node they also know each other's process from the kernel; to
another node the connection is TCP.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rcg.descriptors import Descriptor, telling_exhaustion
from rcg.errors import PlacementError
from rcg.options import Deadline, peer_timeout_s
from rcg.runtime.control.acceptor import error_of
from rcg.wire import liveness, proof, sockets, tls
from rcg.wire.addresses import TcpAddress, connect_tcp, ends_of, is_tcp
from rcg.wire.certificates import client_context
from rcg.wire.liveness import close_in_children, lift_limit
from rcg.wire.messages import (
    Again,
    Challenge,
    Message,
    Opening,
    OpenLink,
    Proven,
    Ready,
    Refused,
    UnknownGraph,
)
from rcg.wire.packets import PacketStream, peer_name
from rcg.wire.sockets import Connection, Received

JOIN_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.01  # to a process that ended the connection
_CERTIFICATES: Final = (
    "only one side uses TLS, or with certificates that the other does not accept: set RAY_USE_TLS, "
    "RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT on all nodes alike"
)
_REFUSALS: Final = (Again, Refused, UnknownGraph, type(None))  # none: it ended the connection


@dataclass(slots=True)
class Joined:
    """A connection to the endpoint of another process.

    Attributes:
        connection: Its calls have no timeout.
        pidfd: Becomes readable at the end of that process, if the kernel supports it and it is on
            this node.
        answer: The first message of the other side, with its payload and descriptors.
    """

    connection: Connection
    pidfd: Descriptor
    answer: Received

    @property
    def message(self) -> Message | None:
        """The first message of the other side."""
        return self.answer.message

    def close(self) -> None:
        """Close all of it; idempotent."""
        self.answer.close()
        self.connection.close()
        self.pidfd.close()


def check_user(_: int, uid: int) -> None:
    """Check whose process a peer is, before a secret is sent there.

    Raises:
        PlacementError: It is another user's.
    """
    if uid != os.getuid():
        raise PlacementError(
            f"the driver runs as another user (uid {uid}, here {os.getuid()}): shared memory is "
            "only shared within one user"
        )


def join(
    address: str | TcpAddress,
    opening: Opening,
    timeout_s: float,
    check: Callable[[int, int], None],
    *,
    descriptors: int = 0,
) -> Joined:
    """Connect, send the first message, and wait for the answer.

    Args:
        address: Where the other process listens: an abstract address, or one of TCP or its text.
        opening: The first message.
        timeout_s: For all of it.
        check: Called with the peer's (pid, uid) before anything is sent; raises to refuse it. Not
            for TCP, where the kernel does not know them.
        descriptors: How many come with the answer.

    Raises:
        OutOfDescriptors: In this process or in the peer.
        OutOfThreads: In the peer.
        ConnectionAbortedError: The graph has ended.
        TimeoutError: There was no answer in time.
        ProcessLookupError: The peer ended meanwhile.
        PermissionError: What answers there does not know the secret, or the certificates of both
            sides do not fit.
        PlacementError: The files of Ray's TLS on this machine cannot be used.
        OSError: It cannot be reached. The text names both ends, if it is on another node.
        ValueError: The answer is no message, or a variable holds nothing that rcg understands.
    """
    deadline = Deadline(timeout_s)
    if isinstance(address, str) and is_tcp(address):
        address = TcpAddress.parse(address)
    attempt: Callable[[], Joined]
    if isinstance(address, TcpAddress):
        attempt = partial(_try_tcp, address, opening, deadline)
    else:
        attempt = partial(_try_join, address, opening, deadline, check, descriptors)
    with telling_exhaustion("to join a compiled graph"):
        is_first = True
        while True:
            try:
                joined = attempt()
            except ConnectionRefusedError:
                if is_first:
                    raise
                raise ConnectionAbortedError("the graph has ended") from None
            is_first = False
            message = joined.message
            if not isinstance(message, _REFUSALS):
                return joined
            is_end = message is None and not joined.answer.is_reset
            joined.close()
            if isinstance(message, Refused):
                raise error_of(message)
            if is_end or isinstance(message, UnknownGraph):
                raise ConnectionAbortedError("the graph has ended")
            # Too many others connected, and this connection seemed to be a silent one.
            if deadline.expired:
                raise TimeoutError("too many processes connect at once")
            time.sleep(_RETRY_S)


def _try_join(
    address: str,
    opening: Opening,
    deadline: Deadline,
    check: Callable[[int, int], None],
    descriptors: int,
) -> Joined:
    connection = sockets.connect(address, deadline.remaining_s() or 0.001)
    pidfd, answer = Descriptor(), Received()
    try:
        pid, uid = sockets.peer_of(connection)
        check(pid, uid)
        pidfd = liveness.pidfd_of(pid)

        def hear(descriptors: int) -> Received:
            if not sockets.wait_for_message(connection, pidfd.fd, deadline.remaining_s()):
                raise ProcessLookupError(f"process {pid} has ended")
            heard = sockets.receive(connection, descriptors)
            if heard.is_reset:
                # The kernel reports the end of the connection before messages sent earlier.
                heard = sockets.receive(connection, descriptors)
                heard.is_reset = heard.message is None
            return heard

        answer = _answer_of(connection, opening, hear, descriptors)
        connection.settimeout(None)
        return Joined(connection, pidfd, answer)
    except BaseException:
        answer.close()
        connection.close()
        pidfd.close()
        raise


def _try_tcp(address: TcpAddress, opening: Opening, deadline: Deadline) -> Joined:
    stream = _connect(address, deadline)

    def hear(_: int) -> Received:
        sockets.wait_for_message(stream, -1, deadline.remaining_s())
        return sockets.receive(stream)

    try:
        stream.settimeout(deadline.remaining_s())
        answer = _answer_of(stream, opening, hear, 0)
        stream.settimeout(None)
        return Joined(stream, Descriptor(), answer)
    except BaseException as error:
        stream.close()
        ends = ends_of(address)
        if isinstance(error, TimeoutError):
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"{ends}: connected, but there was no answer in time: the process is suspended, or "
                "something else listens there",
            ) from error
        if isinstance(error, (PermissionError, ConnectionResetError)):
            raise type(error)(error.errno, f"{ends}: {error.strerror}") from error
        if isinstance(error, ValueError):
            raise ValueError(f"{ends}: {error}") from error
        raise


def _connect(address: TcpAddress, deadline: Deadline) -> PacketStream:
    """Return a connection to another node, over TLS if Ray uses it."""
    peer_timeout = peer_timeout_s()
    context = tls.context_of(client_context)
    connection = connect_tcp(address, deadline.remaining_s() or 0.001)
    if context is None:
        stream = PacketStream(connection)
        stream.keep_alive(peer_timeout)
        return stream
    name = peer_name(connection)
    try:
        connection.settimeout(deadline.remaining_s() or 0.001)
        connection = tls.shake_hands(connection, context)
    except OSError as error:
        connection.close()
        text = f"{ends_of(address)}: no connection over TLS ({error}): {_CERTIFICATES}"
        if isinstance(error, TimeoutError):
            raise TimeoutError(errno.ETIMEDOUT, text) from error
        raise PermissionError(errno.EACCES, text) from error
    return PacketStream(tls.secure(connection, context, peer_timeout), name)


def _answer_of(
    connection: Connection, opening: Opening, hear: Callable[[int], Received], descriptors: int
) -> Received:
    """Prove that the secret is known, and return the first answer of a peer that does the same.

    Before proof, the peer may send only a refusal. ``hear`` returns the next message, with which so
    many descriptors may come.
    """
    stream = connection if isinstance(connection, PacketStream) else None
    first = hear(0)
    asked = first.message
    if asked is None and not first.is_reset and stream is not None:
        raise ConnectionResetError(
            errno.ECONNRESET,
            f"the process there ended the connection at once: it is ending, or {_CERTIFICATES}",
        )
    if not isinstance(asked, Challenge):
        return _refusal(first)
    sent, body = proof.prove(opening, asked)
    with contextlib.suppress(ConnectionError):  # the reason can still be read
        sockets.send(connection, sent, body=body)
    second = hear(0)
    answered = second.message
    if answered is None and not second.is_reset:
        raise ConnectionAbortedError(
            errno.ECONNABORTED, "the graph has ended, or has another secret"
        )
    if not isinstance(answered, Proven):
        return _refusal(second)
    if not proof.is_answer(answered, sent, body, opening.secret, asked):
        raise PermissionError(
            errno.EACCES, "what answers there does not know the secret of the graph"
        )
    if stream is not None:
        stream.takes_bodies = stream.is_proven = True
    return hear(descriptors)


def _refusal(received: Received) -> Received:
    if not isinstance(received.message, _REFUSALS):
        raise ValueError("what answers there is no process of rcg")
    return received


def patience_s(compile_timeout_s: float | None) -> float:
    """Return how long a process tries to reach another node while a graph is compiled.

    That is at most half of what compiling may take: a process that waits for this one shall still
    learn what was in the way.
    """
    return min(JOIN_TIMEOUT_S, (compile_timeout_s or math.inf) / 2)


def connect_gates(
    gates: Mapping[str, str], graph_id: str, secret: str, process: str, timeout_s: float
) -> dict[str, socket.socket]:
    """Return a connection to the gate of each node, for a process that sends.

    ``gates`` has the address of the endpoint of each node's host. The timeout is for all of them.

    Raises:
        PlacementError: A node cannot be reached.
        OutOfDescriptors: There is no descriptor left, in this process or in the host.
    """
    found: dict[str, socket.socket] = {}
    deadline = Deadline(timeout_s)
    try:
        for node, address in gates.items():
            opening = OpenLink(graph=graph_id, secret=secret, process=process, node=node)
            try:
                joined = join(address, opening, deadline.remaining_s() or 0.001, check_user)
            except ConnectionAbortedError as error:
                raise PlacementError(f"the graph has ended on node {node}") from error
            except (OSError, ValueError) as error:
                raise PlacementError(
                    f"{process} cannot reach the gate of node {node}: {error}", location=address
                ) from error
            if not isinstance(joined.message, Ready):
                joined.close()
                raise PlacementError(f"the process that answered at {address} is no host")
            connection = joined.connection
            bare = connection.detach() if isinstance(connection, PacketStream) else connection
            lift_limit(bare)  # its other end may be suspended; the link of the node tells a cut
            found[node] = close_in_children(bare)
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return found
