# SPDX-License-Identifier: Apache-2.0
"""Locked memory: a device never copies from pages that the file does not have any more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.serialization import pinned
from rcg.serialization.pinned import Pins

PAGE = 4096
LARGE = 32 * PAGE  # above what is locked at all


class Arena:
    """Memory in pages, each with a number that changes when it is given back and claimed again."""

    def __init__(self, base: int, pages: int) -> None:
        self.base = base
        self.pages = list(range(pages))
        self.punches = 0
        self._next = pages

    def punch(self, first: int, count: int) -> None:
        self.punches += 1
        for page in range(first, first + count):
            self.pages[page] = self._next
            self._next += 1


class Lease(bytes):
    """A buffer over a block of an arena: ``count`` pages from ``first``."""

    arena: Arena
    first: int
    count: int

    @classmethod
    def of(cls, arena: Arena, first: int, count: int) -> Lease:
        made = cls(count * PAGE)
        made.arena, made.first, made.count = arena, first, count
        return made

    def block(self) -> tuple[int, int, int]:
        address = self.arena.base + self.first * PAGE
        return address, self.count * PAGE, self.arena.punches


class Device:
    """Locks pages as CUDA does: each once, and it keeps those that were there then."""

    def __init__(self, *arenas: Arena) -> None:
        self.arenas = arenas
        self.locked: dict[int, tuple[int, list[int]]] = {}
        self.calls = 0

    def _pages(self, address: int, size: int) -> list[int]:
        (arena,) = [
            each
            for each in self.arenas
            if each.base <= address < each.base + len(each.pages) * PAGE
        ]
        first = (address - arena.base) // PAGE
        return arena.pages[first : first + size // PAGE]

    def register(self, address: int, size: int) -> None:
        self.calls += 1
        for start, (length, _) in self.locked.items():
            assert start + length <= address or address + size <= start, "pages are locked twice"
        self.locked[address] = size, list(self._pages(address, size))

    def unregister(self, address: int) -> None:
        del self.locked[address]

    def check_copy(self, lease: Lease) -> None:
        """Copy a block: its pages are locked, and they are those that the file has now."""
        address, size, _ = lease.block()
        for start, (length, pages) in self.locked.items():
            if start <= address and address + size <= start + length:
                at = (address - start) // PAGE
                assert pages[at : at + lease.count] == self._pages(address, size), "stale pages"
                return
        raise AssertionError("not locked")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Pins]]:
    def pins_of(registrar: Any) -> Pins:
        monkeypatch.setitem(pinned.REGISTRARS, "some", lambda: registrar)
        return Pins("some", (Lease,))

    return pins_of


@given(st.integers(0, 100_000))
def test_whatever_happens_to_blocks_no_copy_is_stale_and_no_page_locked_twice(seed: int) -> None:
    """Blocks of two arenas are used again, give memory back, shrink, grow and become others."""
    rng = random.Random(seed)
    arenas = [Arena(base, 256) for base in (1 << 40, 1 << 41)]
    device = Device(*arenas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pinned.REGISTRARS, "some", lambda: device)
        pins = Pins("some", (Lease,))
        check_use(rng, arenas, device, pins)
    assert not device.locked


def check_use(rng: random.Random, arenas: list[Arena], device: Device, pins: Pins) -> None:
    blocks = [[(0, 64), (64, 64), (128, 64), (192, 64)] for _ in arenas]
    for _ in range(60):
        which = rng.randrange(2)
        arena, own = arenas[which], blocks[which]
        match rng.random():
            case chance if chance < 0.6:
                lease = Lease.of(arena, *rng.choice(own))
                pins.lock([lease, b"small", bytearray(LARGE)])
                device.check_copy(lease)
            case chance if chance < 0.8:
                first, count = rng.choice(own)
                arena.punch(first, count)
            case _:  # the addresses are divided anew, which gives the memory back first
                arena.punch(0, 256)
                cuts = sorted(rng.sample(range(1, 8), 3))
                edges = [0, *(32 * each for each in cuts), 256]
                own[:] = [(start, end - start) for start, end in itertools.pairwise(edges)]
    pins.close()


def test_a_block_that_is_used_again_stays_locked(use):
    arena = Arena(1 << 40, 64)
    device = Device(arena)
    pins = use(device)
    for _ in range(10):
        pins.lock([Lease.of(arena, 0, 32)])
    assert device.calls == 1
    arena.punch(32, 8)
    pins.lock([Lease.of(arena, 0, 32)])
    assert device.calls == 2
    pins.lock([Lease.of(arena, 0, 64)])  # it has grown
    assert device.calls == 3 and len(device.locked) == 1


def test_small_buffers_and_others_are_not_locked(use):
    arena = Arena(1 << 40, 64)
    device = Device(arena)
    use(device).lock([Lease.of(arena, 0, 16), b"x" * LARGE, bytearray(LARGE)])
    assert not device.calls


def test_what_cannot_be_locked_is_tried_once_and_nobody_is_bothered(use, caplog):
    class Refuses(Device):
        def register(self, address: int, size: int) -> None:
            self.calls += 1
            raise RuntimeError("status 2")

    arena = Arena(1 << 40, 64)
    device = Refuses(arena)
    pins = use(device)
    for _ in range(3):
        pins.lock([Lease.of(arena, 0, 32)])
    assert device.calls == 1
    pins.close()


def test_a_device_that_locks_nothing():
    pins = Pins("other", (Lease,))
    pins.lock([Lease.of(Arena(1 << 40, 64), 0, 32)])
    pins.close()


def test_closed_pins_lock_nothing_any_more(use):
    arena = Arena(1 << 40, 64)
    device = Device(arena)
    pins = use(device)
    pins.lock([Lease.of(arena, 0, 32)])
    pins.close()
    pins.lock([Lease.of(arena, 0, 32)])
    assert device.calls == 1 and not device.locked
