# SPDX-License-Identifier: Apache-2.0
"""Events taken apart into waiting, communication, serialization and compute."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.trace.analysis.events import EventTable, TimeKind, with_open
from rcg.trace.analysis.intervals import MAX_INT64, MIN_INT64, Cover, disjoint, without
from rcg.trace.analysis.parts import parts_of
from rcg.trace.model import SPAN_BASE, OpenOp
from tests.unit.traces import event, graph_trace

COMPUTE, COMMUNICATION, SERIALIZATION, WAITING = list(TimeKind)[:4]


def of(rows, process="a0", until=None, window=(MIN_INT64, MAX_INT64), **options):
    """The parts of events: the row of each in its lane, its kind, and when it begins and ends."""
    table = EventTable(graph_trace({process: rows}, **options), until)
    parts = parts_of(table, table.number(process)).clipped(*window)
    columns = (table.row[parts.row], parts.kind, parts.start_ns, parts.end_ns)
    found = zip(*(each.tolist() for each in columns), strict=True)
    return [(row, TimeKind(kind), start, end) for row, kind, start, end in found]


# One turn of an actor, 100 ns:
#
#   0        40     50    60  62            82   85      95   100
#   | wait   | move | dec |w  | compute     | enc | room  | move|
#   `------- Read 0 ------'`--- Call 1 ----'`---- Write 3 -----'
TURN = [
    event(0, 0, 0, 60, waited=40, coded=10, bytes=8),
    event(1, 0, 60, 82, waited=2),
    event(3, 0, 82, 100, waited=10, coded=3, bytes=8),
]
PARTS = [
    (0, WAITING, 0, 40),
    (0, COMMUNICATION, 40, 50),
    (0, SERIALIZATION, 50, 60),
    (1, WAITING, 60, 62),
    (1, COMPUTE, 62, 82),
    (2, SERIALIZATION, 82, 85),
    (2, WAITING, 85, 95),
    (2, COMMUNICATION, 95, 100),
]


def test_each_op_has_its_order_of_parts():
    assert of(TURN) == PARTS


def test_parts_are_cut_to_the_window():
    assert of(TURN, window=(45, 84)) == [
        (0, COMMUNICATION, 45, 50),
        *PARTS[2:5],
        (2, SERIALIZATION, 82, 84),
    ]
    assert of(TURN, window=(100, 200)) == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (event(0, 0, 0, 10, waited=99, coded=99), [(0, WAITING, 0, 10)]),
        (event(0, 0, 0, 10, waited=4, coded=99), [(0, WAITING, 0, 4), (0, SERIALIZATION, 4, 10)]),
        (event(3, 0, 0, 10, waited=-5, coded=-5), [(0, COMMUNICATION, 0, 10)]),
        (event(1, 0, 10, 3, waited=2), []),
    ],
)
def test_times_that_contradict_each_other_are_cut_to_fit(row, expected):
    assert of([row]) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # Reads since 100, waits again since 104 or 119: a Read looks up from waiting now and then.
        (OpenOp(0, 1, 100, 104), [(3, WAITING, 100, 120)]),
        (OpenOp(0, 1, 100, 119), [(3, WAITING, 100, 120)]),
        (OpenOp(0, 1, 100), [(3, COMMUNICATION, 100, 120)]),
        (OpenOp(0, 1, 100, 100), [(3, WAITING, 100, 120)]),
        (OpenOp(1, 1, 100), [(3, COMPUTE, 100, 120)]),
        (OpenOp(3, 1, 100, 104), [(3, SERIALIZATION, 100, 104), (3, WAITING, 104, 120)]),
        (OpenOp(3, 1, 100), [(3, COMMUNICATION, 100, 120)]),
        (OpenOp(1, 1, 130), []),
    ],
)
def test_what_a_process_is_in_at_the_end_counts(now, expected):
    assert of(TURN, until=120, opens={"a0": now}) == PARTS + expected


def test_an_open_op_becomes_the_last_event():
    graph = graph_trace({"a0": TURN, "a1": [event(0, 0, 90, 110)]}, opens={"a0": OpenOp(1, 1, 100)})
    row = with_open(graph.lane("a0"), 110).events[3]
    assert (row["op"], row["start_ns"], row["end_ns"]) == (1, 100, 110)
    assert with_open(graph.lane("a1"), 110) is graph.lane("a1")
    assert not EventTable(graph).is_open.any()


stretches = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12).map(
    lambda drawn: (
        np.array([start for start, _ in drawn], np.int64),
        np.array([start + length for start, length in drawn], np.int64),
    )
)


def moments(start, end) -> set[int]:
    return {at for a, b in zip(start, end, strict=True) for at in range(a, b)}


@given(stretches, stretches)
def test_stretches_without_others_are_what_is_left_of_them(some, others):
    _, start, end = disjoint(*some)
    _, taken_start, taken_end = disjoint(*others)
    assert moments(start, end) == moments(*some)
    assert all(a <= b for a, b in zip(end[:-1], start[1:], strict=True))
    of, left_start, left_end = without(start, end, taken_start, taken_end)
    assert moments(left_start, left_end) == moments(*some) - moments(*others)
    assert all(
        start[i] <= a < b <= end[i] for i, a, b in zip(of, left_start, left_end, strict=True)
    )
    assert all(a <= b for a, b in zip(left_end[:-1], left_start[1:], strict=True))


@given(stretches, stretches)
def test_a_cover_says_how_much_of_a_stretch_it_covers(some, others):
    cover = Cover(*some)
    assert cover.total_ns == len(moments(*some))
    for a, b, covered in zip(*others, cover.within(*others), strict=True):
        assert covered == len(moments([a], [b]) & moments(*some))


rows = st.lists(
    st.builds(
        lambda op, start, length, waited, coded: event(
            op, 0, start, start + length, waited=waited, coded=coded
        ),
        st.sampled_from([0, 1, 2, 3, 7, SPAN_BASE]),
        st.integers(0, 60),
        st.integers(0, 20),
        st.integers(-3, 25),
        st.integers(-3, 25),
    ),
    max_size=10,
)


@given(rows)
def test_parts_cover_the_events_and_no_moment_twice(drawn):
    found = of(drawn)
    assert all(a[3] <= b[2] for a, b in pairwise(found)) and all(a[2] < a[3] for a in found)
    ops = [row for row in drawn if row[6] < SPAN_BASE]
    covered = moments([row[0] for row in ops], [row[1] for row in ops])
    assert moments([part[2] for part in found], [part[3] for part in found]) == covered
    for row, _, start, end in found:
        assert drawn[row][0] <= start < end <= drawn[row][1]
