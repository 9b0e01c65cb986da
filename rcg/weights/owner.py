# SPDX-License-Identifier: Apache-2.0
"""The owner of names: an actor that knows who publishes, who reads, and which version is newest.

It holds no weights, and is never asked while they move. If it dies, Ray starts it again, empty.
Readers notice that, because a call of theirs ends (``stay``), and register again; publishers do so
when they next ask. A version that was pushed before is not taken for done until the readers have
had the time for it. The death of a process is noticed by the members that need it, which report it
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rcg.text import plural
from rcg.weights.shards import Member, disagreements, holes, lacking, mismatches, overlaps

_MOST_VERSIONS: Final = 1000  # of which the order is known
_AGAIN_S: Final = 0.5  # between two questions of one who waits
_SETTLE_S: Final = 5.0  # for readers to register again after a restart, which takes 0.1 s


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
    publishers: list[Member]
    has_died: bool
    is_newest: bool


class Pending(NamedTuple):
    """Who has not yet taken, or pushed, a version.

    Attributes:
        left: These.
        of: How many there are, with those that have.
        kind: What they are: readers or publishers.
        may_lack: Whether there may be more, which have not registered again after a restart.
    """

    left: list[Member]
    of: int = 0
    kind: str = "readers"
    may_lack: bool = False


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
    member: Member
    version: int | None = None
    key: str = ""  # "" if the newest version may not be read
    wait: _Wait = field(default_factory=_Wait)


@dataclass(slots=True)
class _Subscriber:
    member: Member
    joined: int  # how many versions there had been
    token: frozenset[str] = frozenset()  # of the version that it has
    version: int | None = None
    key: str = ""  # what it calls this version, if others may read it there
    wait: _Wait = field(default_factory=_Wait)
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Weights:
    """What is known of a name."""

    publishers: dict[str, _Publisher] = field(default_factory=dict)
    subscribers: dict[str, _Subscriber] = field(default_factory=dict)
    count: int = 0  # of versions so far
    newest: int | None = None  # the number of the last one
    versions: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_MOST_VERSIONS))
    died: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # tensors of which nobody has some member
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    settled_s: float = 0.0  # when all readers have registered again, on the monotonic clock

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
        self.missing = holes([each.member for each in self.publishers.values()])
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
            others = [keeper.member for keeper in keepers]
            fits = each.key and each.token == token and each.key not in failed
            if fits and not disagreements(others, each.member.shards):
                keepers.append(each)
        have, wants = [each.member for each in keepers], wanting.member.shards
        if not keepers or lacking(have, wants) or mismatches(have, wants):
            return None
        number = keepers[0].version or 0
        if wanting.version is not None and number <= wanting.version:
            return None  # an owner that was restarted may not know the newest one yet
        return Version(number, keepers[0].token, {each.member.id: each.key for each in keepers})

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

    def waited_for(self) -> list[_Subscriber]:
        """Return the readers that were there for the newest version."""
        return [each for each in self.subscribers.values() if each.joined < self.count]

    def behind(self) -> list[_Subscriber]:
        """Return the readers that were there for the newest version, and do not have it."""
        newest = self.versions[-1] if self.versions else frozenset()
        return [each for each in self.waited_for() if not newest <= each.token]

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
        late = [each.member.label for each in self.publishers.values() if each.version != newest]
        if late:
            return f"version {newest} has not been pushed by {', '.join(late[:3])} yet"
        return f"version {newest} is withdrawn: its publisher writes the next one"


class Owner:
    """Knows the publishers, readers and versions of all names. Its methods run on one loop."""

    def __init__(self) -> None:
        self._all: dict[str, _Weights] = {}

    async def publish(self, name: str, member: Member, is_again: bool = False) -> Member | str:
        """Take in a publisher; returns why not, or who publishes alone, or ""."""
        weights = self._all.setdefault(name, _Weights())
        if is_again and not weights.publishers and not weights.count:  # this was restarted
            weights.settled_s = time.monotonic() + _SETTLE_S
        others = [each.member for key, each in weights.publishers.items() if key != member.id]
        for each in others:
            if member.is_alone or each.is_alone:
                return each._replace(shards={})
        problems = disagreements(others, member.shards) or overlaps(others, member)
        if problems:
            return "\n  ".join(problems)
        weights.publishers[member.id] = _Publisher(member)
        weights.change_publishers()
        if not weights.missing:
            weights.died.clear()
        return ""

    async def subscribe(
        self,
        name: str,
        member: Member,
        version: int | None,
        token: frozenset[str],
        key: str,
        is_again: bool = False,
    ) -> None:
        """Take in a reader. One that is known stays as it is: what it says now may be older.

        Args:
            name: The name.
            member: The reader.
            version: The version that it has; None if it is new.
            token: Of this version.
            key: What it calls this version, if others may read it there.
            is_again: Whether it was taken in before, perhaps before this process ran again: then it
                does not come later than the newest version.
        """
        weights = self._all.setdefault(name, _Weights())
        if member.id in weights.subscribers:
            return
        newest = weights.newest
        is_newer = newest is None or (version is not None and version > newest)
        if token and not weights.count and is_newer:  # this process was restarted
            weights.versions.clear()
            weights.versions.append(token)
            weights.newest = version
        joined = 0 if token or is_again else weights.count
        weights.subscribers[member.id] = _Subscriber(member, joined, token, version, key)
        weights.change()

    async def stay(self, name: str, subscriber: str) -> None:
        """Return when a reader leaves: who asks sees it fail if this process dies before."""
        weights = self._all.get(name)
        found = weights.subscribers.get(subscriber) if weights is not None else None
        if found is not None:
            await found.left.wait()

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
                addresses = [
                    each.member._replace(shards={}) for each in weights.publishers.values()
                ]
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
    ) -> Pending | None:
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
            is_over = found.version != version or not found.key
            if is_over or any(
                (each.version or 0) > version for each in weights.publishers.values()
            ):
                found.wait.until_s = 0.0
                return Pending([])  # it is replaced: nobody can get it any more
            if weights.number is None:
                of, kind = len(weights.publishers), "publishers"
                left = [
                    each.member for each in weights.publishers.values() if each.version != version
                ]
            else:
                of, kind = len(weights.waited_for()), "readers"
                left = [each.member for each in weights.behind()]
            now_s = time.monotonic()
            may_lack = now_s < weights.settled_s
            is_done = not left and not may_lack
            if is_done:
                found.wait.until_s = 0.0
            if is_done or now_s >= until_s:
                return Pending([each._replace(shards={}) for each in left], of, kind, may_lack)
            look_s = min(until_s, weights.settled_s) if may_lack else until_s
            await weights.change_seen_by(found, look_s - now_s)

    async def lag(self, name: str, token: frozenset[str]) -> int:
        """Return how many versions are newer than one."""
        weights = self._all.get(name)
        return 0 if weights is None else weights.lag_of(token)

    async def describe(self) -> list[tuple[Any, ...]]:
        """Return who publishes and who reads: the fields of ``rcg.weights.report.Party``."""
        found: list[tuple[Any, ...]] = []
        for name, weights in sorted(self._all.items()):
            behind = waited_for([each.member for each in weights.behind()])
            for publisher in weights.publishers.values():
                waits_for = _waits(publisher.wait, behind or weights.why_none())
                found.append((name, *_about(publisher.member), publisher.version, 0, *waits_for))
            newer = "a newer version" if weights.number is not None else weights.why_none()
            for reader in weights.subscribers.values():
                lag = weights.lag_of(reader.token)
                waits_for = _waits(reader.wait, newer)
                found.append((name, *_about(reader.member), reader.version, lag, *waits_for))
        return found

    async def members(self, name: str) -> tuple[list[Member], list[Member]]:
        """Return who publishes, and who reads."""
        weights = self._all.get(name) or _Weights()
        publishers = [each.member for each in weights.publishers.values()]
        readers = [each.member for each in weights.subscribers.values()]
        return publishers, readers

    async def leave(self, name: str, which: str, has_died: bool = False) -> bool:
        """Forget a publisher or a reader; returns whether nobody is left, of any name."""
        weights = self._all.get(name)
        if weights is not None:
            publisher = weights.publishers.pop(which, None)
            if publisher is not None:
                if has_died:
                    weights.died.append(publisher.member.label)
                weights.change_publishers()
            reader = weights.subscribers.pop(which, None)
            if reader is not None:
                reader.left.set()
            weights.change()
            if not weights.publishers and not weights.subscribers:
                del self._all[name]
        return not self._all


def _about(member: Member) -> tuple[str, bool, int, int]:
    return member.label, member.is_publisher, member.nbytes, member.spare_bytes


def _waits(wait: _Wait, waits_for: str) -> tuple[str, float]:
    now_s = time.monotonic()
    return (waits_for, now_s - wait.since_s) if wait.goes_on(now_s) else ("", 0.0)


def waited_for(parts: list[Member]) -> str:
    """Return whom something waits for, as text."""
    labels = [each.label for each in parts]
    more = f" and {plural(len(labels) - 3, 'other')}" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more
