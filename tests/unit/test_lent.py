# SPDX-License-Identifier: Apache-2.0
"""Memory that other processes can map: who sees what is written to it, and what is refused."""

from __future__ import annotations

import gc
import mmap
import os

import pytest

from rcg.rdt import lent
from rcg.rdt.lent import LEAST_BYTES, MOST_BLOCKS, lend, open_block

torch = pytest.importorskip("torch")


def bytes_in(memory):
    return torch.frombuffer(memory, dtype=torch.uint8)


def freeze(payloads, must_stay=lambda *_: False):
    return lent.freeze(payloads, must_stay)


def opened(place, size=LEAST_BYTES):
    fd = os.dup(place.fd)
    found = open_block(fd, place.start, size - place.start)
    os.close(fd)
    return found


def test_each_side_keeps_its_own_bytes():
    ours = bytes_in(lend(LEAST_BYTES)).fill_(1)
    (place,) = freeze([ours[100:]])
    assert int(ours[100]) == 1  # reading makes no copy of a page
    assert place.start == 100 and freeze([ours[100:]]) == [place]
    one, other = opened(place), opened(place)
    ours[100] = 2
    one[0] = 3
    assert (int(ours[100]), int(one[0]), int(other[0])) == (2, 3, 1)
    assert one.untyped_storage().nbytes() == LEAST_BYTES - 100  # not that of the block
    assert freeze([ours[100:]]) == [None]  # who asks now gets what is there now
    del ours
    gc.collect()
    assert int(other.sum()) == LEAST_BYTES - 100  # the owner has dropped it


def test_nothing_stays_of_what_is_dropped():
    def mappings():
        with open("/proc/self/maps") as maps:
            return maps.read().count("rcg-empty"), len(os.listdir("/proc/self/fd"))

    before = mappings()
    for number in range(20):
        ours = bytes_in(lend(LEAST_BYTES))
        if number % 2:
            theirs = opened(freeze([ours])[0])
            assert mappings() == (before[0] + 2, before[1] + 1)
            del theirs
        del ours
        gc.collect()
        assert mappings() == before


def test_what_cannot_be_lent_is_ordinary_memory(monkeypatch):
    def fail(*_):
        raise OSError(24, "no descriptor")

    assert lend(LEAST_BYTES - 1) is None
    assert lend(1 << 46) is None  # as numpy.empty, which raises MemoryError
    with monkeypatch.context() as patch:
        patch.setattr(lent.resource, "getrlimit", lambda _: (4, 4))
        kept = lend(LEAST_BYTES)
        assert kept is not None and lend(LEAST_BYTES) is None  # others need descriptors, too
    monkeypatch.setattr(os, "memfd_create", fail)
    assert lend(LEAST_BYTES) is None
    assert freeze([torch.zeros(LEAST_BYTES, dtype=torch.uint8)]) == [None]


def test_an_answer_has_so_many_blocks_at_most():
    ours = [bytes_in(lend(LEAST_BYTES)) for _ in range(MOST_BLOCKS + 2)]
    found = freeze([*ours, ours[0][5:]])
    assert freeze([ours[0][:1000]]) == [None]  # it is sooner copied
    assert [each is None for each in found] == [False] * MOST_BLOCKS + [True] * 2 + [False]


def test_what_its_owner_can_write_to_is_not_mapped():
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 10)
    with pytest.raises(ValueError, match="not frozen"):
        open_block(fd, 0, 10)
    os.close(fd)
    ours = bytes_in(lend(LEAST_BYTES))
    (place,) = freeze([ours])
    with pytest.raises(ValueError, match="not in the block"):
        open_block(place.fd, 10, LEAST_BYTES)


def test_what_must_stay_where_it_is_is_not_frozen():
    ours = bytes_in(lend(LEAST_BYTES))
    assert freeze([ours], lambda address, size: address == ours.data_ptr()) == [None]
    assert freeze([ours]) != [None]


def test_a_reader_cannot_write_to_the_block_itself():
    ours = bytes_in(lend(LEAST_BYTES)).fill_(1)
    (place,) = freeze([ours])
    with pytest.raises(PermissionError):
        os.pwrite(place.fd, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(place.fd, LEAST_BYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(place.fd, 10)
