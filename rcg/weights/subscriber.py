# SPDX-License-Identifier: Apache-2.0
"""Reading: the newest version, straight from the memory of those that publish it.

What to read from whom is planned when the publishers change, and replayed for every version. A
version is read into memory of the reader's own, and copied into the tensors only when all of it is
there and was still the same at its publishers. So a reader has all of a version or keeps the one
that it had. Until it is copied, it waits (``apply``): from when it was read on, the owner takes the
reader to have it, because its publishers may write. With ``atomic=False`` it is read into the
tensors themselves, and ``lookahead`` bounds the memory for those that cannot be written to in
place; see ``route.py``.

A model may replace tensors, and engines free and regrow their memory. So the tensors are looked up
by name, and checked, when memory for an update is taken, and again when a version is copied.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, SupportsIndex

from rcg.callers import at_users_line
from rcg.errors import ActorDiedError, Transfer
from rcg.log import Log
from rcg.option_kinds import timeout_from_user
from rcg.options import Deadline
from rcg.rdt import peer_memory
from rcg.rdt.places import Spans, places_of
from rcg.rdt.pull_slices import Withdrawn, pull_slices
from rcg.rdt.runs import fresh_memory
from rcg.serialization.payloads import bytes_of
from rcg.text import bytes_text, time_text
from rcg.threads import held, to_thread
from rcg.weights.client import (
    Client,
    Moved,
    ask,
    ask_if_there,
    leave_dead,
    limit_of,
    turn_of,
)
from rcg.weights.owner import Version, Waiting
from rcg.weights.planning import plan_of
from rcg.weights.readers import Frozen, Readers
from rcg.weights.route import Route, check_tied, least_lookahead, padded
from rcg.weights.shards import Member, Slice, Source, Tie, is_plain, mismatches, ties_of

_log = Log()

_TELL_S: Final = 10.0  # after which a wait for a publisher is told
_LOOK_S: Final = 0.2  # between two looks for publishers of names that are missing

PHASES: Final = ("plan", "register", "wait", "move", "apply")
"""What an update spends its time on, in the order in which it is reported."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an update did.

    Attributes:
        version: The version that the reader has now.
        bytes: What was read.
        seconds: How long each phase took: ``plan`` who sends what, ``register`` memory, ``wait``
            for a version, ``move`` it here, and ``apply`` it to the tensors. The first two are 0
            while the publishers stay the same.
    """

    version: int
    bytes: int
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        phases = [f"{name} {time_text(self.seconds[name] * 1e9)}" for name in PHASES]
        total = time_text(sum(self.seconds.values()) * 1e9)
        return f"version {self.version}: {bytes_text(self.bytes)} in {total} ({', '.join(phases)})"


@dataclass(slots=True)
class _Phases:
    """How long each phase of an update took, in seconds."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _since_s: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """Leave out the time since the last phase."""
        self._since_s = time.perf_counter()

    def end(self, phase: str) -> None:
        """Count the time since the last phase."""
        now_s = time.perf_counter()
        self.seconds[phase] += now_s - self._since_s
        self._since_s = now_s


class _Held(NamedTuple):
    """A version that a reader has: its number, and what tells it from all others; or none."""

    version: int | None = None
    token: frozenset[str] = frozenset()


class _Lost(NamedTuple):
    """What of a version cannot be read any more: what its holders call it, and why."""

    keys: frozenset[str]
    why: str


class Subscriber(Client):
    """Reads versions of weights; ``rcg.weights.subscribe`` makes it.

    Use it in a ``with``, or call ``close`` when no more versions are wanted: a publisher waits for
    every reader. Any thread; one update at a time.

    Attributes:
        name: The name.
    """

    def __init__(
        self,
        name: str,
        into: Any,
        shard: Mapping[str, Slice] | None,
        names: Iterable[str] | None,
        atomic: bool,
        lookahead: int | None,
        timeout: float | None,
    ) -> None:
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        self._source = Source(into, shard, names)
        self._shards = self._source.shards
        tensors = self._tensors()
        self._applied = _Held()  # what the tensors have
        self._waits: _Held | None = None  # what is here and not yet in the tensors
        self._readers = Readers()  # of the tensors
        self._copying = threading.Lock()  # held while what waits is copied, or forgotten
        self._is_atomic = atomic
        self._lookahead = _lookahead_from_user(lookahead, atomic)
        self._check_lookahead(tensors)
        # For the bytes of each tensor: of uint8 [n]; None for one that is copied part by part.
        self._memory: dict[str, Any] = {}
        self._places: dict[str, tuple[int, int]] = {}  # where those lie that are the tensors' own
        self._tied: dict[str, Tie] = {}  # those that are compared with what others got in place
        self._own_bytes = 0  # of what is no tensor's
        self._staged_bytes = 0
        self._joined: frozenset[str] | None = None  # see ``Owner.subscribe``
        self._route: Route | None = None
        own = () if atomic else {*self._own(tensors), *ties_of(tensors)}
        spare = sum(map(padded, self._staged_sizes(own)))
        super().__init__(name, self._shards, spare_bytes=self._lookahead or spare)
        try:
            self._register()
            self._wait_for_publishers(deadline)
        except BaseException:
            self._ending.end()
            raise

    @property
    def version(self) -> int | None:
        """The version that the tensors have.

        None before the first update, and if one with ``atomic=False`` has failed when it had begun
        to write to them.
        """
        return self._applied.version

    @property
    def staged_bytes(self) -> int:
        """The memory that this reader holds beside its tensors, in bytes, from its first update on.

        A whole version if it is atomic. Otherwise what is needed for tensors that are not
        contiguous, or on another device; at most half of ``lookahead``, if that is given.
        """
        return self._staged_bytes

    @property
    def lag(self) -> int:
        """How many versions are newer than the one that this reader has; asks the owner."""
        return ask_if_there("lag", self.name, self._newest.token) or 0

    @property
    def _newest(self) -> _Held:
        return self._waits or self._applied

    @at_users_line
    def update(self, timeout: float | None = None, *, apply: bool = True) -> Update:
        """Get the newest version, waiting for one that is newer than what is here.

        The tensors are written to at the end, when no thread is inside of ``frozen``; with
        ``atomic=False`` all the time.

        Args:
            timeout: Seconds; None sets no limit. A version that has begun to come is not given up
                while its publishers go on answering.
            apply: If False, the tensors stay as they are until ``apply`` is called. Its publishers
                may write as soon as it is here.

        Returns:
            What was got.

        Raises:
            TimeoutError: There is no newer version in time, or a publisher does not answer; the
                text says what is missing, or which process.
            ActorDiedError: A publisher has died, and nobody else has its part.
            ValueError: Names, shapes or types differ from what is published, all are listed; or a
                tensor has lost its memory, or was replaced while it was written to; or this reader
                is closed.
            RuntimeError: This thread is inside of ``frozen``.
            Transfer: The version cannot be read.
        """
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        if apply:
            self._readers.check_outside()
        else:
            self._check_stages("update(apply=False)")
        before = self._applied
        while True:
            found, phases = self._read(deadline, threading.Event(), before if apply else None)
            if apply and self._is_atomic:
                phases.begin()
                self._readers.change(self._swap, deadline, self._about(found))
                phases.end("apply")
                found = self._applied
            if found not in (before, _Held()):  # another update may read in place of what waited
                return Update(found.version or 0, self.bytes, phases.seconds)

    async def update_async(self, timeout: float | None = None, *, apply: bool = True) -> Update:
        """Get the newest version; as ``update``, while the loop of this coroutine goes on.

        It is read on another thread. The tensors are written to on the thread of the loop, between
        two steps of its coroutines, when nobody is inside of ``frozen``. So a coroutine that does
        not await anything, or is inside of ``frozen``, sees one version.

        Raises:
            ValueError: As ``update``; or this reader has ``atomic=False``, which would show the
                coroutines a mixture of versions.
            RuntimeError: This coroutine is inside of ``frozen``.
        """
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        self._check_stages("update_async()")
        if apply:
            self._readers.check_outside(waits=False)
        before = self._applied
        while True:
            is_over = threading.Event()
            read = functools.partial(self._read, deadline, is_over, before if apply else None)
            try:
                found, phases = await to_thread(read)
            finally:
                is_over.set()  # if it was cancelled, the thread waits no longer
            if apply:
                phases.begin()
                await self._readers.change_async(self._swap, deadline, self._about(found))
                phases.end("apply")
                found = self._applied
            if found not in (before, _Held()):  # another update may read in place of what waited
                return Update(found.version or 0, self.bytes, phases.seconds)

    @at_users_line
    def apply(self, timeout: float | None = None) -> int | None:
        """Write the version that ``update(apply=False)`` has read to the tensors.

        Returns:
            The version; None if none waits, or a newer one is being read in its place.

        Raises:
            TimeoutError: Other threads are inside of ``frozen`` all the time.
            ValueError: A tensor has another shape or type, or has lost its memory, or this reader
                is closed. The version goes on waiting.
            RuntimeError: This thread is inside of ``frozen``.
        """
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        self._check_open()
        waits, before = self._waits, self._applied
        if waits is None:
            return None
        self._readers.change(self._swap, deadline, self._about(waits))
        applied = self._applied
        return None if applied is before else applied.version

    def frozen(self) -> Frozen:
        """Return a context in which the tensors keep their version: ``with reader.frozen():``.

        Any number of threads and coroutines may be inside. An update waits for them before it
        writes, and threads that come meanwhile wait for it. So do coroutines that come by ``async
        with reader.frozen():``. Those that come by ``with`` do not, and hold up an update for as
        long as one of them is inside; with ``atomic=False`` their loop stands still while a version
        is read. Inside, nothing may be waited for that waits for an update, or for another
        ``frozen``.
        """
        return Frozen(self._readers)

    def _about(self, what: _Held | Version) -> str:
        number = what.version if isinstance(what, _Held) else what.number
        return f"version {number} of the weights {self.name!r} is here"

    def _check_stages(self, what: str) -> None:
        if not self._is_atomic:
            raise ValueError(
                f"{what} keeps the tensors of {self.name!r} as they are until a version is here, "
                "but with atomic=False they are written to as it comes: call update(), on a thread "
                "if need be, with what reads them in `with subscriber.frozen()`; or subscribe with "
                "atomic=True"
            )

    def _read(
        self, deadline: Deadline, is_over: threading.Event, before: _Held | None
    ) -> tuple[_Held, _Phases]:
        """Read the newest version.

        Args:
            deadline: Until when to wait.
            is_over: Set when nobody waits for the version any more.
            before: What the tensors had when the update began: another one that is here by now will
                do if there is none newer. None if it will not do.
        """
        is_other = f"another update of the weights {self.name!r} is not done yet"
        with held(self._lock, deadline.remaining_s(), is_other):
            self._check_open()
            phases, kept = _Phases(), self._key
            try:
                with Moved(f"the weights {self.name!r}", self.bytes) as moved:
                    newest = self._get(deadline, is_over, phases, moved, before)
            except BaseException:
                if kept and not self._key:  # others may not read it here any more
                    with contextlib.suppress(Exception):
                        self._tell_taken()
                raise
            self._tell_taken()
            return newest, phases

    def _tensors(self) -> dict[str, Any]:
        """Return the tensors as they are now, by name; raises ValueError if they cannot be used."""
        tensors = self._source.tensors()
        _check_writable(tensors)
        return tensors

    def _get(
        self,
        deadline: Deadline,
        is_over: threading.Event,
        phases: _Phases,
        moved: Moved,
        before: _Held | None,
    ) -> _Held:
        """Get the newest version."""
        failed: frozenset[str] = frozenset()  # the keys of what could not be read
        trouble = ""
        while True:
            is_other = before is not None and self._newest not in (before, _Held())
            if is_other and not isinstance(self._ask_next(failed, deadline, 0.0), Version):
                return self._newest
            version = self._next(failed, deadline, trouble, is_over, moved)
            phases.end("wait")
            attempt = functools.partial(self._attempt, version, deadline, phases, moved)
            if self._is_atomic:
                found = attempt()
            else:
                found = self._readers.change(attempt, deadline, self._about(version))
            if isinstance(found, _Held):
                return found
            if found is not None:
                trouble, failed = found.why, failed | found.keys
            self._check_goes_on(is_over)
            if deadline.expired:
                raise TimeoutError(
                    f"the weights {self.name!r}: newer versions come before one was read; waited "
                    f"{deadline.timeout_s:g} s. This process keeps {self._kept()}"
                )

    def _attempt(
        self, version: Version, deadline: Deadline, phases: _Phases, moved: Moved
    ) -> _Held | _Lost | None:
        """Read a version, with ``atomic=False`` into the tensors, which nobody reads then.

        Returns:
            The version; or what of it cannot be read; None if the publishers are others by now.
        """
        tensors = self._tensors()
        if self._take_memory(tensors):
            phases.end("register")
        route = self._route_for(version, deadline, phases)
        if route is None:
            return None
        moved.begin(f"version {version.number} of the weights {self.name!r}, MB")
        lost = self._move(version, route, tensors, moved.came, deadline)
        phases.end("move")
        newest = _Held(version.number, version.token)
        if lost is not None:
            return lost
        if self._is_atomic:  # late readers read it here: its publisher writes the next one
            self._waits = newest
            self._keep(version.number, list(self._memory.values()))
        else:
            self._write(self._tensors(), newest)
            phases.end("apply")
        return newest

    def close(self) -> None:
        """Read no more; idempotent. The tensors stay as they are."""
        super().close()

    def __repr__(self) -> str:
        return f"<{self._describe(self.version)}, {bytes_text(self._staged_bytes)} beside>"

    def _present(self) -> None:
        about = self._member, *self._newest, self._key, self._joined
        self._joined = ask("subscribe", self.name, *about)

    def _tell_taken(self) -> None:
        """Tell the owner which version this reader has, and whether others may read it here."""
        self._ask("took", *self._newest, self._key)

    def _wait_for_publishers(self, deadline: Deadline) -> None:
        """Wait until somebody publishes these weights, and check that they fit.

        What is missing is an error only if no other publisher can bring it, because one has said
        that it has everything.
        """
        until_s, has_told = time.monotonic() + _TELL_S, False
        while True:
            publishers, _ = ask("members", self.name)
            is_complete = any(each.is_alone for each in publishers)
            missing = [n for n in self._shards if not any(n in each.shards for each in publishers)]
            if publishers and (is_complete or not missing):
                break
            self._check_fits(publishers, missing)
            found = self._ask_next(frozenset(), deadline)
            if isinstance(found, Version):
                if not publishers:  # readers keep it
                    break
                time.sleep(turn_of(Deadline(_LOOK_S)))
                found = Waiting("", publishers, has_died=False, is_newest=True)
            if publishers:
                found = found._replace(why=f"nobody publishes {', '.join(missing)} yet")
            self._check_waiting(found, deadline)
            if not has_told and time.monotonic() > until_s:
                has_told = True
                _log.warning("rcg: waits for the weights %r: %s", self.name, found.why)
        if publishers:
            self._check_fits(publishers)

    def _ask_next(
        self, failed: frozenset[str], deadline: Deadline, turn_s: float | None = None
    ) -> Version | Waiting:
        turn_s = turn_of(deadline) if turn_s is None else turn_s
        about = self._newest.token, failed, turn_s
        found: Version | Waiting = self._ask("next", *about, within_s=limit_of(deadline))
        return found

    def _next(
        self,
        failed: frozenset[str],
        deadline: Deadline,
        trouble: str,
        is_over: threading.Event,
        moved: Moved,
    ) -> Version:
        """Return the newest version, if it is newer than what is here.

        Args:
            failed: The keys of what could not be read.
            deadline: Until when to wait.
            trouble: Why it cannot be read, or "".
            is_over: Set when nobody waits for the version any more.
            moved: Shows what is missing.
        """
        while True:
            found = self._ask_next(failed, deadline)
            if isinstance(found, Version):
                return found
            if trouble and found.is_newest:
                raise Transfer(
                    f"the newest version of the weights {self.name!r} cannot be read, this "
                    f"process keeps {self._kept()}: {trouble}"
                )
            self._check_waiting(found, deadline)
            self._check_goes_on(is_over)
            moved.begin(f"the weights {self.name!r}: {found.why}")

    def _check_goes_on(self, is_over: threading.Event) -> None:
        self._check_open()
        if is_over.is_set():
            raise ValueError(f"this subscriber of {self.name!r} waits no longer")

    def _check_waiting(self, found: Waiting, deadline: Deadline) -> None:
        """Raise if a publisher has died, or the time is over."""
        if found.has_died:
            raise ActorDiedError(
                f"the weights {self.name!r} cannot be had: {found.why}. This process keeps "
                f"{self._kept()}. Publish them again under this name"
            )
        if deadline.expired:
            raise TimeoutError(
                f"the weights {self.name!r}: {found.why}; waited {deadline.timeout_s:g} s. This "
                f"process keeps {self._kept()}"
            )
        leave_dead(self.name, found.publishers, deadline)

    def _kept(self) -> str:
        return "no version" if self.version is None else f"version {self.version}"

    def _check_fits(self, publishers: Sequence[Member], but: Sequence[str] = ()) -> None:
        wants = {name: each for name, each in self._shards.items() if name not in but}
        problems = mismatches(publishers, wants)
        if problems:
            raise ValueError(f"the weights {self.name!r} do not fit:\n  " + "\n  ".join(problems))

    def _route_for(self, version: Version, deadline: Deadline, phases: _Phases) -> Route | None:
        """Return from whom to read what; None if the publishers are others by now."""
        if self._route is not None and self._route.publishers.keys() == version.keys.keys():
            return self._route
        publishers, readers = ask("members", self.name, within_s=limit_of(deadline))
        known = {each.id: each for each in (*publishers, *readers)}
        if not version.keys.keys() <= known.keys():
            return None
        publishers = [known[each] for each in version.keys]
        self._check_fits(publishers)
        ids = [each.id for each in readers]
        if self._member.id not in ids:  # another process thinks that this one is dead
            self._register()
            return None
        plan, ours = plan_of(publishers, readers, ids.index(self._member.id))
        copies = list(plan.copies(ours))
        phases.end("plan")
        self._route = None  # its memory is freed first
        targets = [self._memory[name] for name in self._shards]
        self._route = Route(publishers, copies, self._shards, targets, self._lookahead, self._tied)
        self._staged_bytes = self._own_bytes + self._route.staged_bytes
        phases.end("register")
        return self._route

    def _take_memory(self, tensors: Mapping[str, Any]) -> bool:
        """Have memory for what comes: the tensors' own, or some beside them.

        Returns whether it is new. It stays the same, unless the tensors are to be written to and
        lie elsewhere by now.
        """
        own = self._own(tensors)
        places = {name: _place_of(each) for name, each in own.items()}
        ties = {} if self._is_atomic else ties_of(tensors)
        if self._memory and (places, ties) == (self._places, self._tied):
            return False
        self._check_lookahead(tensors)
        sizes = self._staged_sizes({*own, *ties})
        starts = [0, *itertools.accumulate(map(padded, sizes))]
        whole = fresh_memory(starts[-1], "cpu")
        parted = ties if self._lookahead is None else self._shards  # these come part by part
        self._memory = {
            name: own.get(name, None if name in parted else whole[start : start + size])
            for name, start, size in zip(self._shards, starts, sizes, strict=False)
        }
        self._own_bytes = self._staged_bytes = starts[-1]
        self._places, self._tied, self._route = places, ties, None
        return True

    def _own(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the bytes of those tensors that are written to in place, by their names."""
        if self._is_atomic:
            return {}
        ties = ties_of(tensors)
        return {
            name: bytes_of(each.detach())
            for name, each in tensors.items()
            if is_plain(each) and name not in ties
        }

    def _staged_sizes(self, own: Container[str]) -> list[int]:
        """Return the bytes of each tensor that are held beside it, until all of a version is here.

        Args:
            own: The names of those that are written to in place.
        """
        return [
            0 if name in own or self._lookahead is not None else each.nbytes
            for name, each in self._shards.items()
        ]

    def _check_lookahead(self, tensors: Mapping[str, Any]) -> None:
        """Raise ValueError if the largest tensor that cannot be written in place does not fit."""
        if self._lookahead is None:
            return
        own = self._own(tensors)
        others = [name for name in tensors if name not in own]
        largest = max(others, key=lambda name: self._shards[name].nbytes, default=None)
        least = least_lookahead(0 if largest is None else self._shards[largest].nbytes)
        if self._lookahead < least:
            why = ""
            if least > least_lookahead(0):
                why = f": {largest} cannot be written to in place, and comes as a whole"
            raise ValueError(
                f"lookahead is at least {least} bytes here, got {self._lookahead}{why}"
            )

    def _move(
        self,
        version: Version,
        route: Route,
        tensors: Mapping[str, Any],
        came: Callable[[int], object],
        deadline: Deadline,
    ) -> _Lost | None:
        """Read a version; returns what of it is not there any more, if something is not.

        Raises:
            TimeoutError: A publisher does not answer in time.
            Transfer: It cannot be read.
        """
        with self._copying:  # what waits is overwritten now
            self._waits = None
        self._free()
        if not self._is_atomic:
            self._applied = _Held()
        pull = functools.partial(pull_slices, self._here.connections)
        pulls = route.read(pull, version.keys, tensors, came, deadline)
        what = f"{self.name} version {version.number}"
        self._here.got.extend(each for pull in pulls if (each := pull.got(what)) is not None)
        died = [each.member for each in pulls if each.has_died]
        leave_dead(self.name, died, deadline)
        withdrawn = [each for each in pulls if isinstance(each.problem, Withdrawn)]
        why = [f"{each.label} has died" for each in died] + [
            str(each.problem) for each in withdrawn
        ]
        lost = {each.id for each in died} | {each.member.id for each in withdrawn}
        problems = [each.problem for each in pulls if each.problem is not None]
        late = [each.why_late for each in pulls if each.why_late]
        pulls.clear()
        withdrawn.clear()
        if late and not lost:
            problems.clear()
            raise TimeoutError(
                f"the weights {self.name!r}: {late[0]}; waited {deadline.timeout_s:g} s for "
                f"version {version.number}. This process keeps {self._kept()}"
            )
        if problems and not lost:
            raise problems.pop(0)
        return _Lost(frozenset(version.keys[each] for each in lost), why[0]) if lost else None

    def _swap(self) -> None:
        """Write the version that waits, if there is one, to the tensors."""
        with self._copying:
            if self._waits is not None:
                self._write(self._tensors(), self._waits)
                self._waits = None

    def _write(self, tensors: Mapping[str, Any], newest: _Held) -> None:
        """Copy what was read into the tensors, which nobody reads.

        Raises:
            ValueError: A tensor was replaced after it was written to in place.
        """
        import torch

        own = self._own(tensors)
        moved = [name for name, each in own.items() if _place_of(each) != self._places.get(name)]
        if moved:
            raise ValueError(
                f"{', '.join(moved)} of the weights {self.name!r} got other memory while version "
                f"{newest.version} was read into what it had: call update() again"
            )
        if self._is_atomic:
            for name, (other, start) in ties_of(tensors).items():
                came = self._memory[name]
                check_tied(name, self._memory[other][start : start + came.numel()], came)
        self._applied = _Held()  # what an interrupt leaves is a mixture
        plain: dict[str, Any] = {}
        with torch.no_grad():
            for name, tensor in tensors.items():
                memory = self._memory[name]
                if name in own or memory is None:  # it is written to by now
                    torch.autograd.graph.increment_version(tensor)
                elif is_plain(tensor):
                    plain[name] = bytes_of(tensor.detach())
                    torch.autograd.graph.increment_version(tensor)
                else:
                    shape = [len(each) for each in self._shards[name].ranges]
                    tensor.copy_(memory.view(tensor.dtype).view(shape))
        here = places_of(list(plain.values()))
        peer_memory.copy(Spans(places_of([self._memory[name] for name in plain]), here))
        self._applied = newest


