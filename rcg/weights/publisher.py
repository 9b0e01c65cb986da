# SPDX-License-Identifier: Apache-2.0
"""Publishing: a version is an object of this process's store, until it is waited for or replaced.

Its tensors are the publisher's own, not copies, where they can be read as they are. So they must
not be written to while a version is out: ``Publisher.wait`` says when every reader has it. From
then on, nobody reads it any more. An optimizer of torch's that is about to write to them withdraws
it first; other writes are found when a reader has read (``rcg.rdt.samples``). With ``copy=True``,
or where a tensor is of another type, on another device or not contiguous, a version is a copy,
which costs its memory and its time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from rcg.callers import at_users_line
from rcg.errors import ActorDiedError, Transfer
from rcg.frames import warn_user
from rcg.option_kinds import timeout_from_user
from rcg.options import Deadline
from rcg.progress import Progress
from rcg.rdt.store import Entry, memory_of
from rcg.serialization.payloads import bytes_of
from rcg.weights.client import Client, Moved, ask, leave_dead, limit_of, turn_of
from rcg.weights.owner import Pending, waited_for
from rcg.weights.shards import Member, Slice, Source, dtype_name, is_plain

_BACK_S: Final = 60.0  # for other publishers to come back after a restart of the owner


class WeightsVersion(NamedTuple):
    """A version of published weights.

    Attributes:
        version: Its number.
        bytes: What this publisher has of it.
    """

    version: int
    bytes: int


class Publisher(Client):
    """Publishes versions of weights under a name; ``rcg.weights.publish`` makes it.

    Use it in a ``with``, or call ``close`` when no more versions come. Any thread; one call at a
    time.

    Attributes:
        name: The name.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        shard: Mapping[str, Slice] | None,
        dtype: Any,
        names: Iterable[str] | None,
        copy: bool,
    ) -> None:
        self._source = Source(source, shard, names)
        self._how = dtype, copy
        self._staged = _staged(self._source.tensors(), *self._how)
        self._is_copy = len(self._staged) == len(self._source.shards)
        shards = {
            key: each._replace(dtype=dtype_name(self._staged[key].dtype))
            if key in self._staged
            else each
            for key, each in self._source.shards.items()
        }
        is_alone = shard is None and not self._source.is_split
        spare = sum(each.nbytes for each in self._staged.values())
        super().__init__(name, shards, is_publisher=True, is_alone=is_alone, spare_bytes=spare)
        self._newest: WeightsVersion | None = None
        self._out: tuple[int | None, str] = None, ""  # the newest version, and its key if it is out
        try:
            self._register()
        except BaseException:
            self._ending.end()
            raise
        with _changing:
            _publishers.add(self)
        _watch_optimizers()

    @property
    def version(self) -> int | None:
        """The newest version that was pushed; None before the first."""
        return None if self._newest is None else self._newest.version

    @at_users_line
    def push(self, step: int | None = None) -> WeightsVersion:
        """Publish what the tensors are now as a new version; returns at once.

        It can be read once every publisher of the name has pushed it. An earlier version cannot be
        read any more.

        Args:
            step: Its number, larger than the last one; None for the next.

        Raises:
            ValueError: The number is not larger than the last one; or a tensor has another shape
                or type than it had, or has lost its memory.
            TypeError: It is no number.
        """
        with self._lock:
            self._check_open()
            number = self._next_number(step)
            tensors = self._source.tensors()
            self._withdraw()
            staged = self._stage(tensors)
            names = self._member.shards
            payloads = [bytes_of(staged[name].detach()) for name in names]
            own = {n: tensors[name] for n, name in enumerate(names) if name not in self._staged}
            self._keep(number, payloads, own)
            self._newest = WeightsVersion(number, self.bytes)
            self._tell()
            return self._newest

    @at_users_line
    def wait(
        self, version: WeightsVersion | int | None = None, timeout: float | None = None
    ) -> None:
        """Wait until every reader has a version: then its tensors may be written to.

        Readers that have ended, or have come after it was pushed, are not waited for. A version
        that was replaced by a newer one is not waited for, either. Unless it is a copy, it cannot
        be read here any more afterwards: who comes later reads it from readers that keep it, or
        waits for the next one.

        Args:
            version: As ``push`` returned it; None for the newest.
            timeout: Seconds; None sets no limit.

        Raises:
            TimeoutError: Somebody does not have it in time; who is in the text.
            ActorDiedError: A publisher has died, and nobody else has its part.
            Transfer: Somebody does not have it and cannot get it, because its tensors were written
                to.
            ValueError: There is no such version.
        """
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        number = self._number_of(version)
        with contextlib.closing(_Waited(f"version {number} of the weights {self.name!r}")) as shown:
            while True:
                found = self._pending(number, deadline)
                if not found.left and not found.lacks:
                    break
                about = f"version {number} of the weights {self.name!r}"
                if found.has_died:
                    raise ActorDiedError(f"{about} cannot be had: {found.lacks}")
                if deadline.expired:
                    raise TimeoutError(
                        f"{about} was not taken by {waited_for(found.left)} in {timeout:g} s: call "
                        f"{'update' if found.kind == 'readers' else 'push'}() there, or close()"
                        if found.left
                        else f"{about}: {found.lacks}; waited {timeout:g} s"
                    )
                if found.kind == "readers" and self._is_written(number):
                    late: list[Member] = self._ask("without")
                    if late:
                        raise Transfer(
                            f"{about} was written to before {waited_for(late)} had it: call wait() "
                            "before writing, or publish(copy=True)"
                        )
                leave_dead(self.name, found.left, deadline)
                shown.show(found)
        with self._lock:
            if not self._is_copy and self.version == number:
                self._withdraw()

    def close(self) -> None:
        """Publish no more; idempotent. The newest version cannot be read any more."""
        try:
            with self._lock:
                self._withdraw(tells=False)
        finally:  # a warning may be an error
            super().close()

    def __repr__(self) -> str:
        return f"<{self._describe(self.version)}>"

    def _next_number(self, step: int | None) -> int:
        newest = self.version
        if step is None:
            return 0 if newest is None else newest + 1
        if isinstance(step, bool) or not hasattr(type(step), "__index__"):
            raise TypeError(f"a version is a whole number, got {step!r}")
        number = step.__index__()
        if newest is not None and number <= newest:
            raise ValueError(
                f"version {number} of the weights {self.name!r} is not newer than version {newest}"
            )
        return number

    def _number_of(self, version: WeightsVersion | int | None) -> int:
        number = version.version if isinstance(version, WeightsVersion) else version
        newest = self.version
        if newest is None or (number is not None and number > newest):
            raise ValueError(f"version {number} of the weights {self.name!r} was not pushed")
        return newest if number is None else number

    def _pending(self, number: int, deadline: Deadline) -> Pending:
        """Return who does not have a version yet, after a while."""
        turn_s, within_s = turn_of(deadline), limit_of(deadline)
        found: Pending = self._ask("pending", number, turn_s, within_s=within_s)
        return found

    def _withdraw(self, *, tells: bool = True) -> None:
        """Let nobody read the newest version any more."""
        if not self._key:
            return
        entry = self._entry
        is_news = entry is not None and not entry.versions.has_warned and entry.is_written
        self._free()
        if entry is not None and is_news:
            warn_user(
                f"{entry.name} was written to while readers could still read it. {entry.advice}",
                UserWarning,
            )
        if tells:
            self._tell()

    def _is_written(self, number: int) -> bool:
        """Whether the newest version, if it is this one, was written to."""
        with self._lock:
            if not self._key or self.version != number:
                return False
            entry = self._entry
            return entry is None or entry.is_written

    @property
    def _entry(self) -> Entry | None:
        """The newest version in the store; None if it cannot be read any more."""
        return self._here.store.find(self._key)

    def before_step(self, optimizer: Any, storages: AbstractSet[int]) -> None:
        """Let nobody read the newest version if an optimizer is about to write to it.

        Readers that are at it find that out before they take it. The owner is not asked: a step
        waits for nobody, and a reader that asks for this version learns why it cannot have it.
        """
        entry = self._entry
        if entry is None or storages.isdisjoint(map(memory_of, entry.value)):
            return
        step = f"{type(optimizer).__name__}.step"
        self._here.store.free([entry.key], f"because {step} writes to its tensors")
        if not entry.versions.has_warned:
            entry.versions.has_warned = True
            warn_user(
                f"{entry.name} is withdrawn, because {step} writes to its tensors while readers "
                f"could still read it. {entry.advice}",
                UserWarning,
            )

    def _stage(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors as they are read, by their names."""
        import torch

        others = {key: each for key, each in tensors.items() if key not in self._staged}
        self._staged |= _staged(others, *self._how)  # the model may have others by now
        label, size = f"a copy of the weights {self.name!r}, MB", self._member.spare_bytes
        with torch.no_grad(), Moved(label, size) as moved:
            for key, memory in self._staged.items():
                memory.copy_(tensors[key])
                moved.came(memory.nbytes)
        return {key: self._staged.get(key, each) for key, each in tensors.items()}

    def _present(self) -> None:
        until_s = time.monotonic() + _BACK_S
        while refused := ask("publish", self.name, self._member, *self._out):
            others = ask("members", self.name)[0] if isinstance(refused, str) else refused
            if leave_dead(self.name, others):
                continue
            if isinstance(refused, str):
                raise ValueError(f"the weights {self.name!r} cannot be published:\n  {refused}")
            is_alone = self._member.is_alone or any(each.is_alone for each in others)
            if is_alone or time.monotonic() > until_s:
                raise ValueError(
                    f"the weights {self.name!r} are published by {waited_for(others)} already. "
                    "Give each publisher shard= if each has a part, or a copy, of the whole; or "
                    "take another name"
                    if is_alone
                    else f"the weights {self.name!r} cannot be published: {waited_for(others)} has "
                    "not come back since the actor that knows who publishes them was restarted"
                )

    def _tell(self) -> None:
        """Tell the owner of the newest version, and whether it may be read."""
        if self._newest is not None:
            self._out = self._newest.version, self._key
            self._ask("push", *self._out)


_publishers: Final[weakref.WeakSet[Publisher]] = weakref.WeakSet()
_changing: Final = threading.Lock()  # of the set, which no other thread may change meanwhile
os.register_at_fork(after_in_child=_publishers.clear)  # what its steps write to is its own


@functools.cache
def _watch_optimizers() -> None:
    """Have every step of an optimizer of torch's withdraw the versions that it writes to.

    For good: torch may be in a step of another thread, which must not see its hooks change.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Any, *_: object) -> None:
    if not _publishers:
        return
    storages: set[int] = set()
    for group in optimizer.param_groups:
        for each in group["params"]:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # it has no storage
                storages.add(memory_of(getattr(each, "_local_tensor", each)))  # of a DTensor
    with _changing:
        publishers = list(_publishers)
    for publisher in publishers:
        publisher.before_step(optimizer, storages)


class _Waited:
    """Shows how many readers have a version, of all, once that takes long; see ``rcg.progress``."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown: Progress[Any] | None = None
        self._about: tuple[str, int] | None = None  # publishers at first, then readers
        self._done = 0

    def show(self, found: Pending) -> None:
        """Show how many have it by now."""
        if self._shown is None or self._about != (found.kind, found.of):
            self.close()
            self._shown = Progress(found.of, f"{found.kind} that have {self._what}")
            self._about, self._done = (found.kind, found.of), 0
        done = max(self._done, found.of - len(found.left))
        self._shown.advance(done - self._done)
        self._done = done

    def close(self) -> None:
        """Take away what is shown."""
        if self._shown is not None:
            self._shown.close()


def _staged(tensors: Mapping[str, Any], dtype: Any, copy: bool) -> dict[str, Any]:
    """Return memory for those tensors that cannot be read as they are, by their names."""
    import torch

    found: dict[str, Any] = {}
    for key, tensor in tensors.items():
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        if copy or wanted != tensor.dtype or not is_plain(tensor):
            found[key] = torch.empty(tensor.shape, dtype=wanted)
    return found
