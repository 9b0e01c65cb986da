# SPDX-License-Identifier: Apache-2.0
"""The store of a process: the tensors that others may ask for, until nobody can any more.

An entry keeps the value's tensors, not copies: a process that gets them later sees what was
written to them meanwhile, as in Ray. Torch counts the writes to a tensor (``_version``; views share
it). The count is compared when a method of the actor ends, so that a warning can name it, and when
the tensor is sent.

The process that asked for the value says that it keeps it, and when nobody needs it any more
(``rcg.rdt.keeper``). If it ends, all that it kept is freed. What no process has said to keep within
two minutes is freed, too, and counted: the process that asked for it is gone.

Any thread. Freed entries are dropped outside of the lock, because dropping a tensor may run any
code.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rcg.errors import Transfer
from rcg.log import Log
from rcg.options import Deadline
from rcg.rdt.envelope import Contents
from rcg.rdt.parts import find_lost, tensors_in
from rcg.rdt.samples import Sample

_UNKEPT_S: Final = 120.0
_MOST_LOOKED_AT: Final = 64
_MOST_FREED_EARLY: Final = 10_000
_RESIZE: Final = "_rcg_resize"  # an attribute of torch's storages


class Versions:
    """Tensors, and how often each had been written to."""

    __slots__ = ("_tensors", "has_warned")

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._tensors = [(each, count) for each in tensors if (count := _count(each)) is not None]
        self.has_warned = False

    def find_written(self) -> Any:
        """Return a tensor that was written to since; None if there is none, or it was warned of."""
        tensor = None if self.has_warned else self._first_written()
        self.has_warned = self.has_warned or tensor is not None
        return tensor

    @property
    def is_written(self) -> bool:
        """Whether one was written to since."""
        return self._first_written() is not None

    def _first_written(self) -> Any:
        return next((each for each, count in self._tensors if each._version != count), None)


def warn_of_write(tensor: Any, entry: Entry, writer: Callable[..., Any] | None) -> None:
    """Warn that a tensor was written to, at the method that did."""
    code = getattr(writer, "__code__", None)
    by = "" if writer is None else f" by {writer.__qualname__}"
    text = (
        f"{entry.name} has a tensor of shape {list(tensor.shape)} that was written to{by} while a "
        "reference to it was alive: processes that get it from now on see what was written. "
        f"{entry.advice}"
    )
    if code is None:
        warnings.warn(text, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


def _count(tensor: Any) -> int | None:
    try:
        found = tensor._version
    except (AttributeError, RuntimeError):  # no tensor of torch's, or one of inference mode
        return None
    return found if isinstance(found, int) else None


_log = Log()

_BEFORE: Final = (
    "Call rcg.experimental.wait_tensor_freed(tensor) before its memory is freed or moved, or have "
    "the method return tensor.clone()"
)


@dataclass(slots=True)
class Entry:
    """The tensors of one object.

    Attributes:
        key: The object's id in this store.
        value: The value itself, for methods of this very process.
        contents: The value without its tensors.
        payloads: Their bytes: tensors of uint8 [n] over the same storages.
        transport: How they travel.
        name: What messages call the value: ``The value of Worker.make``.
        release: Cleans up after the object, when it is freed or replaced.
        versions: How often its tensors had been written to when it was made.
        memory: Where each payload lay when it was kept, as ``_memory_and_resize_of`` gives it.
        sample: What some of its bytes were then, of a value that is refused once it is written to.
        made_s: When it was made, in seconds of the monotonic clock.
        unkept_since_s: Since when nobody may have said to keep it; when it was made, at first.
        pulls: How often they were pulled.
        pullers: The stores of the processes that are getting them now.
        advice: What to do before the tensors are written to.
    """

    key: str
    value: Any
    contents: Contents
    payloads: Sequence[Any]
    transport: str
    name: str
    release: Callable[[], None] | None = None
    versions: Versions = field(init=False)
    memory: list[object] = field(init=False)
    sample: Sample | None = None
    unkept_since_s: float = field(init=False)
    made_s: float = field(default_factory=time.monotonic)
    pulls: int = 0
    pullers: list[str] = field(default_factory=list)
    advice: str = (
        "Call rcg.experimental.wait_tensor_freed(tensor) before writing, or return tensor.clone()"
    )

    def __post_init__(self) -> None:
        self.unkept_since_s = self.made_s
        # What a user's transport moves may be where `tensors_in` does not look.
        found = self.value if self.release is None else list(self.payloads)
        self.versions = Versions(tensors_in(found))
        if "torch" in sys.modules:
            _note_resizes()
        self.memory = self._memory_now()

    @property
    def size_bytes(self) -> int:
        """The bytes of the tensors."""
        return sum(self.contents.sizes)

    def lacks(self) -> str:
        """Return which tensor does not lie where it was when it was kept, and why; "" if all do.

        An actor may free, resize or move the storage of a tensor that it has returned. What such a
        storage has when it is as large as before is not known: torch fills it with nothing.
        """
        if self._memory_now() == self.memory:
            return ""
        lost = find_lost(self.value, self.payloads) or (
            "the storage of a tensor was resized since, or moved, and may have other numbers now"
        )
        return f"{self.name}: {lost}. {_BEFORE}"

    def check(self) -> None:
        """Raise Transfer if ``lacks`` finds a tensor."""
        lost = self.lacks()
        if lost:
            raise Transfer(lost)

    @property
    def is_written(self) -> bool:
        """Whether its tensors were written to, as far as can be known; see ``Sample``."""
        if self.lacks() or self.versions.is_written:  # a sample reads only memory that is there
            return True
        return self.sample is not None and self.sample.find_changed() is not None

    def _memory_now(self) -> list[object]:
        return list(map(_memory_and_resize_of, self.payloads))

    def holds(self, storage: int) -> bool:
        """Whether one of the tensors lies in this memory, given as ``memory_of`` does."""
        return storage in map(_memory_if_any, self.payloads)

    def clean_up(self) -> None:
        """Call what cleans up after the object; what that raises is logged."""
        if self.release is not None:
            try:
                self.release()
            except Exception:  # noqa: BLE001 - a user's class
                _log.exception("rcg: cleaning up after object %s failed", self.key)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store has done.

    Attributes:
        held: How many objects it holds.
        held_bytes: The bytes of their tensors.
        freed: How many were freed.
        unkept: How many of these because nobody said to keep them.
        pulls: How often tensors were pulled.
    """

    held: int
    held_bytes: int
    freed: int
    unkept: int
    pulls: int


