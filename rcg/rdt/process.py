# SPDX-License-Identifier: Apache-2.0
"""What this process has for passing tensors by reference: made when it is first needed.

An actor of rcg listens at an address that follows from its id, and its secret follows from its id
and the secret of its class, which Ray ships with handles. So a process that has its handle can
reach it, also while it is busy and before it has run any method. The address and the secret of
other processes stand in their envelopes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hmac
import itertools
import json
import os
import secrets
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster
from rcg.error_text import without_frames
from rcg.errors import ActorDiedError, CommError, RcgError
from rcg.log import Log
from rcg.options import prefetch_bytes
from rcg.rdt.ahead import Ahead
from rcg.rdt.connection import Connection, ask_all
from rcg.rdt.envelope import Holder
from rcg.rdt.groups import MemberGroups
from rcg.rdt.keeper import Keeper
from rcg.rdt.lent import lend
from rcg.rdt.nixl import Nixl
from rcg.rdt.pull import Connections, Got
from rcg.rdt.reach import is_elsewhere, place_of, place_soon_of
from rcg.rdt.service import Service
from rcg.rdt.store import Entry, Store
from rcg.runtime.codec import make_codec
from rcg.runtime.control.stores import ControlStore
from rcg.runtime.node import arrays
from rcg.runtime.observe.transfers import record_from
from rcg.serialization import Codec
from rcg.wire.messages import AskTransfers, Message

if TYPE_CHECKING:  # its room is large, and every actor of rcg imports this one
    from rcg.trace.model import TensorTransfer


_log = Log()

_PREFIX: Final = "tensors-"  # of the ids of stores
_NEWS_TIMEOUT_S: Final = 0.5  # news are sent again
_MOST_GOT: Final = 10_000
_MOST_PEERS: Final = 10_000
_RETRY_S: Final = 0.05
_EXCHANGES: Final = 5  # with another clock: the shortest is the most accurate
_IN_USE_S: Final = 15.0  # the last process of an actor that was restarted may still end


class Here:
    """The part of this process.

    Attributes:
        holder: How others know this process.
        store: What it holds.
        keeper: Looks after what it has asked for.
        groups: The groups that it is a member of.
        connections: To the processes that hold tensors; ``news`` are those of the keeper.
        nixl: What it has registered with NIXL.
        ahead: What it gets before the calls that take it run.
        codec: Takes values apart.
    """

    def __init__(self, actor: str, secret: str, label: str) -> None:
        key = key_of(actor) if actor else _PREFIX + secrets.token_hex(8)
        self.pid = os.getpid()
        self.store = Store(key, self._note_freed)
        self.groups = MemberGroups(key, _Reach())
        # What this process got, the newest: for profiles.
        self.got: deque[Got] = deque(maxlen=_MOST_GOT)
        self.connections = Connections(key, self.groups, self.got, took=self._note_freed)
        # Its own, because what is pulled may take long.
        self.news = Connections(key, self.groups, self.got, _NEWS_TIMEOUT_S, place_soon_of)
        ahead_bytes = prefetch_bytes()
        self.keeper = Keeper(self.store, key, self.news, announces=ahead_bytes > 0)
        self.nixl = Nixl(key, label, self.connections, self.store.has_tensor_in)
        self.connections.nixl = self.nixl
        self.ahead = Ahead(self.connections.pull, ahead_bytes)
        self.codec: Codec = make_codec()
        address = _address_of(actor) if actor else f"\0rcg-{key}-{self.pid}"
        self.service = Service(self.store, self.groups, self.got, secret, address)
        self.service.nixl = self.nixl
        self.service.ahead = self.ahead
        self.holder = Holder(self.service.address, key, secret, label, actor, cluster.node_id())
        self.service.holder = self.holder
        # References to what this process makes that are held here, by the id of each: those to
        # one object are equal.
        self._refs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The actors that make or take tensors in calls of this process, by their ids.
        self.peers: dict[str, Holder] = {}
        # Ray's handles of these, as long as somebody else has them.
        self.handles: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()

    def open(self) -> None:
        """Be reached, until this process ends; raises as ``Service.open``."""
        self.service.open()
        arrays.outside[:] = [lend]
        record_from(transfers_between)
        atexit.register(self.keeper.stop)
        atexit.register(self.connections.close)
        atexit.register(self.news.close)

    def holder_now(self) -> Holder:
        """Return how others know this process: a driver's next session may be another cluster."""
        if self.holder.actor or not cluster.is_connected():
            return self.holder
        return self.holder._replace(node=cluster.node_id())

    def _note_freed(self, size: int) -> None:
        self.keeper.note_freed(size)

    def note_peer(self, actor: str, handle: Any) -> Holder:
        """Note an actor that makes or takes tensors in a call of this process; the newest stay.

        Returns:
            How it is reached.
        """
        if actor not in self.handles:
            self.handles[actor] = handle
        found = self.peers.get(actor)
        if found is not None:
            return found
        found = self.peers[actor] = holder_of(handle)
        if len(self.peers) > _MOST_PEERS:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):  # another thread did
                del self.peers[next(iter(self.peers))]
        return found

    def label_of(self, key: str) -> str:
        """Return the name of the process whose store has an id, as far as it is known here."""
        actor = actor_of(key)
        found = self.peers.get(actor)
        return f"process {actor[:8]}" if found is None else found.label

    def new_key(self) -> str:
        """Return the id of an object that this process is about to ask for."""
        return f"{self._prefix}-{next(self._numbers)}"

    def note_ref(self, ref: Any) -> None:
        """Note a reference to what this process makes, for as long as it lives."""
        self._refs[id(ref)] = ref

    def holds_ref_to(self, entry: Entry) -> bool:
        """Whether a reference to an object of this process is held here."""
        return any(each.key == entry.key for each in list(self._refs.values()))


