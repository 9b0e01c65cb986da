# SPDX-License-Identifier: Apache-2.0
"""Locked memory: a device never copies from pages that the file does not have any more."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg import _native
from rcg.channels.shm import BUFFER_TYPES
from rcg.serialization import pinned
from rcg.serialization.pinned import Pins
from tests.harness.board import PICKLE, Board, Failed, Ring, claimed, pattern
from tests.harness.locked_pages import CopyingDevice, is_possible

KB = 1024
MB = 1024 * KB

needs_vmsplice = pytest.mark.skipif(not is_possible(), reason="this kernel has no vmsplice")


class Reader:
    """A member that reads ring 0 as a loop does whose values are moved to a device.

    Attributes:
        device: Copies what arrives, from the pages that it has locked.
        was_locked: Whether each buffer of the newest frame lay in locked memory when it was copied.
    """

    def __init__(self, board: Board, number: int = 1, name: str = "some") -> None:
        self.device = device = CopyingDevice()
        pinned.REGISTRARS[name] = lambda: device
        self.pins = Pins(name, BUFFER_TYPES[:1])
        self.was_locked: list[bool] = []
        self.member = board.member(number)
        self._end = self.member.reader(0, 0, self._copied, Failed, 1, True)

    def _copied(self, data: bytes, buffers: Sequence[Any] = ()) -> list[bytes]:
        found = [self.device.copy_of(each) for each in self.pins.lock(buffers)]
        self.was_locked = [is_locked for _, is_locked in found]
        return [copied for copied, _ in found]

    def read(self) -> list[bytes]:
        return list(self._end.read(10**9))


@pytest.fixture(autouse=True)
def _no_registrar_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "REGISTRARS", dict(pinned.REGISTRARS))


def sent(writer: _native.Writer, *contents: bytes, tensors: int = -1) -> list[bytes]:
    """Write a frame of buffers; all of them are those of tensors, or those of the set bits."""
    every = (1 << len(contents)) - 1
    writer.write(PICKLE, b"", list(contents), tensors & every)
    return list(contents)


# --- with the pages of a real arena


@needs_vmsplice
def test_nothing_is_locked_any_more_once_locking_has_failed(boards: Any) -> None:
    board = boards()
    owner, reader = board.member(0), Reader(board)
    writer = owner.writer(0, 0)
    assert sent(writer, pattern(128 * KB, 1)) == reader.read()
    reader.device.refuses_to_lock = True
    assert sent(writer, pattern(256 * KB, 2)) == reader.read()
    assert not reader.device.locked
    for n in range(3):
        owner.trim()
        assert sent(writer, pattern(128 * KB, n)) == reader.read()
        assert reader.was_locked == [False]
    assert reader.device.calls == 2  # it is not tried again


@needs_vmsplice
def test_a_small_tensor_in_a_block_that_was_locked(boards: Any) -> None:
    board = boards(2, (Ring(), Ring()))
    owner, reader = board.member(0), Reader(board)
    writer, other = owner.writer(0, 0), owner.writer(1, 0)
    elsewhere = reader.member.reader(1, 0, lambda *_, **__: None, Failed)
    assert sent(writer, pattern(80 * KB, 1)) == reader.read()
    owner.trim()
    sent(other, pattern(80 * KB, 2))  # gives the block its memory again, unseen by the pins
    elsewhere.read(10**9)
    assert sent(writer, pattern(60 * KB, 3)) == reader.read()
    assert reader.was_locked == [False]
    assert not reader.device.locked


@needs_vmsplice
@pytest.mark.parametrize("is_tensor", [True, False])
def test_what_other_channels_bring_never_lies_in_locked_memory(
    boards: Any, is_tensor: bool
) -> None:
    """A method may copy it to a device by itself, where nothing checks that pages are the same."""
    board = boards(2, (Ring(), Ring()))
    owner, reader = board.member(0), Reader(board)
    device = reader.device
    copied: list[tuple[bytes, bool]] = []

    def decode(data: bytes, buffers: Sequence[Any] = ()) -> None:
        assert [each.block() for each in buffers] == [None]
        copied.extend(map(device.copy_of, buffers))

    end = reader.member.reader(1, 0, decode, Failed)
    other, writer = owner.writer(1, 0), owner.writer(0, 0)
    for n in range(3):
        assert sent(writer, pattern(128 * KB, n)) == reader.read()
        owner.trim()
        content = pattern(128 * KB, n + 10)
        sent(other, content, tensors=int(is_tensor))
        end.read(10**9)
        assert copied.pop() == (content, False)


@needs_vmsplice
def test_what_is_no_tensor_is_not_locked(boards: Any) -> None:
    """It stays where it is, and its mapping is read-only, which CUDA does not lock."""
    board = boards()
    writer, reader = board.member(0).writer(0, 0), Reader(board)
    for n in range(3):
        contents = [pattern(128 * KB, n), pattern(200 * KB, n), pattern(5 * KB, n)]
        assert sent(writer, *contents, tensors=0b010) == reader.read()
        assert reader.was_locked == [False, True, False]
    assert reader.device.calls == 1


@needs_vmsplice
def test_an_idle_reader_holds_no_memory_that_was_given_back(boards: Any) -> None:
    board = boards()
    owner, reader = board.member(0), Reader(board)
    writer = owner.writer(0, 0)
    assert sent(writer, pattern(128 * KB)) == reader.read()
    reader.pins.release()
    assert not reader.device.locked
    assert sent(writer, pattern(128 * KB, 1)) == reader.read()
    assert reader.was_locked == [True]


@needs_vmsplice
def test_one_arena_that_gave_memory_back_does_not_unlock_others(boards: Any) -> None:
    board = boards(3, (Ring(0, (1,)), Ring(2, (1,))))
    first, second, reader = board.member(0), board.member(2), Reader(board)
    writers = first.writer(0, 0), second.writer(1, 0)
    other = reader.member.reader(1, 0, reader._copied, Failed, 1, True)
    for n in range(4):
        assert sent(writers[0], pattern(128 * KB, n)) == reader.read()
        assert sent(writers[1], pattern(128 * KB, n)) == other.read(10**9)
        assert reader.was_locked == [True]
        first.trim()
    assert reader.device.calls == 4 + 1


@needs_vmsplice
def test_several_readers_copy_from_one_block_and_let_go_of_it(boards: Any) -> None:
    board = boards(4, (Ring(0, (1, 2, 3)),))
    owner = board.member(0)
    readers = [Reader(board, number, f"some{number}") for number in (1, 2, 3)]
    writer = owner.writer(0, 0)
    for n in range(5):
        contents = sent(writer, pattern(300 * KB, n))
        for reader in readers:
            assert claimed(owner) > 0
            assert reader.read() == contents
            assert reader.was_locked == [True]
        assert claimed(owner) == 0
    assert [reader.device.calls for reader in readers] == [1, 1, 1]
    assert owner.statistics()["blocks"] == 1


@needs_vmsplice
@given(st.integers(0, 100_000))
def test_no_copy_is_stale_whatever_becomes_of_the_memory(seed: int) -> None:
    """Sizes change, the cap is short, memory is given back by all, and locking may fail."""
    rng = random.Random(seed)
    board = Board(2, (Ring(0, (1,)), Ring(1, (0,))), cap_bytes=MB, reserve_bytes=2 * MB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinned, "REGISTRARS", dict(pinned.REGISTRARS))
        reader = Reader(board)
        owner = board.member(0)
        writer, back = owner.writer(0, 0), reader.member.writer(1, 0)
        answers = owner.reader(1, 0, lambda *_, **__: None, Failed)
        for n in range(40):
            match rng.random():
                case chance if chance < 0.7:
                    sizes = [rng.choice((40, 60, 80, 130, 250)) * KB for _ in range(1 + n % 2)]
                    contents = [pattern(size, n) for size in sizes]
                    assert sent(writer, *contents, tensors=rng.choice((1, 2, 3))) == reader.read()
                case chance if chance < 0.8:
                    owner.trim(rng.choice((0, 200 * KB)))
                case chance if chance < 0.9:  # another member needs memory, and takes it
                    sent(back, bytes(rng.choice((300, 900)) * KB))
                    answers.read(10**9)
                    reader.member.trim()
                case chance if chance < 0.95:
                    reader.pins.release()
                case _ if n > 25:
                    reader.device.refuses_to_lock = True
                    reader.device.refuses_to_unlock = seed % 2 == 0
        reader.device.refuses_to_unlock = False
        reader.pins.close()
        assert not reader.device.locked
    board.close()


# --- alone


class Lease(bytes):
    """A buffer over a block, of which ``block`` is the answer."""

    answer: tuple[int, int, int, int] | None = None

    def block(self) -> tuple[int, int, int, int] | None:
        return self.answer


def lease(address: int = 1 << 40, size: int = 128 * KB, punches: int = 0, arena: int = 0) -> Lease:
    made = Lease(size)
    made.answer = arena, address, size, punches
    return made


class Calls:
    """A registrar that lists what it is asked for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.failing: type[BaseException] | None = None

    def register(self, address: int, size: int) -> None:
        self.seen.append(("lock", address))
        if self.failing is not None:
            raise self.failing

    def unregister(self, address: int) -> None:
        self.seen.append(("unlock", address))


