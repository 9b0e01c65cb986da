# SPDX-License-Identifier: Apache-2.0
"""Addresses of the segments of many graphs."""

from __future__ import annotations

import random

import pytest

from rcg.runtime.node.memory import addresses_for
from tests.harness.board import PICKLE, Board, claimed, reader


@pytest.mark.full
def test_addresses_last_whatever_sizes_come(dice: random.Random) -> None:
    """Growing and shrinking arrays, several under way: blocks keep their addresses for ever."""
    cap = 1 << 26
    board = Board(cap_bytes=cap, reserve_bytes=addresses_for(cap, 2))
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    source = memoryview(bytes(cap))
    for count in (1, 2, 3):
        for _ in range(150):
            size = int(0.75 * cap / count / 1.25 ** (20 * dice.random()))
            writer.write(PICKLE, b"", [source[:size]] * count)
            assert [len(memoryview(b)) for b in end.read(0)] == [size] * count
    assert claimed(sender) == 0
    board.close()