_here: list[Here] = []
# This process, if it is an actor that cannot listen: its name, its secret, and why.
_unreachable: Final[dict[int, tuple[str, str, Exception]]] = {}
_making: Final = threading.Lock()


def existing() -> Here | None:
    """Return the part of this process, if there was a need for it."""
    return _here[0] if _here and _here[0].pid == os.getpid() else None


def here() -> Here:
    """Return the part of this process; the first call makes it.

    Raises:
        OutOfDescriptors: There is none left.
        OutOfThreads: No more threads can be started.
    """
    found = existing()
    if found is None:
        with _making:
            found = existing() or _listening_again()
            if found is None:
                found = _make("", secrets.token_hex(16), f"process {os.getpid()}")
    return found


def _make(actor: str, secret: str, label: str) -> Here:
    made = Here(actor, secret, label)
    try:
        made.open()
        _here[:] = [made]
    except BaseException:  # also Ctrl-C: nobody would find what listens
        made.service.close()
        raise
    return made


def leave_session() -> None:
    """Ask Ray nothing more: this process is about to leave it."""
    ours = existing()
    if ours is not None:
        ours.keeper.stop()


def start_actor(name: str, class_secret: str) -> None:
    """Make the part of this process, an actor of rcg, and listen where its handles expect it.

    An actor that cannot, because it has no descriptor or thread left, works as others do, but what
    it returns is copied, and it can be in no group. It tries again when that matters.
    """
    actor = cluster.current_actor_id()
    if actor is None or existing() is not None:
        return
    label, secret = f"Actor({name}, {actor})", _secret_of(class_secret, actor)
    until_s = time.monotonic() + _IN_USE_S
    with _making:
        while True:
            try:
                _make(actor, secret, label)
                return
            except (OSError, RuntimeError, RcgError) as error:
                is_in_use = getattr(error, "errno", None) == errno.EADDRINUSE
                if not is_in_use or time.monotonic() > until_s:
                    _log.exception("rcg: %s cannot pass tensors by reference: it copies", label)
                    _unreachable[os.getpid()] = label, secret, without_frames(error)
                    return
                time.sleep(_RETRY_S)


def _listening_again() -> Here | None:
    """Return the part of an actor that could not listen, and can now. The caller has the lock."""
    label, secret, _ = _unreachable.get(os.getpid(), ("", "", None))
    actor = cluster.current_actor_id() if label else None
    if actor is None:
        return None
    try:
        found = _make(actor, secret, label)
    except (OSError, RuntimeError, RcgError) as error:
        _unreachable[os.getpid()] = label, secret, without_frames(error)
        return None
    del _unreachable[os.getpid()]
    return found


def is_reachable() -> bool:
    """Return whether callers of this process, an actor of rcg, can look after what it makes."""
    if os.getpid() in _unreachable and existing() is None:
        with _making:
            _listening_again()
    return os.getpid() not in _unreachable


def check_reachable(_: Any) -> None:
    """Raise the error because of which others cannot reach this process; called in an actor."""
    if not is_reachable():
        raise _unreachable[os.getpid()][2]