@pytest.fixture
def use() -> Iterator[Callable[[Any], Pins]]:
    def pins_of(registrar: Any) -> Pins:
        pinned.REGISTRARS["some"] = lambda: registrar
        return Pins("some", (Lease,))

    return pins_of


def test_a_block_that_has_more_memory_is_locked_anew(use: Any) -> None:
    calls = Calls()
    pins = use(calls)
    pins.lock([lease(size=128 * KB)])
    pins.lock([lease(size=128 * KB)])
    pins.lock([lease(size=256 * KB)])
    at = 1 << 40
    assert calls.seen == [("lock", at), ("unlock", at), ("lock", at)]


def test_a_registrar_is_asked_for_when_something_is_locked(use: Any) -> None:
    """That of CUDA imports torch."""
    made: list[Calls] = []

    def make() -> Calls:
        made.append(Calls())
        return made[-1]

    pinned.REGISTRARS["some"] = make
    pins = Pins("some", (Lease,))
    given: list[Any] = [lease(size=64 * KB), b"x" * MB, bytearray(MB), Lease(MB)]
    assert pins.lock(given) == given  # too small, or of no block
    pins.close()
    assert not made


def test_an_interrupt_leaves_nothing_locked_that_is_forgotten(use: Any) -> None:
    calls = Calls()
    pins = use(calls)
    calls.failing = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        pins.lock([lease()])
    pins.close()
    assert calls.seen == [("lock", 1 << 40), ("unlock", 1 << 40)]


