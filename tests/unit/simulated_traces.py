# SPDX-License-Identifier: Apache-2.0
"""Random graphs, simulated with random costs and turned into traces, for hypothesis.

``simulated`` makes a whole trace of exact times. ``recorded`` makes one as a recording of real
processes has it: it begins and ends in the middle of executions, events are lost, calls have spans
and kernels, and clocks are off.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.simulate import Costs, Simulation, simulate
from rcg.errors import DeadlockError
from rcg.ir.costs import CALL, Cost
from rcg.ir.nodes import MethodCall
from rcg.ir.ops import Call, Collective, Read, Write
from rcg.trace.analysis.what_if import from_simulation
from rcg.trace.model import (
    NO_PEER,
    SPAN_BASE,
    Clock,
    Events,
    GraphTrace,
    LaneTrace,
    OpenOp,
    stream_name,
)
from rcg.trace.trace import Trace
from tests.unit.random_graphs import cases, placements


@dataclass
class Simulated:
    simulation: Simulation
    costs: Costs
    window: int
    graph: GraphTrace

    @property
    def end(self) -> int:
        return int(self.simulation.duration)


@st.composite
def simulated(
    draw: st.DrawFn,
    *,
    is_driver_draining: bool | None = None,
    has_tensors: bool = False,
    most: int = 9,
) -> Simulated:
    """A random plan with random whole costs, on random nodes, replayed with a random window.

    It has at most so many executions.
    """
    case = draw(cases(max_calls=6, max_actors=3, has_tensors=has_tensors))
    window = draw(st.integers(1, 4))
    nodes, driver = draw(placements(case.graph, most=3))
    plan = compile_graph(case.graph, nodes, driver, draw(st.integers(1, 4))).plan
    each: dict[tuple[str, int], float] = {}
    waking: dict[tuple[str, int], float] = {}
    for program in plan.programs:
        for at, op in enumerate(program.ops):
            if isinstance(op, Call | Read | Write | Collective):
                each[program.process, at] = draw(st.integers(1, 30))
                waking[program.process, at] = draw(st.integers(0, 3))
            else:
                each[program.process, at] = draw(st.sampled_from([0, 0, 2]))
    costs = Costs(each, waking)
    drains = draw(st.booleans()) if is_driver_draining is None else is_driver_draining
    count = draw(st.integers(1, most))
    try:
        simulation = simulate(plan, costs, count, window=window, is_driver_draining=drains)
    except DeadlockError:
        assume(False)
        raise
    graph = from_simulation(simulation, limit=window, codes=draw(st.booleans()))
    return Simulated(simulation, costs, window, graph)


def shaken(made: Simulated, number: random.Random) -> GraphTrace:
    """The trace of a simulation, less even: as processes record it that are woken up early.

    Ops end after those that they woke have begun to go on, and methods wait for other graphs. Some
    Reads have not seen all of their wait. Reads and Writes have bytes.
    """
    lanes = []
    for lane in made.graph.lanes:
        ops = made.graph.program(lane).ops
        events = lane.events.copy()
        for before, after in pairwise(range(len(events))):
            room = int(min(events["waited_ns"][after], 6))
            is_next = events["end_ns"][before] == events["start_ns"][after]
            if room and is_next and ops[events["op"][after]].values_in:
                later = number.randint(0, room)
                events["end_ns"][before] += later
                events["start_ns"][after] += later
                events["waited_ns"][after] -= later
        for event in events:
            if ops[event["op"]].is_rendezvous:
                event["bytes"] = number.randint(1, 1000)
            if ops[event["op"]].values_in and number.random() < 0.3:
                event["waited_ns"] = number.randint(0, int(event["waited_ns"]))
            if ops[event["op"]].is_call and number.random() < 0.3:
                event["waited_ns"] = number.randint(0, int(event["end_ns"] - event["start_ns"]))
        lanes.append(replace(lane, events=events))
    return replace(made.graph, lanes=tuple(lanes))


@st.composite
def recorded(draw: st.DrawFn) -> Trace:
    """A recording of a random program with edges of every kind.

    Hypothesis chooses the program, the placement and what the recording has. A generator with a
    seed chooses the many numbers, which one has no need to see one by one.
    """
    case = draw(cases(max_calls=12, max_actors=4, has_tensors=True))
    graph = case.graph
    if draw(st.booleans()):  # a class of several actors
        actors = tuple(replace(each, label="Stage") for each in graph.actors)
        graph = replace(graph, actors=actors)
    nodes, driver = draw(placements(graph, most=3))
    window = draw(st.integers(1, 6))
    number = random.Random(draw(st.integers(0, 1 << 32)))
    costs = [
        Cost(CALL, node.id, number.randrange(1 << 20))
        for node in graph.nodes
        if isinstance(node, MethodCall) and draw(st.booleans())
    ]
    overlap = draw(st.sampled_from([False, True, "auto"]))
    slots = draw(st.integers(1, 10))
    plan = compile_graph(graph, nodes, driver, slots, overlap=overlap, costs=costs).plan
    longest = draw(st.sampled_from([5_000_000, 30, 1]))  # ns
    each = {
        (program.process, at): number.choice([0.05, 0.1, 1])
        * number.randint(0, longest if op.is_rendezvous or op.is_call else longest // 10)
        for program in plan.programs
        for at, op in enumerate(program.ops)
    }
    waking = dict.fromkeys(each, draw(st.integers(0, 3)))
    count = draw(st.sampled_from([30, 12, 5, 1]))
    drains = draw(st.booleans())
    try:
        run = simulate(plan, Costs(each, waking), count, window=window, is_driver_draining=drains)
    except DeadlockError:
        assume(False)
        raise
    record = from_simulation(run, graph_id="5f1c" * 8, limit=window, codes=draw(st.booleans()))
    end = round(run.duration) + 1
    has = draw(st.sets(st.sampled_from(PARTS), max_size=3))
    begins, ends = 0, end
    if "cuts" in has:
        begins, ends = sorted(number.randrange(end + 1) for _ in range(2))
    lanes = [_recorded(record, lane, begins, ends, number, has) for lane in record.lanes]
    late = number.choice([0, 1, 10]) * end if "hangs" in has else 0
    cores = {"cores": 4} if draw(st.booleans()) else {}
    return Trace(
        (replace(record, lanes=tuple(lanes)),), begins, max(ends, begins + 1) + late, cores
    )


PARTS = ("cuts", "hangs", "lost", "bytes", "spans", "kernels", "clocks", "processors")
"""What a recording may have besides the events of a simulation."""


def _recorded(
    record: GraphTrace,
    lane: LaneTrace,
    begins: int,
    ends: int,
    number: random.Random,
    has: set[str],
) -> LaneTrace:
    """A lane of a simulation as it is recorded between two moments."""
    ops = record.program(lane).ops
    events = lane.events
    if "bytes" in has:
        moves = np.array([bool(op.values_in or op.values_out) for op in ops])[events["op"]]
        events["bytes"] = np.where(moves, [number.randrange(1 << 24) for _ in events], 0)
    running = events[(events["start_ns"] <= ends) & (events["end_ns"] > ends)]
    events = events[(events["end_ns"] <= ends) & (events["end_ns"] > begins)]
    lost = 0
    if "lost" in has and len(events):
        lost = number.randrange(len(events))
        events = events[lost:] if number.random() < 0.5 else events[: len(events) - lost]
    opened = None
    if len(running):
        now = running[0]
        is_waiting = now["start_ns"] + now["waited_ns"] > ends
        opened = OpenOp(
            int(now["op"]),
            int(now["execution"]),
            int(now["start_ns"]),
            max(int(now["start_ns"]), 1) if is_waiting else 0,
            int(now["peer"]) if is_waiting else NO_PEER,
        )
    calls = events[np.array([op.is_call for op in ops])[events["op"]]]
    spans, kernels = events[:0], events[:0]
    if "spans" in has:
        spans = _parts(calls, number)
        events = np.sort(np.concatenate([events, spans]), order=["start_ns"], kind="stable")
    if "kernels" in has:
        kernels = _parts(calls, number)
        kernels["peer"] = 0
    busy = int((events["end_ns"] - events["start_ns"] - events["waited_ns"]).sum())
    return replace(
        lane,
        events=events,
        spans=("layer", "aten::mm") if "spans" in has or "kernels" in has else (),
        clock=Clock(0, number.randrange(1000)) if "clocks" in has else Clock(),
        lost=lost,
        open=opened,
        kernels=kernels,
        streams=(stream_name(1),) if "kernels" in has else (),
        processor_ns=(busy // number.randint(1, 4), 2 * busy) if "processors" in has else None,
    )


def _parts(calls: Events, number: random.Random) -> Events:
    """The first and the second half of each call, as spans or kernels of their own."""
    halves = np.repeat(calls, 2)
    middle = (calls["start_ns"] + calls["end_ns"]) // 2
    halves["end_ns"][0::2] = halves["start_ns"][1::2] = middle
    halves["waited_ns"] = halves["coded_ns"] = halves["bytes"] = 0
    halves["op"] = SPAN_BASE + number.randrange(2)
    halves["peer"] = NO_PEER
    return halves