def memory_of(thing: Any) -> int:
    """Return what tells the memory of a tensor, or another array, from that of others.

    A storage without memory, because it was freed, is known by the place of torch's object for it.
    """
    storage = getattr(thing, "untyped_storage", None)
    return id(thing) if storage is None else int(storage().data_ptr() or storage()._cdata)


def _memory_if_any(thing: Any) -> int:
    """As ``memory_of``; of a tensor that consists of others, such as a sparse one, its id."""
    try:
        return memory_of(thing)
    except (RuntimeError, NotImplementedError):
        return id(thing)


def _memory_and_resize_of(thing: Any) -> object:
    """Return the place and size of a tensor's storage, and what stands for its newest resize.

    Of what is no tensor of torch's, or has no storage, None.
    """
    try:
        storage = thing.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), getattr(storage, _RESIZE, None)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


@functools.cache
def _note_resizes() -> None:
    """Have torch note each resize of a storage on it, before its memory goes.

    The place of the memory does not tell: one that is freed and taken again may lie where it lay.
    FSDP and others resize by this method. Of what torch resizes in C++ (``Tensor.resize_``,
    compiled programs) only another place or size tells.
    """
    storages: Any = sys.modules["torch"].UntypedStorage
    resize = storages.resize_

    @functools.wraps(resize)
    def resize_(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, _RESIZE, object())
        return resize(self, *args, **kwargs)

    storages.resize_ = resize_


