# SPDX-License-Identifier: Apache-2.0
"""The schedule of a graph: the bars of its timeline, without waits, coloured by execution.

```
a0 (Stage)  fwd 4 ████ fwd 5 ████ ░░░░ fwd 6 ████      measured
 predicted  ┌────────┐┌─────────┐┌─────────┐
  comm             ▬▬▬        ▬▬▬         ▬▬▬          a lane of the actor
```

If an execution calls a method several times, a colour is one of these calls: a micro-batch. A
second method of an actor is paler. Processes that call nothing are left out: they are in the
timeline. Of many actors that do the same at the same time there is a row of medians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from rcg.compiler.costs import UNIT_NS
from rcg.compiler.simulate import Simulation, simulate
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.text import plural
from rcg.trace.analysis.alike import FEW
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.trace.model import SPAN_BASE, GraphTrace
from rcg.views.data.alike import alike_processes, row_of, typical
from rcg.views.data.colours import EXECUTIONS, FAINT, OUTLINED, PREDICTED, SOLID, TINTED, Look
from rcg.views.data.excerpts import MAX_WIDTHS, Excerpt, excerpt_of
from rcg.views.data.lettering import DOT
from rcg.views.scene import (
    CALL_NS,
    NOBODY,
    PREDICTION,
    Bars,
    Column,
    CriticalPaths,
    Ints,
    Row,
    Scene,
)
from rcg.views.scenes.causes import causes_of
from rcg.views.scenes.names import OpNames, names_of
from rcg.views.scenes.prediction import executions_within_budget, fit, prediction_of, scene_of
from rcg.views.scenes.timeline import clock_words, cut_of, part_words

MAX_PREDICTED: Final = 8
"""Most executions of a prediction alone."""

_MAX_MEASURED: Final = 200  # executions, unless the user says how many
_NUM_CALLS: Final = 60  # of one actor, in the executions of a prediction alone
_NUM: Final = len(EXECUTIONS)
_OTHER, _OUTLINES, _BUSY = _NUM, 2 * _NUM, 4 * _NUM
_HEIGHT: Final = 28.0
_LANE: Final = 13.0
_BELOW: Final = 9.0


def schedule_scene(
    measured: Measured,
    *,
    executions: int | None = None,
    op_cost: Callable[[Op], float] | None = None,
    is_part: bool = False,
    timeline: Scene | None = None,
) -> Scene:
    """Return the schedule of a graph that ran, and of its prediction.

    Args:
        measured: What the graph did.
        executions: Shows so many of the last executions; None: as many as can be told apart.
        op_cost: Returns the duration of an op in nanoseconds, for the prediction; None takes the
            measured ones.
        is_part: Whether only the executions are shown that views show at first, if there are any.
        timeline: The timeline of the whole recording, if it is known.
    """
    graph, start_ns, end_ns = measured.graph, measured.start_ns, measured.end_ns
    part = excerpt_of(measured) if executions is None else None
    is_part &= part is not None
    window = (part.start_ns, part.end_ns) if is_part and part else None
    if window is None:
        window = _window_of(graph, start_ns, end_ns, executions or _MAX_MEASURED, part)
    names = names_of(graph.plan)
    cut = timeline if timeline and not is_part else cut_of(measured, window, names)
    bars = cut.bars
    begin, end = (each - start_ns for each in window)
    first, last = _shown(cut, executions or _MAX_MEASURED, part)
    is_shown = (bars.end > begin) & (bars.start < end)
    is_shown &= is_part | ((bars.execution >= first) & (bars.execution <= last))
    scene = replace(_scheduled(graph.plan, cut, is_shown), begin=begin, end=end)
    words = [part_words(scene, part)] if is_part and part else [_count(scene)]
    compared = range(part.first, part.last + 1) if part else range(first, last + 1)
    is_open = part is not None and part.is_open  # what hangs was not predicted
    simulation = None if is_open else prediction_of(measured, len(compared), op_cost)
    if simulation is not None:
        calls, note = fit(simulation, scene, compared, "given" if op_cost else "measured")
        is_all = is_part or calls is None or len(compared) == last - first + 1
        words.append(note if is_all else f"{note} for {_executions(compared[0], compared[-1])}")
        if calls is not None:
            scene = _with_rows_below(scene, calls, names)
    scene = _folded(graph.plan, scene, compared if is_part else None)
    words += [*_explained(scene), *clock_words(scene.rows)]
    shown = (part.start_ns - start_ns, part.end_ns - start_ns) if part and not is_part else None
    causes = scene.causes if is_part else causes_of(measured, scene.bars)
    return replace(scene, about=f" {DOT} ".join(words), causes=causes, window=shown)


def predicted_scene(
    plan: Plan,
    *,
    executions: int | None = None,
    op_cost: Callable[[Op], float] | None = None,
    window: int = 10,
) -> Scene:
    """Return the predicted schedule of a plan, as of a run that has just begun.

    Args:
        plan: The plan.
        executions: How many executions; None: as many as can be told apart.
        op_cost: Returns the duration of an op in nanoseconds; None takes the costs of the plan, or
            counts each call as one unit.
        window: How many executions may be in flight.
    """
    is_rough = op_cost is None and not plan.costs
    count = executions or executions_within_budget(plan, executions_of_calls(plan))
    if is_rough:
        found = simulate(plan, lambda op: op.cost * UNIT_NS, count, window=window)
    else:
        found = simulate(plan, op_cost, count, window=window)
    return scene_of_simulation(found, is_rough=is_rough, limit=executions)


def scene_of_simulation(
    simulation: Simulation, *, is_rough: bool = False, limit: int | None = None
) -> Scene:
    """Return the schedule of a simulation in ns; of a rough one in calls, each ``UNIT_NS`` long.

    Without a limit it has as many of the first executions as can be told apart.
    """
    plan = simulation.plan
    cut = scene_of(simulation, CALL_NS / UNIT_NS if is_rough else 1.0)
    few = _wide_enough(cut, executions_of_calls(plan))
    count = limit or few
    scene = _scheduled(plan, cut, cut.bars.execution < count, is_outlined=True)
    scene = _folded(plan, replace(scene, end=int(scene.bars.end.max(initial=1))))
    how = "predicted, every call counts as one" if is_rough else "predicted"
    words = [_count(scene), how, *_explained(scene)]
    window = None
    is_early = scene.where("call") & (scene.bars.execution < few)
    if count > few + few // 2 and is_early.any():
        first, last = (
            int(scene.bars.start[is_early].min()),
            int(scene.bars.end[is_early].max()),
        )
        window = max(first - (last - first) // 32, 0), last
    return replace(scene, about=f" {DOT} ".join(words), in_calls=is_rough, window=window)


def executions_of_calls(plan: Plan) -> int:
    """Return how many executions have about ``_NUM_CALLS`` calls of the busiest actor."""
    most = max(sum(op.is_call for op in program.ops) for program in plan.programs)
    return min(MAX_PREDICTED, max(1, round(_NUM_CALLS / max(most, 1))))


def _wide_enough(scene: Scene, most: int) -> int:
    """Return how many of the first executions, at most ``most``, last ``MAX_WIDTHS`` calls."""
    calls = scene.where("call")
    if not calls.any():
        return most
    execution, took = scene.bars.execution[calls], scene.bars.duration[calls]
    ends = np.zeros(int(execution.max()) + 1)
    np.maximum.at(ends, execution, scene.bars.end[calls])
    lasts = np.maximum.accumulate(ends) - scene.bars.start[calls].min()
    fits = np.searchsorted(lasts, MAX_WIDTHS * max(float(np.median(took)), 1.0), side="right")
    return min(most, max(1, int(fits)))


def _explained(scene: Scene) -> list[str]:
    """Return what the bars of several actors are."""
    has_several = any(row.members for row in scene.rows)
    return ["several actors in one: their medians"] if has_several else []


def _count(scene: Scene) -> str:
    found = np.unique(scene.bars.execution[scene.where("call")]).tolist()
    if len(found) < 2:
        return f"execution {found[0]}" if found else "nothing ran"
    return f"{plural(found[-1] - found[0] + 1, 'execution')}, {found[0]} to {found[-1]}"


def _executions(first: int, last: int) -> str:
    return f"execution {first}" if first == last else f"executions {first} to {last}"


def _window_of(
    graph: GraphTrace, start_ns: int, end_ns: int, most: int, part: Excerpt | None
) -> tuple[int, int]:
    """Return when the last executions began, or a part if it is earlier, until the end."""
    starts, last = [], 0
    for lane in graph.lanes:
        if len(lane.events):
            last = max(last, int(lane.events["execution"].max()))
    first = last - most + 1 if part is None else min(last - most + 1, part.first)
    for lane in graph.lanes:
        own = lane.events[(lane.events["execution"] >= first) & (lane.events["op"] < SPAN_BASE)]
        starts.append(int(own["start_ns"].min(initial=end_ns)))
    begin = max(start_ns, min(starts, default=start_ns))
    return (begin, end_ns) if begin < end_ns else (start_ns, end_ns)


def _shown(scene: Scene, most: int, part: Excerpt | None) -> tuple[int, int]:
    """Return the first and the last execution of a view."""
    is_work = scene.bars.kind != TimeKind.WAITING
    last = int(scene.bars.execution[is_work].max(initial=0))
    first = last - most + 1 if part is None else min(last - most + 1, part.first)
    first = max(first, int(scene.bars.execution.min(initial=0)))
    return first, min(last, first + most - 1)


def _scheduled(plan: Plan, cut: Scene, is_shown: Column, *, is_outlined: bool = False) -> Scene:
    """Return those bars of a cut that belong in a schedule, with the looks of executions."""
    bars = cut.bars
    calling = {each.process for each in plan.programs if any(op.is_call for op in each.ops)}
    rows = [
        at for at, row in enumerate(cut.rows) if not row.part and {row.process, row.under} & calling
    ]
    is_busy = (bars.kind != TimeKind.WAITING) & ~cut.where("free")
    which = np.flatnonzero(is_shown & is_busy & np.isin(bars.row, rows))
    place = np.full(len(cut.rows), -1)
    place[rows] = np.arange(len(rows))
    row = place[bars.row[which]]
    is_lane = np.array([bool(cut.rows[at].under) for at in rows] or [False])[row]
    colour = _colours(cut, bars.execution[which], bars.name[which]) + _OUTLINES * is_outlined
    found = bars.take(which).with_columns(
        row=row,
        look=np.where(cut.where("call")[which], colour, _BUSY + is_lane),
        peer=np.full(len(which), NOBODY),
    )
    if is_outlined:
        found = found.with_columns(kind=np.full(len(which), PREDICTED))
    moved = np.full(len(bars), -1)
    moved[which] = np.arange(len(which))
    shown = [cut.rows[at] for at in rows]
    return replace(
        cut,
        view="schedule",
        about="",
        rows=tuple([replace(each, height=_LANE if each.under else _HEIGHT) for each in shown]),
        looks=_looks(cut.repeats, is_alone=is_outlined),
        ground="waiting or idle",
        bars=found,
        links=cut.links.moved(moved),
        steps=(),
        paths=CriticalPaths(),
        causes=np.empty(0, np.int64),
    )


def _colours(scene: Scene, execution: Column, name: Column) -> Column:
    """Return the look of measured calls: by execution, or by call of it; paler of other methods."""
    marks = [(each.call or 0, each.is_other) for each in scene.names] or [(0, False)]
    call, is_other = np.array(marks, np.int64).T
    return np.asarray((execution * scene.repeats + call[name]) % _NUM + _OTHER * is_other[name])


def _looks(repeats: int, *, is_alone: bool) -> tuple[Look, ...]:
    """Return the looks of executions: measured, of another method, predicted, the same, busy."""
    colour = "execution" if repeats == 1 else "execution and call"
    titles = (
        f"measured, colour = {colour}",
        "another method of the actor",
        f"predicted, colour = {colour}" if is_alone else "predicted",
        "predicted, another method" if is_alone else "predicted",
    )
    styles = (SOLID, TINTED, OUTLINED, FAINT)
    looks = [
        Look(title, each, style)
        for title, style in zip(titles, styles, strict=True)
        for each in EXECUTIONS
    ]
    busy = "#7d8793"
    words = "outside of your methods"
    return (*looks, Look(words, busy, height=0.16), Look(words, busy))


def _with_rows_below(scene: Scene, calls: Bars, names: OpNames) -> Scene:
    """Return a scene with predicted calls, each in a row below the one that it is of."""
    known = {name: at for at, name in enumerate(scene.names)}
    rows: list[Row] = []
    place = np.zeros(len(scene.rows), np.int64)
    name = np.zeros(len(calls), np.int64)
    calling = set(calls.row.tolist())
    for at, row in enumerate(scene.rows):
        place[at] = len(rows)
        rows.append(row)
        if at in calling:
            rows.append(replace(row, part=PREDICTION, height=_BELOW))
            own = names.names[row.process]
            of = [known.setdefault(x, len(known)) if x.role == "call" else 0 for x in own]
            name[calls.row == at] = np.array(of)[calls.op[calls.row == at]]
    scene = replace(scene, rows=tuple(rows), names=tuple(known))
    below = calls.with_columns(
        row=place[calls.row] + 1,
        name=name,
        look=_colours(scene, calls.execution, name) + _OUTLINES,
    )
    above = scene.bars.with_columns(row=place[scene.bars.row])
    bars, moved = Bars.joined([above, below])
    return replace(scene, bars=bars, links=scene.links.moved(moved[: len(above)]))


def _folded(plan: Plan, scene: Scene, whole: range | None = None) -> Scene:
    """Return a scene with a row of medians for the rows of actors that do the same.

    ``whole`` are the executions that it has all calls of; of others a row may have one more.
    """
    if len(plan.actors) <= FEW:
        return scene
    bars = scene.bars
    numbers = {program.process: at for at, program in enumerate(plan.programs)}
    is_own = np.array([row.part == "" for row in scene.rows])[bars.row]
    if whole is not None:
        is_own &= (bars.execution >= whole.start) & (bars.execution < whole.stop)
    lane = np.array([numbers[row.process] for row in scene.rows])[bars.row]
    seen = {name: getattr(bars, name)[is_own] for name in ("start", "duration", "execution", "op")}
    found = alike_processes(plan, {**seen, "lane": lane[is_own]})
    if not found:
        return scene
    rows: list[Row] = list(scene.rows)
    parts = [bars.counted()]
    before: dict[int, int] = {}  # the row that each new one is before
    for members in found:
        for part in ("", PREDICTION):
            at = [
                number
                for number, row in enumerate(scene.rows)
                if row.process in members and row.part == part
            ]
            if not at:
                continue
            own = np.flatnonzero(np.isin(bars.row, at))
            keys = [getattr(bars, name)[own] for name in ("execution", "op", "kind", "look")]
            many = typical(keys, bars.start[own], bars.end[own])
            end = _before_next(many.start, many.end)
            of = own[many.row]
            parts.append(
                bars.take(of)
                .without_events()
                .with_columns(
                    row=np.full(len(of), len(rows)),
                    start=many.start,
                    duration=end - many.start,
                    count=many.count,
                    shortest=many.least,
                    longest=many.most,
                    total=end - many.start,
                )
            )
            label, detail = row_of(members, [scene.rows[n].label for n in at])
            before[len(rows)] = next(n for n, row in enumerate(rows) if row.process in members)
            rows.append(replace(scene.rows[at[0]], label=label, detail=detail, members=tuple(at)))
    places = sorted(range(len(rows)), key=lambda at: (before.get(at, at), at not in before, at))
    place = np.argsort(places)
    joined, moved = Bars.joined([each.with_columns(row=place[each.row]) for each in parts])
    shown = [
        replace(rows[at], members=tuple(place[list(rows[at].members)].tolist())) for at in places
    ]
    return replace(
        scene, rows=tuple(shown), bars=joined, links=scene.links.moved(moved[: len(bars)])
    )


def _before_next(start: Ints, end: Ints) -> Ints:
    """Return the ends of bars, none later than the next begins: medians of many may overlap."""
    order = np.argsort(start, kind="stable")
    following = np.append(start[order][1:], end[order][-1:])
    found = np.empty_like(end)
    found[order] = np.maximum(np.minimum(end[order], following), start[order])
    return found
