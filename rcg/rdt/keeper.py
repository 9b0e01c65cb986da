# SPDX-License-Identifier: Apache-2.0
"""The keeper of a process: it looks after the values with tensors that this process has asked for.

A value belongs to the process that called the method, or put it: Ray counts there who holds a
reference to it, anywhere in the cluster. Ray has no call-back for the end of a reference, but it
says whether an object exists: ``ray.wait([ray.ObjectRef(id)], timeout=0, fetch_local=False)``,
1,000 ids in a millisecond. So a thread asks, often while something changes and rarely while
nothing does, and tells the holder of the tensors: that this process keeps them, and when nobody
needs them any more. The connection that tells it ends with this process, and so does all that it
kept.

Three things Ray does not count, and the keeper does:

* A call that is not finished yet has no object: its reference is held here until it is.
* Ray puts a small argument into the description of a task, and forgets the reference. So the
  references that a call takes are held here until its results are there.
* An actor ends when nobody has a handle of it, and the tensors with it: the keeper of a driver
  has one while a value of the actor is kept. That of an actor has none: two actors that keep
  values of each other would never end.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from rcg import cluster
from rcg.errors import OutOfDescriptors, OutOfThreads, Transfer
from rcg.log import Log
from rcg.rdt.ahead import may_come_ahead
from rcg.rdt.envelope import Envelope, Holder, closed
from rcg.rdt.reach import note_node
from rcg.rdt.store import Store
from rcg.runtime.heap import IDLE_S, LARGE_BYTES, MUCH_BYTES, give_back_heap
from rcg.runtime.sleepers import take_all
from rcg.threads import start_thread

_log = Log()

_FIRST_S: Final = 0.02  # between two looks, while values come and go
_LAST_S: Final = 0.5  # while nothing happens
_LONGER: Final = 1.25
_LONGEST_S: Final = 5.0  # also where a look takes long, because a holder is stopped
_PART: Final = 20  # a look takes at most one part in so many of the time
_NOTHING_S: Final = 3600.0  # with nothing to look after
_MOST_ANNOUNCED: Final = 8  # calls of one actor


class Telling(Protocol):
    """What brings news to a process that holds tensors."""

    def keep(self, keys: Sequence[str]) -> None:
        """Say that this process keeps objects.

        Raises:
            BlockingIOError, TimeoutError, Transfer: It does not read: it may be stopped.
            OutOfDescriptors, OutOfThreads: It has none left to listen, or this process has none.
            OSError, RcgError: It is gone.
        """

    def free(self, keys: Sequence[str]) -> None:
        """Say that objects are of no use any more; raises as ``keep``."""

    def announce(self, envelope: Envelope) -> None:
        """Say that a call which has not run yet takes a value; raises as ``keep``."""


class News(Protocol):
    """What brings news to all processes that hold tensors."""

    def to(self, holder: Holder) -> Telling:
        """Return what brings news to one; raises as ``Telling.keep``."""

    def has(self, holder: Holder) -> bool:
        """Whether there is a connection to one."""

    def take_ended(self) -> set[str]:
        """Return the addresses of processes that have ended since the last time."""


@dataclass(slots=True)
class Kept:
    """A value that this process has asked for.

    Attributes:
        key: Its id in the store of its holder.
        holder: The process that holds its tensors.
        id: The id of Ray's reference; empty while there is none (``rcg.rdt.held.HeldTensors``).
        ref: Ray's reference, until the value is there.
        maker: Ray's handle of that process, if this one keeps it alive for as long.
        is_known: Whether the holder knows it; that may be an actor that is being created.
        is_cancelled: Whether the call that makes it was cancelled, perhaps too late.
        is_read: Whether its envelope was read, to learn the node of its maker.
    """

    key: str
    holder: Holder
    id: bytes
    ref: Any
    maker: Any = None
    is_known: bool = False
    is_cancelled: bool = False
    is_read: bool = False


@dataclass(slots=True)
class _Call:
    """A call, or an execution of a graph, that takes references.

    Attributes:
        taken: These.
        results: Ray's references to its results.
        what: Returns what messages call it.
        has_ended: Whether it has ended, beside its results.
        taker: The actor that is called, if that is one.
        announced: The objects that it was told of.
    """

    taken: Sequence[Any]
    results: list[Any]
    what: Callable[[], str]
    has_ended: Callable[[], bool] = lambda: True
    taker: Holder | None = None
    announced: set[str] = field(default_factory=set)


class Keeper:
    """Looks after what this process has asked for, and frees what is in its store.

    Args:
        store: The store of this process.
        key: The id of the store.
        news: Brings news to holders.
        announces: Whether it tells actors of what waiting calls take.
    """

    def __init__(self, store: Store, key: str, news: News, *, announces: bool = True) -> None:
        self._announces = announces
        self._store = store
        self._key = key
        self._news = news
        # By the id of Ray's reference, or their own id while there is none; the thread's.
        self._kept: dict[bytes, Kept] = {}
        self._calls: list[_Call] = []  # the thread's
        self._new: deque[tuple[bytes, Kept]] = deque()
        self._new_calls: deque[_Call] = deque()
        self._cancelled: deque[bytes] = deque()
        self._unwanted: deque[tuple[Kept, bool]] = deque()
        self._graphs: list[Callable[[], Any]] = []  # whose results stay with their actors
        self._to_free: list[Kept] = []  # that a holder did not read; the thread's
        # A queue, because the end of a reference may come in the middle of anything.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_idle = True
        # Who looks, put there by the thread itself: one that finds another ends at once, so it does
        # no harm to start one too many.
        self._threads: dict[int, threading.Thread] = {}
        self._looking = threading.Lock()
        self._left = ""  # the session that this process leaves, or has left
        self._freed_bytes = 0  # since memory was given back to the system
        self._freed_s = 0.0  # when the newest of them were freed
        self._stale: list[Any] = []  # references of a session that has ended

    # --- any thread

    def keep(self, ref: Any, key: str, holder: Holder, maker: Any = None) -> None:
        """Look after a value that this process has asked for.

        Args:
            ref: Ray's reference; None if ``free`` will say when nobody needs it.
            key: The id of the object in the store of its holder.
            holder: The process that holds its tensors, or will.
            maker: Ray's handle of that process, which would end if nobody had one any more.
        """
        found = b"" if ref is None else ref.binary()
        self._new.append((found or key.encode(), Kept(key, holder, found, ref, maker)))
        self.look()

    def hold(
        self,
        taken: Sequence[Any],
        results: list[Any],
        what: Callable[[], str],
        has_ended: Callable[[], bool] = lambda: True,
        taker: Holder | None = None,
    ) -> None:
        """Hold references until what takes them has ended: a call, or an execution of a graph.

        Args:
            taken: The references.
            results: Ray's references to the results of the call, which are there when it has ended.
            what: Returns what messages call it.
            has_ended: Whether the execution has ended; called now and then, by another thread.
            taker: The actor that is called; None for a task and for an execution.
        """
        self._new_calls.append(_Call(taken, results, what, has_ended, taker))
        self.look()

    def free(self, key: str, holder: Holder, *, is_told: bool = True) -> None:
        """Have a value freed of which Ray knows nothing; may be called in the middle of anything.

        Args:
            key: The id of the object in the store of its holder.
            holder: The process that holds its tensors.
            is_told: Whether the holder is told; if not, another process looks after it now.
        """
        self._unwanted.append((Kept(key, holder, b"", None), is_told))
        with contextlib.suppress(OutOfThreads):  # its holder frees what nobody keeps
            self.look()

    def watch(self, graph: Callable[[], Any]) -> None:
        """Look after the results of a graph that stay with its actors, until it ends."""
        self._graphs.append(graph)
        self.look()

    def note_cancelled(self, ref: Any) -> None:
        """Note that the call which makes a value was cancelled.

        If it runs all the same, Ray keeps the failure that it has put in the value's place for
        ever, as though somebody held it.
        """
        self._cancelled.append(ref.binary())
        self.look()

    def entries(self) -> list[Kept]:
        """Return what is looked after."""
        new = [kept for _, kept in list(self._new)]
        found = {kept.key: kept for kept in (*list(self._kept.values()), *new)}
        return list(found.values())

    def takers(self) -> list[Holder]:
        """Return the actors of the calls that take references and are not finished."""
        calls = (*self._calls, *list(self._new_calls))
        return list({each.taker.key: each.taker for each in calls if each.taker}.values())

    def waiters(self) -> dict[str, list[str]]:
        """Return the calls that take each object, by its id, and are not finished."""
        found: dict[str, list[str]] = {}
        for call in (*self._calls, *list(self._new_calls)):
            if len(cluster.ready_of(call.results)) == len(call.results) and call.has_ended():
                continue
            for ref in call.taken:
                found.setdefault(ref.key, []).append(call.what())
        return found

    def note_freed(self, size: int) -> None:
        """Note that memory of tensors is freed: some may be given back to the system.

        Args:
            size: Its bytes. What this process has got counts, too: it drops it sooner or later.
        """
        if size < LARGE_BYTES:
            return
        self._freed_s = time.monotonic()
        self._freed_bytes += size  # of two threads one may be lost: others follow
        if self._freed_bytes >= MUCH_BYTES and self._is_idle:
            self.look()

    def watch_store(self) -> None:
        """Look now and then whether somebody keeps what is in the store of this process."""
        if self._is_idle or not self._threads:
            with contextlib.suppress(OutOfThreads):  # the next object has it tried again
                self.look()

    def stop(self) -> None:
        """Ask Ray nothing more, because this process is about to leave it.

        Ray ends a process of which a thread asks it something while it goes. In another session
        Ray is asked again.
        """
        with self._looking:
            self._left = cluster.session()

    def look(self) -> None:
        """Look soon, and often for a while."""
        self._is_idle = False
        self._wake.put(None)
        self.start()

    def start(self) -> None:
        """Start the thread, if it does not run: before a call whose values it has to look after.

        Raises:
            OutOfThreads: No more threads can be started.
        """
        if not self._threads:
            thread = threading.Thread(target=self._run, name="rcg-keeper", daemon=True)
            start_thread(thread, "to look after tensors")

    # --- the thread

    def _run(self) -> None:
        thread = threading.current_thread()
        if self._threads.setdefault(0, thread) is not thread:
            return
        pause_s = _FIRST_S
        while True:
            try:
                self._wake.get(timeout=pause_s)
                while not self._wake.empty():
                    self._wake.get_nowait()
                pause_s = _FIRST_S
                time.sleep(_FIRST_S)  # more may come at once
            except Empty:
                pass
            started_s = time.monotonic()
            is_news = False
            try:
                with self._looking:
                    if cluster.session() not in ("", self._left):
                        self._stale.clear()
                        is_news = self._look()
                    else:
                        self._forget()
            except Exception:  # noqa: BLE001 - Ray is going down, or the process is
                if cluster.is_connected():
                    _log.exception("rcg: the keeper of tensors cannot ask Ray")
            self._watch_graphs()
            self._store.free_unkept()
            self._store.look_at_transfers()
            self._give_back()
            if not (self._kept or self._calls or self._to_free or self._graphs or self._has_more):
                self._is_idle = True
                # What came since saw either this or an empty queue.
                pause_s = _FIRST_S if self._has_more else _NOTHING_S
                continue
            busy_s = time.monotonic() - started_s
            pause_s = _FIRST_S if is_news else min(pause_s * _LONGER, _LAST_S)
            pause_s = min(max(pause_s, busy_s * _PART), _LONGEST_S)

    def _watch_graphs(self) -> None:
        """Keep the results of graphs that have come: those that nobody keeps are freed in time."""
        for graph in list(self._graphs):
            found = graph()
            goes_on = False
            try:
                goes_on = found is not None and found.keep_held_results()
            except Exception:  # noqa: BLE001 - values without tensors are the user's
                _log.exception("rcg: the results of a graph cannot be looked after")
            if not goes_on:
                self._graphs.remove(graph)
            del found

    @property
    def _has_more(self) -> bool:
        """Whether the store holds something, or memory is to be given back."""
        return self._freed_bytes >= MUCH_BYTES or bool(self._store.facts().held)

    def _give_back(self) -> None:
        """Give memory back to the system if much was freed, and nothing for a while."""
        is_idle = time.monotonic() >= self._freed_s + IDLE_S
        if is_idle and self._freed_bytes >= MUCH_BYTES:
            self._freed_bytes = 0
            give_back_heap()

    def _forget(self) -> None:
        """Forget what was asked for in a session that has ended.

        Its references stay until there is another session: Ray ends a process that drops one
        while it leaves.
        """
        self._kept.update(take_all(self._new))
        self._stale += [*self._kept.values(), *self._calls, *take_all(self._new_calls)]
        # Nobody is looked for any more: that would ask Ray.
        known = [each for each in self._kept.values() if self._is_near(each.holder)]
        self._send_news(known, is_kept=False)
        self._kept.clear()
        self._calls.clear()

    def _is_near(self, holder: Holder) -> bool:
        """Whether nothing is asked to reach a process: it is this one, or there is a connection."""
        return holder.key == self._key or self._news.has(holder)

    def _look(self) -> bool:
        """Ask Ray what has changed, and tell holders; returns whether there was something."""
        ended = self._news.take_ended()
        if ended:  # an actor may run again, and make the values of calls that are tried again
            for kept in self._kept.values():
                kept.is_known = kept.is_known and kept.holder.address not in ended
        self._announce()
        unwanted = list(take_all(self._unwanted))  # first: each was among the new ones before
        new = list(take_all(self._new))
        self._kept.update(new)
        for _, kept in new:
            if kept.id:  # Ray has a reference now
                self._kept.pop(kept.key.encode(), None)
        self._calls += take_all(self._new_calls)
        for key in take_all(self._cancelled):
            if key in self._kept:
                self._kept[key].is_cancelled = True
        self._send_news([each for each in self._kept.values() if not each.is_known], is_kept=True)
        finished = self._let_go_of_calls() + self._let_go_of_ready()
        for kept in self._kept.values():
            if not (kept.ref or kept.is_known or kept.is_read or kept.holder.node):
                kept.is_read = self._learn_node(kept)
        failed = [
            self._kept.pop(key)
            for key, kept in list(self._kept.items())
            if kept.is_cancelled and kept.ref is None and _has_failed(key)
        ]
        known = [key for key, kept in self._kept.items() if kept.id and kept.ref is None]
        exist = cluster.which_exist(known) if known else []
        gone = [
            self._kept.pop(key) for key, is_there in zip(known, exist, strict=True) if not is_there
        ]
        again, self._to_free = self._to_free, []
        for kept, _ in unwanted:
            self._kept.pop(kept.key.encode(), None)
        freed = [kept for kept, is_told in unwanted if is_told]
        self._send_news([*again, *failed, *gone, *freed], is_kept=False)
        return bool(new or finished or gone or failed or unwanted)

    def _learn_node(self, kept: Kept) -> bool:
        """Note on which node the maker of a value is, as its envelope says.

        It is not on this node, or not there any more: it was not reached.

        Returns:
            Whether the value could be read.
        """
        try:
            with closed(True):
                found = cluster.value_of(kept.id)
        except TimeoutError:
            return False
        except Exception:  # noqa: BLE001 - what the method raised: it has made nothing
            return True
        if isinstance(found, Envelope):
            note_node(found.holder)
        return True

    def _announce(self) -> None:
        """Tell actors of what the calls take that wait for their turn there.

        Those are calls of earlier looks. An actor runs them in order, so only the next few matter.
        """
        if not self._announces:
            return
        seen: Counter[str] = Counter()
        for call in self._calls:
            taker = call.taker
            if taker is None or seen[taker.key] >= _MOST_ANNOUNCED:
                continue
            seen[taker.key] += 1
            for ref in call.taken:
                if ref.key not in call.announced:
                    self._announce_to(taker, call, ref.key, ref.binary())

    def _announce_to(self, taker: Holder, call: _Call, key: str, id_: bytes) -> None:
        try:
            with closed(True):
                made = cluster.value_of(id_)
        except TimeoutError:
            return  # not made yet
        except Exception:  # noqa: BLE001 - what the method raised: the call fails
            made = None
        call.announced.add(key)
        if may_come_ahead(made) and made.holder.key != taker.key:
            with contextlib.suppress(Exception):  # it is stopped, or gone: the call itself says so
                self._news.to(taker).announce(made)

    # Each in a frame of its own: that of `_look` may live on in the traceback of an error.

    def _let_go_of_ready(self) -> bool:
        """Drop Ray's references to values that are there; returns whether there were any."""
        waited = [kept.ref for kept in self._kept.values() if kept.ref is not None]
        ready = cluster.ready_of(waited)
        for ref in ready:
            self._kept[ref.binary()].ref = None
        return bool(ready)

    def _let_go_of_calls(self) -> bool:
        """Drop the references of calls whose results are there; returns whether there were any."""
        if not self._calls:
            return False
        results = list(itertools.chain.from_iterable(call.results for call in self._calls))
        ready = set(cluster.ready_of(results))
        results.clear()
        left = [
            call
            for call in self._calls
            if not (ready.issuperset(call.results) and call.has_ended())
        ]
        has_ended = len(left) < len(self._calls)
        self._calls = left
        return has_ended

    def _send_news(self, values: Iterable[Kept], *, is_kept: bool) -> None:
        by_holder: dict[str, list[Kept]] = {}
        for kept in values:
            by_holder.setdefault(kept.holder.address, []).append(kept)
        for several in by_holder.values():
            holder, keys = several[0].holder, [kept.key for kept in several]
            try:
                if holder.key == self._key:
                    self._store.keep(keys, self) if is_kept else self._store.free(keys)
                elif is_kept:
                    self._news.to(holder).keep(keys)
                else:
                    self._news.to(holder).free(keys)
            except (BlockingIOError, TimeoutError, Transfer, OutOfDescriptors, OutOfThreads):
                # It is stopped, or lacks what it needs to listen, and may go on.
                if not is_kept:
                    self._to_free += several
                continue
            except Exception:  # noqa: BLE001 - it is gone, or not there yet
                continue
            for kept in several:
                kept.is_known = True


def _has_failed(key: bytes) -> bool:
    try:
        with closed(True):
            cluster.value_of(key)
    except TimeoutError:
        return False
    except Exception:  # noqa: BLE001 - the cancellation, or what the method raised
        return True
    return False
