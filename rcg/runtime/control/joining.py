# SPDX-License-Identifier: Apache-2.0
"""Connecting to the control socket of a graph: what is the same whoever comes, and for what."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from rcg.descriptors import Descriptor, telling_exhaustion
from rcg.options import Deadline
from rcg.runtime.control.reception import refused
from rcg.wire import liveness, messages
from rcg.wire.messages import Message, Received

__all__ = ["Joined", "join"]


@dataclass(slots=True)
class Joined:
    """A connection to the process that compiled a graph.

    Attributes:
        connection: Its calls have no timeout.
        pidfd: Tells of the end of that process, where it can be had.
        answer: What came first, which is a message.
    """

    connection: socket.socket
    pidfd: Descriptor
    answer: Received

    def close(self) -> None:
        """Let go of all of it; idempotent."""
        self.answer.close()
        self.connection.close()
        self.pidfd.close()


def join(
    address: str,
    hello: Message,
    patience_s: float,
    check: Callable[[int, int], None],
    *,
    descriptors: int = 0,
) -> Joined:
    """Connect, say who we are, and wait for the answer.

    Args:
        address: Where the graph's control socket listens.
        hello: The first message.
        patience_s: For all of it.
        check: Called with the peer's (pid, uid) before anything is sent; raises to refuse it.
        descriptors: How many come with the answer.

    Raises:
        OutOfDescriptors: In this process or in the peer.
        ConnectionAbortedError: The connection was refused: the graph has ended.
        TimeoutError: There was no answer in time.
        ProcessLookupError: The peer ended meanwhile.
        OSError: It cannot be reached.
        ValueError: The answer is none.
    """
    deadline = Deadline(patience_s)
    with telling_exhaustion("to join a compiled graph"):
        is_first = True
        while True:
            try:
                joined = _try_join(address, hello, deadline, check, descriptors)
            except ConnectionRefusedError:
                if is_first:
                    raise
                raise ConnectionAbortedError("the graph has ended") from None
            is_first = False
            message, is_reset = joined.answer.message, joined.answer.is_reset
            if message is not None and message.get("type") not in ("refused", "again"):
                return joined
            joined.close()
            if message is None and not is_reset:
                raise ConnectionAbortedError("the graph has ended")
            if message is not None and message["type"] == "refused":
                raise refused(message)
            # There were too many others, and we were taken for one that says nothing.
            if deadline.expired:
                raise TimeoutError("too many connect at once")


def _try_join(
    address: str,
    hello: Message,
    deadline: Deadline,
    check: Callable[[int, int], None],
    descriptors: int,
) -> Joined:
    connection = messages.connect(address, deadline.remaining_s() or 0.001)
    pidfd, answer = Descriptor(), Received()
    try:
        pid, uid = messages.peer_of(connection)
        check(pid, uid)
        pidfd = liveness.pidfd_of(pid)
        try:
            messages.send(connection, hello)
        except ConnectionError:
            pass  # it ended the connection already; why can still be read
        if not messages.wait_for_message(connection, pidfd.fd, deadline.remaining_s()):
            raise ProcessLookupError(f"process {pid} has ended")
        answer = messages.receive(connection, descriptors)
        if answer.is_reset:
            # What it said before it ended the connection comes after the news of that.
            answer = messages.receive(connection, descriptors)
            answer.is_reset = answer.message is None
        connection.settimeout(None)
        return Joined(connection, pidfd, answer)
    except BaseException:
        answer.close()
        connection.close()
        pidfd.close()
        raise
