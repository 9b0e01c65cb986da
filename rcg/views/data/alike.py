# SPDX-License-Identifier: Apache-2.0
"""Alike rows: many actors that do the same are one row, and one that does not is a row of its own.

```
a0  ███   ███          a0 to a61 (Worker)  ███   ███       each bar: the median of 62
a1  ███   ███
... 60 more      ->
a17 ███████  ███       a17 (Worker)        ███████  ███    slower than the others
```

Actors are alike if the topology folds them to one card, and their calls take as long and begin at
the same time. Rows of a table are alike if their figures are (``rcg.trace.analysis.alike``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.ir.plan import Plan
from rcg.text import run_text
from rcg.trace.analysis.alike import ALIKE, FEW, LONGER, members_text
from rcg.views.data.folding import fold
from rcg.views.data.node_lanes import lanes_under
from rcg.views.data.topology import topology_of

_OFF: Final = 0.5  # of a call, that an actor begins earlier or later than the others

Columns = Mapping[str, npt.NDArray[Any]]
Ints = npt.NDArray[np.int64]


def alike_processes(plan: Plan, bars: Columns) -> tuple[tuple[str, ...], ...]:
    """Return the actors, and the lanes of actors, that are one row each.

    Args:
        plan: The plan.
        bars: What they did: ``start``, ``duration``, ``execution``, ``lane`` and ``op`` of each
            bar; a lane is the position of a program.
    """
    if len(plan.actors) <= FEW:
        return ()
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    lanes: dict[str, dict[str, str]] = {}
    for lane, (actor, short) in lanes_under(plan).items():
        lanes.setdefault(actor, {})[short] = lane

    def shape(process: str) -> tuple[object, ...]:
        ops = plan.program(process).ops
        own = tuple((op.word, op.title() if op.is_call else "") for op in ops)
        return own, *((short, shape(lane)) for short, lane in lanes.get(process, {}).items())

    found: list[tuple[str, ...]] = []
    for card in fold(topology_of(plan), layout="actors").cards:
        by_shape: dict[tuple[object, ...], list[str]] = {}
        for process in card.processes if len(card.processes) >= ALIKE else ():
            by_shape.setdefault(shape(process), []).append(process)
        for members in by_shape.values():
            is_call = np.array([op.is_call for op in plan.program(members[0]).ops] or [False])
            kept = _in_step(np.array([numbers[each] for each in members]), is_call, bars)
            alike = tuple(each for each, is_kept in zip(members, kept, strict=True) if is_kept)
            if len(alike) >= ALIKE and 2 * len(alike) > len(members):
                found.append(alike)
                under = [lanes.get(each, {}) for each in alike]
                found += [tuple([each[short] for each in under]) for short in under[0]]
    return tuple(dict.fromkeys(found))


def _in_step(members: Ints, is_call: npt.NDArray[np.bool_], bars: Columns) -> list[bool]:
    """Return which lanes make their calls as most of them do: when, and for how long."""
    lane, op = bars["lane"].astype(np.int64), bars["op"].astype(np.int64)
    kept = np.isin(lane, members)
    kept[kept] = is_call[np.minimum(op[kept], len(is_call) - 1)]
    if not kept.any():
        return [False] * len(members)
    which = bars["execution"][kept].astype(np.int64) * len(is_call) + op[kept]
    calls, column = np.unique(which, return_inverse=True)
    row = np.searchsorted(members, lane[kept])
    start, took = np.full((2, len(members), len(calls)), np.nan)
    start[row, column], took[row, column] = bars["start"][kept], bars["duration"][kept]
    is_known = ~np.isnan(start)
    lacks = (~is_known & (is_known.mean(axis=0) > 0.5)).any(axis=1) | ~is_known.any(axis=1)
    count = np.maximum(is_known.sum(axis=1), 1)
    mean = np.nansum(took, axis=1) / count
    usual = max(float(np.median(mean[is_known.any(axis=1)])), 1e-9)
    off = np.nansum(np.abs(start - np.nanmedian(start, axis=0)), axis=1) / count
    is_odd = lacks | (mean > LONGER * usual) | (mean * LONGER < usual) | (off > _OFF * usual)
    return [not each for each in is_odd.tolist()]


@dataclass(frozen=True, eq=False)
class Typical:
    """One bar for each several that are alike; it begins and ends at the medians of theirs.

    ``row`` is one of them, ``count`` how many they are, ``least`` and ``most`` how long the
    shortest and the longest take. ``of`` has the bar that stands for each row.
    """

    row: Ints
    start: npt.NDArray[Any]
    end: npt.NDArray[Any]
    count: Ints
    least: npt.NDArray[Any]
    most: npt.NDArray[Any]
    of: Ints


def typical(keys: Sequence[npt.NDArray[Any]], start: Any, end: Any) -> Typical:
    """Return a bar for all rows with the same keys, in the order of these."""
    order = np.lexsort(keys[::-1])
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for key in keys:
        is_new[1:] |= key[order][1:] != key[order][:-1]
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(is_new) - 1
    first = np.flatnonzero(is_new)
    count = np.diff(np.append(first, len(order)))
    middle = first + count // 2
    took = end - start
    starts, ends, lengths = (each[np.lexsort((each, of))] for each in (start, end, took))
    last = first + count - 1
    return Typical(
        order[first], starts[middle], ends[middle], count, lengths[first], lengths[last], of
    )


def row_of(processes: Sequence[str], labels: Sequence[str]) -> tuple[str, str]:
    """Return the label of a row for several, ``a0 to a61 (Worker)``, and which these are."""
    label = run_text(processes) + labels[0].removeprefix(processes[0])
    return label, members_text(labels)
