# SPDX-License-Identifier: Apache-2.0
"""Traces made by hand: a pipeline whose every nanosecond is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rcg.ir.plan import Plan
from rcg.trace.model import EVENT, NO_PEER, Events, GraphTrace, Lane, OpenOp
from rcg.trace.trace import Trace

PIPELINE = """
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
actor a1 'Stage' ''
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0 -> a1 ring node=1 slots=10
channel c2 a1 -> driver ring node=2 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c2 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.fwd(s0) -> s1 #1
  Free s0
  Write s1 -> c1
  Free s1
program a1
  Read c1 -> s0
  Call a1.fwd(s0) -> s1 #2
  Free s0
  Write s1 -> c2
  Free s1
"""
"""Driver -> a0 -> a1 -> driver. Driver: Write is op 1, Read 3; actors: Read 0, Call 1, Write 3."""

Row = Mapping[str, int]


def event(
    op: int,
    execution: int,
    start: int,
    end: int,
    *,
    waited: int = 0,
    coded: int = 0,
    bytes: int = 0,
    peer: int = NO_PEER,
) -> tuple[int, int, int, int, int, int, int, int]:
    """One row of ``EVENT``."""
    return (start, end, waited, coded, execution, bytes, op, peer)


def events(rows: Iterable[tuple[int, ...]]) -> Events:
    """Rows as an array."""
    return np.array(list(rows), EVENT)


def graph_trace(
    rows: Mapping[str, Iterable[tuple[int, ...]]],
    *,
    plan: str = PIPELINE,
    spans: Mapping[str, tuple[str, ...]] | None = None,
    opens: Mapping[str, OpenOp] | None = None,
    limit: int = 10,
) -> GraphTrace:
    """A graph's record from rows by process; a process that is not named did nothing."""
    made = Plan.from_text(plan)
    lanes = tuple(
        Lane(
            program.process,
            made.label(program.process),
            events(rows.get(program.process, ())),
            spans=(spans or {}).get(program.process, ()),
            open=(opens or {}).get(program.process),
        )
        for program in made.programs
    )
    return GraphTrace("5f1c" * 8, made, lanes, limit)


def trace(*graphs: GraphTrace, start: int = 0, end: int) -> Trace:
    """A trace of graphs between two moments."""
    return Trace(graphs, start, end)
