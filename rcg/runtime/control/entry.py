# SPDX-License-Identifier: Apache-2.0
"""Who may enter: the first message of a connection, and what it has to prove.

On one node it contains the secret of the service that it names. From another node it does not: the
connection answers a challenge, and nothing of its message is looked at before that answer was found
right, except the id of the service, to find the secret. Refusals of the latter kind are counted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from rcg.runtime.control.doors import Stranger
from rcg.runtime.control.refusals import Tally
from rcg.runtime.control.services import Service
from rcg.wire import proof, sockets
from rcg.wire.messages import Challenge, Opening, Prove, UnknownGraph
from rcg.wire.packets import PacketStream
from rcg.wire.sockets import Received

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
        tally: Counts refusals of connections from other nodes.

    Raises:
        OSError: The connection is over.
        ValueError: What came is no first message.
    """
    if isinstance(stranger.connection, PacketStream) and stranger.asked is not None:
        return _proven(stranger.connection, stranger.asked, received, services, tally)
    opening = received.message
    if not isinstance(opening, Opening):
        return None
    service = services.get(opening.graph)
    if service is None or service.is_over:
        sockets.send(stranger.connection, UnknownGraph(), may_wait=False)
    elif secrets.compare_digest(opening.secret.encode(), service.secret.encode()):
        return service, opening
    return None


def _proven(
    stream: PacketStream,
    asked: Challenge,
    received: Received,
    services: Mapping[str, Service],
    tally: Tally,
) -> Entered | None:
    found = received.message
    if found is None:
        tally.count("silent")
        return None
    if not isinstance(found, Prove):
        tally.count("wrong_secret" if isinstance(found, Opening) else "garbage")
        return None
    service = services.get(found.graph)
    if service is None or service.is_over:
        tally.count("unknown_graph")
        stream.post(sockets.packed(UnknownGraph()))
        return None
    if not proof.is_proof(found, received.body, service.secret, asked):
        tally.count("wrong_secret")
        return None
    try:
        opening = proof.opening_of(found, received.body)
    except ValueError:
        tally.count("garbage")
        raise
    stream.is_proven = True
    stream.post(sockets.packed(proof.answer(found, received.body, service.secret, asked)))
    return service, opening
