# SPDX-License-Identifier: Apache-2.0
"""The segments of a graph made by hand, for tests below the runtime, and real second processes.

A script that is given to ``Board.run`` or ``Board.start`` runs in a process of its own and finds
there ``board`` (the same segments), everything this module exports, and ``argv``.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from rcg import _native
from rcg.channels.shm import RingWriter
from rcg.serialization import Codec, Failure, loads
from rcg.trace.model import Events
from rcg.trace.recorder import events_from

__all__ = [
    "BLOCK",
    "BROKEN",
    "BYTES",
    "CLOSED",
    "FAILURE",
    "PICKLE",
    "POLICIES",
    "Board",
    "Failed",
    "Ring",
    "buffers_of",
    "claimed",
    "events_of",
    "pattern",
    "reader",
    "reader_of",
    "until",
    "until_waiting",
    "writer_of",
]

ROOT = Path(__file__).parents[2]

PICKLE, BYTES, FAILURE = _native.KIND_PICKLE, _native.KIND_BYTES, _native.KIND_FAILURE
CLOSED, BROKEN = _native.POISON_CLOSED, _native.POISON_BROKEN
POLICIES = ("auto", "futex", "yield", "spin")
# Of a size that has a block of its own without a byte to spare.
BLOCK = 64 * 1024

_PR_SET_PDEATHSIG = 1  # a second process never outlives the test

# What `native/layout.h` draws at its top.
_HEADER = 192
_LINE = 64
_FRAME = struct.Struct("<IIQQQIIQQQ")
_DESC = struct.Struct("<IIIIQQ")
_KEYS = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
    0x589965CC75374CC3,
)


class Failed(NamedTuple):
    """What a reader of this module returns for a FAILURE frame."""

    data: Any


class Ring(NamedTuple):
    """One ring of a board."""

    writer: int = 0
    readers: tuple[int, ...] = (1,)
    slots: int = 4
    slot_bytes: int = 1024


class Frame(NamedTuple):
    """The header of a frame, for damaging it."""

    magic: int
    kind: int
    execution: int
    body_bytes: int
    data_bytes: int
    nbuffers: int
    body_block: int
    payload_bytes: int
    check: int
    body_stash: int


class Desc(NamedTuple):
    """Where one buffer of a frame lies, for damaging it."""

    arena: int
    block: int
    flags: int
    pad: int
    offset: int
    bytes: int


def buffers_of(data: bytes, buffers: Sequence[Any] = ()) -> list[Any]:
    """Decode a frame as the bare objects over its buffers."""
    return list(buffers)


def reader(
    member: _native.Member, ring: int = 0, decode: Callable[..., Any] = buffers_of
) -> _native.Reader:
    """Open the reading end of a ring; without `decode` it returns the list of buffers."""
    return member.reader(ring, 0, decode, Failed)


def events_of(member: _native.Member, number: int, start: int = 0) -> tuple[int, int, Events]:
    """What `Member.events` returns, with rows instead of bytes."""
    count, lost, records = member.events(number, start)
    return count, lost, events_from(records)


def pattern(size: int, seed: int = 0) -> bytes:
    """Return so many bytes, other ones for each seed."""
    return random.Random(f"{size} {seed}").randbytes(size)


def claimed(member: _native.Member) -> int:
    """Return the bytes of the member's blocks that a member holds or that are in a ring."""
    return int(member.statistics()["claimed_bytes"])


def until(condition: Callable[[], object]) -> None:
    """Wait until another thread or process has made it true; the test's timeout is the limit."""
    while not condition():
        os.sched_yield()


def until_waiting(observer: _native.Member, number: int) -> None:
    """Wait until the member with this number sleeps."""
    until(lambda: observer.now(number)[4] == _native.NOW_WAITING)


def _fold(a: int, b: int) -> int:
    product = a * b
    return product % 2**64 ^ product >> 64


def sum_of(header: bytes, table: bytes) -> int:
    """Return the sum that a frame carries of its header and its table of descriptors."""
    *words, _, stash = struct.unpack_from("<8Q", header)
    keys = _KEYS
    pairs = [words[i] ^ keys[i] for i in range(6)]
    pairs[5] ^= (stash << 32 | stash >> 32) % 2**64
    total = _fold(*pairs[:2]) ^ _fold(*pairs[2:4]) ^ _fold(*pairs[4:])
    for first, second, offset, size in struct.iter_unpack("<4Q", table):
        total = _fold(total ^ first, second ^ keys[6])
        total = _fold(total ^ offset, size ^ keys[7])
    return total


