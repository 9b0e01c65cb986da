# SPDX-License-Identifier: Apache-2.0
"""Admission on a ledger that says what a test wants."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rcg.runtime.driver.window import Admission

CAP = 1600
NO_LIMIT = 1 << 62


@dataclass
class Ledger:
    """The counts of the native core; ``asked`` and ``expected`` are what admission did."""

    claimed: int = 0
    peak: int = 0
    live: int = 0
    most: int = 0
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)

    def survey(self, seen: int, complete: int, submitted: int, /) -> tuple[int, int, int, int]:
        self.asked.append((seen, complete, submitted))
        return self.claimed, self.peak, self.live, self.most

    def expect(self, need_bytes: int, /) -> None:
        self.expected.append(need_bytes)


def learned(need: int) -> tuple[Admission, Ledger]:
    """An admission that has seen one complete execution of this peak."""
    ledger = Ledger(peak=need)
    admission = Admission(ledger, CAP)
    admission.room(1, 1)
    ledger.peak = 0
    return admission, ledger


def test_where_nothing_is_known_there_is_no_limit() -> None:
    assert Admission(Ledger(), CAP).room(0, 0) == NO_LIMIT


@pytest.mark.parametrize(("input_bytes", "room"), [(CAP // 16, 16), (CAP // 16 + 1, 1)])
def test_a_first_execution_with_a_large_input_runs_alone(input_bytes: int, room: int) -> None:
    assert Admission(Ledger(most=input_bytes), CAP).room(1, 0) == room


def test_later_a_large_input_runs_beside_others() -> None:
    admission, ledger = learned(CAP // 8)
    ledger.most = CAP // 8
    assert admission.room(2, 1) == 8


def test_as_many_are_admitted_as_fit_and_at_least_one() -> None:
    admission, _ = learned(CAP // 4)
    assert admission.room(1, 1) == 4
    admission, _ = learned(CAP * 2)
    assert admission.room(1, 1) == 1


def test_what_is_held_takes_room_and_what_is_under_way_does_not() -> None:
    admission, ledger = learned(CAP // 4)
    ledger.claimed, ledger.live = CAP // 2, 0
    assert admission.room(1, 1) == 2
    ledger.live = CAP // 4
    assert admission.room(1, 1) == 3
    ledger.claimed, ledger.live = 0, CAP  # counted one after the other: no more than the cap
    assert admission.room(1, 1) == 4


def test_an_execution_under_way_that_needs_more_counts() -> None:
    admission, ledger = learned(CAP // 4)
    ledger.most = CAP // 2
    assert admission.room(2, 1) == 2


def test_the_need_follows_larger_executions_at_once_and_smaller_ones_slowly() -> None:
    admission, ledger = learned(80)
    assert admission.need_bytes == 80
    ledger.peak = 400
    admission.room(2, 2)
    assert admission.need_bytes == 400
    ledger.peak = 8
    admission.room(3, 3)
    assert admission.need_bytes == 350
    ledger.peak = 340
    admission.room(4, 4)
    assert admission.need_bytes == 340
    # Readers leave room for what is expected, and hear of it when it changes.
    ledger.peak = 340
    admission.room(5, 5)
    assert ledger.expected == [80, 400, 350, 340]


def test_each_execution_is_learned_from_once() -> None:
    admission, ledger = learned(80)
    for _ in range(3):
        admission.room(2, 1)  # nothing new is complete
    assert admission.need_bytes == 80
    admission.room(4, 3)
    admission.room(4, 2)  # of a thread that had counted before
    admission.room(5, 5)
    assert [seen for seen, _, _ in ledger.asked] == [0, 1, 1, 1, 1, 3, 3]