def test_a_failure_is_noted_for_those_who_look_for_it(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    log = SimpleNamespace(debug=lambda text, *args: seen.append(text % args))
    monkeypatch.setattr(pinned, "_log", log)
    calls = Calls()
    pins = use(calls)
    calls.failing = RuntimeError
    for _ in range(3):
        pins.lock([lease()])
    (noted,) = seen
    assert "memory is not locked for some" in noted


def test_a_device_that_locks_nothing() -> None:
    pins = Pins("other", (Lease,))
    given = [lease()]
    assert pins.lock(given) is given
    pins.close()


def test_closed_pins_lock_nothing_any_more(use: Any) -> None:
    calls = Calls()
    pins = use(calls)
    pins.lock([lease()])
    pins.close()
    pins.lock([lease()])
    pins.close()
    assert [what for what, _ in calls.seen] == ["lock", "unlock"]


# --- CUDA


class FakeTorch:
    """The part of torch that is used, with CUDA's memory for the last error of a thread."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.last_error = 0
        self.cuda = SimpleNamespace(init=lambda: None, cudart=lambda: self)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        return self._ended(self.status)

    def cudaHostUnregister(self, address: int) -> int:
        return self._ended(713)

    def _ended(self, status: int) -> int:
        self.last_error = status or self.last_error
        return status

    def empty(self, size: int, device: str) -> FakeTorch:
        return self

    def fill_(self, value: int) -> None:
        found, self.last_error = self.last_error, 0
        if found:
            raise RuntimeError(f"CUDA error {found}")


@pytest.mark.parametrize("status", [1, 2, 712])
def test_a_failure_leaves_no_error_for_the_next_kernel(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch(status)
    monkeypatch.setitem(sys.modules, "torch", torch)
    pins = Pins("cuda", (Lease,))
    given = [lease()]
    assert pins.lock(given) is given
    assert torch.last_error == 0
    pins.close()


def test_memory_that_is_not_locked_is_unlocked_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt may come between what is noted and what is done."""
    torch = FakeTorch(0)
    monkeypatch.setitem(sys.modules, "torch", torch)
    pins = Pins("cuda", (Lease,))
    pins.lock([lease()])
    given = [lease(punches=1)]
    assert pins.lock(given) is given
    assert torch.last_error == 0
