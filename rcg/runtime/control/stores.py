# SPDX-License-Identifier: Apache-2.0
"""The stores where the ranks of groups of communicators meet (``rcg.comm.Store``): both ends.

``Stores`` are in the process that compiled a graph, or holds tensors; the endpoint's thread alone
uses them, and nothing blocks. A rank has a connection of its own for its store (``ControlStore``),
and a rank that waits for a value is answered when another one sets it. The stores of a graph end
together, when it stops or breaks: then every connection is shut down, which ends the waits of all
ranks. The store of a pair of processes that pass tensors ends when both have left it.
``rcg.wire.messages`` draws the protocol.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Final, TypeVar

from rcg.errors import CommError, GroupAborted
from rcg.options import Deadline
from rcg.runtime.control.joining import JOIN_TIMEOUT_S, check_user, join
from rcg.runtime.control.services import Peer
from rcg.runtime.sleepers import Sleepers
from rcg.wire import sockets
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

MAX_VALUE_BYTES: Final = 32 * 1024
WHO_LEFT: Final = "who left"
"""The key of the name of the first rank that has left, among those that have said theirs."""
_A = TypeVar("_A", Value, Presence, Total)
_ANSWERS: Final = (Value, Presence, Total)


@dataclass(slots=True)
class _Store:
    """The store of one group: its values, and the ranks that wait for one."""

    values: dict[str, bytes] = field(default_factory=dict)
    names: dict[Peer, str] = field(default_factory=dict)
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
        store = self._peers[peer] = self._stores.setdefault(opening.group, _Store())
        if opening.who:
            store.names[peer] = opening.who
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
                total = int(store.values.get(message.key, b"0")) + message.amount
                # First the answer: a total out of range is an error there.
                peer.send(Total(number=message.number, total=total))
                self._set(store, message.key, b"%d" % total)
            case _:
                raise ValueError("it is not expected here")
        return True

    def forget(self, peer: Peer) -> bool:
        """Forget a rank whose connection ended; returns whether the connection was one of these."""
        store = self._peers.pop(peer, None)
        if store is None:
            return False
        for waiting in store.waiting.values():
            waiting[:] = [(other, number) for other, number in waiting if other is not peer]
        who = store.names.pop(peer, "")
        if who and WHO_LEFT not in store.values:
            self._set(store, WHO_LEFT, who.encode())
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

    def _set(self, store: _Store, key: str, value: bytes) -> None:
        store.values[key] = value
        for peer, number in store.waiting.pop(key, ()):
            with _ending(peer):
                peer.send(Value(number=number, value=value))


@contextlib.contextmanager
def _ending(peer: Peer) -> Iterator[None]:
    """End the connection of a rank that does not read, or has gone; others go on."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            peer.connection.shutdown(socket.SHUT_RDWR)


class ControlStore:
    """The store of a group of communicators; see ``rcg.comm.Store``. Any thread may use it.

    It is at the endpoint at ``address``. If a rank says who it is, the others can learn that it
    has left, by ``WHO_LEFT``.

    Raises:
        GroupAborted: The graph has ended.
        CommError: The driver cannot be reached.
        OutOfDescriptors: There is none left, in this process or in the driver's.
    """

    def __init__(self, address: str, graph_id: str, secret: str, group: str, who: str = "") -> None:
        self._group = group
        opening = UseStore(graph=graph_id, secret=secret, group=group, who=who)
        try:
            self._joined = join(address, opening, JOIN_TIMEOUT_S, check_user)
        except ConnectionAbortedError as error:
            raise self._ended_error() from error
        except (OSError, ValueError) as error:
            text = f"the store of a group cannot be reached: {error}"
            raise CommError(text, group=group) from error
        if not isinstance(self._joined.message, Ready):
            self._joined.close()
            raise CommError("the process that answered is not the driver", group=group)
        self._socket = self._joined.connection
        self._numbers = itertools.count()
        self._expected: set[int] = set()  # the questions that wait for an answer
        self._answers: dict[int, Message] = {}
        self._sleepers = Sleepers()
        self._turn = deque([True])  # empty while a thread reads, for all, or closes
        self._sending = threading.Lock()  # not while it is closed
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        """Store a value; see ``Store``.

        Raises:
            ValueError: It is larger than ``MAX_VALUE_BYTES``.
        """
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, found {len(value)}")
        self._send(SetValue(key=key, value=bytes(value)))

    def get(self, keys: Sequence[str], timeout_s: float | None = None) -> list[bytes]:
        """Return the values of keys; see ``Store``."""
        deadline = Deadline(timeout_s)
        questions = (GetValue(number=next(self._numbers), key=key) for key in keys)
        return [self._ask(each, Value, deadline).value for each in questions]

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there; see ``Store``."""
        question = HasValues(number=next(self._numbers), keys=tuple(keys))
        return self._ask(question, Presence, Deadline(None)).is_there

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; see ``Store``."""
        question = AddValue(number=next(self._numbers), key=key, amount=amount)
        return self._ask(question, Total, Deadline(None)).total

    def close(self) -> None:
        """End every wait of this rank, and the connection; idempotent."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._sleepers.wake()
        self._let_go()

    def _let_go(self) -> None:
        """Close the connection, unless a thread reads: it does then."""
        held: list[bool] = []
        try:
            held.extend(starmap(self._turn.pop, ((),)))
            with self._sending:
                self._joined.close()
        except IndexError:
            pass
        finally:
            self._turn.extend(held)

    def _ended_error(self) -> GroupAborted:
        return GroupAborted(
            f"the store of group {self._group} is closed: its graph has ended", group=self._group
        )

    def _send(self, message: Message) -> None:
        try:
            with self._sending:
                if self._is_closed:
                    raise self._ended_error()
                sockets.send(self._socket, message)
        except OSError as error:
            raise self._ended_error() from error

    def _ask(self, question: Any, kind: type[_A], deadline: Deadline) -> _A:
        """Return the answer to a question; raises TimeoutError or GroupAborted."""
        number = question.number

        def is_news() -> bool:
            return number in self._answers or self._is_closed or bool(self._turn)

        try:
            self._expected.add(number)
            self._send(question)
            while number not in self._answers:
                if self._is_closed:
                    raise self._ended_error()
                if not self._sleepers.wait(is_news, deadline.remaining_s()):
                    raise TimeoutError
                self._read(number, deadline)
            answer = self._answers.pop(number)
        finally:
            self._expected.discard(number)
            self._answers.pop(number, None)
        if not isinstance(answer, kind):
            raise CommError("the store gave a wrong answer", group=self._group)
        return answer

    def _read(self, number: int, deadline: Deadline) -> None:
        """Receive one message, for the thread that expects it; unless another thread reads."""
        held: list[bool] = []
        is_over = True  # also after Ctrl-C: what was received may be lost
        try:
            # Taken and stored within one call into C, so that it is given back in any case.
            held.extend(starmap(self._turn.pop, ((),)))
            if number in self._answers or self._is_closed:  # by now
                is_over = self._is_closed
            elif sockets.wait_for_message(
                self._socket, self._joined.pidfd.fd, deadline.remaining_s()
            ):
                with sockets.receive(self._socket) as received:
                    message = received.message
                    if isinstance(message, _ANSWERS) and message.number in self._expected:
                        self._answers[message.number] = message
                is_over = message is None
        except IndexError:
            is_over = False
        except TimeoutError:
            is_over = False
            raise
        except (OSError, ValueError):
            pass
        finally:
            self._turn.extend(held)
            self._is_closed = self._is_closed or is_over
            self._sleepers.wake()
            if self._is_closed:
                self._let_go()