class Store:
    """The objects of one process.

    Args:
        key: The store's id.
        freed: Called with the bytes of tensors that are held here no more.

    Attributes:
        clients: The ids of those in this process that add and free objects by themselves.
    """

    def __init__(self, key: str, freed: Callable[[int], object] = bool) -> None:
        self.key: Final = key
        self.clients: Final[set[str]] = set()
        self._note_freed = freed
        self._entries: dict[str, Entry] = {}
        self._changed = threading.Condition()
        self._kept_by: dict[str, object] = {}  # also objects that are not made yet
        self._freed_early: dict[str, None] = {}  # the newest
        self._why_freed: dict[str, str] = {}  # where it is known, and the newest
        self._watched: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        self._freed = 0
        self._unkept = 0
        self._pulls = 0

    def add(self, entry: Entry) -> None:
        """Keep an object; one of the same id, of a call that was tried again, is replaced.

        One that was freed before it was made, because its call was cancelled, is not kept.
        """
        with self._changed:
            replaced = self._entries.pop(entry.key, None)
            if entry.key in self._freed_early:
                del self._freed_early[entry.key]
                self._freed += 1
                replaced = entry
            else:
                self._entries[entry.key] = entry
        if replaced is not None:
            replaced.clean_up()

    def keep(self, keys: Iterable[str], keeper: object) -> None:
        """Note that a process keeps objects, which may still be made."""
        with self._changed:
            self._kept_by.update(dict.fromkeys(keys, keeper))

    def keeper_ended(self, keeper: object, name: str) -> None:
        """Free all that a process kept, which errors call by this name."""
        with self._changed:
            keys = [key for key, each in self._kept_by.items() if each is keeper]
        self.free(keys, f"when {name}, which had asked for it, ended")

    def keeper_cut(self, keeper: object) -> None:
        """Note that the connection of a process has ended: it may say again what it keeps.

        What it kept is freed in two minutes if nobody says to keep it.
        """
        with self._changed:
            for key in [key for key, each in self._kept_by.items() if each is keeper]:
                del self._kept_by[key]
                if key in self._entries:
                    self._entries[key].unkept_since_s = time.monotonic()

    @contextlib.contextmanager
    def watching(self, check: Callable[[], None], end: Callable[[str], None]) -> Iterator[None]:
        """Have the keeper look now and then at tensors that are sent meanwhile.

        A transfer whose memory is freed may wait for ever: Gloo, to which the kernel says that it
        cannot read it, tells nobody.

        Args:
            check: Raises Transfer if the memory was freed.
            end: Ends the transfer; called with what ``check`` says, perhaps several times.
        """
        watched = check, end
        self._watched.append(watched)
        try:
            yield
        finally:
            self._watched.remove(watched)

    def look_at_transfers(self) -> None:
        """End transfers of tensors whose memory was freed."""
        for check, end in list(self._watched):
            try:
                check()
            except Transfer as lost:
                try:
                    end(str(lost))
                except Exception:  # noqa: BLE001 - no thread is left; the next look tries again
                    _log.exception("rcg: a transfer cannot be ended: %s", lost)

    def free_unkept(self) -> None:
        """Free objects that nobody has said to keep for too long."""
        before_s = time.monotonic() - _UNKEPT_S
        with self._changed:
            keys = [
                key
                for key, entry in self._entries.items()
                if entry.unkept_since_s < before_s and key not in self._kept_by
            ]
            self._unkept += len(keys)
        self.free(keys)

    @property
    def is_holding(self) -> bool:
        """Whether there is any object."""
        return bool(self._entries)

    def find(self, key: str) -> Entry | None:
        """Return an object; None if there is none, or it was freed."""
        return self._entries.get(key)

    def why_gone(self, key: str) -> str:
        """Return what became of an object that is not found."""
        text = f"its tensors are not there any more: object {key} was freed"
        why = self._why_freed.get(key)
        return f"{text}{', or the actor that made it has restarted' if why is None else f' {why}'}"

    def look_for_writes(self, writer: Callable[..., Any] | None) -> None:
        """Warn of tensors that were written to; called at the end of a method.

        Only the newest objects are looked at, so that a method costs the same however many there
        are. The others are looked at when they are pulled.

        Args:
            writer: The method; None for one of a graph.
        """
        with contextlib.suppress(RuntimeError):  # another thread added one, or freed one
            for entry in itertools.islice(reversed(self._entries.values()), _MOST_LOOKED_AT):
                tensor = entry.versions.find_written()
                if tensor is not None:
                    warn_of_write(tensor, entry, writer)

    def note_pulled(self, entry: Entry) -> None:
        """Note that somebody pulls an object: before it has it, so that it finds it counted."""
        tensor = entry.versions.find_written()
        if tensor is not None:
            warn_of_write(tensor, entry, None)
        with self._changed:
            entry.pulls += 1
            self._pulls += 1

    def has_tensor_in(self, storage: int) -> bool:
        """Whether an object has a tensor in a storage, given as ``memory_of`` does."""
        return any(each.holds(storage) for each in self.entries())

    def entries(self) -> list[Entry]:
        """Return the objects, the oldest first."""
        with self._changed:
            return list(self._entries.values())

    def free(self, keys: Iterable[str], why: str = "") -> None:
        """Free objects; those that are not there are left out.

        Args:
            keys: Their ids.
            why: When or why they are freed, which errors say.
        """
        with self._changed:
            dropped = []
            for key in keys:
                if why:
                    self._why_freed[key] = why
                self._kept_by.pop(key, None)
                entry = self._entries.pop(key, None)
                if entry is not None:
                    dropped.append(entry)
                else:
                    self._freed_early[key] = None
            while len(self._freed_early) > _MOST_FREED_EARLY:
                del self._freed_early[next(iter(self._freed_early))]
            while len(self._why_freed) > _MOST_FREED_EARLY:
                del self._why_freed[next(iter(self._why_freed))]
            entry = None
            self._freed += len(dropped)
            if dropped:
                self._changed.notify_all()
        size = sum(each.size_bytes for each in dropped)
        while dropped:
            dropped.pop().clean_up()
        self._note_freed(size)

    def wait_freed(
        self, storage: int, timeout_s: float | None, meanwhile: Callable[[list[Entry]], None]
    ) -> list[Entry]:
        """Wait until no object has a tensor in a storage; returns those that have when it gave up.

        Args:
            storage: Its memory, as ``memory_of`` gives it.
            timeout_s: How long; None for no limit.
            meanwhile: Called now and then with the objects that are waited for.
        """
        deadline = Deadline(timeout_s)
        turn_s = 0.5
        while True:
            with self._changed:
                found = [each for each in self._entries.values() if each.holds(storage)]
                if not found or deadline.expired:
                    return found
                left_s = deadline.remaining_s()
                is_news = self._changed.wait(turn_s if left_s is None else min(turn_s, left_s))
            if not is_news:
                meanwhile(found)
                turn_s = 5.0
            del found

    def describe(self, **more: Any) -> bytes:
        """Return what this process holds, and more about it, as JSON, for reports."""
        facts, now_s = self.facts(), time.monotonic()
        entries = [
            [
                *(each.key, each.transport, each.size_bytes, now_s - each.made_s, each.pulls),
                list(each.pullers),
            ]
            for each in self.entries()
        ]
        counts = [facts.held, facts.held_bytes, facts.freed, facts.unkept]
        found = {"pid": os.getpid(), "counts": counts, "entries": entries, **more}
        found["clients"] = list(self.clients)
        return json.dumps(found).encode()

    def facts(self) -> StoreFacts:
        """Return what it holds and has done."""
        with self._changed:
            size = sum(each.size_bytes for each in self._entries.values())
            return StoreFacts(len(self._entries), size, self._freed, self._unkept, self._pulls)