def _place_of(payload: Any) -> tuple[int, int]:
    """Return what tells where the bytes of a tensor lie: the address, and torch's storage."""
    return payload.data_ptr(), payload.untyped_storage()._cdata


def _lookahead_from_user(lookahead: object, atomic: bool) -> int | None:
    """Return ``lookahead`` as users give it.

    Raises:
        TypeError: It is no whole number.
        ValueError: The reader is atomic, which needs the memory of a whole version.
    """
    if lookahead is None:
        return None
    if isinstance(lookahead, bool) or not isinstance(lookahead, SupportsIndex):
        raise TypeError(f"lookahead is a number of bytes, or None for no limit, got {lookahead!r}")
    if atomic:
        raise ValueError(
            "lookahead bounds the memory of an update that writes to the tensors as a version "
            "comes: give atomic=False, too. With atomic=True an update needs the memory of a whole "
            "version"
        )
    return operator.index(lookahead)


def _check_writable(tensors: Mapping[str, Any]) -> None:
    """Raise ValueError for tensors that cannot get values."""
    wrong = [
        name
        for name, each in tensors.items()
        if each.is_inference()
        or any(step == 0 and size > 1 for step, size in zip(each.stride(), each.shape, strict=True))
    ]
    if wrong:
        raise ValueError(
            "these tensors cannot be written to, because they are expanded or of inference mode: "
            + ", ".join(wrong)
        )
