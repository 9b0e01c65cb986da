# SPDX-License-Identifier: Apache-2.0
"""Streams for the fake device, which find what a device with streams would do in the wrong order.

The fake device computes at once, so a stream that does not wait for another gives right numbers all
the same. What finds the mistake is a clock for each stream, which counts what was queued there, and
for each stream how much of every other is known to come before: waiting for an event passes that
on. A stream that reads memory must know its last write; one that writes, also the reads since then.
When a tensor dies, torch gives its memory out again: a stream that ``record_stream`` has not named
must not use it then.

It is the algorithm of vector clocks that race detectors use (FastTrack, PLDI 2009, without its
short forms), for streams instead of threads.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.harness import fake_device

_lock = threading.RLock()
_local = threading.local()
RACES: list[str] = []
"""What was found: a use of memory that another stream may not be done with."""


class Stream:
    """A queue of the fake device. ``cuda_stream`` is its number: 0 is the default stream."""

    def __init__(self, device: Any = None) -> None:
        with _lock:
            self.cuda_stream = len(_streams)
            _streams.append(self)
        self.clock: dict[int, int] = {self.cuda_stream: 1}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.cuda_stream == other.cuda_stream

    def __hash__(self) -> int:
        return self.cuda_stream

    def __repr__(self) -> str:
        return f"stream {self.cuda_stream}"

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        with _lock:
            for stream, count in event.clock.items():
                self.clock[stream] = max(count, self.clock.get(stream, 0))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """All of this stream is done, so it comes before what is queued later anywhere."""
        done = self.record_event()
        with _lock:
            for each in _streams:
                each.wait_event(done)


class Event:
    def __init__(self, **_: Any) -> None:
        self.clock: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        with _lock:
            self.clock = dict(stream.clock)
            stream.clock[stream.cuda_stream] += 1

    def query(self) -> bool:
        return True


_streams: list[Stream] = []
Stream()


def default_stream(device: Any = None) -> Stream:
    return _streams[0]


def current_stream(device: Any = None) -> Stream:
    return getattr(_local, "stream", _streams[0])


def set_stream(stream: Stream) -> None:
    _local.stream = stream


@dataclass
class Memory:
    """Who has used some memory: a stream, and the count of its clock then."""

    made_on: int
    size: int
    written: tuple[int, int] | None = None
    read: dict[int, int] = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)  # streams that torch knows of


# By the address of a storage of torch's, which several tensors share.
_memories: dict[int, Memory] = {}


def _memory_of(tensor: torch.Tensor) -> Memory:
    storage = tensor.untyped_storage()
    key = storage.data_ptr()
    if key not in _memories:
        _memories[key] = Memory(current_stream().cuda_stream, storage.nbytes())
        weakref.finalize(storage, _die, key, tuple(tensor.shape))
    return _memories[key]


def _die(key: int, shape: Sequence[int]) -> None:
    """Torch gives the memory to the next allocation on the stream on which it was made."""
    with _lock:
        memory = _memories.pop(key, None)
        if memory is None:
            return
        owner = _streams[memory.made_on]
        uses = dict(memory.read)
        if memory.written is not None:
            uses.setdefault(*memory.written)
        for stream, count in uses.items():
            if stream not in memory.recorded and owner.clock.get(stream, 0) < count:
                RACES.append(
                    f"a tensor of {list(shape)} dies while stream {stream} uses it, "
                    f"and its memory goes to stream {memory.made_on}"
                )


def use(tensor: Any, *, writes: bool, stream: Stream | None = None) -> None:
    """Queue a use of a tensor of the fake device."""
    if not fake_device.is_on_device(tensor) or not tensor.numel():
        return
    with _lock:
        _use(_memory_of(tensor), f"a tensor of {list(tensor.shape)}", writes, stream)


def use_at(address: int, writes: bool, stream: int) -> None:
    """Queue a use of memory of the fake device, as a library does that gets addresses."""
    with _lock:
        for start, memory in _memories.items():
            if start <= address < start + memory.size:
                _use(memory, f"{memory.size} bytes", writes, _streams[stream])
                return
        # Nothing has used it yet, so nothing can be wrong.


def _use(memory: Memory, what: str, writes: bool, stream: Stream | None) -> None:
    stream = stream or current_stream()
    seen = stream.clock
    others = dict(memory.read) if writes else {}
    if memory.written is not None:
        others[memory.written[0]] = max(memory.written[1], others.get(memory.written[0], 0))
    for other, count in others.items():
        if other != stream.cuda_stream and seen.get(other, 0) < count:
            word = "writes" if writes else "reads"
            RACES.append(f"{stream} {word} {what} that stream {other} uses")
    if writes:
        memory.written = (stream.cuda_stream, seen[stream.cuda_stream])
        memory.read.clear()
    else:
        memory.read[stream.cuda_stream] = seen[stream.cuda_stream]


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    if not fake_device.is_on_device(tensor):
        return _torchs(tensor, stream)
    with _lock:
        _memory_of(tensor).recorded.add(stream.cuda_stream)
    return None


_torchs = torch.Tensor.record_stream


def races() -> list[str]:
    """Return what was found, and begin anew."""
    with _lock:
        found = list(RACES)
        RACES.clear()
    return found


def install() -> None:
    """Give the fake device streams, in this process."""
    module = getattr(torch, fake_device.DEVICE)
    for made in (Stream, Event, default_stream, current_stream, set_stream):
        setattr(module, made.__name__, made)
    module.current_device = lambda: 0
    module.set_device = lambda index: None
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign,assignment]
    fake_device.on_use = use
    fake_device.on_wait = lambda: current_stream().synchronize()
