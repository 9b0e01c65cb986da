# SPDX-License-Identifier: Apache-2.0
"""Connecting to the endpoint of another process: the same for members of graphs and for handles."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from rcg.descriptors import Descriptor, telling_exhaustion
from rcg.errors import PlacementError
from rcg.options import Deadline
from rcg.runtime.control.reception import refused
from rcg.wire import liveness, sockets
from rcg.wire.messages import Again, Message, Opening, Refused, UnknownGraph
from rcg.wire.sockets import Received

__all__ = ["Joined", "check_user", "join"]


@dataclass(slots=True)
class Joined:
    """A connection to the process that compiled a graph.

    Attributes:
        connection: Its calls have no timeout.
        pidfd: Becomes readable at the end of that process, if the kernel supports it.
        answer: The first message of the other side, with its payload and descriptors.
    """

    connection: socket.socket
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
    address: str,
    opening: Opening,
    timeout_s: float,
    check: Callable[[int, int], None],
    *,
    descriptors: int = 0,
) -> Joined:
    """Connect, send the first message, and wait for the answer.

    Args:
        address: Where the other process listens.
        opening: The first message.
        timeout_s: For all of it.
        check: Called with the peer's (pid, uid) before anything is sent; raises to refuse it.
        descriptors: How many come with the answer.

    Raises:
        OutOfDescriptors: In this process or in the peer.
        ConnectionAbortedError: The graph has ended.
        TimeoutError: There was no answer in time.
        ProcessLookupError: The peer ended meanwhile.
        OSError: It cannot be reached.
        ValueError: The answer is no message.
    """
    deadline = Deadline(timeout_s)
    with telling_exhaustion("to join a compiled graph"):
        is_first = True
        while True:
            try:
                joined = _try_join(address, opening, deadline, check, descriptors)
            except ConnectionRefusedError:
                if is_first:
                    raise
                raise ConnectionAbortedError("the graph has ended") from None
            is_first = False
            match joined.message:
                case Refused() as message:
                    joined.close()
                    raise refused(message)
                case UnknownGraph():
                    joined.close()
                    raise ConnectionAbortedError("the graph has ended")
                case None if not joined.answer.is_reset:
                    joined.close()
                    raise ConnectionAbortedError("the graph has ended")
                case None | Again():
                    # Too many others connected, and this connection seemed to be a silent one.
                    joined.close()
                    if deadline.expired:
                        raise TimeoutError("too many processes connect at once")
                case _:
                    return joined


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
        try:
            sockets.send(connection, opening)
        except ConnectionError:
            pass  # it ended the connection already; the reason can still be read
        if not sockets.wait_for_message(connection, pidfd.fd, deadline.remaining_s()):
            raise ProcessLookupError(f"process {pid} has ended")
        answer = sockets.receive(connection, descriptors)
        if answer.is_reset:
            # The kernel reports the end of the connection before messages sent earlier.
            answer = sockets.receive(connection, descriptors)
            answer.is_reset = answer.message is None
        connection.settimeout(None)
        return Joined(connection, pidfd, answer)
    except BaseException:
        answer.close()
        connection.close()
        pidfd.close()
        raise
