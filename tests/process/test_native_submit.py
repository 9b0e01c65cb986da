# SPDX-License-Identifier: Apache-2.0
"""The native submission between processes."""

from __future__ import annotations

from typing import Any

from rcg import _native
from tests.harness.board import (
    BYTES,
    Ring,
)
from tests.harness.submission import submission


def test_readers_see_the_frames_in_the_order_of_the_list(boards: Any) -> None:
    """A reader that has seen a later ring's frame finds those of the earlier rings published."""
    count = 4
    board = boards(2, [Ring(0, (1,), slots=2)] * count)
    child = board.start(
        """
        member = board.member(1)
        ends = [reader(member, i) for i in argv[0]]
        for number in range(argv[1]):
            late = [end.pending() for end in ends]
            while not late[0]:  # the last one that is published
                late = [end.pending() for end in ends]
            if not all(end.pending() for end in ends):
                print("out of order", number, late)
            for end in ends:
                end.read(0)
        """,
        [2, 0, 3, 1],
        2000,
    )
    submit = submission(board, [1, 3, 0, 2])
    for _ in range(2000):
        while True:
            try:
                submit(*[(BYTES, b"x")] * count)
                break
            except _native.TimedOut:
                pass
    out, _ = child.communicate()
    assert (child.returncode, out) == (0, "")
