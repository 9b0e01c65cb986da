# SPDX-License-Identifier: Apache-2.0
"""Events taken apart into waiting, communication, serialization and compute."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rcg.trace.analysis.events import EventTable, TimeKind, with_open
from rcg.trace.analysis.intervals import Cover, disjoint, without
from rcg.trace.model import SPAN_BASE, OpenOp
from tests.unit.traces import event, graph_trace, measure

COMPUTE, COMMUNICATION, SERIALIZATION, WAITING = list(TimeKind)[:4]


def test_an_open_op_becomes_the_last_event():
    graph = graph_trace(
        {"a0": [event(1, 0, 0, 100)], "a1": [event(0, 0, 90, 110)]}, opens={"a0": OpenOp(1, 1, 100)}
    )
    row = with_open(graph.lane("a0"), 110).events[1]
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
    measured = measure(graph_trace({"a0": drawn}))
    found = measured.parts[1]
    starts, ends = found.start_ns.tolist(), found.end_ns.tolist()
    assert all(a <= b for a, b in zip(ends[:-1], starts[1:], strict=True))
    ops = [row for row in drawn if row[6] < SPAN_BASE]
    assert moments(starts, ends) == moments([row[0] for row in ops], [row[1] for row in ops])
    for row, start, end in zip(measured.table.row[found.row].tolist(), starts, ends, strict=True):
        assert drawn[row][0] <= start < end <= drawn[row][1]
