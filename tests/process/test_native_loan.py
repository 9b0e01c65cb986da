# SPDX-License-Identifier: Apache-2.0
"""Loans between processes: makers and readers that die, and forks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.board import BLOCK, PICKLE, claimed, pattern, reader


def test_what_was_lent_outlives_its_maker(boards: Any) -> None:
    board = boards()
    maker = board.start(
        """
        member = board.member(0)
        loan = member.loan(BLOCK)
        memoryview(loan)[:] = pattern(BLOCK)
        member.writer(0, 0).write(PICKLE, b"", [memoryview(loan)])
        print("written", flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == "written\n"
    (held,) = reader(board.member(1)).read(0)
    maker.communicate("\n")
    assert maker.returncode < 0
    assert bytes(held) == pattern(BLOCK)


@pytest.mark.parametrize("takes", [True, False])
def test_a_reader_that_dies_leaves_the_loan_to_its_maker(boards: Any, takes: bool) -> None:
    board = boards()
    maker = board.member(0)
    loan = maker.loan(BLOCK)
    assert loan is not None
    memoryview(loan)[:] = pattern(BLOCK)
    maker.writer(0, 0).write(PICKLE, b"", [memoryview(loan)])
    peer = board.start(
        """
        end = reader(board.member(1))
        if argv[0]:
            held = end.read(0)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        takes,
    )
    peer.communicate()
    assert maker.forget(1) == 1
    assert claimed(maker) == maker.survey(0, 0, 0)[0] == BLOCK
    assert bytes(loan) == pattern(BLOCK)
    del loan
    assert claimed(maker) == maker.survey(0, 0, 0)[0] == 0


def test_a_forked_child_gives_nothing_back_and_borrows_nothing(boards: Any) -> None:
    board = boards()
    board.run(
        """
        member = board.member(0)
        loan = member.loan(BLOCK)
        memoryview(loan)[:] = pattern(BLOCK)
        child = os.fork()
        if not child:
            assert member.loan(BLOCK) is None
            del loan
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert claimed(member) == BLOCK
        again = member.loan(BLOCK)
        memoryview(again)[:] = bytes(BLOCK)
        assert bytes(loan) == pattern(BLOCK)
        del loan, again
        assert claimed(member) == 0
        """
    )
