# SPDX-License-Identifier: Apache-2.0
"""Rings and blocks against a model in plain Python: members who write, read, lend, hold, forward.

A held buffer never changes, however much is written meanwhile. When all is dropped, no member
claims a block.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rcg import _native
from tests.harness.board import BYTES, FAILURE, PICKLE, Board, Failed, Ring

CAP = 1 << 20
SLOTS = 2
SLOT_BYTES = 8 * 1024
# To both others from each, so that blocks come home, go on, and have several readers. The last one
# also reads what it writes itself, with the others and alone.
RINGS = [
    Ring(0, (1, 2), SLOTS, SLOT_BYTES),
    Ring(1, (2, 0), SLOTS, SLOT_BYTES),
    Ring(2, (0, 1, 2), SLOTS, SLOT_BYTES),
    Ring(0, (1,), SLOTS, SLOT_BYTES),
    Ring(1, (0,), SLOTS, SLOT_BYTES),
    Ring(2, (2,), SLOTS, SLOT_BYTES),
]
SIZES = (0, 1, 63, 4096, 4097, 8000, 16 * 1024, 40_000, 100_000, 250_000)
KEYS = [(i, number) for i, ring in enumerate(RINGS) for number in ring.readers]
sizes = st.sampled_from(SIZES)
members = st.integers(0, 2)
rings = st.integers(0, len(RINGS) - 1)
# Indices, not objects: hypothesis would keep those alive.
picks = st.integers(0, 1000)


@dataclass
class Held:
    """A buffer in the hands of a member, and what must be in it."""

    buffer: Any
    wanted: bytes
    is_sent: bool | None = None  # of a loan: whether it cannot be written to any more


@dataclass
class Message:
    """What a frame must contain."""

    kind: int
    data: bytes
    buffers: list[bytes]
    writable: int


def decode(data: Any, buffers: Any = ()) -> tuple[bytes, list[Any]]:
    return bytes(data), list(buffers)


class RingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.board = Board(3, RINGS, cap_bytes=CAP, reserve_bytes=16 * CAP)
        self.members = [self.board.member(number) for number in range(3)]
        self.writers = [self.members[r.writer].writer(i, 0) for i, r in enumerate(RINGS)]
        self.readers = {
            (i, number): self.members[number].reader(i, 0, decode, Failed) for i, number in KEYS
        }
        # The model.
        self.queues: dict[tuple[int, int], deque[Message]] = {key: deque() for key in self.readers}
        self.held: list[list[Held]] = [[], [], []]
        self.frames: list[tuple[int, Any, Message]] = []
        self.seed = 0

    def fresh(self, size: int) -> bytes:
        self.seed += 1
        return random.Random(self.seed).randbytes(size)

    def has_room(self, ring: int) -> bool:
        return all(len(self.queues[ring, number]) < SLOTS for number in RINGS[ring].readers)

    def publish(self, ring: int, message: Message, buffers: list[Any]) -> bool:
        """Write a frame, or see that nothing of it is written."""
        arguments = (message.kind, message.data, buffers or None, message.writable, 0)
        before = self.claims()
        if not self.has_room(ring):
            with pytest.raises(_native.TimedOut):
                self.writers[ring].write(*arguments)
            assert self.claims() == before
            return False
        try:
            self.writers[ring].write(*arguments)
        except _native.NoMemory:
            assert self.claims() == before
            return False
        for number in RINGS[ring].readers:
            self.queues[ring, number].append(message)
        return True

    def claims(self) -> list[int]:
        return [member.statistics()["claimed_bytes"] for member in self.members]

    # --- what members do; a pick chooses among what there is

    @rule(ring=rings, data=sizes, parts=st.lists(sizes, max_size=3), writable=st.integers(0, 7))
    def write(self, ring: int, data: int, parts: list[int], writable: int) -> None:
        buffers = [self.fresh(size) for size in parts]
        self.publish(ring, Message(PICKLE, self.fresh(data), buffers, writable), buffers)

    @rule(ring=rings, size=sizes, kind=st.sampled_from([BYTES, FAILURE]))
    def write_bytes_or_failure(self, ring: int, size: int, kind: int) -> None:
        self.publish(ring, Message(kind, self.fresh(size), [], 0), [])

    @rule(
        ring=rings,
        pick=picks,
        cut=st.sampled_from([(0, 0), (1, 0), (0, 1), (5000, 70)]),
        count=st.integers(1, 2),
        writable=st.integers(0, 3),
    )
    def forward(
        self, ring: int, pick: int, cut: tuple[int, int], count: int, writable: int
    ) -> None:
        """Send on a part of what is held, or of a loan."""
        hands = self.held[RINGS[ring].writer]
        if hands:
            held = hands[pick % len(hands)]
            part = slice(cut[0], len(held.wanted) - cut[1])
            view, wanted = memoryview(held.buffer)[part], held.wanted[part]
            message = Message(PICKLE, b"on", [wanted] * count, writable)
            is_written = self.publish(ring, message, [view] * count)
            if is_written and held.is_sent is False and len(wanted) > _native.INLINE_BUFFER:
                held.is_sent = True

    @rule(number=members, size=sizes)
    def lend(self, number: int, size: int) -> None:
        loan = self.members[number].loan(size)
        if loan is not None:
            wanted = self.fresh(size)
            memoryview(loan)[:] = wanted
            self.held[number].append(Held(loan, wanted, is_sent=False))

    @rule(pick=picks)
    def read(self, pick: int) -> None:
        key = KEYS[pick % len(KEYS)]
        queue, reader = self.queues[key], self.readers[key]
        assert reader.pending() == len(queue)
        if not queue:
            with pytest.raises(_native.TimedOut):
                reader.read(0)
            return
        self.receive(key[1], reader.read(0), queue.popleft())

    @rule(pick=picks)
    def take_undecoded(self, pick: int) -> None:
        key = KEYS[pick % len(KEYS)]
        if self.queues[key]:
            message = self.queues[key].popleft()
            self.frames.append((key[1], self.readers[key].take(0), message))

    @precondition(lambda self: self.frames)
    @rule(pick=picks, is_dropped=st.booleans())
    def decode_later(self, pick: int, is_dropped: bool) -> None:
        if self.frames:
            number, frame, message = self.frames.pop(pick % len(self.frames))
            if not is_dropped:
                self.receive(number, frame.decode(), message)

    def receive(self, number: int, found: Any, message: Message) -> None:
        if message.kind == BYTES:
            assert type(found) is bytes and found == message.data
        elif message.kind == FAILURE:
            assert type(found.data) is bytes and found.data == message.data
        else:
            data, buffers = found
            assert data == message.data and len(buffers) == len(message.buffers)
            for i, (buffer, wanted) in enumerate(zip(buffers, message.buffers, strict=True)):
                assert memoryview(buffer).readonly != bool(message.writable >> i & 1)
                self.held[number].append(Held(buffer, wanted))

    @rule(number=members, pick=picks)
    def drop(self, number: int, pick: int) -> None:
        if self.held[number]:
            self.held[number].pop(pick % len(self.held[number]))

    @rule(number=members, pick=picks)
    def change_what_is_writable(self, number: int, pick: int) -> None:
        """No other member may see it, even one that got the same bytes."""
        own = [held for held in self.held[number] if not memoryview(held.buffer).readonly]
        if own:
            held = own[pick % len(own)]
            held.wanted = self.fresh(len(held.wanted))
            memoryview(held.buffer)[:] = held.wanted

    @rule(number=members, keep=st.sampled_from([0, 0, 50_000, 10**9]))
    def trim(self, number: int, keep: int) -> None:
        member = self.members[number]
        before = member.statistics()
        given = member.trim(keep)
        after = member.statistics()
        assert before["committed_bytes"] - after["committed_bytes"] == given
        assert after["committed_bytes"] >= after["claimed_bytes"]
        assert after["committed_bytes"] <= max(after["claimed_bytes"] + keep, 0)

    # --- what holds

    @invariant()
    def what_is_held_never_changes(self) -> None:
        for held in self.held:
            for h in held:
                assert bytes(h.buffer) == h.wanted
                assert h.is_sent is None or memoryview(h.buffer).readonly == h.is_sent

    @invariant()
    def memory_is_accounted_for(self) -> None:
        statistics = [member.statistics() for member in self.members]
        used = sum(s["committed_bytes"] for s in statistics)
        assert {s["used_bytes"] for s in statistics} == {used}
        assert used <= CAP
        seen = [self.members[0].counters(number)[2] for number in range(3)]
        assert seen == [s["committed_bytes"] for s in statistics]
        assert self.members[0].survey(0, 0, 0)[0] == sum(self.claims())

    def teardown(self) -> None:
        for key, queue in self.queues.items():
            while queue:
                self.receive(key[1], self.readers[key].read(0), queue.popleft())
        self.what_is_held_never_changes()
        self.held.clear()
        self.frames.clear()
        assert self.claims() == [0, 0, 0]
        for member in self.members:
            member.trim()
        assert self.members[0].statistics()["used_bytes"] == 0
        self.board.close()


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=60)


@pytest.mark.parametrize("turn", range(2))
def test_a_long_life_under_pressure(dice: random.Random, turn: int) -> None:
    """The same moves by the thousand, reading and dropping a little more than writing."""
    machine = RingMachine()

    def size() -> int:
        return dice.choice(SIZES)

    def pick() -> int:
        return dice.randrange(10**6)

    moves: list[tuple[int, Callable[[], None]]] = [
        (4, lambda: machine.write(pick() % len(RINGS), size(), [size()], pick() % 4)),
        (1, lambda: machine.lend(pick() % 3, size())),
        (3, lambda: machine.forward(pick() % len(RINGS), pick(), (0, pick() % 3), 1, pick() % 2)),
        (7, lambda: machine.read(pick())),
        (2, lambda: machine.take_undecoded(pick())),
        (3, lambda: machine.decode_later(pick(), pick() % 5 == 0)),
        (8, lambda: machine.drop(pick() % 3, pick())),
        (1, lambda: machine.change_what_is_writable(pick() % 3, pick())),
        (1, lambda: machine.trim(pick() % 3, dice.choice([0, CAP]))),
    ]
    weights = [weight for weight, _ in moves]
    for step in range(3000):
        dice.choices(moves, weights)[0][1]()
        if not step % 100:
            machine.what_is_held_never_changes()
            machine.memory_is_accounted_for()
    assert all(member.statistics()["blocks"] < 500 for member in machine.members)
    machine.teardown()
