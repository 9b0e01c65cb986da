# SPDX-License-Identifier: Apache-2.0
"""Random graphs, simulated with random costs and turned into traces, for hypothesis."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.simulate import Costs, Simulation, simulate
from rcg.errors import DeadlockError
from rcg.ir.ops import Call, Collective, Read, Write
from rcg.trace.analysis.what_if import from_simulation
from rcg.trace.model import GraphTrace
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
    draw: st.DrawFn, *, is_driver_draining: bool | None = None, has_tensors: bool = False
) -> Simulated:
    """A random plan with random whole costs, on random nodes, replayed with a random window."""
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
    count = draw(st.integers(1, 9))
    try:
        simulation = simulate(plan, costs, count, window=window, is_driver_draining=drains)
    except DeadlockError:
        assume(False)
        raise
    graph = from_simulation(simulation, limit=window, codes=draw(st.booleans()))
    return Simulated(simulation, costs, window, graph)
