# SPDX-License-Identifier: Apache-2.0
"""The owner of names: an actor that knows who publishes, who reads, and which version is newest.

It holds no weights, and is never asked while they move. If it dies, Ray starts it again, empty.
Each publisher and reader notices that, because a call of theirs ends (``stay``), and registers
again with all that it knows. Who they are is on the ``Roll``, in another actor, before a member
hears that it is taken in: so an owner that runs again knows who is absent. While a publisher is,
there is no version and nobody else publishes, and ``pending`` counts all who are absent among those
that are waited for. The death of a process is noticed by the members that need it, which report it
here. The last member ends the owner, which takes nobody in from then on (``Unused``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rcg import cluster
from rcg.text import plural
from rcg.weights.shards import Member, disagreements, holes, lacking, mismatches, overlaps

_MOST_VERSIONS: Final = 1000  # of which the order is known
_RETRY_S: Final = 0.1
_AGAIN_S: Final = 0.5  # between two questions of one who waits
_BACK_S: Final = 1.0  # for those who are absent to come back, before an answer leaves them out


class Unused(Exception):
    """Nobody is left, so the owner takes nobody in any more: the last one is ending it."""


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
        lacks: What nobody has of the version, "" if they have all.
        has_died: Whether this is because a publisher has died.
    """

    left: list[Member]
    of: int = 0
    kind: str = "readers"
    lacks: str = ""
    has_died: bool = False


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
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Subscriber:
    member: Member
    joined: frozenset[str] | None  # the token of the newest version then; None if not known yet
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
    absent: dict[str, Member] = field(default_factory=dict)  # have not come back since a restart
    has_pushed: bool = False  # whether publishers have told of a version
    newest: int | None = None  # the number of the last one
    versions: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_MOST_VERSIONS))
    died: dict[str, Member] = field(default_factory=dict)  # publishers
    missing: list[str] = field(default_factory=list)  # tensors of which nobody has some member
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def members(self) -> list[Member]:
        """Return all members, with those that are absent, and publishers that have died."""
        publishers = (each.member for each in self.publishers.values())
        readers = (each.member for each in self.subscribers.values())
        return [*publishers, *readers, *self.absent.values(), *self.died.values()]

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
    def absent_publishers(self) -> list[Member]:
        """The publishers that have not come back since this process was restarted."""
        return [each for each in self.absent.values() if each.is_publisher]

    @property
    def newest_token(self) -> frozenset[str]:
        """The token of the last version."""
        return self.versions[-1] if self.versions else frozenset()

    @property
    def number(self) -> int | None:
        """The version that all publishers have, and may be read; None if there is none."""
        numbers = {each.version if each.key else None for each in self.publishers.values()}
        is_whole = not self.missing and not self.absent_publishers
        return numbers.pop() if len(numbers) == 1 and is_whole else None

    @property
    def version(self) -> Version | None:
        """The version that can be read, if there is one."""
        number = self.number
        if number is None:
            return None
        keys = {name: each.key for name, each in self.publishers.items()}
        return Version(number, frozenset(keys.values()), keys)

    def version_for(self, wanting: _Subscriber, failed: frozenset[str]) -> Version | None:
        """Return the newest version with those who have what is wanted of it, if they have all.

        Args:
            wanting: Who wants it.
            failed: The keys of those that it could not read.
        """
        version = self.version
        if version is not None:
            keys = {each: key for each, key in version.keys.items() if key not in failed}
            have = [self.publishers[each].member for each in keys]
            if keys == version.keys or not lacking(have, wanting.member.shards):
                return version._replace(keys=keys)
        return None if self.absent_publishers else self.kept_version(wanting, failed)

    def kept_version(self, wanting: _Subscriber, failed: frozenset[str]) -> Version | None:
        """Return the newest version from readers that keep it, if they have all that is wanted.

        Args:
            wanting: Who wants it.
            failed: The keys of those that it could not read.
        """
        token = self.newest_token
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
        if version.number == self.newest and version.token <= self.newest_token:
            self.versions[-1] = version.token  # a publisher has died, of which others have copies
        elif self.newest_token != version.token:
            self.versions.append(version.token)
        self.newest, self.has_pushed = version.number, True

    def lag_of(self, token: frozenset[str]) -> int:
        """Return how many versions are newer than one; all, as far as they are known, than none."""
        newer = itertools.takewhile(lambda each: not each <= token, reversed(self.versions))
        return sum(1 for _ in newer)

    def waited_for(self) -> list[_Subscriber]:
        """Return the readers that were there for the newest version."""
        newest, readers = self.newest_token, self.subscribers.values()
        return [each for each in readers if each.joined is None or not newest <= each.joined]

    def behind(self) -> list[_Subscriber]:
        """Return the readers that were there for the newest version, and do not have it."""
        return [each for each in self.waited_for() if not self.newest_token <= each.token]

    def why_none(self) -> str:
        """Return what is missing for a version that can be read."""
        if self.absent_publishers:
            return (
                f"{waited_for(self.absent_publishers)} has not come back since the actor that "
                "knows who publishes weights was restarted"
            )
        label = next((each.label for each in reversed(self.died.values())), "")
        if not self.publishers:
            died = f": {label}, which published them, has died" if label else ""
            return f"nobody publishes them{died}"
        if self.missing:
            died = f" since {label} has died" if label else ""
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
    """Knows the publishers, readers and versions of all names. Its methods run on one loop.

    Args:
        open_roll: Returns Ray's handle of the ``Roll``, which is started if there is none.
    """

    def __init__(self, open_roll: Callable[[], Any]) -> None:
        self._all: dict[str, _Weights] = {}
        self._open_roll = open_roll
        self._roll = open_roll()
        self._recalled: asyncio.Future[None] | None = None
        self._staying: asyncio.Future[None] | None = None
        self._is_over = False  # nobody is left: the last one ends this process

    async def _weights(self, name: str) -> _Weights:
        """Return what is known of a name, once this process knows who is absent."""
        if self._is_over:
            raise Unused
        if self._recalled is None:
            self._recalled = asyncio.ensure_future(self._recall())
        await asyncio.shield(self._recalled)
        return self._all.get(name) or _Weights()

    async def _recall(self) -> None:
        for name, member in await self._on_roll("all"):
            self._all.setdefault(name, _Weights()).absent[member.id] = member
        self._staying = asyncio.ensure_future(self._on_roll("stay"))

    async def _note(self, name: str, members: list[Member]) -> None:
        """Have members on the roll."""
        await self._on_roll("add", name, [each._replace(shards={}) for each in members])

    async def _on_roll(self, method: str, *args: Any) -> Any:
        """Call a method of the roll. If that has died, another one gets to know all members."""
        while True:
            try:
                return await getattr(self._roll, method).remote(*args)
            except Exception as error:
                if not cluster.is_actor_death(error):
                    raise
            await asyncio.sleep(_RETRY_S)
            self._roll = self._open_roll()
            for name, weights in list(self._all.items()):
                await self._note(name, weights.members())

    async def _all_back(self, weights: _Weights) -> None:
        """Wait for those who are absent, but not for long: one may be stopped, or dead."""
        until_s = time.monotonic() + _BACK_S
        while weights.absent and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(weights.changed.wait(), left_s)

    async def publish(
        self, name: str, member: Member, version: int | None = None, key: str = ""
    ) -> list[Member] | str:
        """Take in a publisher. One that is known stays as it is: what it says may be older.

        Args:
            name: The name.
            member: The publisher.
            version: The newest version that it has pushed; None before the first.
            key: What it calls this version; "" if it may not be read.

        Returns:
            "" if it is taken in. Otherwise why not, or who is in its way: one that publishes alone,
            or those who were here before a restart and have not come back.
        """
        weights = await self._weights(name)
        if member.id in weights.publishers:
            return ""
        others = [each.member for each in weights.publishers.values()]
        absent = [] if member.id in weights.absent else weights.absent_publishers
        for each in (*others, *absent):
            if member.is_alone or each.is_alone:
                return [each._replace(shards={})]
        if absent:  # whether it fits them is not known yet
            await self._all_back(weights)
            return absent
        problems = disagreements(others, member.shards) or overlaps(others, member)
        if problems:
            return "\n  ".join(problems)
        self._all[name] = weights
        weights.publishers[member.id] = _Publisher(member, version, key)
        weights.absent.pop(member.id, None)
        weights.change_publishers()
        gone: list[str] = []
        if not weights.missing:
            gone = list(weights.died)
            weights.died.clear()
        await self._note(name, [member])
        if gone:
            await self._on_roll("remove", gone)
        return ""

    async def subscribe(
        self,
        name: str,
        member: Member,
        version: int | None,
        token: frozenset[str],
        key: str,
        joined: frozenset[str] | None = None,
    ) -> frozenset[str] | None:
        """Take in a reader. One that is known stays as it is: what it says now may be older.

        Args:
            name: The name.
            member: The reader.
            version: The version that it has; None if it is new.
            token: Of this version.
            key: What it calls this version, if others may read it there.
            joined: What this method returned when the reader was new.

        Returns:
            The token of the version that it comes too late to be waited for, which was the newest
            when it was new; None if that was not known, because a publisher was absent: then it
            is waited for.
        """
        weights = await self._weights(name)
        if member.id in weights.subscribers:
            return weights.subscribers[member.id].joined
        newest = weights.newest
        is_newer = newest is None or (version is not None and version > newest)
        if token and not weights.has_pushed and is_newer:  # this process was restarted
            weights.versions.clear()
            weights.versions.append(token)
            weights.newest = version
        # One that was here before a restart and does not know it is waited for, not excused.
        if joined is None and not weights.absent_publishers and member.id not in weights.absent:
            joined = weights.newest_token
        self._all[name] = weights
        weights.subscribers[member.id] = _Subscriber(member, joined, token, version, key)
        weights.absent.pop(member.id, None)
        weights.change()
        await self._note(name, [member])
        return joined

    async def stay(self, name: str, which: str) -> None:
        """Return when a member leaves: it sees this call fail if this process dies before."""
        weights = await self._weights(name)
        found = weights.publishers.get(which) or weights.subscribers.get(which)
        if found is not None:
            await found.left.wait()

    async def push(self, name: str, publisher: str, version: int, key: str) -> bool:
        """Note a version of a publisher, or with no key that it may not be read any more.

        Returns:
            Whether the publisher is known.
        """
        weights = await self._weights(name)
        found = weights.publishers.get(publisher)
        if found is None:
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
            weights = await self._weights(name)
            if subscriber not in weights.subscribers:
                return None
            absent = weights.absent_publishers
            version = weights.version_for(weights.subscribers[subscriber], failed)
            if version is not None and not version.token <= token:
                weights.subscribers[subscriber].wait.until_s = 0.0
                return version
            is_whole = weights.publishers and not weights.missing
            has_died = bool(weights.died) and not is_whole and not absent
            left_s = until_s - time.monotonic()
            if has_died or left_s <= 0:
                known = (each.member for each in weights.publishers.values())
                addresses = [each._replace(shards={}) for each in (*known, *absent)]
                newest = weights.version or version
                if newest is None:
                    return Waiting(weights.why_none(), addresses, has_died, is_newest=False)
                why = f"version {newest.number} is the newest"
                return Waiting(why, addresses, has_died, is_newest=True)
            await weights.change_seen_by(weights.subscribers[subscriber], left_s)

    async def took(
        self, name: str, subscriber: str, version: int | None, token: frozenset[str], key: str
    ) -> bool:
        """Note that a reader has a version; returns whether it is known."""
        weights = await self._weights(name)
        found = weights.subscribers.get(subscriber)
        if found is None:
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
            weights = await self._weights(name)
            found = weights.publishers.get(publisher)
            if found is None:
                return None
            is_over = found.version != version or not found.key
            if is_over or any(
                (each.version or 0) > version for each in weights.publishers.values()
            ):
                found.wait.until_s = 0.0
                return Pending([])  # it is replaced: nobody can get it any more
            if found.key in weights.newest_token:  # all publishers have pushed it
                of, kind, absent = len(weights.waited_for()), "readers", [*weights.absent.values()]
                left = [each.member for each in weights.behind()]
            else:
                of, kind, absent = len(weights.publishers), "publishers", weights.absent_publishers
                left = [
                    each.member for each in weights.publishers.values() if each.version != version
                ]
            is_lacking = bool(weights.missing) and (bool(left) or kind == "publishers")
            lacks = weights.why_none() if is_lacking and not absent else ""
            has_died = bool(lacks and weights.died)
            left += absent
            is_done = not left and not lacks
            now_s = time.monotonic()
            if is_done or has_died or now_s >= until_s:
                found.wait.until_s = 0.0 if is_done else found.wait.until_s
                left = [each._replace(shards={}) for each in left]
                return Pending(left, of + len(absent), kind, lacks, has_died)
            await weights.change_seen_by(found, until_s - now_s)

    async def without(self, name: str, publisher: str) -> list[Member] | None:
        """Return the readers that lack the newest version and cannot get it if one cannot be read.

        Args:
            name: The name.
            publisher: Who cannot be read; None is returned if it is unknown.
        """
        weights = await self._weights(name)
        found = weights.publishers.get(publisher)
        if found is None:
            return None
        failed = frozenset((found.key,))
        late = [each for each in weights.behind() if weights.version_for(each, failed) is None]
        return [each.member._replace(shards={}) for each in late]

    async def lag(self, name: str, token: frozenset[str]) -> int:
        """Return how many versions are newer than one."""
        weights = await self._weights(name)
        await self._all_back(weights)
        return weights.lag_of(token)

    async def describe(self) -> list[tuple[Any, ...]]:
        """Return who publishes and who reads: the fields of ``rcg.weights.report.Party``."""
        await self._weights("")
        await asyncio.gather(*map(self._all_back, self._all.values()))
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
        weights = await self._weights(name)
        await self._all_back(weights)
        publishers = [each.member for each in weights.publishers.values()]
        readers = [each.member for each in weights.subscribers.values()]
        return publishers, readers

    async def leave(self, name: str, which: str, has_died: bool = False) -> bool:
        """Forget a publisher or a reader; returns whether nobody is left, of any name."""
        weights = await self._weights(name)
        found = weights.publishers.pop(which, None) or weights.subscribers.pop(which, None)
        member = weights.absent.pop(which, None) if found is None else found.member
        if member is None:
            return self._is_unused(has_died)
        if found is not None:
            found.left.set()
        if has_died and member.is_publisher:
            weights.died[which] = member
        if member.is_publisher:
            weights.change_publishers()
        weights.change()
        gone = [] if which in weights.died else [which]
        if not weights.publishers and not weights.subscribers and not weights.absent:
            del self._all[name]
            gone = [which, *weights.died]
        if gone:
            await self._on_roll("remove", gone)
        return self._is_unused(has_died)

    def _is_unused(self, has_died: bool) -> bool:
        """Whether nobody is left, nor takes the place of one that has died."""
        self._is_over = not self._all and not has_died
        return self._is_over


class Roll:
    """Remembers who the members are while the owner is started again.

    It ends with the last member, as the owner does. If it dies, it is not started again: the owner
    starts another one, which gets to know all.
    """

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, Member]] = {}

    async def all(self) -> list[tuple[str, Member]]:
        """Return the members, and under which name each is one."""
        return list(self._members.values())

    async def add(self, name: str, members: list[Member]) -> None:
        """Note members."""
        self._members.update({each.id: (name, each) for each in members})

    async def remove(self, which: list[str]) -> None:
        """Forget members, by their ids."""
        for each in which:
            self._members.pop(each, None)

    async def stay(self) -> None:
        """Never return: the call fails when this process ends."""
        await asyncio.Event().wait()


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
