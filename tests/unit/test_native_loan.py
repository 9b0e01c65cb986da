# SPDX-License-Identifier: Apache-2.0
"""Loans of the native core: blocks that their owner fills in place and sends without a copy."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from rcg import _native
from tests.harness.board import BLOCK, PICKLE, Board, Ring, claimed, pattern, reader

MB = 1 << 20
SMALL = _native.INLINE_BUFFER


def filled(member: _native.Member, size: int, seed: int = 0) -> _native.Loan:
    """Return a loan with a pattern in it."""
    loan = member.loan(size)
    assert loan is not None
    memoryview(loan)[:] = pattern(size, seed)
    return loan


def counts(member: _native.Member) -> tuple[int, int]:
    """Return how many buffers were copied, and how many were sent without."""
    found = member.statistics()
    return found["copies"], found["forwards"]


def ledger(member: _native.Member) -> int:
    """Return the bytes that the ledger says are claimed."""
    return member.survey(0, 0, 0)[0]


def test_submitting_an_execution_sends_its_loans(boards: Any) -> None:
    board = boards(3, (Ring(0, (1,)), Ring(0, (2,))))
    driver = board.member(0)
    ends = [reader(board.member(1)), reader(board.member(2), 1)]
    writers = [driver.writer(0, 0), driver.writer(1, 1)]
    loans = [filled(driver, BLOCK, i) for i in range(2)]
    frames = tuple((w, PICKLE, b"", [memoryview(x)]) for w, x in zip(writers, loans, strict=True))
    left: dict[int, int] = {}
    assert driver.submit(frames, 0, left, 1, []) is None  # the limit is reached
    with pytest.raises(_native.NoMemory):
        driver.submit((frames[0], (writers[1], PICKLE, b"", [bytes(1 << 28)])), 1, left, 1, [])
    assert not any(memoryview(loan).readonly for loan in loans)
    assert driver.submit(frames, 1, left, 1, []) == 0
    assert all(memoryview(loan).readonly for loan in loans)
    assert [bytes(end.read(0)[0]) for end in ends] == [pattern(BLOCK, i) for i in range(2)]
    assert counts(driver)[0] == 0


def test_a_loan_belongs_to_the_execution_that_sends_it_first(boards: Any) -> None:
    board = boards(2)
    driver, end = board.member(0), reader(board.member(1))
    writer = driver.writer(0, 0)
    loan = filled(driver, BLOCK)
    assert driver.survey(0, 0, 0) == (BLOCK, 0, 0, 0)
    for execution in range(2):
        frame = (writer, PICKLE, b"", [memoryview(loan)])
        assert driver.submit((frame,), 9, {}, 1, []) == execution
    assert driver.survey(0, 0, 2) == (BLOCK, 0, BLOCK, BLOCK)  # once, though two have it
    assert driver.survey(1, 1, 2)[2] == 0
    end.read(0), end.read(0)
    del loan, frame
    assert driver.survey(0, 0, 2) == (0, 0, 0, BLOCK)


def test_there_is_no_loan_where_there_is_no_memory(boards: Any) -> None:
    board = boards(2, cap_bytes=4 * MB)
    loop = board.member(1, looping=True)
    assert loop.loan(4 * MB + 1) is None
    assert loop.loan(0) is None and loop.loan(SMALL) is None
    with pytest.raises(OverflowError):
        loop.loan(-1)
    held = [loop.loan(MB) for _ in range(6)]
    assert [each is not None for each in held] == [True] * 4 + [False] * 2
    held.clear()
    assert loop.loan(4 * MB) is not None


def test_a_driver_leaves_half_of_the_memory_to_executions(boards: Any) -> None:
    board = boards(2, cap_bytes=8 * MB)
    driver = board.member(0)
    held = [driver.loan(MB) for _ in range(8)]
    assert [each is not None for each in held] == [True] * 5 + [False] * 3
    held.clear()
    assert driver.loan(8 * MB) is not None  # one that is alone may be as large as it likes


def test_a_loan_outlives_its_member_and_its_board() -> None:
    board = Board(2)
    maker, observer = board.member(0), board.member(1)
    loan = filled(maker, BLOCK)
    maker.poison(_native.POISON_CLOSED)
    assert maker.loan(BLOCK) is None  # the graph has ended
    del maker
    board.close()
    gc.collect()
    memoryview(loan)[:1] = b"x"
    assert bytes(loan)[1:] == pattern(BLOCK)[1:]
    assert ledger(observer) == BLOCK
    del loan
    assert ledger(observer) == 0


@pytest.mark.parametrize("members", [2, 9, 17, 33, 64])
def test_where_no_claim_fits_a_loan_is_copied(boards: Any, members: int) -> None:
    """The fields of claims are small where there are many members."""
    most = {2: 255, 9: 15, 17: 3, 33: 1, 64: 1}[members]
    last = members - 1
    board = boards(members, (Ring(0, (last,), slots=512),))
    sender, end = board.member(0), reader(board.member(last))
    writer = sender.writer(0, 0)
    loan = filled(sender, BLOCK)
    for _ in range(most + 2):
        writer.write(PICKLE, b"", [memoryview(loan)])
    assert counts(sender) == (2, most)
    held = [end.read(0)[0] for _ in range(most + 2)]
    assert {bytes(each) for each in held} == {pattern(BLOCK)}
    del held, loan
    assert claimed(sender) == ledger(sender) == 0


def test_a_writing_reader_gets_the_loan_itself_once_it_is_alone(boards: Any) -> None:
    board = boards(2)
    maker, end = board.member(0), reader(board.member(1))
    loan = filled(maker, BLOCK)
    maker.writer(0, 0).write(PICKLE, b"", [memoryview(loan)], 1)
    del loan
    found = memoryview(end.read(0)[0])
    assert isinstance(found.obj, _native.Lease) and bytes(found) == pattern(BLOCK)
    found[:] = bytes(BLOCK)
    assert claimed(maker) == BLOCK
    del found
    assert claimed(maker) == 0


def test_what_came_to_be_written_to_is_no_loan(boards: Any) -> None:
    """A member that reads its own ring has memory in its own arena that it may write to."""
    board = boards(2, (Ring(0, (0,)), Ring(0, (1,))))
    member, end = board.member(0), reader(board.member(1), 1)
    member.writer(0, 0).write(PICKLE, b"", [pattern(BLOCK)], 1)
    mine = memoryview(reader(member).read(0)[0])
    assert isinstance(mine.obj, _native.Lease) and not mine.readonly
    member.writer(1, 0).write(PICKLE, b"", [mine])
    mine[:] = bytes(BLOCK)
    assert counts(member) == (2, 0)
    assert bytes(end.read(0)[0]) == pattern(BLOCK)