def holder_of(handle: Any) -> Holder:
    """Return how an actor of rcg is reached.

    Args:
        handle: Ray's handle of it. With one of another actor nothing is reached.
    """
    actor = cluster.actor_id(handle)
    secret = _secret_of(cluster.actor_class_secret(handle), actor)
    return holder_with(key_of(actor), secret, repr(handle))


def holder_with(key: str, secret: str, label: str = "") -> Holder:
    """Return how an actor of rcg is reached."""
    actor = actor_of(key)
    return Holder(_address_of(actor), key, secret, label, actor, "")


def actor_of(key: str) -> str:
    """Return the id of the actor whose store has an id."""
    return key.removeprefix(_PREFIX)


def key_of(actor: str) -> str:
    """Return the id of the store of the actor with an id."""
    return _PREFIX + actor


def _address_of(actor: str) -> str:
    return f"\0rcg-actor-{actor}"


@functools.lru_cache(maxsize=1024)
def _secret_of(class_secret: str, actor: str) -> str:
    """Return the secret of an actor: one that is known of it opens no other of its class."""
    return hmac.new(class_secret.encode(), actor.encode(), "sha256").hexdigest()[:32]


class _Reach:
    """See ``rcg.rdt.groups.Reach``."""

    def holder(self, key: str, secret: str) -> Holder:
        return holder_with(key, secret)

    def has_died(self, key: str, secret: str) -> bool:
        try:
            Connection(self.holder(key, secret), "").close()
        except ActorDiedError:
            return True
        except (RcgError, OSError):
            pass  # it is stopped, or cannot answer now
        return False

    def open_store(self, holder: Holder, name: str, who: str = "") -> Any:
        place = place_of(holder) if is_elsewhere(holder) else holder.address
        try:
            store = ControlStore(place, holder.key, holder.secret, name, who)
        except CommError:
            if holder.node or not cluster.has_other_nodes():
                raise
            place = place_of(holder)
            store = ControlStore(place, holder.key, holder.secret, name, who)
        return store if who else _Closing(store)


class _Closing:
    """A store that is closed at the end of a ``with``."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    def __enter__(self) -> ControlStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def transfers_between(start_ns: int, end_ns: int) -> tuple[TensorTransfer, ...]:
    """Return what this process, and the actors that it called with tensors, got in a time.

    Those that have ended took their record with them.
    """
    from rcg.trace.clocks import clock_identity  # its room is large, every actor imports this one
    from rcg.trace.model import TensorTransfer

    ours = existing()
    if ours is None:
        return ()
    identity = clock_identity()

    def ask(connection: Connection) -> list[Got]:
        return _got_by(connection, start_ns, end_ns, identity)

    holders = list(ours.peers.values())
    others = [each for each in holders if each.key != ours.holder.key]
    answers, _ = ask_all(others, ask, lambda _: None)
    own = [each for each in list(ours.got) if start_ns <= each.start_ns < end_ns]
    got_by = [(ours.holder, own)]
    got_by += [(each, answers.get(each.key, [])) for each in holders]
    return tuple(
        TensorTransfer(each.object, each.source, holder.label, *each[2:])
        for holder, got in got_by
        for each in got
    )


def _got_by(connection: Connection, start_ns: int, end_ns: int, clock: str) -> list[Got]:
    """Return what another process got in a time, with the times of this process's clock."""
    from rcg.trace.clocks import Exchange, clock_of, now_ns

    def ask(until_ns: int) -> tuple[Exchange, list[Got]]:
        def question(number: int) -> Message:
            return AskTransfers(number=number, start_ns=start_ns, end_ns=until_ns, clock=clock)

        asked_ns = now_ns()
        answered_ns, got = json.loads(connection.observe(question))
        exchange = Exchange(asked_ns, answered_ns or 0, now_ns())
        return exchange, [Got(*each) for each in got]

    first, got = ask(end_ns)
    if not first.answered_ns:
        return got
    exchanges = [ask(start_ns)[0] for _ in range(_EXCHANGES)]
    found = clock_of(exchanges, is_same=False)
    moved_ns = 0 if found is None else found.offset_ns
    moved = [
        each._replace(start_ns=each.start_ns + moved_ns, end_ns=each.end_ns + moved_ns)
        for each in got
    ]
    return [each for each in moved if start_ns <= each.start_ns < end_ns]
