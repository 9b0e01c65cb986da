# SPDX-License-Identifier: Apache-2.0
"""Sums in the place of bars: what they keep of them, and what they leave out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from rcg.trace.model import SPAN_BASE
from rcg.views.data import ViewPayload
from rcg.views.data.merging import packed_within, with_sums
from rcg.views.data.packing import unpack
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
from tests.unit.traces import event, graph_trace
from tests.unit.views_traces import pipeline, simulated

EXECUTIONS = 600


def payload_of(executions: int = EXECUTIONS) -> ViewPayload:
    record = simulated(pipeline(4), executions, jitter=0.3, spans=True)
    graph = record.graphs[0]
    return timeline_payload(graph, slices_of(graph, record.start_ns, record.end_ns))


def totals(columns: Any) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
    """The nanoseconds and the number of the bars of each lane, track, name and kind."""
    took: Counter[tuple[int, ...]] = Counter()
    count: Counter[tuple[int, ...]] = Counter()
    counts = columns.get("sum_count", np.zeros(len(columns["start"]), int))
    counts = np.where(columns["execution"] < 0, counts, 1)
    keys = zip(*(columns[name].tolist() for name in ("lane", "track", "name", "kind")), strict=True)
    sums = columns.get("sum_total", columns["duration"])
    times = np.where(columns["execution"] < 0, sums, columns["duration"])
    for key, duration, number in zip(keys, times, counts, strict=True):
        took[key] += round(duration * 1e3)
        count[key] += int(number)
    return took, count


def test_sums_account_for_all_time_and_all_bars() -> None:
    whole = payload_of()
    head, columns = with_sums(whole, 800)
    assert totals(columns) == totals(whole.columns)
    is_sum = columns["execution"] < 0
    assert 700 <= (~is_sum).sum() <= 900
    assert head["count"] == len(columns["start"]) < len(whole.columns["start"]) * 0.8
    assert head["sums"]["bars"] + (~is_sum).sum() == len(whole.columns["start"])
    # Each sum is in one bin, they do not overlap, and their longest bar is a real one.
    length = head["sums"]["bin_us"]
    start, end = columns["start"], columns["start"] + columns["duration"]
    assert (np.floor(start[is_sum] / length + 1e-9) * length + length >= end[is_sum] - 1e-6).all()
    row = columns["lane"].astype(int) * 256 + columns["track"]
    same = is_sum[1:] & is_sum[:-1] & (row[1:] == row[:-1])
    assert (start[1:][same] >= end[:-1][same] - 1e-6).all()
    assert set(columns["sum_longest"][is_sum]) <= set(whole.columns["duration"])


def test_sums_of_spans_in_spans_are_in_their_bin_and_keep_their_time() -> None:
    """Each call has five spans, each inside the one before."""
    rows = []
    for k in range(3000):
        at = k * 1000
        rows.append(event(1, k, at, at + 900))
        rows += [event(SPAN_BASE + n, k, at + 10 * n, at + 890 - 10 * n) for n in range(5)]
    graph = graph_trace({"a0": rows}, spans={"a0": tuple("abcde")})
    whole = timeline_payload(graph, slices_of(graph, 0, 3_000_000))
    head, columns = with_sums(whole, 3000)
    assert totals(columns) == totals(whole.columns)
    is_sum = columns["execution"] < 0
    length, until = head["sums"]["bin_us"], head["sums"]["until_us"]
    start, end = columns["start"][is_sum], (columns["start"] + columns["duration"])[is_sum]
    assert len(start) and (end <= until + length + 1e-6).all()
    assert (np.floor(start / length + 1e-9) * length + length >= end - 1e-6).all()
    # Five calls begin in each bin, and the five spans of each.
    place = np.floor(start / length + 1e-9).astype(int)
    for each in np.unique(place)[:-1]:
        inside = (place == each) & (columns["track"][is_sum] == 1)
        names = columns["name"][is_sum][inside]
        assert len(set(names)) == 5 and columns["sum_count"][is_sum][inside].tolist() == [5] * 5


@pytest.mark.parametrize("most", [9_000, 20_000, 10**6])
def test_what_is_packed_is_within_its_bytes(most: int) -> None:
    packed = packed_within(payload_of(), most)
    assert packed is not None and len(packed) <= most
    head, columns = unpack(packed)
    assert (head["sums"] is None) == (most == 10**6) == (len(columns["sum_count"]) == 0)
    if most < 10**6:
        assert len(packed) > most * 0.7
