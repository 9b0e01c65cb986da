# SPDX-License-Identifier: Apache-2.0
"""Memory that other processes can map: who sees what is written to it, and what is refused."""

from __future__ import annotations

import gc
import mmap
import os

import pytest

from rcg.rdt.lent import LEAST_BYTES, MOST_BLOCKS, lend, open_block, places_of

torch = pytest.importorskip("torch")


def bytes_in(memory):
    return torch.frombuffer(memory, dtype=torch.uint8)


def opened(place):
    fd = os.dup(place.fd)
    found = open_block(fd)
    os.close(fd)
    return found


def test_each_side_keeps_its_own_bytes():
    ours = bytes_in(lend(LEAST_BYTES)).fill_(1)
    (place,) = places_of([ours[100:]])
    assert place.start == 100 and places_of([ours[100:]]) == [place]
    one, other = opened(place), opened(place)
    ours[0] = 2
    one[0] = 3
    assert (int(ours[0]), int(one[0]), int(other[0])) == (2, 3, 1)
    assert places_of([ours[100:]]) == [None]  # who asks now gets what is there now
    del ours
    gc.collect()
    assert int(other.sum()) == LEAST_BYTES  # the owner has dropped it


def test_nothing_stays_of_what_is_dropped():
    def mappings():
        with open("/proc/self/maps") as maps:
            return maps.read().count("rcg-empty"), len(os.listdir("/proc/self/fd"))

    before = mappings()
    for number in range(20):
        ours = bytes_in(lend(LEAST_BYTES))
        if number % 2:
            theirs = opened(places_of([ours])[0])
            assert mappings() == (before[0] + 2, before[1] + 1)
            del theirs
        del ours
        gc.collect()
        assert mappings() == before


def test_what_cannot_be_lent_is_ordinary_memory(monkeypatch):
    def fail(*_):
        raise OSError(24, "no descriptor")

    assert lend(LEAST_BYTES - 1) is None
    monkeypatch.setattr(os, "memfd_create", fail)
    assert lend(LEAST_BYTES) is None
    assert places_of([torch.zeros(LEAST_BYTES, dtype=torch.uint8)]) == [None]


def test_an_answer_has_so_many_blocks_at_most():
    ours = [bytes_in(lend(LEAST_BYTES)) for _ in range(MOST_BLOCKS + 2)]
    found = places_of([*ours, ours[0][5:]])
    assert [each is None for each in found] == [False] * MOST_BLOCKS + [True] * 2 + [False]


def test_what_its_owner_can_write_to_is_not_mapped():
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 10)
    with pytest.raises(ValueError, match="not frozen"):
        open_block(fd)
    os.close(fd)


def test_a_reader_cannot_write_to_the_block_itself():
    ours = bytes_in(lend(LEAST_BYTES)).fill_(1)
    (place,) = places_of([ours])
    with pytest.raises(PermissionError):
        os.pwrite(place.fd, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(place.fd, LEAST_BYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(place.fd, 10)
