# SPDX-License-Identifier: Apache-2.0
"""A model of weights: random moves of publishers and readers in real processes.

What a reader has after an update is what was in the publishers' tensors when ``push`` of that
version returned, or the update raises an error of rcg. ``wait`` never returns while a reader lacks
the version, or a part of it is not there. No byte outside of a tensor changes.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import ray
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from ray.exceptions import RayActorError

import rcg
from rcg.weights import Slice, client
from tests.cluster.again import Pool
from tests.cluster.parties import UNUSUAL, WRITES, Party, Seen, numbers
from tests.cluster.stage import GUARD_S
from tests.cluster.trainers import part
from tests.harness.models import START_S, Journal, RunModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

COUNT, SPARES = 4, 2
SOON_S, SURE_S, OWNER_S = 0.2, 30.0, 12.0  # OWNER_S: more than a restart of the owner takes
LOOKAHEAD = 16 << 20
SHAPES = {
    "a": (8, 6),
    "b": (8, 6),
    "small": (4,),
    "n": (5,),
    "scalar": (),
    "none": (0, 3),
    "big": (600, 20),
}
WIDE = {"wide": (1_000_000,), "wider": (1000, 1000)}  # 4 MB each
_cases = itertools.count()


def blank(key: str, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.zeros(shape, dtype=torch.int64 if key == "n" else dtype)


@dataclass
class Publishes:
    """A publisher as it has to be."""

    who: int
    actor: int
    part: int
    keys: list[str]
    number: int | None = None  # that was pushed last
    is_readable: bool = False  # for certain, and has not been written to
    is_sure: bool = True  # the next push succeeds
    is_copy: bool = False  # its versions may be written to
    short: set[str] = field(default_factory=set)


@dataclass
class Reads:
    """A reader as it has to be."""

    who: int
    actor: int
    shard: dict[str, Slice | None]
    is_atomic: bool
    joined: int  # how many versions could be read by then
    has: int | None = None
    is_known: bool = True  # what is in its tensors
    is_sure: bool = True  # the next update succeeds, if there is a version
    short: set[str] = field(default_factory=set)
    is_updating: bool = False
    staged: int | None = None  # the version that is here, and not in its tensors yet
    may_hold: bool = False  # a version that could not be copied into its tensors

    @property
    def holds(self) -> int:
        """The newest version that is here for certain; -1 if there is none."""
        return max(-1 if each is None else each for each in (self.has, self.staged))


class Parties(Pool):
    """Processes that publish and read."""

    def __init__(self) -> None:
        super().__init__(rcg.remote(num_cpus=0)(Party), COUNT, SPARES)
        rcg.get([each.pid.remote() for each in self.actors], timeout=START_S)
        # As long as somebody publishes, the owner of the names does not end.
        self._anchor = rcg.weights.publish("anchor", {"w": torch.zeros(1)})

    def keep_owner(self) -> None:
        self._anchor.push()

    def close(self) -> None:
        self._anchor.close()
        super().close()


class WeightsModel(RuleBasedStateMachine):
    """Publishers and readers of one name."""

    pool: ClassVar[Parties]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model {next(_cases)}"
        self.journal = Journal()
        self.check, self.note = self.journal.check, self.journal.note
        self.ids = itertools.count()
        self.publishers: list[Publishes] = []
        self.readers: list[Reads] = []
        # By version, part and name: what was in the tensors when it was pushed.
        self.pushed: dict[int, dict[int, dict[str, Any]]] = {}
        self.order: list[int] = []  # of the versions that could be read
        self.whole: set[int] = set()  # that all publishers have pushed
        self.newest = 0
        self.owner_has_died = False
        self.seeds = itertools.count(1000, 50)

    # --- between the model and the actors

    def call(self, actor: int, method: str, *args: Any) -> Any:
        try:
            made = getattr(self.pool.actors[actor], method).remote(*args)
            return rcg.get(made, timeout=GUARD_S)
        except RayActorError as error:
            self.pool.kill(actor)
            self.check(False, f"actor {actor} died in {method}{args[:3]}: {error}")
        except rcg.exceptions.GetTimeoutError:
            self.pool.kill(actor)
            self.check(False, f"{method}{args[:3]} of actor {actor} hangs")

    def pick(self, data: Any, some: list[Any]) -> Any:
        return data.draw(st.sampled_from(some))

    # --- the oracle

    def expected(self, number: int, shard: dict[str, Slice | None]) -> dict[str, Any] | None:
        """The values of a version for a reader; None if a part was never pushed."""
        found = {}
        for key, wanted in shard.items():
            whole = blank(key, self.shapes[key], self.dtype or torch.float32)
            for at, parts in enumerate(self.parts):
                if key in parts:
                    value = self.pushed[number].get(at)
                    if value is None:
                        return None
                    part(whole, parts[key]).copy_(value[key])
            found[key] = part(whole, wanted)
        return found

    @property
    def readable(self) -> int | None:
        """The version that a reader gets for certain."""
        if {each.part for each in self.publishers} != set(range(len(self.parts))):
            return None
        numbers = {each.number if each.is_readable else None for each in self.publishers}
        return numbers.pop() if len(numbers) == 1 else None

    def look(self, reader: Reads, seen: Seen) -> None:
        """Check that what a reader has in its tensors is what it says that it has."""
        self.check(seen.version == reader.has, f"{reader} says that it has {seen.version}")
        if reader.has is not None and reader.is_known and not reader.short:
            right = self.expected(reader.has, reader.shard)
            self.check(right is not None, f"{reader} got version {reader.has}, which is not whole")
            assert right is not None
            wrong = [key for key in right if not torch.equal(right[key], seen.values[key])]
            self.check(not wrong, f"{reader}: {wrong} are not those of version {reader.has}")

    def hear(self, reader: Reads, seen: Seen) -> None:
        """Check what a call of a reader may say, whatever it does."""
        outcome = seen.outcome
        if outcome.error and not outcome.is_timeout and reader.staged is not None:
            reader.staged, reader.may_hold = None, True  # another one may have come in its place
        self.note(f"    -> {outcome.value} {outcome.error.splitlines()[:1]}")
        self.check(not seen.broken, f"bytes outside of tensors of {reader} changed: {seen.broken}")
        self.check(outcome.is_ours, f"{reader}: no error of rcg's: {outcome.error}")
        is_pushed = bool(outcome.error) or outcome.value in self.pushed
        self.check(is_pushed, f"{reader} got a version that nobody pushed")

    def see(self, reader: Reads, seen: Seen, before: int | None, *, is_sure: bool = True) -> None:
        """Check what a reader has after an update.

        Args:
            reader: The reader.
            seen: What it has.
            before: The version that it could get for certain all the time.
            is_sure: Whether the update has had the time for it.
        """
        self.hear(reader, seen)
        outcome = seen.outcome
        if outcome.error:
            reader.may_hold |= bool(reader.short) or not reader.is_sure
            is_due = before is not None and (reader.has is None or before > reader.has)
            is_due = is_due and is_sure and reader.is_sure and not reader.short
            self.check(not is_due, f"{reader} does not get version {before}: {outcome.error}")
            if not reader.is_atomic and seen.version is None:  # it had begun to write
                reader.is_known, reader.has = False, None
        else:
            self.check(not reader.short, f"{reader} has no room for {reader.short}, got a version")
            number = outcome.value
            self.check(
                reader.has is None or number > reader.has, f"{reader} got {number} once more"
            )
            reader.has, reader.is_known, reader.may_hold = number, True, False
            reader.staged = None
        self.look(reader, seen)

    # --- moves

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        self.pool.keep_owner()
        keys = data.draw(st.lists(st.sampled_from(list(SHAPES)), min_size=2, unique=True))
        if data.draw(st.integers(0, 4)) == 3:
            keys += list(WIDE)
        self.shapes = {key: {**SHAPES, **WIDE}[key] for key in keys}
        self.dtype = data.draw(st.sampled_from([None] * 5 + [torch.bfloat16]))
        self.may_kill = data.draw(st.integers(0, 9)) == 7
        self.may_kill_owner = data.draw(st.integers(0, 4)) == 3
        count = data.draw(st.integers(1, 3))
        parts: list[dict[str, Slice | None]] = [{} for _ in range(count)]
        for key, shape in self.shapes.items():
            if count == 1 or not shape or data.draw(st.integers(0, 3)) == 0:
                parts[data.draw(st.integers(0, count - 1))][key] = None
                continue
            dim = data.draw(st.integers(0, len(shape) - 1))
            cuts = sorted(data.draw(st.integers(0, shape[dim])) for _ in range(count - 1))
            for at, ends in enumerate(itertools.pairwise([0, *cuts, shape[dim]])):
                parts[at][key] = Slice(dim, *ends, shape[dim])
        self.parts = [each for each in parts if each]
        self.is_split = len(self.parts) > 1
        self.note(f"parts {self.parts}, dtype {self.dtype}, shapes {self.shapes}")
        if data.draw(st.integers(0, 2)):  # most cases begin in the middle
            for _ in self.parts:
                self.publish(data)
            for _ in range(data.draw(st.integers(1, 3))):
                self.subscribe(data)

    @property
    def missing(self) -> list[int]:
        """The parts that nobody publishes."""
        found = {each.part for each in self.publishers}
        return [at for at in range(len(self.parts)) if at not in found]

    @property
    def lacks_some(self) -> bool:
        """Whether others can know of a missing part: of a tensor that is published they lack some.

        Nobody knows of a tensor that only a missing part has, or misses one that has no rows.
        """
        known = {key for each in self.publishers for key in each.keys}
        return any(
            key in known and piece is not None and piece.start < piece.stop
            for at in self.missing
            for key, piece in self.parts[at].items()
        )

    @precondition(lambda self: self.missing)
    @rule(data=st.data())
    def publish(self, data: Any) -> None:
        actor, is_module = data.draw(st.integers(0, COUNT - 1)), data.draw(st.booleans())
        copy = data.draw(st.sampled_from([False, False, True]))
        at = self.missing[0]
        keys = self.parts[at]
        values = {
            key: part(numbers(next(self.seeds), blank(key, self.shapes[key], torch.float32)), piece)
            for key, piece in keys.items()
        }
        turned = data.draw(st.sets(st.sampled_from(list(keys)), max_size=1))
        shard = {key: piece for key, piece in keys.items() if piece} if self.is_split else None
        made = Publishes(next(self.ids), actor, at, list(keys))
        self.note(f"publish {made}, {turned=} {is_module=} {copy=}")
        found = self.call(
            *(actor, "publish", made.who, self.name, values, turned, is_module, shard),
            {"copy": copy, "dtype": self.dtype},
        )
        self.check(not found.error, f"it cannot be published: {found.error}")
        made.is_copy = copy or (self.dtype is not None and "n" not in keys)
        self.publishers.append(made)

    @precondition(lambda self: len(self.readers) < 5 and not self.missing)
    @rule(data=st.data())
    def subscribe(self, data: Any) -> None:
        actor, is_module = data.draw(st.integers(0, COUNT - 1)), data.draw(st.booleans())
        way = data.draw(st.sampled_from(["atomic", "atomic", "in place", "lookahead"]))
        names = data.draw(st.lists(st.sampled_from(list(self.shapes)), min_size=1, unique=True))
        shard: dict[str, Slice | None] = {}
        for key in names:
            shape = self.shapes[key]
            shard[key] = None
            if shape and data.draw(st.booleans()):
                dim = data.draw(st.integers(0, len(shape) - 1))
                ends = sorted(data.draw(st.integers(0, shape[dim])) for _ in range(2))
                shard[key] = Slice(dim, *ends, shape[dim])
        values = {
            key: part(blank(key, self.shapes[key], self.dtype or torch.float32), piece)
            for key, piece in shard.items()
        }
        turned = data.draw(st.sets(st.sampled_from(names), max_size=1))
        made = Reads(next(self.ids), actor, shard, way == "atomic", len(self.order))
        self.note(f"subscribe {made}, {turned=} {is_module=} {way}")
        options: dict[str, Any] = {"atomic": way == "atomic", "timeout": SURE_S}
        if way == "lookahead":
            options["lookahead"] = LOOKAHEAD
        pieces = {key: piece for key, piece in shard.items() if piece}
        found = self.call(
            actor, "subscribe", made.who, self.name, values, turned, is_module, pieces, options
        )
        self.check(not found.error, f"it cannot be read: {found.error}")
        self.readers.append(made)

    def push_one(self, publisher: Publishes, number: int, write: int | None) -> None:
        self.note(f"push {number} by {publisher.who}, {write=}")
        before, publisher.is_readable = publisher.number, False
        found, values = self.call(publisher.actor, "push", publisher.who, number, write)
        self.note(f"    -> {found.value} {found.error.splitlines()[:1]}")
        self.check(found.is_ours, f"no error of rcg's: {found.error}")
        if found.error:
            is_due = publisher.is_sure and not publisher.short
            self.check(not is_due, f"{publisher} cannot push: {found.error}")
            return
        self.check(not publisher.short, f"{publisher} pushed what has no room: {publisher.short}")
        self.check(before is None or number > before, "it pushed an old version")
        publisher.number, publisher.is_readable = number, True
        self.newest = max(self.newest, number)
        self.pushed.setdefault(number, {})[publisher.part] = values
        if not self.lacks_some and {each.number for each in self.publishers} == {number}:
            self.whole.add(number)
        if self.readable == number:
            self.order.append(number)

    @precondition(lambda self: self.publishers)
    @rule(data=st.data(), writes=st.booleans())
    def push(self, data: Any, writes: bool) -> None:
        """One publisher catches up with the newest version, or pushes the next one."""
        publisher = self.pick(data, self.publishers)
        is_late = self.newest and (publisher.number or 0) < self.newest
        is_new = publisher.part in self.pushed.get(self.newest, {})
        number = self.newest if is_late and not is_new else self.newest + 1
        self.push_one(publisher, number, next(self.seeds) if writes else None)

    @precondition(lambda self: self.publishers)
    @rule(writes=st.sampled_from([True, True, False]))
    def push_all(self, writes: bool) -> None:
        number = self.newest + 1
        for each in self.publishers:
            self.push_one(each, number, next(self.seeds) if writes else None)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def update(self, data: Any) -> None:
        reader = self.pick(data, self.readers)
        if reader.is_updating:
            return
        before = self.readable
        is_due = before is not None and (reader.has is None or before > reader.has)
        self.note(f"update {reader.who}, which has {reader.has} of {before}")
        timeout = SURE_S if is_due and reader.is_sure and not reader.short else SOON_S
        self.see(reader, self.call(reader.actor, "update", reader.who, timeout), before)

    @precondition(lambda self: any(each.is_atomic for each in self.readers))
    @rule(data=st.data())
    def update_beside_passes(self, data: Any) -> None:
        reader = self.pick(data, [each for each in self.readers if each.is_atomic])
        if reader.is_updating or reader.short:
            return
        before = self.readable
        self.note(f"update {reader.who} beside passes, which has {reader.has} of {before}")
        is_due = before is not None and (reader.has is None or before > reader.has)
        timeout = SURE_S if is_due and reader.is_sure else SOON_S
        seen, mixed = self.call(reader.actor, "update_beside_passes", reader.who, timeout)
        self.see(reader, seen, before)
        self.check(not mixed, f"{mixed} passes beside an update of {reader} saw two versions")

    @precondition(lambda self: any(each.is_atomic for each in self.readers))
    @rule(data=st.data())
    def stage(self, data: Any) -> None:
        """A version is read, and the tensors stay as they are."""
        reader = self.pick(data, [each for each in self.readers if each.is_atomic])
        if reader.is_updating or reader.short or not reader.is_sure:
            return
        before = self.readable
        is_due = before is not None and before > reader.holds
        self.note(f"stage at {reader.who}, which holds {reader.holds} of {before}")
        timeout = SURE_S if is_due else SOON_S
        seen = self.call(reader.actor, "stage", reader.who, timeout)
        self.hear(reader, seen)
        if seen.outcome.error:
            self.check(not is_due, f"{reader} does not get {before}: {seen.outcome.error}")
        else:
            self.check(seen.outcome.value > reader.holds, f"{reader} got an old version")
            reader.staged = seen.outcome.value
        self.look(reader, seen)

    @precondition(lambda self: any(each.staged is not None for each in self.readers))
    @rule(data=st.data())
    def apply(self, data: Any) -> None:
        reader = self.pick(data, [each for each in self.readers if each.staged is not None])
        if reader.is_updating:
            return
        self.note(f"apply {reader.staged} at {reader.who}")
        seen, staged = self.call(reader.actor, "apply", reader.who), reader.staged
        self.hear(reader, seen)
        if seen.outcome.error:
            self.check(reader.short, f"{reader} cannot apply: {seen.outcome.error}")
        else:
            self.check(not reader.short, f"{reader} has no room for {reader.short}")
            self.check(seen.outcome.value == staged, f"{reader} applied something else")
            reader.has, reader.is_known, reader.staged = staged, True, None
        self.look(reader, seen)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), stop=st.sampled_from(["before", "after"]))
    def begin_update(self, data: Any, stop: str) -> None:
        """A slow reader: it stops in the middle of an update."""
        reader = self.pick(data, self.readers)
        is_due = self.readable is not None and (reader.has is None or self.readable > reader.has)
        if reader.is_updating or not is_due or reader.short or not reader.is_sure:
            return
        self.note(f"begin an update of {reader.who}, stop {stop} reading {self.readable}")
        reader.is_updating = True
        self.call(reader.actor, "begin_update", reader.who, SURE_S, stop)

    @precondition(lambda self: any(each.is_updating for each in self.readers))
    @rule(data=st.data())
    def end_update(self, data: Any) -> None:
        self.end(self.pick(data, [each for each in self.readers if each.is_updating]))

    def end(self, reader: Reads) -> None:
        self.note(f"end the update of {reader.who}")
        if self.readable is None:  # what it waits for may not come
            if self.missing:
                return
            number = self.newest + 1
            for publisher in self.publishers:
                self.push_one(publisher, number, next(self.seeds))
        reader.is_updating = False
        seen = self.call(reader.actor, "end_update", reader.who)
        self.see(reader, seen, self.readable, is_sure=False)

    @precondition(lambda self: self.publishers)
    @rule(data=st.data())
    def wait(self, data: Any) -> None:
        publisher = self.pick(data, self.publishers)
        number = publisher.number
        if number is None or any(each.number and each.number > number for each in self.publishers):
            return
        is_whole = number in self.whole
        late = [
            each
            for each in self.readers
            if number in self.order[each.joined :] and each.holds < number
        ]
        lacking = [each.who for each in late if not each.may_hold]
        self.note(f"wait for {number} at {publisher.who}, {lacking=}, {is_whole=}")
        is_due = publisher.is_readable and (bool(lacking) or not is_whole)
        timeout = SOON_S if is_due else SURE_S
        is_open = any(each.is_updating or each.may_hold for each in self.readers)
        is_open = is_open or self.readable != number  # who lacks it cannot get it
        if not publisher.is_readable or is_open:
            timeout = SOON_S
        elif self.owner_has_died:
            timeout = OWNER_S
        found = self.call(publisher.actor, "wait", publisher.who, number, timeout)
        self.note(f"    -> {found.error.splitlines()[:1]}")
        self.check(found.is_ours, f"no error of rcg's: {found.error}")
        if not publisher.is_readable:
            return
        if found.error:
            self.check(is_due or timeout == SOON_S, f"wait does not return: {found.error}")
        else:
            self.check(is_whole, f"wait returned, but {number} is not whole")
            self.check(not lacking, f"wait returned, but {lacking} lack {number}")
            publisher.is_readable = publisher.is_copy

    @precondition(lambda self: self.publishers)
    @rule(data=st.data(), how=st.sampled_from(WRITES))
    def write(self, data: Any, how: str) -> None:
        """Write to tensors while a version of them may be out."""
        publisher = self.pick(data, self.publishers)
        self.note(f"write {how} at {publisher.who}")
        self.call(publisher.actor, "write", publisher.who, how, next(self.seeds))
        publisher.is_readable = publisher.is_readable and publisher.is_copy

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), how=st.sampled_from(WRITES))
    def scribble(self, data: Any, how: str) -> None:
        """A reader writes to its own tensors: others that read its version get the version."""
        reader = self.pick(data, self.readers)
        if reader.is_updating:
            return
        self.note(f"write {how} at reader {reader.who}")
        self.call(reader.actor, "write", reader.who, how, next(self.seeds))
        reader.is_known = False

    @precondition(lambda self: self.publishers or self.readers)
    @rule(data=st.data(), how=st.sampled_from(["assign", "move", "move"]), is_turned=st.booleans())
    def replace(self, data: Any, how: str, is_turned: bool) -> None:
        """Another tensor takes the place of one, as with ``model.weight = Parameter(...)``."""
        one = self.pick(data, [*self.publishers, *self.readers])
        if isinstance(one, Reads) and one.is_updating:
            return
        key = self.pick(data, one.keys if isinstance(one, Publishes) else list(one.shard))
        is_turned = is_turned and data.draw(st.integers(0, 3)) == 0
        self.note(f"replace {key} of {one.who}: {how}, {is_turned=}")
        self.call(one.actor, "replace", one.who, key, how, next(self.seeds), is_turned)
        if is_turned:
            one.is_sure = False
        one.short.discard(key)
        if isinstance(one, Reads):
            one.is_known = False

    @precondition(lambda self: any({"a", "b"} <= {*each.keys} for each in self.publishers))
    @rule(data=st.data())
    def tie(self, data: Any) -> None:
        one = self.pick(data, [each for each in self.publishers if {"a", "b"} <= {*each.keys}])
        pieces = self.parts[one.part]
        if one.short or pieces["a"] != pieces["b"]:
            return
        self.note(f"tie a to b at {one.who}")
        self.call(one.actor, "tie", one.who, "a", "b")

    @precondition(lambda self: self.publishers)
    @rule(data=st.data(), how=st.sampled_from(["type", "shape"]))
    def push_misfit(self, data: Any, how: str) -> None:
        publisher = self.pick(data, self.publishers)
        key = self.pick(data, publisher.keys)
        if publisher.short:
            return
        self.note(f"push at {publisher.who} with another {how} of {key}")
        found = self.call(publisher.actor, "push_misfit", publisher.who, key, how)
        self.note(f"    -> {found.error.splitlines()[:1]}")
        self.check(found.error and found.is_ours, f"another {how} of {key} was pushed: {found}")
        publisher.is_readable = False

    @precondition(lambda self: self.publishers or self.readers)
    @rule(data=st.data(), share=st.sampled_from([0, 0.0, 0.3, 1]))
    def resize(self, data: Any, share: float) -> None:
        """Free, shrink or regrow the storage of a tensor, as sleep modes and FSDP do."""
        one = self.pick(data, [*self.publishers, *self.readers])
        keys = one.keys if isinstance(one, Publishes) else list(one.shard)
        key = self.pick(data, keys)
        if not self.piece_size(one, key) or (isinstance(one, Reads) and one.is_updating):
            return
        self.note(f"resize {key} of {one.who} to {share}")
        if not self.call(one.actor, "resize", one.who, key, share):
            return
        (one.short.discard if share == 1 else one.short.add)(key)
        if isinstance(one, Reads):
            one.is_known = False
        else:
            one.is_readable = one.is_readable and one.is_copy

    def piece_size(self, one: Publishes | Reads, key: str) -> int:
        pieces = self.parts[one.part] if isinstance(one, Publishes) else one.shard
        return int(part(blank(key, self.shapes[key], torch.float32), pieces[key]).numel())

    @precondition(lambda self: self.publishers)
    @rule(actor=st.integers(0, COUNT - 1))
    def intrude(self, actor: int) -> None:
        """Nobody else can publish under the name."""
        self.note(f"publish the same at actor {actor}")
        whole = {key: blank(key, shape, torch.float32) for key, shape in self.shapes.items()}
        found = self.call(actor, "intrude", self.name, whole)
        self.check("ValueError" in found.error, f"another one took the name: {found}")

    @precondition(lambda self: self.publishers or self.readers)
    @rule(data=st.data())
    def close(self, data: Any) -> None:
        if data.draw(st.integers(0, 3)) != 2:
            return
        one = self.pick(data, [*self.publishers, *self.readers])
        if isinstance(one, Reads) and one.is_updating:
            return
        self.note(f"close {one.who}")
        broken = self.call(one.actor, "close", one.who)
        self.check(not broken, f"bytes outside of tensors of {one} changed: {broken}")
        self.remove(one)

    @rule(actor=st.integers(0, COUNT - 1), kind=st.sampled_from(UNUSUAL))
    def exchange(self, actor: int, kind: str) -> None:
        """Tensors of every kind arrive as they are, or are refused."""
        self.note(f"exchange {kind} at actor {actor}")
        found = self.call(actor, "exchange", f"{self.name} {kind}", kind)
        self.check(found.is_ours, f"no error of rcg's: {found.error}")
        self.check(found.error or found.value, f"{kind} arrived as something else")

    def remove(self, one: Publishes | Reads) -> None:
        (self.publishers if isinstance(one, Publishes) else self.readers).remove(one)

    @precondition(lambda self: self.may_kill)
    @rule(actor=st.integers(0, COUNT - 1))
    def kill(self, actor: int) -> None:
        self.may_kill = False
        self.note(f"kill actor {actor}")
        self.pool.kill(actor)
        for each in [*self.publishers, *self.readers]:
            if each.actor == actor:
                self.remove(each)

    @precondition(lambda self: self.may_kill_owner and self.publishers)
    @rule(lingers=st.booleans())
    def kill_owner(self, lingers: bool) -> None:
        self.may_kill_owner, self.owner_has_died = False, True
        self.note(f"kill the owner, {lingers=}")
        ray.kill(client.owner_handle(), no_restart=False)
        until_s = time.monotonic() + OWNER_S
        while lingers and time.monotonic() < until_s:  # until the readers are known again
            time.sleep(0.1)
            parties = rcg.weights.report().parties
            known = [each for each in parties if each.weights == self.name]
            if sum(not each.is_publisher for each in known) == len(self.readers):
                break

    def teardown(self) -> None:
        if not self.journal.failure and hasattr(self, "parts"):
            for each in self.readers:
                if each.is_updating:
                    self.end(each)
        left = [self.call(at, "leave") for at in range(COUNT)]
        if not self.journal.failure:
            self.note("close all")
            broken = [each for _, some in left for each in some]
            self.check(not broken, f"bytes outside of tensors changed: {broken}")
            held = [size for size, _ in left]
            self.check(not any(held), f"the actors still hold versions: {held} bytes")


@pytest.mark.full
def test_weights_are_those_of_their_version_or_an_error(run_model: RunModel) -> None:
    with contextlib.closing(Parties()) as pool:
        WeightsModel.pool = pool
        run_model(WeightsModel)
