# SPDX-License-Identifier: Apache-2.0
"""Clocks of other processes, with clocks made up for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rcg.trace.clocks import Exchange, clock_identity, clock_of
from rcg.trace.model import Clock


def test_the_same_clock_needs_no_exchange() -> None:
    assert clock_of([], is_same=True) == Clock(0, 0)
    assert clock_identity() == clock_identity() != ""


def test_nothing_is_known_of_a_clock_that_nobody_asked() -> None:
    assert clock_of([], is_same=False) is None


@given(
    offset=st.integers(-(10**15), 10**15),
    ways=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=9),
)
def test_the_shortest_exchange_decides_and_its_error_holds(
    offset: int, ways: list[tuple[int, int]]
) -> None:
    exchanges = []
    at = 10**16
    for there, back in ways:
        exchanges.append(Exchange(at, at + there - offset, at + there + back))
        at += there + back + 1
    clock = clock_of(exchanges, is_same=False)
    assert clock is not None
    assert clock.error_ns == (min(there + back for there, back in ways) + 1) // 2
    assert abs(clock.offset_ns - offset) <= clock.error_ns
