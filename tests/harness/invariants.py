# SPDX-License-Identifier: Apache-2.0
"""What must be true of the figures of any trace, random or real.

``notebooks/conftest.py`` checks this of every profile that a notebook makes.
"""

from __future__ import annotations

import re
from collections import Counter
from math import isclose

import numpy as np

from rcg.ir.index import crossings_of, reads_of, rendezvous_of, writes_of
from rcg.text import IN_LINE, brief
from rcg.trace.analysis.critical import LOST
from rcg.trace.analysis.events import NONE
from rcg.trace.analysis.verdict import Form
from rcg.trace.measured import Measured

_PATHS = 20  # of so many executions, the last ones
_TABLE_PERCENT = 0.051  # to what a share of the table is rounded


def check_measured(measured: Measured) -> None:
    """Check the figures of one graph against each other, and its record against causality."""
    check_parts(measured)
    check_causality(measured)
    check_path(measured)
    check_verdict(measured)


def check_parts(measured: Measured) -> None:
    """The parts of a lane do not overlap; its five times add up to the window.

    No more communication is exposed than there is, and a bubble is what methods leave.
    """
    for parts in measured.parts:
        assert (parts.start_ns < parts.end_ns).all()
        assert (parts.start_ns[1:] >= parts.end_ns[:-1]).all()
    begin, end = measured.window
    for lane in measured.shares.lanes:
        assert lane.duration_ns == end - begin and min(lane.busy_ns, lane.waiting_ns) >= 0
        assert lane.idle_ns >= 0
        assert sum(lane.waiting_for.values()) == lane.waiting_ns
    owned = {each.actor for each in measured.graph.plan.lanes}
    for lane in measured.shares.lanes:
        if lane.bubble is None or lane.exposed is None or lane.process in owned:
            continue  # what an actor's lanes move is its own
        length = lane.duration_ns
        assert lane.exposed <= lane.bubble + 1e-9
        assert isclose(lane.exposed, lane.communication_ns / length, abs_tol=1e-9)
        calls = measured.graph.program(measured.graph.lane(lane.process)).ops
        if any(op.is_call for op in calls):
            assert lane.bubble >= 1 - lane.compute_ns / length - 1e-9


def check_causality(measured: Measured) -> None:
    """No wait ends before what it waited for was there, as far as clocks can tell.

    That is when the Write of a value begins, and when the last rank of a collective arrives.
    """
    table, plan = measured.table, measured.graph.plan
    errors = {lane.process: lane.clock.error_ns for lane in measured.graph.lanes}
    writes = writes_of(plan)
    for (channel, process), place in reads_of(plan).items():
        if channel not in writes or crossings_of(plan).get((channel, plan.node_of(process))):
            continue
        reads = table.moved(*place)
        wrote = table.find(*writes[channel], table.execution[reads])
        reads, wrote = reads[wrote != NONE], wrote[wrote != NONE]
        early = table.start_ns[wrote] - table.waits_until(reads)
        error_ns = errors[process] + errors[writes[channel][0]]
        assert early.max(initial=-1) <= error_ns, (
            f"{process} took {channel} of execution "
            f"{int(table.execution[reads[int(np.argmax(early))]])} "
            f"{int(early.max())} ns before its Write began"
        )

    nodes = plan.nodes_by_process()
    for rendezvous in rendezvous_of(plan) if not table.is_open.any() else ():
        if rendezvous.is_collective and len({nodes[each] for each, _ in rendezvous.ends}) == 1:
            starts = {
                process: dict(
                    zip(table.execution[rows].tolist(), table.start_ns[rows].tolist(), strict=True)
                )
                for process, at in rendezvous.ends
                for rows in [table.rows(process, at)]
            }
            for process, at in rendezvous.ends:
                rows = table.rows(process, at)
                until = table.waits_until(rows).tolist()
                for execution, waited in zip(table.execution[rows].tolist(), until, strict=True):
                    others = [each[execution] for each in starts.values() if execution in each]
                    early = max(others) - waited
                    error_ns = 2 * max(errors.values())
                    assert early <= error_ns or waited == starts[process][execution], (
                        f"{process} waited for {rendezvous.name} of execution {execution} until "
                        f"{early} ns before the last rank arrived"
                    )


def check_path(measured: Measured) -> None:
    """The path of an execution goes from its submission to its completion, without a gap.

    The shares of that of all add up to 1, and views draw the same path.
    """
    found = measured.executions
    timed = found.is_timed
    for execution, start, end in zip(
        found.index[timed][-_PATHS:].tolist(),
        found.submitted_ns[timed][-_PATHS:].tolist(),
        (found.submitted_ns[timed] + found.latency_ns)[-_PATHS:].tolist(),
        strict=True,
    ):
        steps = measured.paths.of(execution)
        ends = [start, *(step.end_ns for step in steps)]
        assert [step.start_ns for step in steps] == ends[:-1]
        assert ends[-1] == end and ends == sorted(set(ends))
    path = measured.path
    if path is None or measured.walk is None:
        return
    shares = [each.share for each in (*path.shares, *path.stalls)]
    assert isclose(sum(shares), 1, abs_tol=1e-9) and min(shares) >= 0
    drawn: Counter[str] = Counter()
    for number, *times in zip(*measured.paths.steps_in(measured.walk), strict=True):
        drawn[measured.graph.lanes[number].process] += int(times[1] - times[0])
    length = path.end_ns - path.start_ns
    for process, took in drawn.items():
        parts = [each for each in (*path.shares, *path.stalls) if each.process == process]
        told = sum(each.share for each in parts if each.text != LOST) * length
        assert isclose(took, told, rel_tol=1e-6, abs_tol=1 + len(parts))
    assert sorted((each.share for each in path.groups), reverse=True) == [
        each.share for each in path.groups
    ]


def check_verdict(measured: Measured) -> None:
    """The headline, its table and the gain agree."""
    verdict, path = measured.verdict, measured.path
    if verdict is None or path is None or verdict.form is Form.UNKNOWN:
        return
    if verdict.gain is not None and verdict.spread is not None:
        assert verdict.gain <= 1 / (1 - verdict.share / 2) + verdict.spread + 0.005
    if verdict.form is not Form.LIMITS:
        assert not measured.summary.limiting_ops
        return
    said = re.search(r"limits this: ([\d.]+) %", str(verdict))
    assert said and abs(float(said[1]) - 100 * verdict.share) <= 0.51
    text = str(measured.summary).partition("What the results waited for")[2]
    name = re.escape(brief(verdict.text, IN_LINE))
    kinds = "compute|communication|serialization|waiting|idle"
    rows = re.findall(rf"^\s+{name}\s+(?:{kinds})\s+([\d.]+) %", text, re.M)
    own = {(each.text, each.kind) for each in path.shares if each.text == verdict.text}
    assert rows
    if len(rows) == len(own):  # none of them is in the last row, with the small ones
        assert abs(sum(map(float, rows)) - 100 * verdict.share) <= _TABLE_PERCENT * len(rows)
    else:
        assert sum(map(float, rows)) <= 100 * verdict.share + 0.51
