# SPDX-License-Identifier: Apache-2.0
"""The stores of groups of communicators: in the process that compiled a graph, or holds tensors.

The ranks of a group meet here (``rcg.comm.Store``). A rank has a connection of its own for it, and
a rank that waits for a value is answered when another one sets it. Those of a graph end together,
when it stops or breaks: then every connection is shut down, which ends the waits of all ranks. That
of a pair of processes that pass tensors ends when both have left it.

``store_client`` is the other side. Used by the endpoint's thread alone; nothing blocks.
"""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from rcg.runtime.control.services import Peer
from rcg.wire.messages import (
    AddValue,
    GetValue,
    HasValues,
    Message,
    Presence,
    Ready,
    SetValue,
    Total,
    UseStore,
    Value,
)

__all__ = ["Stores"]


@dataclass(slots=True)
class _Store:
    """The store of one group: its values in base64, and the ranks that wait for one."""

    values: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, list[tuple[Peer, int]]] = field(default_factory=dict)


class Stores:
    """The stores of all groups that meet here, and the connections of their ranks.

    Args:
        keeps_left: Whether a store stays when all of its ranks have left it.
    """

    def __init__(self, *, keeps_left: bool = True) -> None:
        self._keeps_left = keeps_left
        self._stores: dict[str, _Store] = {}  # by group
        self._peers: dict[Peer, _Store] = {}
        self._has_ended = False

    def open(self, peer: Peer, opening: UseStore) -> bool:
        """Take in a rank; returns whether to go on listening to it.

        Raises:
            OSError: The connection is over.
        """
        if self._has_ended:
            return False
        peer.send(Ready())
        self._peers[peer] = self._stores.setdefault(opening.group, _Store())
        return True

    def handle(self, peer: Peer, message: Message) -> bool:
        """Do what a rank asks for; returns whether to go on listening to it.

        Raises:
            OSError: The connection is over, or the rank does not read its answers.
            ValueError: The message is wrong.
        """
        store = self._peers.get(peer)
        if store is None:
            raise ValueError("it is not expected here")
        match message:
            case SetValue():
                self._set(store, message.key, message.value)
            case GetValue() if message.key in store.values:
                peer.send(Value(number=message.number, value=store.values[message.key]))
            case GetValue():
                store.waiting.setdefault(message.key, []).append((peer, message.number))
            case HasValues():
                is_there = all(key in store.values for key in message.keys)
                peer.send(Presence(number=message.number, is_there=is_there))
            case AddValue():
                found = base64.b64decode(store.values.get(message.key, "MA=="))
                total = int(found) + message.amount
                # First the answer: a total out of range is an error there.
                peer.send(Total(number=message.number, total=total))
                self._set(store, message.key, base64.b64encode(b"%d" % total).decode())
            case _:
                raise ValueError("it is not expected here")
        return True

    def lost(self, peer: Peer) -> bool:
        """Forget a rank whose connection ended; returns whether the connection was one of these."""
        store = self._peers.pop(peer, None)
        if store is None:
            return False
        for waiting in store.waiting.values():
            waiting[:] = [(other, number) for other, number in waiting if other is not peer]
        if not self._keeps_left and all(other is not store for other in self._peers.values()):
            self._stores = {name: each for name, each in self._stores.items() if each is not store}
        return True

    def end(self) -> None:
        """End all stores for good; idempotent. The endpoint then closes the connections."""
        self._has_ended = True
        for peer in self._peers:
            with _ending(peer):
                peer.connection.shutdown(socket.SHUT_RDWR)
        self._stores.clear()

    def _set(self, store: _Store, key: str, value: str) -> None:
        store.values[key] = value
        for peer, number in store.waiting.pop(key, ()):
            with _ending(peer):
                peer.send(Value(number=number, value=value))


@contextlib.contextmanager
def _ending(peer: Peer) -> Iterator[None]:
    """End the connection of a rank that does not read, or has gone: it is no trouble of others."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            peer.connection.shutdown(socket.SHUT_RDWR)
