# SPDX-License-Identifier: Apache-2.0
"""Who may enter: a connection that has proved to know the secret of the service that it names.

Its first message answers a challenge. Nothing that came with it is looked at before that answer was
found right, except the id of the service, to find the secret. Refusals are counted and logged.
"""

from __future__ import annotations

from collections.abc import Mapping

from rcg.runtime.control.doors import Stranger
from rcg.runtime.control.refusals import Tally
from rcg.runtime.control.services import Service
from rcg.wire import proof, sockets
from rcg.wire.messages import Message, Opening, Prove, UnknownGraph
from rcg.wire.packets import PacketStream
from rcg.wire.sockets import Connection, Received

__all__ = ["Entered", "entered"]

Entered = tuple[Service, Opening]
"""The service that a connection may use, and its first message."""


def entered(
    stranger: Stranger, received: Received, services: Mapping[str, Service], tally: Tally
) -> Entered | None:
    """Return what a connection may use and wants, or None if it is refused.

    Args:
        stranger: The connection.
        received: What it sent first.
        services: By id.
        tally: Counts refusals.

    Raises:
        OSError: The connection is over.
        ValueError: What came is no first message.
    """
    connection, asked, found = stranger.connection, stranger.asked, received.message
    if found is None:
        tally.count("silent")
        return None
    peer = sockets.peer_name_of(connection)
    if not isinstance(found, Prove):
        tally.count("wrong_secret" if isinstance(found, Opening) else "garbage", peer)
        return None
    service = services.get(found.graph)
    if service is None or service.is_over:
        tally.count("unknown_graph")
        _answer(connection, UnknownGraph())
        return None
    if not proof.is_proof(found, received.body, service.secret, asked):
        tally.count("wrong_secret", peer)
        return None
    try:
        opening = proof.opening_of(found, received.body)
    except ValueError:
        tally.count("garbage", peer)
        raise
    if isinstance(connection, PacketStream):
        connection.is_proven = True
    _answer(connection, proof.answer(found, received.body, service.secret, asked))
    return service, opening


def _answer(connection: Connection, message: Message) -> None:
    """Send an answer without waiting."""
    if isinstance(connection, PacketStream):
        connection.post(sockets.packed(message))
    else:
        sockets.send(connection, message, may_wait=False)
