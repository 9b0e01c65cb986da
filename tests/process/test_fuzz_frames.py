# SPDX-License-Identifier: Apache-2.0
"""Shared memory that a broken peer wrote over: an error each time, never the death of a reader.

Each case is played in a second process, many in one; a case that ends the process, or that it does
not finish, is the one that fails. Damage comes in two kinds. Bytes that changed on their way must
be found out, and when they are put right the frame is still there. A writer that is *wrong*, with a
sum that says otherwise, may be believed, but never so that we read outside of our memory, or give
up a claim that we do not have.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rcg import _native
from tests.harness.board import BLOCK, BYTES, CLOSED, FAILURE, PICKLE, Board, Failed, Ring, sum_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60  # against a hang; nothing here takes a hundredth of it

# What `native/layout.h` draws at its top: where the fields are, and of what size.
FRAME = {
    "magic": (0, 4),
    "kind": (4, 4),
    "execution": (8, 8),
    "body_bytes": (16, 8),
    "data_bytes": (24, 8),
    "nbuffers": (32, 4),
    "body_block": (36, 4),
    "payload_bytes": (40, 8),
    "check": (48, 8),
}
DESC = {"arena": (0, 4), "block": (4, 4), "flags": (8, 4), "offset": (16, 8), "bytes": (24, 8)}
RING = {
    "index": (0, 4),
    "nslots": (4, 4),
    "slot_bytes": (8, 4),
    "nreaders": (12, 4),
    "writer": (16, 4),
    "seq": (64, 8),
    "cpu": (72, 4),
    "room_wanted": (128, 4),
}
READER = {"seq": (0, 8), "waiting": (8, 4), "member": (12, 4)}
BOARD = {
    "magic": (0, 4),
    "abi": (4, 4),
    "nmembers": (8, 4),
    "nrings": (12, 4),
    "size_bytes": (16, 8),
    "recorder_offset": (24, 8),
    "recorder_stride": (32, 8),
    "nevents": (40, 4),
    "claim_bits": (44, 4),
    "cap_bytes": (48, 8),
    "poison": (64, 4),
    "culprit": (68, 4),
    "used_bytes": (128, 8),
    "ledger_offset": (136, 8),
    "tray_offset": (144, 8),
    "ring_offset": (192, 8),
}
RECORDER = {"head": (0, 8), "since_ns": (64, 8), "op": (80, 4), "state": (84, 4), "ring": (88, 4)}
ARENA = {
    "magic": (0, 4),
    "owner": (4, 4),
    "claim_bits": (8, 4),
    "reserve_bytes": (16, 8),
    "nblocks": (64, 4),
    "frees": (128, 8),
}
BLOCKS = {
    "claims": (0, 8),
    "offset": (8, 8),
    "capacity": (16, 4),
    "committed": (20, 4),
    "execution": (24, 8),
}
HEADER_BYTES, DESC_BYTES, LINE, NO_BLOCK = 64, 32, 64, 2**32 - 1
ARENA_BLOCKS, ARENA_DATA = 192, 33 * 65_536


class Form(NamedTuple):
    """What a good frame contains."""

    kind: int
    data_bytes: int
    sizes: tuple[int, ...] = ()
    writable: int = 0
    parts: tuple[tuple[int, int], ...] = ()  # the kind of each, and how many buffers it has

    def data(self) -> bytes:
        """What stands in the frame before the buffers."""
        heads = [number for part in self.parts for number in part]
        return struct.pack(f"{len(heads)}I", *heads) if heads else contents(self.data_bytes, 7)


FORMS = {
    "bytes": Form(BYTES, 50),
    "failure": Form(FAILURE, 50),
    "small": Form(PICKLE, 50),
    "inline": Form(PICKLE, 50, (10, 20), 0b10),
    "blocks": Form(PICKLE, 0, (BLOCK, BLOCK)),
    "tensor": Form(PICKLE, 10, (BLOCK, 30), 0b11),
    "many": Form(PICKLE, 10, (30, BLOCK, 0, BLOCK, 5), 0b10010),
    "long bytes": Form(BYTES, 3000),
    "spilled": Form(PICKLE, 20_000),
    "spilled table": Form(PICKLE, 2000, (BLOCK, 30, BLOCK, 40)),
    "parts": Form(
        _native.KIND_PARTS,
        24,
        (10, 30, BLOCK, BLOCK, 7),
        0b01010,
        ((PICKLE, 1), (PICKLE, 1), (BYTES, 0)),
    ),
}
RINGS = (
    Ring(0, (1,), 4, 1024),  # what is damaged, where one reads it
    Ring(0, (1, 2), 4, 1024),  # and where two do
    Ring(0, (1,), 4, 1024),  # another one to the same reader
    Ring(1, (0,), 4, 1024),  # and back
)


def contents(size: int, seed: int) -> bytes:
    return random.Random(f"{size} {seed}").randbytes(size)


def value_of(data: Any, buffers: Any = ()) -> list[Any]:
    """Decode a frame without trusting it with anything."""
    return [data, *buffers]


def plain(value: Any) -> list[bytes]:
    """Read every byte of what was decoded."""
    found = []
    for part in value if type(value) is list else [value]:
        found += [b"failed", bytes(part.data)] if type(part) is Failed else [bytes(part)]
    return found


class Stage:
    """A board with three members, and a good frame of one form on its way to member 1."""

    def __init__(self, form: str, readers: int = 1) -> None:
        self.board = Board(3, RINGS, cap_bytes=1 << 24, reserve_bytes=1 << 24, events=16)
        self.sender, self.receiver = self.board.member(0), self.board.member(1)
        self.damaged_ring = readers - 1
        self.writer = self.sender.writer(self.damaged_ring, 0)
        kind, _, sizes, writable, parts = form_of = FORMS[form]
        self.nparts = max(1, len(parts))
        self.end = self.receiver.reader(self.damaged_ring, 0, value_of, Failed, self.nparts)
        self.other = self.sender.writer(2, 1), self.receiver.reader(2, 1, value_of, Failed)
        self.back = self.receiver.writer(3, 2), self.sender.reader(3, 2, value_of, Failed)
        self.third = self.board.member(2)
        self.writer.write(FAILURE, b"an earlier one")
        self.end.read(0)
        # Claims of ours that belong to another frame, for a wrong writer to name.
        self.other[0].write(PICKLE, b"", [contents(BLOCK, 99)])
        data = form_of.data()
        buffers = [contents(size, i) for i, size in enumerate(sizes)]
        self.writer.write(kind, data, buffers, writable)
        self.wanted = [data, *buffers] if kind != FAILURE else [b"failed", data]
        if parts:
            self.wanted = buffers

    # --- where things are

    def _ring(self, ring: int) -> int:
        (at,) = struct.unpack("<Q", os.pread(self.board.fd, 8, 192 + 8 * ring))
        return int(at)

    def _frame(self) -> int:
        readers = len(RINGS[self.damaged_ring].readers)
        return self._ring(self.damaged_ring) + 3 * LINE + readers * LINE + 1 * 1024

    def _body(self) -> tuple[int, int]:
        """The file and the place of the frame's table, as the sound header has it."""
        at = self._frame()
        (block,) = struct.unpack("<I", os.pread(self.board.fd, 4, at + 36))
        if block == NO_BLOCK:
            return self.board.fd, at + HEADER_BYTES
        entry = os.pread(self.board.arenas[0], 8, ARENA_BLOCKS + 32 * block + 8)
        return self.board.arenas[0], ARENA_DATA + int(struct.unpack("<Q", entry)[0])

    def place(self, target: list[Any]) -> tuple[int, int, int]:
        """Return file, offset and size of what is to be damaged."""
        what, *which, field = target
        fd = self.board.fd
        (recorders, stride) = struct.unpack("<QQ", os.pread(fd, 16, 24))
        match what:
            case "frame":
                return fd, self._frame() + FRAME[field][0], FRAME[field][1]
            case "desc":
                body, at = self.body
                return body, at + which[0] * DESC_BYTES + DESC[field][0], DESC[field][1]
            case "body":
                body, at = self.body
                return body, at + field, 1
            case "ring":
                return fd, self._ring(which[0]) + RING[field][0], RING[field][1]
            case "reader":
                at = self._ring(which[0]) + (3 + which[1]) * LINE
                return fd, at + READER[field][0], READER[field][1]
            case "board":
                return fd, BOARD[field][0], BOARD[field][1]
            case "doorbell":
                return fd, (192 + 8 * len(RINGS) + 63) // 64 * 64 + LINE * field, 4
            case "recorder":
                return fd, recorders + which[0] * stride + RECORDER[field][0], RECORDER[field][1]
            case "arena":
                return self.board.arenas[which[0]], ARENA[field][0], ARENA[field][1]
            case "block":
                at = ARENA_BLOCKS + 32 * which[1] + BLOCKS[field][0]
                return self.board.arenas[which[0]], at, BLOCKS[field][1]
        raise AssertionError(target)

    def damage(self, changes: list[list[Any]]) -> list[tuple[int, int, bytes]]:
        """Change the bytes; returns what puts them right, in order."""
        self.body = self._body()
        places = [(*self.place(target), how, number) for how, target, number in changes]
        undo = []
        for fd, at, size, how, number in places:
            before = os.pread(fd, size, at).ljust(size, b"\0")
            value = int.from_bytes(before, "little")
            value = {"set": number, "add": value + number, "xor": value ^ number}[how]
            os.pwrite(fd, (value % 256**size).to_bytes(size, "little"), at)
            undo.insert(0, (fd, at, before))
        return undo

    def sign(self) -> tuple[int, int, bytes]:
        """Give the frame the sum that its header and table should have."""
        at = self._frame()
        header = os.pread(self.board.fd, HEADER_BYTES, at)
        (count,) = struct.unpack_from("<I", header, 32)
        fd, table = self.body
        words = os.pread(fd, min(count, 10_000) * DESC_BYTES, table)
        check = sum_of(header, words[: len(words) // DESC_BYTES * DESC_BYTES])
        os.pwrite(self.board.fd, check.to_bytes(8, "little"), at + FRAME["check"][0])
        return self.board.fd, at + FRAME["check"][0], header[48:56]

    def claims(self) -> list[list[int]]:
        """Return, for each block of the sender, how many claims each member has."""
        count = self.sender.statistics()["blocks"]
        words = os.pread(self.board.arenas[0], 32 * count, ARENA_BLOCKS)
        return [list(word.to_bytes(8, "little")) for word, *_ in struct.iter_unpack("<4Q", words)]

    def close(self) -> None:
        self.board.close()


# --- what is played in the second process -------------------------------------------------------


def take(stage: Stage, how: str, timeout_ns: int = 0) -> Any:
    if how == "read":
        return decoded(stage.end.read(timeout_ns))
    if how == "take":
        return decoded(stage.end.take(timeout_ns))
    frames: tuple[dict[int, _native.Frame], ...] = tuple({} for _ in range(stage.nparts))
    into = frames if stage.nparts > 1 else frames[0]
    if how == "collect":
        stage.end.collect(into, stage.end.seq, timeout_ns)
    else:
        stage.end.collect_pending(into)
    found = [each.popitem()[1] for each in frames if each]
    assert len(found) in (0, stage.nparts)
    return (decoded(found) if stage.nparts > 1 else found[0].decode()) if found else None


def decoded(found: Any) -> Any:
    """Return a value, or the contents of all parts in one list."""
    if type(found) is _native.Frame:
        return found.decode()
    if type(found) is not list or not found or type(found[0]) is not _native.Frame:
        return found
    values = [frame.decode() for frame in found]
    return [part for value in values for part in (value if type(value) is list else [value])]


def restore(undo: list[tuple[int, int, bytes]]) -> None:
    for fd, at, before in undo:
        os.pwrite(fd, before, at)


def play_damage(form: str, readers: int, how: str, changes: list[list[Any]]) -> None:
    """Bytes that changed on their way are found out, and nothing is lost by it."""
    stage = Stage(form, readers)
    before, seq = stage.claims(), stage.end.seq
    undo = stage.damage(changes)
    is_same = all(os.pread(fd, len(was), at) == was for fd, at, was in undo)
    try:
        value = take(stage, how)
    except _native.Corrupt:
        assert not is_same
        assert (stage.end.seq, stage.claims()) == (seq, before)
        for attempt in ("read", "take", "collect"):
            with pytest.raises(_native.Corrupt):
                take(stage, attempt)
        assert plain(stage.other[1].read(0))[1] == contents(BLOCK, 99)
        restore(undo)
        value = take(stage, how)
    else:
        assert plain(stage.other[1].read(0))[1] == contents(BLOCK, 99)
        restore(undo)
    assert plain(value) == stage.wanted
    check_that_all_works(stage, value)
    del value
    assert not any(fields[1] for fields in stage.claims())
    stage.close()


def play_wrong_writer(form: str, readers: int, how: str, changes: list[list[Any]]) -> None:
    """A reader may believe a wrong writer, but the claims stay right."""
    stage = Stage(form, readers)
    before = stage.claims()
    stage.damage(changes)
    stage.sign()
    try:
        value = take(stage, how)
    except _native.Corrupt:
        assert stage.claims() == before
        assert plain(stage.other[1].read(0))[1] == contents(BLOCK, 99)
        check_that_all_works(stage, None)
    else:
        plain(value)
        with contextlib.suppress(_native.Corrupt):  # what it needs was named by the wrong frame
            plain(stage.other[1].read(0))
        sent = value if type(value) is list else []
        stage.back[0].write(PICKLE, b"", [v for v in sent if v and type(v) is not Failed])
        plain(stage.back[1].read(0))
        del value
    for then, now in zip(before, stage.claims(), strict=False):
        assert all(now[i] <= then[i] for i in range(8)), (then, now)
        assert now[2:] == then[2:]
    stage.close()


def check_that_all_works(stage: Stage, value: Any) -> None:
    """The same member's other rings go on, with blocks and with what was read."""
    for seed in range(3):
        stage.other[0].write(PICKLE, b"", [contents(BLOCK, seed)])
        assert plain(stage.other[1].read(0))[1] == contents(BLOCK, seed)
        parts = [part for part in value if part] if type(value) is list else []
        stage.back[0].write(PICKLE, b"back", parts)
        assert plain(stage.back[1].read(0)) == [b"back", *map(bytes, parts)]


# The possible errors after damage outside of frames.
ERRORS = (
    _native.Corrupt,
    _native.TimedOut,
    _native.NoMemory,
    _native.Poisoned,
    ValueError,  # the ring is not ours now
    IndexError,  # there is no such ring now
    OSError,  # no address space for what an arena now claims to be
)


def attempt(call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what a call returns, as a list, or an empty one after an error."""
    try:
        found = call(*arguments)
    except ERRORS:
        return []
    return found if type(found) is list else [found]


def look_at_everything(member: _native.Member) -> None:
    """Call what only looks, and open every ring."""
    for number in range(3):
        attempt(member.now, number)
        attempt(member.counters, number)
        for start in (0, 2**63):
            attempt(member.events, number, start)
    for number in range(len(RINGS) + 1):
        attempt(member.ring, number)
        for end in attempt(member.reader, number, 0, value_of, Failed):
            attempt(plain, attempt(end.read, 0))
            attempt(end.pending)
        for writer in attempt(member.writer, number, 0):
            attempt(writer.write, BYTES, bytes(3000), None, 0, 0)
    attempt(member.statistics)
    attempt(member.interrupt)
    attempt(member.wait_any, [], 0, 0)


def use_everything(stage: Stage) -> None:
    """Read, forward, write and give back, with what is open already."""
    value = attempt(take, stage, "read", 1_000_000)
    attempt(plain, value)
    buffers = [part for part in value if type(part) is not Failed]
    attempt(stage.back[0].write, PICKLE, b"", buffers, 0, 1_000_000)
    for _ in range(6):
        attempt(stage.other[0].write, PICKLE, b"", [contents(BLOCK, 1)], 0, 1_000_000)
    for end in (stage.other[1], stage.back[1]):
        attempt(plain, attempt(end.read, 1_000_000))
        attempt(end.collect, {}, end.seq, 1_000_000)
        attempt(end.collect_pending, {})
    for member in (stage.sender, stage.receiver):
        attempt(member.trim)
        attempt(member.forget, 2)


def play_anything(form: str, is_early: bool, changes: list[list[Any]]) -> None:
    """Whatever is written anywhere: errors, or a wait that poison ends."""
    stage = Stage(form)
    undo = stage.damage(changes)
    for member in (stage.receiver, stage.sender):
        look_at_everything(member)
    if is_early:  # it was damaged before these joined
        for number in (0, 1):
            for member in attempt(stage.board.member, number):
                look_at_everything(member)
    use_everything(stage)
    restore([entry for entry in undo if entry[0] == stage.board.fd and 64 <= entry[1] < 72])

    def wait(call: Callable[[], object]) -> None:
        with contextlib.suppress(*ERRORS):
            while True:
                call()

    threads = [
        threading.Thread(target=wait, args=(end.read,), daemon=True)
        for end in (stage.end, stage.back[1])
    ]
    for thread in threads:
        thread.start()
    stage.third.poison(CLOSED)
    for thread in threads:
        thread.join(PATIENCE_S / 2)
        assert not thread.is_alive(), "poison did not end a wait"
    stage.close()


PLAYS: dict[str, Callable[..., None]] = {
    "damage": play_damage,
    "wrong writer": play_wrong_writer,
    "anything": play_anything,
}


def serve() -> None:
    """Play the cases that come in by lines, one after the other."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # never outlive the test
    for line in sys.stdin:
        play, arguments = json.loads(line)
        try:
            PLAYS[play](**arguments)
            outcome = "well"
        except BaseException:  # noqa: BLE001 - sent to the process that asked
            outcome = traceback.format_exc()
        print(json.dumps(outcome), flush=True)


class Player:
    """A second process that plays cases, and a new one after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def play(self, play: str, **arguments: Any) -> None:
        """Play one case; fails if it went wrong, died or hangs."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from tests.process.test_fuzz_frames import serve; serve()"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([play, arguments]) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            if not ready:
                process.kill()
            self.close()
            how = f"ended the process: {process.returncode}" if ready else "did not end"
            pytest.fail(f"{play} {arguments} {how}")
        outcome = json.loads(line)
        assert outcome == "well", outcome

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    player = Player()
    yield player
    player.close()


# --- cases --------------------------------------------------------------------------------------

EDGES = sorted(
    {
        max(0, 2**power + more)
        for power in (0, 1, 4, 5, 6, 8, 10, 12, 16, 31, 32, 62, 63, 64)
        for more in (-64, -2, -1, 0, 1, 2)
    }
)
numbers = st.one_of(
    st.sampled_from(EDGES), st.integers(0, 16), st.integers(0, 2**64 - 1), st.integers(0, 2**17)
)
steps = st.one_of(
    st.integers(-2, 2), st.sampled_from([-4096, -64, -32, 32, 64, 4096, BLOCK, -BLOCK])
)


def changes_of(targets: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    """One change or a few, each of one field."""
    change = st.one_of(
        st.tuples(st.just("set"), targets, numbers),
        st.tuples(st.just("add"), targets, steps),
        st.tuples(st.just("xor"), targets, st.integers(0, 63).map(lambda bit: 1 << bit)),
    )
    return st.lists(change.map(list), min_size=1, max_size=3)


def target(what: str, fields: Any, *which: st.SearchStrategy[int]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(st.just(what), *which, st.sampled_from(sorted(fields))).map(list)


header_fields = target("frame", FRAME)
desc_fields = target("desc", DESC, st.integers(0, 4))
forms = st.sampled_from(sorted(FORMS))
with_table = st.sampled_from(sorted(name for name, form in FORMS.items() if form.sizes))
hows = st.sampled_from(["read", "take", "collect", "collect_pending"])
readers = st.sampled_from([1, 2])

anywhere = st.one_of(
    header_fields,
    desc_fields,
    target("ring", RING, st.integers(0, 3)),
    target("reader", READER, st.integers(0, 3), st.just(0)),
    target("board", BOARD),
    target("doorbell", range(3)),
    target("recorder", RECORDER, st.integers(0, 2)),
    target("arena", ARENA, st.integers(0, 2)),
    target("block", BLOCKS, st.integers(0, 1), st.integers(0, 4)),
)


@settings(max_examples=300)
@given(form=forms, readers=readers, how=hows, changes=changes_of(header_fields))
def test_a_damaged_header_is_found_out(player: Player, **case: Any) -> None:
    player.play("damage", **case)


@pytest.mark.full
@settings(max_examples=300)
@given(form=with_table, readers=readers, how=hows, data=st.data())
def test_a_damaged_table_is_found_out(
    player: Player, form: str, readers: int, how: str, data: st.DataObject
) -> None:
    fields = target("desc", DESC, st.integers(0, len(FORMS[form].sizes) - 1))
    changes = data.draw(changes_of(st.one_of(fields, header_fields)))
    player.play("damage", form=form, readers=readers, how=how, changes=changes)


@settings(max_examples=500)
@given(
    form=forms,
    readers=readers,
    how=hows,
    changes=changes_of(st.one_of(header_fields, desc_fields)),
)
@example(  # a claim of the frame that waits on another ring is named twice
    form="blocks",
    readers=1,
    how="read",
    changes=[["set", ["desc", 0, "block"], 0], ["set", ["desc", 1, "block"], 0]],
)
@example(form="blocks", readers=1, how="read", changes=[["set", ["frame", "body_block"], 0]])
@example(
    form="spilled table", readers=1, how="read", changes=[["set", ["frame", "nbuffers"], 2**32 - 1]]
)
def test_a_wrong_writer_harms_only_its_ring(player: Player, **case: Any) -> None:
    player.play("wrong writer", **case)


@pytest.mark.full
@settings(max_examples=200)
@given(form=forms, readers=readers, how=hows, data=st.data())
def test_bytes_that_changed_are_values_that_changed(
    player: Player, form: str, readers: int, how: str, data: st.DataObject
) -> None:
    """Contents carry no sum: they come as they are. Whatever they say, it is only bytes."""
    size = len(FORMS[form].sizes) * DESC_BYTES + min(900, FORMS[form].data_bytes)
    flips = st.tuples(
        st.just("xor"),
        st.tuples(st.just("body"), st.integers(0, max(0, size - 1))).map(list),
        st.integers(1, 255),
    )
    changes = data.draw(st.lists(flips.map(list), min_size=1, max_size=8))
    player.play("wrong writer", form=form, readers=readers, how=how, changes=changes)


@settings(max_examples=400)
@given(form=forms, is_early=st.booleans(), changes=changes_of(anywhere))
@example(  # there is no such block, and not even an entry for it
    form="spilled",
    is_early=False,
    changes=[["set", ["arena", 0, "nblocks"], NO_BLOCK], ["set", ["frame", "body_block"], 2**31]],
)
@example(  # behind the end of the file, where a mapping gives SIGBUS
    form="spilled", is_early=False, changes=[["add", ["block", 0, 1, "offset"], 1 << 22]]
)
@example(  # the owner's next frame would be written there
    form="blocks", is_early=False, changes=[["set", ["block", 0, 0, "offset"], 1 << 50]]
)
@example(form="small", is_early=True, changes=[["set", ["board", "nevents"], 0]])
def test_damage_anywhere_never_ends_a_process(player: Player, **case: Any) -> None:
    player.play("anything", **case)


def test_counters_that_cannot_be_are_errors_until_they_are_right() -> None:
    stage = Stage("small")
    calls: dict[str, Callable[[], object]] = {
        "writer": lambda: stage.writer.write(BYTES, b"x", None, 0, 0),
        "reader": lambda: stage.end.read(0),
    }
    for who, target, number in (
        ("writer", ["reader", 0, 0, "seq"], 100),
        ("writer", ["reader", 0, 0, "seq"], 2**64 - 9),
        ("reader", ["ring", 0, "seq"], 0),
        ("reader", ["ring", 0, "seq"], 2**63),
    ):
        with contextlib.suppress(_native.TimedOut):
            while True:  # until the ring is full, or empty
                calls[who]()
        undo = stage.damage([["set", target, number]])
        for _ in range(2):
            with pytest.raises(_native.Corrupt, match="ring 0"):
                calls[who]()
        restore(undo)
    stage.writer.write(PICKLE, b"", [contents(BLOCK, 5)], 0, 0)
    *_, last = (stage.end.read(0) for _ in range(stage.end.pending()))
    assert plain(last)[1] == contents(BLOCK, 5)
    stage.close()
