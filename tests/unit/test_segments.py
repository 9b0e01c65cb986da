# SPDX-License-Identifier: Apache-2.0
"""The shared memory of a graph: who gets what, and that nothing is left of it."""

from __future__ import annotations

import fcntl
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from rcg import _native
from rcg.errors import OutOfSharedMemory
from rcg.ir.channels import MOST_SLOTS, ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.runtime.node.memory import SMALLEST_USEFUL_SHM, Segments, addresses_for, default_memory_cap
from tests.harness.board import BLOCK, BYTES, PICKLE, Board, Ring, claimed, pattern, reader
from tests.harness.places import plan_without_ops

ACTORS = ("a0", "a1", "a2")
LINE = (
    ChannelSpec("c0", DRIVER, ("a0",), "ring", (0,), 10),
    ChannelSpec("c1", "a0", ("a1", "a2"), "ring", (1,), 10),
)


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_a_process_takes_blocks_only_from_those_that_may_reach_it() -> None:
    plan = plan_without_ops(ACTORS, *LINE)
    segments = Segments(plan, cap_bytes=1 << 20)
    names = (DRIVER, "a0", "a1", "a2")
    sources = segments.layout.memory_sources
    assert sources == {DRIVER: 0b0001, "a0": 0b0011, "a1": 0b0111, "a2": 0b1011}
    members = {
        process: _native.Member(segments.board, segments.arenas, number, reach=sources[process])
        for number, process in enumerate(names)
    }
    members["a0"].writer(1, 0).write(PICKLE, b"", [pattern(BLOCK)])
    for process in ("a1", "a2"):
        (held,) = reader(members[process], 1).read(0)
        assert bytes(held) == pattern(BLOCK)
    closed = _native.Member(segments.board, segments.arenas, 2, reach=0b0101)
    members["a0"].writer(1, 0).write(PICKLE, b"", [pattern(BLOCK)])
    with pytest.raises(_native.Corrupt, match="a block that is not there"):
        reader(closed, 1).read(0)
    del held
    segments.close()


def test_closing_twice_leaves_nothing_and_what_is_mapped_stays() -> None:
    before = open_files()
    plan = plan_without_ops(ACTORS, *LINE)
    segments = Segments(plan, cap_bytes=1 << 20)
    member = _native.Member(segments.board, segments.arenas, 0)
    segments.close()
    segments.close()
    member.writer(0, 0).write(BYTES, b"still there")
    assert member.ring(0) == (1, [0])
    del member
    assert open_files() == before


def test_segments_have_no_name_and_die_with_an_exec() -> None:
    names = sorted(os.listdir("/dev/shm"))
    segments = Segments(plan_without_ops(ACTORS, *LINE), cap_bytes=1 << 20)
    assert sorted(os.listdir("/dev/shm")) == names
    for fd in (segments.board, *segments.arenas):
        assert os.fstat(fd).st_nlink == 0
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    segments.close()


def test_no_room_for_the_rings_is_said_and_leaves_nothing() -> None:
    before = open_files()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(OutOfSharedMemory, match="no room in shared memory") as caught:
            Segments(plan_without_ops(ACTORS, *LINE), cap_bytes=1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.cap_bytes == 1 << 20
    assert isinstance(caught.value.__cause__, OSError)
    assert open_files() == before


@pytest.mark.parametrize("frames", [1, 2, 3, 10, 16, 17, MOST_SLOTS])
def test_a_ring_holds_as_many_frames_as_its_channel(frames: int) -> None:
    segments = Segments(plan_without_ops(ACTORS, replace(LINE[0], slots=frames)), cap_bytes=1 << 20)
    member = _native.Member(segments.board, segments.arenas, 0)
    writer = member.writer(0, 0)
    for _ in range(frames):
        writer.write(PICKLE, b"", [], 0, 0)
    room = 1 << max(1, (frames - 1).bit_length())  # a power of two
    for _ in range(room - frames):
        writer.write(PICKLE, b"", [], 0, 0)
    with pytest.raises(_native.TimedOut):
        writer.write(PICKLE, b"", [], 0, 0)
    segments.close()


def test_the_cap_is_a_share_of_what_there_is() -> None:
    cap = default_memory_cap()
    found = os.statvfs("/dev/shm")
    assert cap >= 64 << 20
    if found.f_blocks * found.f_frsize >= SMALLEST_USEFUL_SHM:
        assert cap <= max(64 << 20, found.f_bavail * found.f_frsize)
    total = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    assert cap <= max(64 << 20, total // 2)


@pytest.mark.parametrize("members", [1, 2, 9, 64])
@pytest.mark.parametrize("cap", [1, 1 << 20, 1 << 34, 1 << 38, 1 << 44])
def test_a_graph_of_any_size_finds_its_addresses(members: int, cap: int) -> None:
    reserve = addresses_for(cap, members)
    board = Board(members, [Ring(0, (0,))], cap_bytes=cap, reserve_bytes=reserve)
    member = board.member(0)
    writer = member.writer(0, 0)
    if cap >= _native.MIN_BLOCK:
        writer.write(PICKLE, b"", [bytes(min(cap, 1 << 20))])
        assert claimed(member) == min(cap, 1 << 20)
    else:
        with pytest.raises(_native.NoMemory):
            writer.write(PICKLE, b"", [bytes(_native.MIN_BLOCK)])
    board.close()
