# SPDX-License-Identifier: Apache-2.0
"""Slices: one bar per part, transfers joined, and a payload that reads back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rcg.trace.analysis.events import TimeKind
from rcg.trace.model import SPAN_BASE
from rcg.views.data.slices import (
    COLUMNS,
    DEVICE_COMMUNICATION,
    DEVICE_COMPUTE,
    HIDDEN,
    OPS,
    SPAN,
    SPANS,
    STREAMS,
)
from rcg.views.data.slicing import slices_of
from rcg.views.svg.timeline import timeline_of
from tests.unit.test_trace_shares import LANES_ROWS, WITH_LANES
from tests.unit.trace_by_hand import DRIVER_APART, by_hand
from tests.unit.traces import changed, event, events, graph_trace
from tests.unit.views_traces import pipeline, simulated

ROWS = {
    "driver": [event(1, 0, 0, 10, coded=4, bytes=64), event(3, 0, 10, 100, waited=80, peer=2)],
    "a0": [
        event(0, 0, 5, 14, waited=6, coded=1, bytes=64, peer=0),
        event(1, 0, 14, 50),
        event(SPAN_BASE, 0, 20, 30),
        event(3, 0, 50, 60, coded=3, bytes=900),
    ],
    "a1": [
        event(0, 0, 8, 66, waited=52, coded=2, bytes=900, peer=1),
        event(1, 0, 66, 80),
        event(3, 0, 80, 90, coded=1, waited=2, bytes=7, peer=0),
    ],
}
GRAPH = graph_trace(ROWS, spans={"a0": ("attention <b>",)})


def bars(lane: int, start: int = 0, end: int = 100) -> list[tuple[str, int, int, int]]:
    slices = slices_of(GRAPH, start, end)
    return [
        (slices.names[slices.name[row]].text, int(slices.kind[row]), int(begun), int(length))
        for row, (begun, length) in enumerate(zip(slices.start, slices.duration, strict=True))
        if slices.lane[row] == lane
    ]


def test_there_is_one_bar_per_part_and_per_span() -> None:
    assert bars(1) == [
        ("read c0", TimeKind.WAITING, 5, 6),
        ("read c0", TimeKind.COMMUNICATION, 11, 2),
        ("read c0", TimeKind.SERIALIZATION, 13, 1),
        ("fwd", TimeKind.COMPUTE, 14, 36),
        ("write c1", TimeKind.SERIALIZATION, 50, 3),
        ("write c1", TimeKind.COMMUNICATION, 53, 7),
        ("attention <b>", SPAN, 20, 10),
    ]


def test_a_window_cuts_and_its_start_is_zero() -> None:
    assert bars(1, 12, 25) == [
        ("read c0", TimeKind.COMMUNICATION, 0, 1),
        ("read c0", TimeKind.SERIALIZATION, 1, 1),
        ("fwd", TimeKind.COMPUTE, 2, 11),
        ("attention <b>", SPAN, 8, 5),
    ]
    assert len(slices_of(GRAPH, 200, 300)) == 0
    with pytest.raises(ValueError, match="1 ns before it starts"):
        slices_of(GRAPH, 5, 4)


def test_an_op_that_the_plan_does_not_have_is_shown_as_unknown() -> None:
    slices = slices_of(graph_trace({"a0": [event(99, 0, 0, 10)]}), 0, 100)
    assert [slices.names[each].role for each in slices.name] == ["unknown"]


def test_the_payload_reads_back() -> None:
    slices = slices_of(
        simulated(pipeline(3), 6, spans=True).graphs[0], 5_000_000_000, 5_010_000_000
    )
    head, columns = slices.to_payload()
    head = json.loads(json.dumps(head))
    assert {name: column.dtype for name, column in columns.items()} == dict(COLUMNS)
    assert head["count"] == len(slices) == len(columns["start"]) == len(columns["bytes"])
    assert len(columns["transfers"]) == 2 * head["transfers"] > 0
    np.testing.assert_allclose(columns["start"] * 1e3, slices.start)
    np.testing.assert_allclose(columns["duration"] * 1e3, slices.duration, rtol=1e-6)
    for name in ("lane", "track", "kind", "name", "peer", "execution", "bytes", "op"):
        np.testing.assert_array_equal(columns[name], getattr(slices, name))
    assert set(columns["track"]) == {OPS, SPANS}
    assert head["lanes"][1]["detail"].startswith("a0 \u00b7 pid")
    assert head["channels"]["c1"] == {"slots": 10, "readers": [2]}


@pytest.mark.parametrize("end", [*range(40, 70), 80])
def test_a_transfer_ends_where_the_frame_arrived_or_is_not_shown(end: int) -> None:
    """However a window cuts: a wait that goes on beyond it has not ended in it."""
    for graph in (by_hand(), by_hand(driver=DRIVER_APART)):
        slices = slices_of(graph, 0, end)
        arrived = {("c0", 0): 13, ("c0", 1): 28, ("c1", 0): 29, ("c1", 1): 46}
        arrived |= {("c2", 0): 47, ("c2", 1): 64}
        found = {
            (slices.names[slices.name[write]].channel, int(slices.execution[write])): tuple(times)
            for (write, _), times in zip(
                slices.transfers, slices.transfer_times.tolist(), strict=True
            )
        }
        assert found.keys() >= {key for key, at in arrived.items() if at < end}
        assert all(arrived[key] == at for key, (_, at) in found.items())
        for left, at in found.values():
            assert 0 <= left <= at <= end


def test_a_frame_that_was_had_before_it_was_written_down_left_when_it_was_had() -> None:
    """The writer notes the end of its Write late; clocks that disagree by more join nothing."""
    for taken, times in ((85, [[85, 85]]), (79, [])):
        rows = {**ROWS, "driver": [event(3, 0, 10, 100, waited=taken - 10, bytes=7, peer=2)]}
        slices = slices_of(graph_trace(rows), 0, 100)
        found = slices.transfer_times[slices.lane[slices.transfers[:, 1]] == 0].tolist()
        assert found == times


def test_communication_is_cut_where_methods_of_its_actor_hide_it() -> None:
    """The trace of ``test_communication_is_hidden_behind_methods_of_the_same_actor``."""
    slices = slices_of(graph_trace(LANES_ROWS, plan=WITH_LANES), 0, 80)
    assert [(head.under, head.short) for head in slices.heads[1:3]] == [("", ""), ("a0", "comm")]

    def moved(kind: int) -> list[tuple[str, int, int]]:
        return [
            (slices.heads[slices.lane[row]].process, int(slices.start[row]), int(end))
            for row in np.flatnonzero(slices.kind == kind)
            for end in [slices.start[row] + slices.duration[row]]
            if slices.heads[slices.lane[row]].under
        ]

    assert moved(HIDDEN) == [("a0.comm", 40, 55), ("a1.comm", 50, 55), ("a1.comm", 56, 58)]
    exposed = [("a0.comm", 31, 32), ("a0.comm", 35, 40), ("a1.comm", 35, 50)]
    assert moved(TimeKind.COMMUNICATION) == exposed
    # A transfer joins where its frame left to where it began to arrive.
    [[write, read]] = [
        pair for pair in slices.transfers if slices.names[slices.name[pair[0]]].group
    ]
    assert (slices.kind[write], slices.start[write]) == (HIDDEN, 40)
    assert (slices.kind[read], slices.start[read]) == (TimeKind.COMMUNICATION, 35)


def test_what_devices_did_is_a_track_per_stream() -> None:
    kernels = [
        event(SPAN_BASE + 1, 0, 20, 95, peer=0),
        event(SPAN_BASE + 2, 0, 30, 40, peer=1),
        event(SPAN_BASE + 3, 1, 90, 200, peer=1),
    ]
    names = ("attention", "gemm", "ncclDevKernel_SendRecv", "Memcpy HtoD (Pinned -> Device)")
    graph = graph_trace(ROWS, spans={"a0": names})
    streams = ("GPU 0, stream 7", "GPU 0, stream 13")
    graph = changed(graph, "a0", kernels=events(kernels), streams=streams)
    slices = slices_of(graph, 10, 100)
    found = [
        (
            slices.heads[slices.lane[row]].streams[slices.track[row] - STREAMS],
            slices.names[slices.name[row]].text,
            int(slices.kind[row]),
            int(slices.start[row]) + 10,
            int(slices.execution[row]),
        )
        for row in np.flatnonzero(slices.track >= STREAMS)
    ]
    assert found == [
        (streams[0], "gemm", DEVICE_COMPUTE, 20, 0),
        (streams[1], "ncclDevKernel_SendRecv", DEVICE_COMMUNICATION, 30, 0),
        (streams[1], "Memcpy HtoD (Pinned -> Device)", DEVICE_COMMUNICATION, 90, 1),
    ]
    assert (slices.start + slices.duration).max() == 90
    head, _ = slices.to_payload()
    assert head["lanes"][1]["streams"] == list(streams)
    picture = timeline_of(slices)
    assert streams[1] in picture and "GPU copy or NCCL" in picture and ">gemm<" in picture
