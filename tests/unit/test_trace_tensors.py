# SPDX-License-Identifier: Apache-2.0
"""Analyses of tensor channels and collectives, against an execution worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings

from rcg.ir.plan import Plan
from rcg.trace.analysis.dependencies import Dependencies
from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.parts import TimeKind, parts_of
from rcg.trace.analysis.rendezvous import exchanges_of
from rcg.trace.export.files import check_plan
from rcg.trace.model import OpenOp
from tests.unit.simulated_traces import simulated
from tests.unit.tensors_by_hand import END, PLAN, ROWS, tensor_trace, tensors_by_hand
from tests.unit.traces import event, measure, shares_in

COMPUTE, COMMUNICATION, SERIALIZATION, WAITING, IDLE = TimeKind


def parts(process, **changes):
    graph = tensors_by_hand(**changes)
    table = EventTable(graph)
    found = parts_of(table, table.number(process))
    columns = (table.row[found.row], found.kind, found.start_ns, found.end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(row, TimeKind(kind), start, end) for row, kind, start, end in rows]


@pytest.mark.parametrize(
    ("process", "row", "start", "decoded"), [("a1", 0, 0, 84), ("a2", 2, 50, 86)]
)
def test_a_read_of_tensors_waits_until_the_writer_sends(process, row, start, decoded):
    assert [part for part in parts(process) if part[0] == row] == [
        (row, WAITING, start, 56),
        (row, COMMUNICATION, 56, 80),
        (row, SERIALIZATION, 80, decoded),
    ]


def test_a_read_never_waits_longer_than_it_lasts():
    late = [*ROWS["a0"][:2], event(2, 0, 30, 200, coded=5, waited=150, bytes=2400, peer=3)]
    assert parts("a1", a0=late)[:2] == [(0, WAITING, 0, 80), (0, SERIALIZATION, 80, 84)]


def test_an_exchange_begins_when_the_last_end_arrived():
    table = EventTable(tensors_by_hand())
    found = list(exchanges_of(table))
    assert [
        (
            each.ends[-1][0],
            table.row[each.rows].tolist(),
            each.begin_ns.tolist(),
            each.end_ns.tolist(),
        )
        for each in found
    ] == [
        ("a1", [[2, 0]], [56], [80]),
        ("a2", [[2, 2]], [56], [80]),
        ("a1", [[4, 2]], [132], [160]),
    ]
    assert [each.bytes.tolist() for each in found] == [[2400], [2400], [1300]]


def test_an_exchange_lacks_executions_of_which_an_end_is_missing():
    found = list(measure(tensors_by_hand(a2=ROWS["a2"][:2])).exchanges)
    assert [len(each.execution) for each in found] == [1, 0, 0]
    assert [each.rows.shape for each in found] == [(1, 2), (0, 2), (0, 2)]


def steps(graph):
    path = measure(graph).paths.of(0)
    return [(step.text, step.kind, step.start_ns, step.end_ns) for step in path]


def test_the_path_goes_through_the_last_rank_and_the_last_reader():
    assert steps(tensors_by_hand()) == [
        ("driver write c0", COMMUNICATION, 0, 10),
        ("a2 (Stage) read c0", WAITING, 10, 11),
        ("a2 (Stage) read c0", COMMUNICATION, 11, 14),
        ("a2 (Stage).load", COMPUTE, 14, 50),
        ("a2 (Stage) read c1", WAITING, 50, 56),
        ("a2 (Stage) read c1", COMMUNICATION, 56, 80),
        ("a2 (Stage) read c1", SERIALIZATION, 80, 86),
        ("a2 (Stage).grad", COMPUTE, 86, 130),
        ("a2 (Stage) allreduce g1", WAITING, 130, 131),
        ("a2 (Stage) allreduce g1", SERIALIZATION, 131, 132),
        ("a1 (Stage) allreduce g1", SERIALIZATION, 132, 134),
        ("a1 (Stage) allreduce g1", COMMUNICATION, 134, 160),
        ("a1 (Stage) write c4", COMMUNICATION, 160, 165),
    ]


def is_acyclic(before):
    """Whether the chain of dependencies ends, from every event."""
    seen = np.arange(len(before))
    for _ in range(len(before)):
        seen = np.where(seen < 0, seen, before[seen])
    return bool((seen < 0).all())


@settings(max_examples=25)
@given(simulated(has_tensors=True))
def test_no_event_of_a_rendezvous_depends_on_itself(made):
    assert is_acyclic(Dependencies(EventTable(made.graph)).before)


def test_shares_count_exchanges_as_communication_and_waits_for_others_as_waiting():
    found = shares_in(tensors_by_hand(), 0, END)
    times = {
        lane.process: (
            lane.compute_ns,
            lane.communication_ns,
            lane.serialization_ns,
            lane.waiting_ns,
        )
        for lane in found.lanes
    }
    assert times["a0"] == (16, 3 + 24, 5, 11 + 21)
    assert times["a1"] == (16, 24 + 26 + 5, 4 + 2, 56 + 32)
    assert times["a2"] == (36 + 44, 3 + 24 + 26, 6 + 1, 11 + 6 + 1)
    assert found.lanes[1].waiting_for == {"a2 (Stage)": 21, "driver": 11}
    assert found.lanes[2].waiting_for == {"a0 (Stage)": 56, "a2 (Stage)": 32}
    assert found.hidden == 0.0


def test_a_collective_beside_a_method_of_another_actor_is_not_hidden():
    busy = [*ROWS["a0"], event(0, 1, 80, 140, waited=60, peer=0), event(1, 1, 140, 200)]
    assert shares_in(tensors_by_hand(a0=busy), 0, END).hidden == 0.0


def test_ops_have_rates_where_tensors_move():
    found = {(each.process, each.op): each for each in measure(tensors_by_hand()).ops}
    assert found["a0", 2].gb_per_s == 2400 / 24
    assert found["a1", 0].gb_per_s == 2400 / 24
    assert found["a1", 2].gb_per_s == 1300 / 26
    assert found["a2", 0].gb_per_s is None  # a value is read where it lies
    assert [found["a1", op].group for op in range(4)] == ["g0", None, "g1", None]
    assert (found["a1", 0].waited_ns, found["a1", 0].median_ns) == (56, 28)


def test_costs_wake_from_the_arrival_of_the_last():
    graph = tensors_by_hand()
    costs = measure(graph).costs.costs
    allreduce = costs["a1", 2]
    assert (allreduce.waiting_ns, allreduce.coding_ns, allreduce.moving_ns) == (32, 2, 26)
    assert allreduce.waking_ns == 132 - 130
    assert costs["a0", 2].waking_ns == 56 - 50
    assert costs["a1", 0].waking_ns == 56 - 50
    assert costs["a2", 4].waking_ns == 0.0


def stalled(**opens):
    rows = {process: rows[:2] for process, rows in ROWS.items()}
    graph = tensors_by_hand(opens, **rows)
    return measure(graph, 0, 10_000).stall


def test_a_rank_waits_for_the_one_that_it_names_or_else_for_all_others():
    sending, computing = OpenOp(2, 0, 30, 35), OpenOp(3, 0, 86)
    hung = stalled(a0=sending, a1=OpenOp(2, 0, 100, 100, 3), a2=computing)
    assert hung is not None
    assert (hung.process, hung.waiting) == ("a2", ("a0 (Stage)", "a1 (Stage)"))
    nameless = stalled(a1=OpenOp(2, 0, 100, 100), a2=computing)
    assert nameless is not None and nameless.waiting == ("a1 (Stage)",)


def chrome(tmp_path, trace):
    path = tmp_path / "run.json"
    trace.to_chrome(path)
    return json.loads(path.read_text())["traceEvents"]


def test_chrome_has_groups_ranks_and_arrows(tmp_path):
    rows = chrome(tmp_path, tensor_trace())
    mine = [row for row in rows if row["name"] == "allreduce g1" and row["ts"] >= 0.132]
    assert [row["args"]["rank"] for row in sorted(mine, key=lambda row: row["ts"])] == [1, 0, 1]
    moved = {"group": "g1", "rank": 1, "execution": 0, "bytes": 1300}
    assert moved in [row["args"] for row in mine if row["cat"] == "communication"]
    (write,) = [
        row for row in rows if row["name"] == "write c1" and row.get("cat") == "communication"
    ]
    assert (write["args"]["group"], write["args"]["rank"]) == ("g0", 0)
    arrows = [(row["ph"], row["name"], row["ts"]) for row in rows if row["ph"] in "sf"]
    assert sorted(arrow for arrow in arrows if arrow[1] == "c1") == [
        ("f", "c1", 0.056),
        ("f", "c1", 0.056),
        ("s", "c1", 0.056),
        ("s", "c1", 0.056),
    ]
    counters = [row for row in rows if row["ph"] == "C"]
    assert {row["name"] for row in counters} == {f"unread values ({'5f1c' * 2})"}
    assert len({row["pid"] for row in counters}) == 3  # each in the process that reads


def test_a_loaded_plan_may_combine_a_value_that_was_read():
    check_plan(Plan.from_text(PLAN.replace("AllReduce s1 (sum) @g1", "AllReduce s0 (sum) @g1")))
