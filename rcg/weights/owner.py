# SPDX-License-Identifier: Apache-2.0
"""The owner of names: an actor that knows who publishes, who reads, and which version is newest.

It holds no weights, and is never asked while they move. If it dies, Ray starts it again, empty:
whoever asks it next is told that it is unknown, and says again who it is. A process that dies is
noticed by those who need it, and reported here.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rcg import cluster
from rcg.error_text import describe_error, without_frames
from rcg.errors import OutOfThreads, RcgError
from rcg.text import plural
from rcg.threads import start_thread
from rcg.weights.shards import Shards, disagreements, holes, lacking, mismatches

_NAME: Final = "rcg.weights"
_NAMESPACE: Final = "rcg"
_MOST_VERSIONS: Final = 1000  # of which the order is known
_START_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.1
_REPORT_TIMEOUT_S: Final = 2.0
_AGAIN_S: Final = 0.5  # between two questions of one who waits
_MOST_CALLS: Final = 10_000  # that wait at the same time

Address = tuple[str, ...]
"""How a process is reached: the fields of ``rcg.rdt.envelope.Holder``."""


class Version(NamedTuple):
    """A version that can be read.

    Attributes:
        number: Its number.
        token: Tells it from all others, also from one of the same number.
        keys: What those who have it call it, by their ids: its publishers, or readers that keep it.
    """

    number: int
    token: frozenset[str]
    keys: dict[str, str]


class Waiting(NamedTuple):
    """There is no version to read.

    Attributes:
        why: What is missing.
        publishers: Those who could bring one.
        has_died: Whether one has died, and the others have not all tensors.
        is_newest: Whether there is a version to read, but none newer than the one that is known.
    """

    why: str
    publishers: list[Part]
    has_died: bool
    is_newest: bool


class Part(NamedTuple):
    """A process that publishes or reads, as it presents itself.

    Attributes:
        id: Tells it from all others.
        label: What errors call it.
        address: How it is reached.
        shards: What it has or wants.
        is_alone: Of a publisher: whether it has said that it has everything.
        is_publisher: Whether it publishes.
        pid: Its process: an actor that runs again is reached at the same address.
    """

    id: str
    label: str
    address: Address
    shards: Shards
    is_alone: bool = False
    is_publisher: bool = False
    pid: int = 0


@dataclass(slots=True)
class _Wait:
    """The newest wait of a process, in seconds of the monotonic clock."""

    since_s: float = 0.0
    until_s: float = 0.0

    def goes_on(self, now_s: float) -> bool:
        """Whether it waits: one that does asks again soon."""
        return now_s < self.until_s + _AGAIN_S


@dataclass(slots=True)
class _Publisher:
    part: Part
    version: int | None = None
    key: str = ""  # "" if the newest version may not be read
    wait: _Wait = field(default_factory=_Wait)


@dataclass(slots=True)
class _Subscriber:
    part: Part
    joined: int  # how many versions there had been
    token: frozenset[str] = frozenset()  # of the version that it has
    version: int | None = None
    key: str = ""  # what it calls this version, if others may read it there
    wait: _Wait = field(default_factory=_Wait)


@dataclass(slots=True)
class _Weights:
    """What is known of a name."""

    publishers: dict[str, _Publisher] = field(default_factory=dict)
    subscribers: dict[str, _Subscriber] = field(default_factory=dict)
    count: int = 0  # of versions so far
    newest: int | None = None  # the number of the last one
    versions: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_MOST_VERSIONS))
    died: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # tensors of which nobody has some part
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake up all who wait."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def change_seen_by(self, who: _Publisher | _Subscriber, timeout_s: float) -> None:
        """Wait for a change, which a report says of who waits.

        One who waits for long asks again and again: it counts as one wait.
        """
        now_s = time.monotonic()
        if not who.wait.goes_on(now_s):
            who.wait.since_s = now_s
        who.wait.until_s = now_s + timeout_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), timeout_s)

    def change_publishers(self) -> None:
        self.missing = holes([each.part.shards for each in self.publishers.values()])
        self.note_version()
        self.change()

    @property
    def number(self) -> int | None:
        """The version that all publishers have, and may be read; None if there is none."""
        numbers = {each.version if each.key else None for each in self.publishers.values()}
        return numbers.pop() if len(numbers) == 1 and not self.missing else None

    @property
    def version(self) -> Version | None:
        """The version that can be read, if there is one."""
        number = self.number
        if number is None:
            return None
        keys = {name: each.key for name, each in self.publishers.items()}
        return Version(number, frozenset(keys.values()), keys)

    def kept_version(self, wanting: _Subscriber, failed: frozenset[str]) -> Version | None:
        """Return the newest version from readers that keep it, if they have all that is wanted.

        Args:
            wanting: Who wants it.
            failed: The keys of those that it could not read.
        """
        token = self.versions[-1] if self.versions else None
        keepers: list[_Subscriber] = []
        for each in self.subscribers.values():
            others = [("", keeper.part.shards) for keeper in keepers]
            fits = each.key and each.token == token and each.key not in failed
            if fits and not disagreements(others, each.part.shards):
                keepers.append(each)
        have, wants = [("", each.part.shards) for each in keepers], wanting.part.shards
        if not keepers or lacking([each for _, each in have], wants) or mismatches(have, wants):
            return None
        number = keepers[0].version or 0
        if wanting.version is not None and number <= wanting.version:
            return None  # an owner that was restarted may not know the newest one yet
        return Version(number, keepers[0].token, {each.part.id: each.key for each in keepers})

    def note_version(self) -> None:
        """Count the version that can be read, if it is a new one."""
        version = self.version
        if version is None:
            return
        newest = self.versions[-1] if self.versions else None
        if newest is not None and version.number == self.newest and version.token <= newest:
            self.versions[-1] = version.token  # a publisher has died, of which others have copies
        elif newest != version.token:
            self.count += 1
            self.versions.append(version.token)
        self.newest = version.number

    def lag_of(self, token: frozenset[str]) -> int:
        """Return how many versions are newer than one; all, as far as they are known, than none."""
        newer = itertools.takewhile(lambda each: not each <= token, reversed(self.versions))
        return sum(1 for _ in newer)

    def behind(self) -> list[_Subscriber]:
        """Return the readers that were there for the newest version, and do not have it."""
        newest = self.versions[-1] if self.versions else frozenset()
        return [
            each
            for each in self.subscribers.values()
            if each.joined < self.count and not newest <= each.token
        ]

    def why_none(self) -> str:
        """Return what is missing for a version that can be read."""
        if not self.publishers:
            died = f": {self.died[-1]}, which published them, has died" if self.died else ""
            return f"nobody publishes them{died}"
        if self.missing:
            died = f" since {self.died[-1]} has died" if self.died else ""
            return (
                f"nobody has all of {', '.join(self.missing[:3])}"
                f"{' and others' if len(self.missing) > 3 else ''}{died}"
            )
        newest = max(
            (each.version for each in self.publishers.values() if each.version is not None),
            default=None,
        )
        if newest is None:
            return "no version has been pushed yet"
        late = [each.part.label for each in self.publishers.values() if each.version != newest]
        if late:
            return f"version {newest} has not been pushed by {', '.join(late[:3])} yet"
        return f"version {newest} is withdrawn: its publisher writes the next one"


class Owner:
    """Knows the publishers, readers and versions of all names. Its methods run on one loop."""

    def __init__(self) -> None:
        self._all: dict[str, _Weights] = {}

    async def publish(self, name: str, part: Part) -> Part | str:
        """Take in a publisher; returns why not, or who publishes alone, or "".

        Args:
            name: The name.
            part: The publisher.
        """
        weights = self._all.setdefault(name, _Weights())
        others = [each.part for key, each in weights.publishers.items() if key != part.id]
        for each in others:
            if part.is_alone or each.is_alone:
                return each._replace(shards={})
        problems = disagreements([(each.label, each.shards) for each in others], part.shards)
        if problems:
            return "\n  ".join(problems)
        weights.publishers[part.id] = _Publisher(part)
        weights.change_publishers()
        if not weights.missing:
            weights.died.clear()
        return ""

    async def subscribe(
        self, name: str, part: Part, version: int | None, token: frozenset[str], key: str
    ) -> None:
        """Take in a reader.

        Args:
            name: The name.
            part: The reader.
            version: The version that it has; None if it is new.
            token: Of this version.
            key: What it calls this version, if others may read it there.
        """
        weights = self._all.setdefault(name, _Weights())
        newest = weights.newest
        is_newer = newest is None or (version is not None and version > newest)
        if token and not weights.count and is_newer:  # this process was restarted
            weights.versions.clear()
            weights.versions.append(token)
            weights.newest = version
        joined = 0 if token else weights.count
        weights.subscribers[part.id] = _Subscriber(part, joined, token, version, key)
        weights.change()

    async def push(self, name: str, publisher: str, version: int, key: str) -> bool:
        """Note a version of a publisher, or with no key that it may not be read any more.

        Returns:
            Whether the publisher is known.
        """
        weights = self._all.get(name)
        found = weights.publishers.get(publisher) if weights is not None else None
        if weights is None or found is None:
            return False
        found.version, found.key = version, key
        weights.note_version()
        weights.change()
        return True

    async def next(
        self,
        name: str,
        subscriber: str,
        token: frozenset[str],
        failed: frozenset[str],
        timeout_s: float,
    ) -> Version | Waiting | None:
        """Return the newest version that can be read; None if the reader is unknown.

        Args:
            name: The name.
            subscriber: The reader.
            token: Of the version that it has.
            failed: The keys of those that it could not read.
            timeout_s: How long to wait for another one.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            weights = self._all.get(name)
            if weights is None or subscriber not in weights.subscribers:
                return None
            published = weights.version
            version = published
            if version is None or not failed.isdisjoint(version.keys.values()):
                version = weights.kept_version(weights.subscribers[subscriber], failed)
            if version is not None and not version.token <= token:
                weights.subscribers[subscriber].wait.until_s = 0.0
                return version
            is_whole = weights.publishers and not weights.missing
            has_died = bool(weights.died) and not is_whole
            left_s = until_s - time.monotonic()
            if has_died or left_s <= 0:
                addresses = [each.part._replace(shards={}) for each in weights.publishers.values()]
                newest = published or version
                if newest is None:
                    return Waiting(weights.why_none(), addresses, has_died, is_newest=False)
                why = f"version {newest.number} is the newest"
                return Waiting(why, addresses, has_died, is_newest=True)
            await weights.change_seen_by(weights.subscribers[subscriber], left_s)

    async def took(
        self, name: str, subscriber: str, version: int | None, token: frozenset[str], key: str
    ) -> bool:
        """Note that a reader has a version; returns whether it is known."""
        weights = self._all.get(name)
        found = weights.subscribers.get(subscriber) if weights is not None else None
        if weights is None or found is None:
            return False
        found.version, found.token, found.key = version, token, key
        weights.change()
        return True

    async def pending(
        self, name: str, publisher: str, version: int, timeout_s: float
    ) -> list[Part] | None:
        """Return who has not yet taken, or pushed, a version; None if the publisher is unknown.

        Args:
            name: The name.
            publisher: Who asks.
            version: The version.
            timeout_s: How long to wait until nobody is left.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            weights = self._all.get(name)
            found = weights.publishers.get(publisher) if weights is not None else None
            if weights is None or found is None:
                return None
            if found.version != version or not found.key:
                found.wait.until_s = 0.0
                return []
            if any((each.version or 0) > version for each in weights.publishers.values()):
                found.wait.until_s = 0.0
                return []  # it is replaced: nobody can get it any more
            if weights.number is None:
                left = [
                    each.part for each in weights.publishers.values() if each.version != version
                ]
            else:
                left = [each.part for each in weights.behind()]
            left_s = until_s - time.monotonic()
            if not left:
                found.wait.until_s = 0.0
            if not left or left_s <= 0:
                return [each._replace(shards={}) for each in left]
            await weights.change_seen_by(found, left_s)

    async def lag(self, name: str, token: frozenset[str]) -> int:
        """Return how many versions are newer than one."""
        weights = self._all.get(name)
        return 0 if weights is None else weights.lag_of(token)

    async def describe(self) -> list[tuple[Any, ...]]:
        """Return who publishes and who reads: the fields of ``rcg.weights.report.Party``."""
        found: list[tuple[Any, ...]] = []
        for name, weights in sorted(self._all.items()):
            behind = waited_for([each.part for each in weights.behind()])
            for publisher in weights.publishers.values():
                waits_for = _waits(publisher.wait, behind or weights.why_none())
                found.append((name, *_about(publisher.part), publisher.version, 0, *waits_for))
            newer = "a newer version" if weights.number is not None else weights.why_none()
            for reader in weights.subscribers.values():
                lag = weights.lag_of(reader.token)
                waits_for = _waits(reader.wait, newer)
                found.append((name, *_about(reader.part), reader.version, lag, *waits_for))
        return found

    async def parts(self, name: str) -> tuple[list[Part], list[Part]]:
        """Return who publishes, and who reads."""
        weights = self._all.get(name) or _Weights()
        publishers = [each.part for each in weights.publishers.values()]
        readers = [each.part for each in weights.subscribers.values()]
        return publishers, readers

    async def leave(self, name: str, which: str, has_died: bool = False) -> bool:
        """Forget a publisher or a reader; returns whether nobody is left, of any name."""
        weights = self._all.get(name)
        if weights is not None:
            publisher = weights.publishers.pop(which, None)
            if publisher is not None:
                if has_died:
                    weights.died.append(publisher.part.label)
                weights.change_publishers()
            weights.subscribers.pop(which, None)
            weights.change()
            if not weights.publishers and not weights.subscribers:
                del self._all[name]
        return not self._all


def _about(part: Part) -> tuple[str, bool, int]:
    size = sum(each.nbytes for each in part.shards.values())
    return part.label, part.is_publisher, size


def _waits(wait: _Wait, waits_for: str) -> tuple[str, float]:
    now_s = time.monotonic()
    return (waits_for, now_s - wait.since_s) if wait.goes_on(now_s) else ("", 0.0)


_lock: Final = threading.Lock()
_handles: Final[dict[str, Any]] = {}  # of the owner, by the id of this node: a session has its own


def ask(method: str, *args: Any) -> Any:
    """Return what the owner answers; it is started if there is none.

    Args:
        method: The name of the method of ``Owner``.
        *args: Its arguments.

    Raises:
        RcgError: It cannot be reached.
    """
    until_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        handle = _handle()
        try:
            return cluster.get(getattr(handle, method).remote(*args))
        except Exception as error:
            if not cluster.is_actor_death(error):
                raise
            problem = describe_error(without_frames(error))
        forget_owner()
        if time.monotonic() > until_s:
            raise RcgError(f"the actor that knows who publishes weights is not there: {problem}")
        time.sleep(_RETRY_S)


def _handle() -> Any:
    with _lock:
        node = cluster.node_id()
        if node not in _handles:
            options = {
                "name": _NAME,
                "namespace": _NAMESPACE,
                "get_if_exists": True,
                "lifetime": "detached",
                "num_cpus": 0,
                "max_restarts": -1,
                "max_concurrency": _MOST_CALLS,
            }
            _handles.clear()
            _handles[node] = cluster.remote(**options)(Owner).remote()
        return _handles[node]


def leave_cluster() -> None:
    """End all publishers and readers: this process leaves its cluster."""
    end_all()
    forget_owner()


def forget_owner() -> None:
    """Forget how the owner is reached: it has died, or this process leaves its cluster."""
    with _lock:
        _handles.clear()


def describe_soon() -> Any:
    """Return what ``Owner.describe`` does; None if there is no owner, or it is late."""
    if not cluster.is_connected():
        return None
    with contextlib.suppress(Exception):  # a report says what it can
        handle = cluster.get_actor(_NAME, _NAMESPACE)
        return cluster.get(handle.describe.remote(), timeout_s=_REPORT_TIMEOUT_S)
    return None


def leave(name: str, which: str) -> None:
    """Say that a publisher or a reader is none any more; the last one ends the owner."""
    with contextlib.suppress(Exception):  # the cluster may be gone, or the owner
        handle = _handles.get(cluster.node_id()) if cluster.is_connected() else None
        if handle is None:
            return
        if cluster.get(handle.leave.remote(name, which), timeout_s=2.0):
            cluster.kill(handle)
            forget_owner()


class Membership:
    """What ends with a publisher or a reader: it is one until it says so, or is dropped.

    Args:
        owner: The publisher or reader.
        name: The name of the weights.
        which: Its id.
        finish: Called at the end, before others know.
    """

    def __init__(
        self, owner: object, name: str, which: str, finish: Callable[[], object] = bool
    ) -> None:
        self._about = name, which
        self._finish = finish
        self._is_over = False
        self._pid = os.getpid()
        # It may be dropped in the middle of anything, also of Ray's code: another thread tells.
        self._dropped = weakref.finalize(owner, self._end_later)
        self._dropped.atexit = False
        _memberships.add(self)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._is_over

    def end(self) -> None:
        """End it; idempotent."""
        if not self._is_over:
            self._is_over = True
            self._dropped.detach()
            _memberships.discard(self)
            if self._pid != os.getpid():
                return  # of the process that has forked this one
            self._finish()
            leave(*self._about)

    def _end_later(self) -> None:
        with contextlib.suppress(OutOfThreads):  # then it is found to be gone with this process
            thread = threading.Thread(target=self.end, name="rcg-weights-end", daemon=True)
            start_thread(thread, "to say that weights are not needed any more")


_memberships: Final[weakref.WeakSet[Membership]] = weakref.WeakSet()


@atexit.register
def end_all() -> None:
    """End all publishers and readers of this process."""
    for each in list(_memberships):
        each.end()


def new_id() -> str:
    """Return what tells a publisher or a reader from all others."""
    return secrets.token_hex(8)


def until_known(call: Callable[[], Any], register: Callable[[], object]) -> Any:
    """Return what the owner answers to one that it knows.

    Args:
        call: Asks it; returns None or False if the owner does not know who asks.
        register: Tells it.
    """
    while (answer := call()) is None or answer is False:
        register()
    return answer


def waited_for(parts: list[Part]) -> str:
    """Return whom something waits for, as text."""
    labels = [each.label for each in parts]
    more = f" and {plural(len(labels) - 3, 'other')}" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more
