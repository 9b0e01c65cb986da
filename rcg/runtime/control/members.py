# SPDX-License-Identifier: Apache-2.0
"""Taking in members of a graph, and their connections between nodes: the same at every host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from rcg.channels.crossing import Gate
from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.control.services import Peer
from rcg.wire import liveness
from rcg.wire.keepalive import lift_limit
from rcg.wire.messages import OpenLink, Ready, Welcome

__all__ = ["accept_link", "refuse", "welcome"]


def welcome(peer: Peer, descriptors: tuple[int, Sequence[int]]) -> bool:
    """Give a member the shared memory of its node; returns whether it is there to be watched.

    Args:
        peer: The member.
        descriptors: The board's, and one for each arena (-1 for none).
    """
    board, arenas = descriptors
    present = [fd for fd in arenas if fd >= 0]
    try:
        peer.pidfd = liveness.pidfd_of(peer.pid)
        peer.send(Welcome(arenas=tuple(fd >= 0 for fd in arenas)), [board, *present])
    except OSError as error:
        refuse(peer, error, "to accept a process of its graph")
        return False
    return True


def refuse(peer: Peer, error: BaseException, purpose: str) -> None:
    """Send the reason, if it is that there are no descriptors or threads left."""
    told = out_of_descriptors(error, purpose)
    if told is not None:
        with contextlib.suppress(OSError):
            peer.send(refusal_of(told))


def accept_link(
    peer: Peer,
    opening: OpenLink,
    node: str,
    gate: Gate,
    senders: Collection[str],
    lost: Callable[[str, str], object],
) -> bool:
    """Pass a connection on to the gate, which listens to it from now on.

    Args:
        peer: The connection.
        opening: Which process of another node it says to be, and which node it means.
        node: This node.
        gate: Publishes what arrives.
        senders: The processes that may send here.
        lost: Called with the process and a text if that fails after the process was answered: it
            counts on the connection, and may never send enough to notice.

    Raises:
        OSError: The connection is over.
    """
    if opening.process not in senders or opening.node != node:
        return False
    peer.send(Ready())
    try:
        connection = peer.hand_over()
        try:
            lift_limit(connection)  # as at its other end
            gate.accept(opening.process, connection)
        finally:
            connection.close()  # where the gate has not taken it
    except OSError as error:
        lost(opening.process, f"the connection could not be taken over: {describe_error(error)}")
        raise
    return False
