# SPDX-License-Identifier: Apache-2.0
"""The micro-batches of a plan, and when its calls would run if only their order held them up.

An execution that calls methods several times usually does so for parts of its input: micro-batches.
The calls of one pass values to each other, and no value goes from one to another, until a call that
there is once takes them all, as an optimizer's step does::

    a0   F0 ─┐  F1 ─┐            B0 ─┐  B1 ─┐
    a1       └ F0 ──┼ B0 ────────┘      │   ├─ step       F0, F0, B0, B0 are micro-batch 0
                    └── F1 ── B1 ───────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from graphlib import TopologicalSorter

from rcg.ir.index import Place, rendezvous_of, writes_of
from rcg.ir.ops import Call
from rcg.ir.plan import Plan


def sources_of(plan: Plan) -> dict[Place, list[Place]]:
    """Return the ops that make the values of each op.

    A collective has the values of all its ranks.
    """
    writes = writes_of(plan)
    found: dict[Place, list[Place]] = {}
    for program in plan.programs:
        made: dict[int, Place] = {}  # by slot
        for at, op in enumerate(program.ops):
            place = program.process, at
            found[place] = [made[slot] for slot in op.used() if slot in made]
            found[place] += [writes[channel] for channel in op.values_in if channel in writes]
            made |= dict.fromkeys(op.made(), place)
    for each in rendezvous_of(plan):
        if each.is_collective:
            joined = [source for end in each.ends for source in found[end]]
            found |= dict.fromkeys(each.ends, joined)
    return found


def microbatches_of(plan: Plan) -> dict[Place, int]:
    """Return the micro-batch of each call that has one, from 0 on in the order of binding.

    Nothing if there are fewer than two, or none goes through two actors.
    """
    calls = _calls_of(plan)
    count = Counter((process, op.method) for (process, _), op in calls.items())
    sources = sources_of(plan)
    reached: dict[Place, set[Place]] = {}  # the calls of micro-batches whose values an op has
    chains: dict[Place, list[Place]] = {}  # the calls that belong together, by each of them
    for place in TopologicalSorter(sources).static_order():
        known = {call for source in sources[place] for call in reached[source]}
        op = calls.get(place)
        if op is not None and count[place[0], op.method] == 1:
            known = set()
        elif op is not None:
            chain = [place]
            for call in known:
                if chains[call] is not chain:
                    chain += chains[call]
                    chains |= dict.fromkeys(chains[call], chain)
            chains[place] = chain
            known = {place}
        reached[place] = known
    chosen = {id(chain): chain for chain in chains.values()}.values()
    if len(chosen) < 2 or all(len({process for process, _ in chain}) == 1 for chain in chosen):
        return {}
    in_order = sorted(chosen, key=lambda chain: min(calls[place].node for place in chain))
    return {place: number for number, chain in enumerate(in_order) for place in chain}


def ideal_starts(plan: Plan, took: Mapping[Place, float]) -> dict[Place, float]:
    """Return when each call of one execution would start, the first at 0.

    It takes as long as given, and waits only for its values and for the call before it on its
    actor: values arrive at once, and nobody waits for room or for who takes them.
    """
    waits = sources_of(plan)
    before: dict[str, Place] = {}
    for place in _calls_of(plan):
        process, _ = place
        if process in before:
            waits[place] = [*waits[place], before[process]]
        before[process] = place
    ends: dict[Place, float] = {}
    starts: dict[Place, float] = {}
    for place in TopologicalSorter(waits).static_order():
        start = max((ends[each] for each in waits[place]), default=0.0)
        ends[place] = start + took.get(place, 0.0)
        if place in took:
            starts[place] = start
    return starts


def _calls_of(plan: Plan) -> dict[Place, Call]:
    return {
        (program.process, at): op
        for program in plan.programs
        for at, op in enumerate(program.ops)
        if isinstance(op, Call)
    }
