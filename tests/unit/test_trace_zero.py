# SPDX-License-Identifier: Apache-2.0
"""One zero: all views and tables count times from the beginning of the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rcg.profiles import Profile
from rcg.text import ticks_of
from rcg.trace.analysis.executions import UNSEEN, executions_of
from rcg.trace.analysis.figures import summarize
from rcg.trace.model import GraphTrace
from rcg.trace.trace import Trace
from tests.unit.trace_by_hand import A1_ROWS, DRIVER_ROWS, END, by_hand
from tests.unit.traces import event, graph_trace, trace

MS = 1_000_000
ORIGIN = 123_456 * MS
"""When the trace began, on the driver's clock: 123 seconds after that of the machine did."""


def one_execution(at: int) -> Trace:
    """A trace of 1000 ms in which one execution takes 10 ms, from ``at`` on; the call 8 ms."""
    start = ORIGIN + at
    rows = {
        "driver": [
            event(1, 90, start, start + MS // 2),
            event(3, 90, start + MS // 2, start + 10 * MS, waited=9 * MS, peer=2),
        ],
        "a0": [
            event(0, 90, ORIGIN, start + MS, waited=at + MS // 2, peer=0),
            event(1, 90, start + MS, start + 9 * MS),
            event(3, 90, start + 9 * MS, start + 9 * MS + 1000),
        ],
        "a1": [
            event(0, 90, ORIGIN, start + 9 * MS + 2000, waited=at + 9 * MS + 1500, peer=1),
            event(1, 90, start + 9 * MS + 2000, start + 9 * MS + 3000),
            event(3, 90, start + 9 * MS + 3000, start + 9 * MS + 4000),
        ],
    }
    return trace(graph_trace(rows), start=ORIGIN, end=ORIGIN + 1000 * MS)


RECORD = one_execution(870 * MS)


def test_executions_and_paths_count_from_the_beginning_of_the_trace() -> None:
    profile = Profile(RECORD)
    assert profile.executions().submitted_ns.tolist() == [870 * MS]
    assert profile.executions().fetched_ns.tolist() == [880 * MS]
    assert profile.critical_path(90)[0].start_ns == 870 * MS
    assert profile.critical_path(90)[-1].end_ns == 879 * MS + 4000
    path = profile.summary.graphs[0].critical
    assert path is not None
    assert (path.start_ns, path.end_ns) == (870 * MS, 879 * MS + 4000)


def test_what_was_not_seen_stays_unseen_wherever_zero_is() -> None:
    found = executions_of(by_hand(driver=DRIVER_ROWS[:3], a1=A1_ROWS[:5])).since(10)
    assert found.submitted_ns.tolist() == [0, 2]
    assert found.completed_ns.tolist() == [36, UNSEEN]
    assert found.latency_ns.tolist() == [36]


def test_frames_and_chrome_traces_count_from_there(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = RECORD.to_pandas()
    assert frame[frame.kind == "call"].start_ns.min() == 871 * MS
    RECORD.to_chrome(tmp_path / "run.json")
    rows = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert min(row["ts"] for row in rows if row.get("cat") == "call") == 871_000


@pytest.mark.parametrize("first", [0, 1, 869_400_000, 123_456_789_012, -5_000])
@pytest.mark.parametrize("duration", [1, 999, 3_000_000, 7_000_000_000])
def test_ticks_are_exact_wherever_an_axis_begins(first: int, duration: int) -> None:
    units = {"s": 10**9, "ms": 10**6, "\N{MICRO SIGN}s": 1000, "ns": 1}
    ticks = ticks_of(duration, 7, first)
    for at, label in ticks:
        number, unit = label.split()
        assert 0 <= at <= duration
        assert round(float(number) * units[unit]) == first + at
    assert len({label.split()[1] for _, label in ticks}) <= 1
    assert len({label for _, label in ticks}) == len(ticks)


# --- shares span the executions -----------------------------------------------------------------


def test_start_up_is_no_idle_time() -> None:
    """One execution of 10 ms in a trace of a second: the shares are those of the 10 ms."""
    for at in (10 * MS, 870 * MS):
        (graph,) = summarize(one_execution(at)).graphs
        assert [lane.duration_ns for lane in graph.shares.lanes] == [10 * MS] * 3
        lane = graph.shares.lanes[1]
        assert lane.compute_ns == 8 * MS
        assert lane.idle_ns < MS
        assert "in 10 ms from the first submission to the last result" in str(graph)
        assert graph.duration_ns == 1000 * MS


def window(graph: GraphTrace, start: int = 0, end: int = END) -> tuple[int, int]:
    return executions_of(graph).busy_stretch(start, end)


def test_the_window_of_shares() -> None:
    assert window(by_hand()) == (10, 65)
    # Cut by the trace.
    assert window(by_hand(), 20, 50) == (20, 50)
    # Nothing ran; nothing came back; nothing was submitted.
    assert window(graph_trace({})) == (0, END)
    assert window(graph_trace({"driver": DRIVER_ROWS[:2]})) == (10, END)
    assert window(by_hand(driver=())) == (0, END)
    # The last one is under way.
    assert window(by_hand(driver=[*DRIVER_ROWS, event(1, 2, 66, 67)])) == (10, END)
    # It began while the first one was under way.
    assert window(by_hand(driver=DRIVER_ROWS[1:])) == (0, 65)
    # The results were not fetched.
    assert window(by_hand(driver=DRIVER_ROWS[:2])) == (10, 63)
