# SPDX-License-Identifier: Apache-2.0
"""Publishing: a version is an object of this process's store, until it is waited for or replaced.

Its tensors are the publisher's own, not copies, where they can be read as they are. So they must
not be written to while a version is out: ``Publisher.wait`` says when every reader has it. From
then on, nobody reads it any more. With ``copy=True``, or where a tensor is of another type, on
another device or not contiguous, a version is a copy, which costs its memory and its time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rcg.errors import ActorDiedError
from rcg.frames import warn_user
from rcg.option_kinds import timeout_from_user
from rcg.options import Deadline
from rcg.rdt.connection import Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.process import Here, here
from rcg.rdt.store import Entry, Versions
from rcg.serialization.payloads import bytes_of
from rcg.text import bytes_text, plural
from rcg.threads import run_together
from rcg.weights.owner import Membership, Part, ask, new_id, until_known, waited_for
from rcg.weights.shards import Shard, Slice, Source, dtype_name
from rcg.wire.messages import AskHeld

_TURN_S: Final = 1.0  # between two looks at whether those who are waited for are alive
_LOOK_S: Final = 2.0  # for one that is looked at to answer
_MOST_AT_ONCE: Final = 16  # are looked at
_TRANSPORT: Final = "weights"  # in reports


class WeightsVersion(NamedTuple):
    """A version of published weights.

    Attributes:
        version: Its number.
        bytes: What this publisher has of it.
    """

    version: int
    bytes: int


class _Sizes(NamedTuple):
    """The contents of a version, for the store: nothing but the sizes of its tensors."""

    sizes: tuple[int, ...]
    devices: tuple[str, ...]

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the tensors' bytes."""
        return list(payloads)


def entry_of(
    key: str, name: str, version: int, payloads: Sequence[Any], watched: Sequence[Any] = ()
) -> Entry:
    """Return a version as an object of the store of this process.

    Args:
        key: Its id.
        name: Of the weights.
        version: Its number.
        payloads: The bytes of its tensors: of uint8 [n].
        watched: Tensors that nobody may write to while it is there.
    """
    sizes = tuple(each.numel() for each in payloads)
    devices = tuple(each.device.type for each in payloads)
    made = Entry(
        key=key,
        value=list(watched),
        contents=_Sizes(sizes, devices),
        payloads=payloads,
        transport=_TRANSPORT,
        name=f"Version {version} of the weights {name!r}",
        advice="Call wait(version) of its publisher before writing, or publish(copy=True)",
    )
    made.versions = Versions(watched)  # all of them: a store looks at the first of a value only
    return made


