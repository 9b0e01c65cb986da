# SPDX-License-Identifier: Apache-2.0
"""One execution of a pipeline: a cell for each call, with the number of its micro-batch.

```
                                                            bubble
a0 (Stage)   0 │ 1 │ 2 │░░░│  0  │ 3 │  1  │  2  │  3  │     25 %     measured
             ─── ─── ───     ───── ─── ───── ───── ─────                ideal
a1 (Stage)  ░░░│ 0 │  0  │ 1 │  1  │ 2 │  2  │ 3 │  3  │░    25 %
                ─── ───── ─── ───── ─── ───── ─── ─────
```

The *bubble* of a stage is the share of the execution, from its first call's start to its last
call's end on any actor, in which the stage runs none of its calls. That of the execution is the
mean of its stages. The pipeline bubble of a profile is another figure: it is of all executions,
from the first submission to the last result. How much slower a stage is than the others is that of
all executions, as in every view.

The *ideal* is the same plan with every call of a method taking the same time on every actor, the
median of the actors' medians in this execution, and without waiting beyond precedence (see
``ideal_starts``).

The execution is one of those that the other views show at first (see ``excerpt_of``), in their
middle. Calls of other executions in that time are pale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import mean, median
from typing import Final

import numpy as np

from rcg.ir.index import Place
from rcg.text import plural, share_text
from rcg.trace.analysis.alike import Odd, odd_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.views.data.colours import EXECUTIONS, FAINT, OUTLINED, SOLID, TINTED, Look
from rcg.views.data.colours import IDEAL as IDEAL_KIND
from rcg.views.data.excerpts import excerpt_of, whole_executions
from rcg.views.data.lettering import DOT
from rcg.views.data.microbatches import ideal_starts, microbatches_of
from rcg.views.scene import IDEAL, NOBODY, Bars, Ints, Name, Scene
from rcg.views.scenes.names import OpNames, names_of
from rcg.views.scenes.timeline import clock_words, cut_of

_HUES: Final = tuple([EXECUTIONS[at] for at in (0, 2, 1, 3, 4, 5, 6, 7)])
_IDEAL_WORDS: Final = (
    "ideal: each call takes its method's median, and waits for values and actor only"
)
_HEIGHT: Final = 24.0
_BELOW: Final = 8.0


def pipeline_scene(measured: Measured, *, timeline: Scene | None = None) -> Scene | None:
    """Return one execution of a pipeline.

    None if no execution has all its calls in the trace, or the graph has no micro-batches that go
    through several actors.

    Args:
        measured: What the graph did.
        timeline: The timeline of the whole recording, if it is known.
    """
    plan, table = measured.graph.plan, measured.table
    names = names_of(plan)
    batches = microbatches_of(plan) if names.repeats > 1 else {}
    events, whole = whole_executions(measured)
    if not batches or not len(whole):
        return None
    execution = _shown(measured, whole)
    events = events[table.execution[events] == execution]
    window = int(table.start_ns[events].min()), int(table.end_ns[events].max())
    cut = timeline or cut_of(measured, window, names)
    begin, end = (each - measured.start_ns for each in window)
    scene = _with_cells(cut, names, batches, execution, begin, end)

    took = _took(scene, execution)
    usual = _usual(names, took)
    ideal_ns = {place: usual[_method(names, place)] for place in took}
    starts = ideal_starts(plan, ideal_ns)
    ideal_end = max(starts[place] + ideal_ns[place] for place in starts)
    busy = _sums(took)
    bubbles = {process: 1 - each / max(end - begin, 1) for process, each in busy.items()}
    ideal = mean(1 - each / max(ideal_end, 1) for each in _sums(ideal_ns).values())

    rows = {row.label for row in scene.rows}
    odd = {each: one for each, one in measured.summary.odd.items() if each in rows}
    where = f", one of {len(whole):,} complete ones" if len(whole) > 1 else ""
    words = [
        f"execution {execution}{where}",
        plural(1 + max(batches.values()), "micro-batch"),
        "measured above, ideal below",
        *clock_words(scene.rows),
    ]
    scene = replace(
        scene,
        title=_title(odd, mean(bubbles.values()), ideal),
        about=f" {DOT} ".join(words),
        end=max(end, begin + round(ideal_end)),
        noted="bubble",
        rows=tuple([replace(row, note=share_text(bubbles[row.process], 0)) for row in scene.rows]),
    )
    return _with_ideal(scene, starts, ideal_ns, execution)


def _shown(measured: Measured, whole: Ints) -> int:
    """Return which of the complete executions is shown: one that all other views show."""
    part = excerpt_of(measured)
    if part is not None and not part.is_open:
        whole = whole[(whole >= part.first) & (whole <= part.last)]
    return int(whole[len(whole) // 2])


# --- figures -------------------------------------------------------------------------------------


def _took(scene: Scene, execution: int) -> dict[Place, int]:
    """Return how long each call of an execution ran, in the order of rows and times."""
    bars, found = scene.bars, dict[Place, int]()
    for at in np.flatnonzero(bars.execution == execution).tolist():
        place = scene.rows[bars.row[at]].process, int(bars.op[at])
        found[place] = found.get(place, 0) + int(bars.duration[at])
    return found


def _usual(names: OpNames, took: dict[Place, int]) -> dict[str, float]:
    """Return what a call of each method takes: the median of the medians of the actors."""
    times: dict[str, dict[str, list[int]]] = {}
    for place, each in took.items():
        own = times.setdefault(_method(names, place), {})
        own.setdefault(place[0], []).append(each)
    return {method: median(map(median, own.values())) for method, own in times.items()}


def _sums(times: Mapping[Place, float]) -> dict[str, float]:
    """Return the sum of each actor."""
    found: dict[str, float] = {}
    for (process, _), each in times.items():
        found[process] = found.get(process, 0.0) + each
    return found


def _method(names: OpNames, place: Place) -> str:
    return names.names[place[0]][place[1]].text


def _title(odd: dict[str, Odd], bubble: float, ideal: float) -> str:
    """Return what stands out, and the bubbles."""
    shares = f"bubble {share_text(bubble, 0)}, ideal {share_text(ideal, 0)}"
    if not odd:
        return f"Pipeline: {shares}"
    if len(odd) > 1:
        return f"{odd_text(odd)}: {shares}"
    ((name, one),) = odd.items()
    return f"{name.partition(' ')[0]} is {one} than its {one.others} peers: {shares}"


# --- bars ----------------------------------------------------------------------------------------


def _with_cells(
    cut: Scene,
    names: OpNames,
    batches: dict[Place, int],
    execution: int,
    begin: int,
    end: int,
) -> Scene:
    """Return the calls of a cut in a time, those of one execution with their micro-batches."""
    bars = cut.bars
    calling = {process for process, _ in batches}
    rows = [at for at, row in enumerate(cut.rows) if not row.part and row.process in calling]
    which = cut.where("call") & (bars.kind == TimeKind.COMPUTE) & np.isin(bars.row, rows)
    which &= (bars.end > begin) & (bars.start < end)
    own = bars.take(np.flatnonzero(which))
    place = np.full(len(cut.rows), -1)
    place[rows] = np.arange(len(rows))
    methods = _methods(names)
    known: dict[Name, int] = {}
    name, look = [], []
    for row, op, of in zip(own.row.tolist(), own.op.tolist(), own.execution.tolist(), strict=True):
        process = cut.rows[row].process
        found = names.names[process][op]
        if of == execution:
            found = replace(found, batch=batches.get((process, op)))
        name.append(known.setdefault(found, len(known)))
        look.append(methods[found.text] if of == execution else len(methods) * 2)
    return Scene(
        "pipeline",
        "",
        begin,
        end,
        tuple([replace(cut.rows[at], height=_HEIGHT) for at in rows]),
        tuple(known),
        _looks(names, methods),
        "bubble: no call of the stage in this execution",
        own.with_columns(
            row=place[own.row],
            name=np.array(name, np.int64),
            look=np.array(look, np.int64),
            peer=np.full(len(own), NOBODY),
        ),
        repeats=cut.repeats,
    )


def _methods(names: OpNames) -> dict[str, int]:
    """Return the number of each method, in the order of programs."""
    found: dict[str, int] = {}
    for own in names.names.values():
        for each in own:
            if each.role == "call":
                found.setdefault(each.text, len(found))
    return found


def _looks(names: OpNames, methods: dict[str, int]) -> tuple[Look, ...]:
    """Return the looks of methods, of methods in the ideal, and of other executions."""
    initials = {each.text: each.initial for own in names.names.values() for each in own}
    looks = []
    for title, styles in (("", (SOLID, TINTED)), (_IDEAL_WORDS, (OUTLINED, FAINT))):
        for text, at in methods.items():
            own = f"{text} ({initials[text]})" if initials[text] else text
            looks.append(Look(title or own, _HUES[at % len(_HUES)], styles[at % 2]))
    return (*looks, Look("another execution", "#7d8793", FAINT))


def _with_ideal(
    scene: Scene, starts: dict[Place, float], took: dict[Place, float], execution: int
) -> Scene:
    """Return a scene with the ideal calls, each in a row below the one that it is of."""
    bars = scene.bars
    number = {row.process: at for at, row in enumerate(scene.rows)}
    # A call that waited inside has several bars.
    first: dict[Place, int] = {}
    for at in np.flatnonzero(bars.execution == execution).tolist():
        first.setdefault((scene.rows[bars.row[at]].process, int(bars.op[at])), at)
    places = [place for place in starts if round(took[place]) > 0]
    begun = np.array([round(starts[place]) for place in places], np.int64)
    ended = np.array([round(starts[place] + took[place]) for place in places], np.int64)
    like = np.array([first[place] for place in places], np.int64)
    own = bars.take(like).without_events()
    below = own.with_columns(
        row=np.array([number[process] * 2 + 1 for process, _ in places]),
        start=scene.begin + begun,
        duration=ended - begun,
        kind=np.full(len(like), IDEAL_KIND),
        look=own.look + (len(scene.looks) - 1) // 2,
    )
    joined, _ = Bars.joined([bars.with_columns(row=bars.row.astype(np.int64) * 2), below])
    rows = [
        each
        for row in scene.rows
        for each in (row, replace(row, part=IDEAL, height=_BELOW, note=""))
    ]
    return replace(scene, rows=tuple(rows), bars=joined)