class Board:
    """Segments for `members` processes and the given rings."""

    def __init__(
        self,
        members: int = 2,
        rings: Sequence[Ring] = (Ring(),),
        *,
        cap_bytes: int = 1 << 28,
        reserve_bytes: int = 1 << 28,
        events: int = 256,
    ) -> None:
        self.fd = os.memfd_create("board")
        self.size = _native.format_board(
            self.fd, members, [tuple(r) for r in rings], events, cap_bytes
        )
        self.arenas: list[int] = []
        for number in range(members):
            self.arenas.append(os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            _native.format_arena(self.arenas[-1], number, members, reserve_bytes)

    @classmethod
    def attached(cls, fds: Sequence[int]) -> Board:
        """The board of another process, by its descriptors."""
        board = cls.__new__(cls)
        board.fd, *board.arenas = fds
        board.size = os.fstat(board.fd).st_size
        return board

    def member(self, number: int, **options: Any) -> _native.Member:
        """Join as this member; see ``_native.Member`` for the options."""
        return _native.Member(self.fd, self.arenas, number, **options)

    def close(self) -> None:
        """Close the descriptors; what is mapped stays."""
        for fd in (self.fd, *self.arenas):
            os.close(fd)

    # --- a second process

    def start(self, script: str, *argv: object, **options: Any) -> subprocess.Popen[str]:
        """Start a script in a process of its own; its stdin and stdout are pipes."""
        fds = [self.fd, *self.arenas]
        prelude = (
            "import ctypes, json, os, signal, sys, threading\n"
            f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)\n"
            "from rcg import _native\n"
            "from tests.harness.board import *\n"
            "fds, argv = json.loads(sys.argv[1])\n"
            "board = Board.attached(fds)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(script), json.dumps([fds, argv])],
            cwd=ROOT,
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, script: str, *argv: object) -> str:
        """Run a script to its end in a process of its own and return what it printed."""
        return finish(self.start(script, *argv))

    # --- bytes by hand

    def map(self) -> mmap.mmap:
        """Map the whole board."""
        return mmap.mmap(self.fd, self.size)

    def _slot(self, ring: int, seq: int) -> int:
        with self.map() as board:
            (at,) = struct.unpack_from("<Q", board, _HEADER + 8 * ring)
            _, slots, slot_bytes, readers = struct.unpack_from("<IIII", board, at)
        first: int = at + 3 * _LINE + readers * _LINE
        return first + (seq % slots) * slot_bytes

    def frame(self, ring: int = 0, seq: int = 0) -> Frame:
        """Return the header of a frame."""
        with self.map() as board:
            return Frame(*_FRAME.unpack_from(board, self._slot(ring, seq)))

    def set_frame(self, ring: int = 0, seq: int = 0, **changes: int) -> None:
        """Change fields in the header of a frame."""
        changed = self.frame(ring, seq)._replace(**changes)
        with self.map() as board:
            _FRAME.pack_into(board, self._slot(ring, seq), *changed)

    def sign(self, ring: int = 0, seq: int = 0) -> None:
        """Give a frame whose body lies in its slot the sum that its header and table should have.

        The frame then looks like a writer's mistake, not like damage.
        """
        at = self._slot(ring, seq)
        table = self.frame(ring, seq).nbuffers * _DESC.size
        with self.map() as board:
            body = board[at + _FRAME.size : at + _FRAME.size + table]
            check = sum_of(board[at : at + _FRAME.size], body)
        self.set_frame(ring, seq, check=check)

    def desc(self, index: int = 0, ring: int = 0, seq: int = 0) -> Desc:
        """Return the descriptor of a buffer in a frame whose body lies in its slot."""
        at = self._slot(ring, seq) + _FRAME.size + index * _DESC.size
        with self.map() as board:
            return Desc(*_DESC.unpack_from(board, at))

    def set_desc(self, index: int = 0, ring: int = 0, seq: int = 0, **changes: int) -> None:
        """Change fields of the descriptor of a buffer."""
        changed = self.desc(index, ring, seq)._replace(**changes)
        at = self._slot(ring, seq) + _FRAME.size + index * _DESC.size
        with self.map() as board:
            _DESC.pack_into(board, at, *changed)


def writer_of(member: _native.Member, ring: int, codec: Codec) -> RingWriter:
    """Return a member's writing end of a ring, which encodes."""
    return RingWriter(member.writer(ring, 0), SimpleNamespace(encode=codec.encode))


def reader_of(member: _native.Member, ring: int) -> _native.Reader:
    """Return a member's reading end of a ring, which decodes."""
    return member.reader(ring, 0, loads, Failure)


def finish(process: subprocess.Popen[str], text: str | None = None) -> str:
    """Wait for a process to end well and return what it printed."""
    out, _ = process.communicate(text)
    if process.returncode:
        raise AssertionError(f"the second process ended with {process.returncode}: {out}")
    return out
