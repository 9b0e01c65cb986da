# SPDX-License-Identifier: Apache-2.0
"""Traces as DataFrames: one row per event."""

from __future__ import annotations

import numpy as np
import pytest

from rcg.trace.export.frame import COLUMNS, to_pandas
from rcg.trace.model import SPAN_BASE
from tests.unit.traces import event, graph_trace, trace

pytest.importorskip("pandas")


def some_trace():
    rows = {
        "driver": [event(1, 7, 1010, 1030, coded=4, bytes=64)],
        "a0": [
            event(0, 7, 1000, 1040, waited=28, coded=2, bytes=64, peer=0),
            event(1, 7, 1040, 1090),
            event(SPAN_BASE, 7, 1050, 1060),
            event(SPAN_BASE + 3, 7, 1060, 1070),
        ],
    }
    return trace(graph_trace(rows, spans={"a0": ("load",)}), start=1000, end=1300)


def test_one_row_per_event():
    frame = to_pandas(some_trace())
    assert tuple(frame.columns) == COLUMNS
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert rows[0] == {
        "graph": "5f1c" * 8,
        "node": "n0",
        "process": "driver",
        "label": "driver",
        "op": "Write s0 -> c0",
        "kind": "write",
        "name": "write c0",
        "execution": 7,
        "start_ns": 10,
        "end_ns": 30,
        "duration_ns": 20,
        "waited_ns": 0,
        "coded_ns": 4,
        "bytes": 64,
        "peer": None,
        "group": None,
        "rank": None,
    }
    assert [row["name"] for row in rows] == ["write c0", "read c0", "Stage.fwd", "load", "span 3"]
    assert [row["kind"] for row in rows] == ["write", "read", "call", "span", "span"]
    assert rows[1]["peer"] == "driver"
    assert rows[2]["op"] == "Call a0.fwd(s0) -> s1 #1"
    assert rows[3]["op"] == "load"
    assert {row["label"] for row in rows[1:]} == {"a0 (Stage)"}


def test_an_empty_trace_has_the_same_columns():
    for empty in (trace(end=0), trace(graph_trace({}), end=10)):
        frame = to_pandas(empty)
        assert tuple(frame.columns) == COLUMNS
        assert len(frame) == 0
        assert frame["start_ns"].dtype == np.int64