class Publisher:
    """Publishes versions of weights under a name; ``rcg.weights.publish`` makes it.

    Use it in a ``with``, or call ``close`` when no more versions come. Any thread; one call at a
    time.

    Args:
        name: The name.
        source: A model or a dict of tensors.
        shard: Which part of the whole each tensor is.
        dtype: The type of torch's in which floating-point tensors travel.
        names: Which tensors; None for all.
        copy: Whether a version is a copy.

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
        self.name = name
        self._how = dtype, copy
        self._staged = _staged(self._source.tensors(), *self._how)
        self._is_copy = len(self._staged) == len(self._source.shards)
        shards = {
            key: each._replace(dtype=dtype_name(self._staged[key].dtype))
            if key in self._staged
            else each
            for key, each in self._source.shards.items()
        }
        self._here = here()
        self._id = new_id()
        self._part = part_of(self._here, self._id, shards)
        self._part = self._part._replace(
            is_publisher=True, is_alone=shard is None and not self._source.is_split
        )
        self._newest: WeightsVersion | None = None
        self._entry: Entry | None = None
        self._keys: list[str] = []  # of the newest version in the store
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        freeing = functools.partial(self._here.store.free, self._keys)
        self._membership = Membership(self, name, self._id, freeing)
        try:
            self._register()
        except BaseException:
            self._membership.end()
            raise

    @property
    def version(self) -> int | None:
        """The newest version that was pushed; None before the first."""
        return None if self._newest is None else self._newest.version

    @property
    def bytes(self) -> int:
        """The bytes that this process publishes."""
        return sum(each.nbytes for each in self._part.shards.values())

    def push(self, step: int | None = None) -> WeightsVersion:
        """Publish what the tensors are now as a new version; returns at once.

        It can be read once every publisher of the name has pushed it. An earlier version cannot be
        read any more.

        Args:
            step: Its number, larger than the last one; None for the next.

        Raises:
            ValueError: The number is not larger than the last one.
            TypeError: It is no number.
        """
        with self._lock:
            self._check_open()
            number = self._next_number(step)
            tensors = self._source.tensors()
            self._withdraw()
            payloads = [bytes_of(each.detach()) for each in self._stage(tensors)]
            own = [each for key, each in tensors.items() if key not in self._staged]
            self._entry = entry_of(
                f"{self._id}-{next(self._numbers)}", self.name, number, payloads, own
            )
            self._keys[:] = [self._entry.key]
            self._here.store.keep(self._keys, self._id)
            self._here.store.add(self._entry)
            self._newest = WeightsVersion(number, self.bytes)
            self._tell()
            return self._newest

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
            ValueError: There is no such version.
        """
        deadline = Deadline(timeout_from_user(timeout, "timeout"))
        number = self._number_of(version)
        while True:
            left = self._pending(number, deadline)
            if not left:
                break
            if deadline.expired:
                raise TimeoutError(
                    f"version {number} of the weights {self.name!r} was not taken by "
                    f"{waited_for(left)} in {timeout:g} s: call update() there, or close()"
                )
            leave_dead(self.name, left)
        with self._lock:
            if not self._is_copy and self.version == number:
                self._withdraw()

    def close(self) -> None:
        """Publish no more; idempotent. The newest version cannot be read any more."""
        with self._lock:
            self._withdraw(tells=False)
        self._membership.end()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        count = plural(len(self._part.shards), "tensor")
        version = "no version yet" if self._newest is None else f"version {self.version}"
        state = version if not self._membership.is_over else "closed"
        return f"<Publisher of {self.name!r}: {count}, {bytes_text(self.bytes)}, {state}>"

    def _check_open(self) -> None:
        if self._membership.is_over:
            raise ValueError(f"this publisher of {self.name!r} is closed")

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

    def _pending(self, number: int, deadline: Deadline) -> list[Part]:
        """Return who does not have a version yet, after a while."""
        turn_s = turn_of(deadline)

        def call() -> Any:
            return ask("pending", self.name, self._id, number, turn_s)

        found: list[Part] = until_known(call, self._register)
        return found

    def _withdraw(self, *, tells: bool = True) -> None:
        """Let nobody read the newest version any more."""
        entry, self._entry = self._entry, None
        if entry is None:
            return
        written = entry.versions.find_written()
        self._here.store.free([entry.key])
        if written is not None:
            warn_user(
                f"{entry.name} has a tensor of shape {list(written.shape)} that was written to "
                f"while readers could still read it. {entry.advice}",
                UserWarning,
            )
        if tells:
            self._tell()

    def _stage(self, tensors: Mapping[str, Any]) -> list[Any]:
        """Return the tensors as they are read."""
        import torch

        others = {key: each for key, each in tensors.items() if key not in self._staged}
        self._staged |= _staged(others, *self._how)  # the model may have others by now
        with torch.no_grad():
            for key, memory in self._staged.items():
                memory.copy_(tensors[key])
        return [self._staged.get(key, each) for key, each in tensors.items()]

    def _register(self) -> None:
        """Tell the owner who this is, and which version it has."""
        self._check_open()  # another thread may wait for readers meanwhile
        while True:
            refused: Part | str = ask("publish", self.name, self._part)
            if not refused:
                break
            if isinstance(refused, str):
                others, _ = ask("parts", self.name)
                if leave_dead(self.name, others):
                    continue
                raise ValueError(f"the weights {self.name!r} cannot be published:\n  {refused}")
            if not leave_dead(self.name, [refused]):
                raise ValueError(
                    f"the weights {self.name!r} are published by {refused.label} already. Give "
                    "each publisher shard= if each has a part, or a copy, of the whole; or take "
                    "another name"
                )
        if self._newest is not None:
            self._tell(registers=False)

    def _tell(self, *, registers: bool = True) -> None:
        """Tell the owner of the newest version, and whether it may be read."""
        if self._newest is None:
            return
        key = "" if self._entry is None else self._entry.key
        number = self._newest.version

        def call() -> Any:
            return ask("push", self.name, self._id, number, key)

        if registers:
            until_known(call, self._register)
        else:
            call()


def _staged(tensors: Mapping[str, Any], dtype: Any, copy: bool) -> dict[str, Any]:
    """Return memory for those tensors that cannot be read as they are, by their names."""
    import torch

    found: dict[str, Any] = {}
    for key, tensor in tensors.items():
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        is_readable = tensor.is_cpu and tensor.is_contiguous() and not is_lazy(tensor)
        if copy or wanted != tensor.dtype or not is_readable:
            found[key] = torch.empty(tensor.shape, dtype=wanted)
    return found


def is_lazy(tensor: Any) -> bool:
    """Whether a tensor's memory is not its value: torch negates or conjugates when it is read."""
    return bool(tensor.is_conj() or tensor.is_neg())


def part_of(ours: Here, identity: str, shards: Mapping[str, Shard]) -> Part:
    """Return how this process presents itself to the owner."""
    holder = ours.holder_now()
    return Part(identity, holder.label, tuple(holder), dict(shards), pid=ours.pid)


def turn_of(deadline: Deadline) -> float:
    """Return how long to wait, in seconds, until the next look at who is alive."""
    left_s = deadline.remaining_s()
    return _TURN_S if left_s is None else min(_TURN_S, left_s)


def leave_dead(name: str, parts: Sequence[Part]) -> bool:
    """Report those that have died; returns whether there were any.

    Args:
        name: The name of the weights.
        parts: Publishers or readers of them.
    """
    died: list[Part] = []

    def look(part: Part) -> None:
        if not _lives(part):
            died.append(part)

    run_together([functools.partial(look, each) for each in parts], "rcg-weights", _MOST_AT_ONCE)
    for each in died:
        ask("leave", name, each.id, True)
    return bool(died)


def _lives(part: Part) -> bool:
    """Whether the process of a publisher or reader lives, as far as it says so now."""
    if part.pid == os.getpid() and part.address[1] == here().holder.key:
        return True
    try:
        with contextlib.closing(Connection(Holder(*part.address), "", _LOOK_S)) as connection:
            found = json.loads(connection.observe(lambda number: AskHeld(number=number)))
    except ActorDiedError:
        return False
    except Exception:  # noqa: BLE001 - it does not answer now: the next look tells
        return True
    return bool(found["pid"] == part.pid)  # another one: the actor was restarted
