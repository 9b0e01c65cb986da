# SPDX-License-Identifier: Apache-2.0
"""A drain of the recorder of another process."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness.board import (
    finish,
)
from tests.harness.drain import BATCH, Running


def test_a_drain_loses_nothing_of_what_overruns_the_recorder(boards: Any) -> None:
    board = boards(events=8)
    running = Running(board, board.member(0))
    child = board.start(
        f"""
        member = board.member(1, looping=True)
        for execution in range({BATCH}):
            member.mark(execution % 5, execution)
        """
    )
    finish(child)
    (_, none), (lost, events) = running.stop()
    assert len(none) == 0
    assert lost == 0
    assert np.array_equal(events["execution"], np.arange(BATCH - 1))
    assert np.array_equal(events["op"], np.arange(BATCH - 1) % 5)
    assert (events["start_ns"][1:] == events["end_ns"][:-1]).all()


def test_a_drain_reads_what_a_dead_process_did(boards: Any) -> None:
    board = boards(events=8)
    observer = board.member(0)
    running = Running(board, observer)
    child = board.start(
        """
        member = board.member(1, looping=True)
        for execution in range(1000):
            member.mark(0, execution)
        import os
        os.kill(os.getpid(), 9)
        """
    )
    assert child.wait() == -9
    _, (lost, events) = running.stop()
    assert (lost, len(events)) == (0, 999)
