# SPDX-License-Identifier: Apache-2.0
"""What this process has for passing tensors by reference: made when it is first needed.

An actor of rcg listens at an address that follows from its id, so whoever has its handle can reach
it, also while it is busy and before it has run any method. Other processes listen at an address
that their envelopes tell.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import itertools
import os
import secrets
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster
from rcg.errors import RcgError
from rcg.log import Log
from rcg.rdt.envelope import Holder
from rcg.rdt.groups import MemberGroups
from rcg.rdt.keeper import Keeper
from rcg.rdt.pulling import Connections, Got
from rcg.rdt.service import Service
from rcg.rdt.store import Entry, Store
from rcg.runtime.codec import make_codec
from rcg.runtime.control.store_client import ControlStore
from rcg.runtime.observe.transfers import record_from
from rcg.serialization import Codec

if TYPE_CHECKING:  # its room is large, and every actor of rcg imports this one
    from rcg.trace.model import TensorTransfer

__all__ = [
    "Here",
    "actor_holder",
    "actor_of",
    "existing",
    "here",
    "is_reachable",
    "leave_session",
    "start_actor",
]

_log = Log()

_PREFIX: Final = "tensors-"  # of the ids of stores
_NEWS_TIMEOUT_S: Final = 0.5  # news are told again
_MOST_GOT: Final = 10_000
_MOST_PEERS: Final = 10_000
_RETRY_S: Final = 0.05
_IN_USE_S: Final = 15.0  # the last process of an actor that was restarted may still end


class Here:
    """The part of this process.

    Attributes:
        holder: How others know this process.
        store: What it holds.
        keeper: Looks after what it has asked for.
        groups: The groups that it is a member of.
        connections: To the processes that hold tensors; ``news`` are those of the keeper.
        codec: Takes values apart.
    """

    def __init__(self, actor: str, label: str) -> None:
        key = _key_of(actor) if actor else _PREFIX + secrets.token_hex(8)
        secret = actor or secrets.token_hex(16)
        self.pid = os.getpid()
        self.store = Store(key, self._freed)
        self.groups = MemberGroups(key, _open_store)
        # What this process got, the newest: for profiles.
        self.got: deque[Got] = deque(maxlen=_MOST_GOT)
        self.connections = Connections(key, self.groups, self.got, took=self._freed)
        # Its own, because what is pulled may take long.
        self.news = Connections(key, self.groups, self.got, _NEWS_TIMEOUT_S)
        self.keeper = Keeper(self.store, key, self.news)
        self.codec: Codec = make_codec()
        address = _address_of(actor) if actor else f"\0rcg-{key}-{self.pid}"
        self.service = Service(self.store, self.groups, self.got, secret, address)
        self.holder = Holder(self.service.address, key, secret, label, actor, cluster.node_id())
        self.service.holder = self.holder
        # References to what this process makes that are held here, by the id of each: those to
        # one object are equal.
        self._refs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The actors that make or take tensors in calls of this process: their names by their ids.
        self.peers: dict[str, str] = {}
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()
        record_from(_transfers)
        atexit.register(self.keeper.stop)
        atexit.register(self.connections.close)
        atexit.register(self.news.close)

    def _freed(self, size: int) -> None:
        self.keeper.freed(size)

    def note_peer(self, actor: str, handle: Any) -> str:
        """Note an actor that makes or takes tensors in a call of this process; the newest stay.

        Args:
            actor: Its id, in hex.
            handle: Ray's handle of it.

        Returns:
            What messages call it.
        """
        label = self.peers.get(actor)
        if label is not None:
            return label
        label = self.peers[actor] = repr(handle)
        if len(self.peers) > _MOST_PEERS:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):  # another thread did
                del self.peers[next(iter(self.peers))]
        return label

    def label_of(self, key: str) -> str:
        """Return the name of the process whose store has an id, as far as it is known here."""
        found = actor_of(key)
        return self.peers.get(found, f"process {found[:8]}")

    def new_key(self) -> str:
        """Return the id of an object that this process is about to ask for."""
        return f"{self._prefix}-{next(self._numbers)}"

    def note_ref(self, ref: Any) -> None:
        """Note a reference to what this process makes, for as long as it lives."""
        self._refs[id(ref)] = ref

    def holds_ref_to(self, entry: Entry) -> bool:
        """Whether a reference to an object of this process is held here."""
        return any(each.key == entry.key for each in list(self._refs.values()))


def _transfers(start_ns: int, end_ns: int) -> tuple[TensorTransfer, ...]:
    # Imported when a profile ends: it is above this file.
    from rcg.rdt import observing

    return observing.transfers_between(start_ns, end_ns)


_here: list[Here] = []
_unreachable: Final[list[int]] = []  # this process, if it is an actor that cannot listen
_making: Final = threading.Lock()


def existing() -> Here | None:
    """Return the part of this process, if there was a need for it."""
    return _here[0] if _here and _here[0].pid == os.getpid() else None


def here() -> Here:
    """Return the part of this process; the first call makes it."""
    found = existing()
    if found is None:
        with _making:
            found = existing()
            if found is None:
                found = Here("", f"process {os.getpid()}")
                _here[:] = [found]
    return found


def leave_session() -> None:
    """Ask Ray nothing more: this process is about to leave it."""
    ours = existing()
    if ours is not None:
        ours.keeper.stop()


def start_actor(name: str) -> None:
    """Make the part of this process, an actor of rcg, and listen where its handles expect it.

    An actor that cannot, because it has no descriptor left, works as others do, but what it returns
    is copied, and it can be in no group.

    Args:
        name: The name of its class.
    """
    actor = cluster.current_actor_id()
    if actor is None or existing() is not None:
        return
    label = f"Actor({name}, {actor})"
    until_s = time.monotonic() + _IN_USE_S
    with _making:
        while True:
            try:
                _here[:] = [Here(actor, label)]
                return
            except (OSError, RuntimeError, RcgError) as error:
                is_in_use = getattr(error, "errno", None) == errno.EADDRINUSE
                if not is_in_use or time.monotonic() > until_s:
                    _log.exception("rcg: %s cannot pass tensors by reference: it copies", label)
                    _unreachable.append(os.getpid())
                    return
                time.sleep(_RETRY_S)


def is_reachable() -> bool:
    """Return whether whoever calls this process, an actor of rcg, can look after what it makes."""
    return os.getpid() not in _unreachable


@functools.lru_cache(maxsize=1024)
def actor_holder(actor: str, label: str = "") -> Holder:
    """Return how an actor of rcg is reached.

    Args:
        actor: Its id in hex.
        label: What errors call it.
    """
    return Holder(_address_of(actor), _key_of(actor), actor, label, actor, cluster.node_id())


def actor_of(key: str) -> str:
    """Return the id of the actor whose store has an id."""
    return key.removeprefix(_PREFIX)


def _address_of(actor: str) -> str:
    return f"\0rcg-actor-{actor}"


def _key_of(actor: str) -> str:
    return _PREFIX + actor


def _open_store(holder: Holder, name: str) -> Any:
    return _Closing(ControlStore(holder.address, holder.key, holder.secret, name))


class _Closing:
    """A store that is closed at the end of a ``with``."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    def __enter__(self) -> ControlStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()
