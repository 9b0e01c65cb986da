# SPDX-License-Identifier: Apache-2.0
"""Alike rows: many actors that do the same are one row, and one that does not is a row of its own.

```
a0  ███   ███          a0 to a61 (Worker)  ███   ███       each bar: the median of 62
a1  ███   ███
... 60 more      ->
a17 ███████  ███       a17 (Worker)        ███████  ███    slower than the others
```

In a schedule, actors are alike if the topology folds them to one card, and their calls take as long
and begin at the same time. In a table of figures, rows are alike if their figures are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.ir.plan import Plan
from rcg.text import brief, ratio_text, run_text
from rcg.views.data.folding import fold
from rcg.views.data.node_lanes import lanes_under
from rcg.views.data.topology import topology_of

FEW: Final = 8
"""So many rows are not folded."""

SAME_SHARE: Final = 0.03  # of the time: alike rows differ by no more
_ALIKE: Final = 3  # rows that are
_FAR: Final = 5.0  # times the median distance from what is usual
_MOST_ODD: Final = 3
_LONGER: Final = 1.25  # times what is usual: such an actor is not like the others
_OFF: Final = 0.5  # of a call, that an actor begins earlier or later than the others
_MOST_NAMED: Final = 8
_NAME: Final = re.compile(r"(a\d+(\.\w+)?)(?: \((.*?)\))?(.*)")  # of a row
_CHANNEL: Final = re.compile(r" c\d+$")  # at the end of one

Columns = Mapping[str, npt.NDArray[Any]]
Ints = npt.NDArray[np.int64]


# --- actors that do the same at the same time ----------------------------------------------------


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
        for process in card.processes if len(card.processes) >= _ALIKE else ():
            by_shape.setdefault(shape(process), []).append(process)
        for members in by_shape.values():
            is_call = np.array([op.is_call for op in plan.program(members[0]).ops] or [False])
            kept = _in_step(np.array([numbers[each] for each in members]), is_call, bars)
            alike = tuple(each for each, is_kept in zip(members, kept, strict=True) if is_kept)
            if len(alike) >= _ALIKE and 2 * len(alike) > len(members):
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
    is_odd = lacks | (mean > _LONGER * usual) | (mean * _LONGER < usual) | (off > _OFF * usual)
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


# --- figures that are the same -------------------------------------------------------------------


def alike_rows(
    names: Sequence[str], figures: Sequence[Sequence[float]], tolerance: float, few: int = FEW
) -> list[list[int]]:
    """Return the positions of the rows of a table, those that are alike together.

    Args:
        names: What each row is of: ``a0 (Worker).work``.
        figures: The figures of each row.
        tolerance: How far figures of rows that are alike are from their medians.
        few: So many rows are not folded.
    """
    groups = [[at] for at in range(len(names))]
    if len(names) <= few:
        return groups
    values = np.asarray(figures, float)
    by_kind: dict[object, list[int]] = {}
    for at, name in enumerate(names):
        found = _NAME.fullmatch(name)
        # Classes ``Stage0`` to ``Stage7`` are of one kind, and so are channels.
        kind = found and (found[2], re.sub(r"\d+$", "", found[3] or ""), _CHANNEL.sub("", found[4]))
        by_kind.setdefault(kind or at, []).append(at)
    for rest in by_kind.values():
        while len(rest) >= _ALIKE:
            middle = np.median(values[rest], axis=0)
            away = np.abs(values[rest] - middle).max(axis=1)
            # The rows around a row that there is, because the median may be between two groups.
            away = np.abs(values[rest] - values[rest[int(away.argmin())]]).max(axis=1)
            alike = [at for at, each in zip(rest, away.tolist(), strict=True) if each <= tolerance]
            if len(alike) < _ALIKE:
                break
            groups[alike[0]] = alike
            for at in alike[1:]:
                groups[at] = []
            rest = sorted(set(rest) - set(alike))
    return [group for group in groups if group]


@dataclass(frozen=True, slots=True)
class Odd:
    """One that takes longer, or shorter, than others of its class: so many times as long."""

    ratio: float
    others: int
    of: str = ""

    def __str__(self) -> str:
        how = self.ratio, "slower"
        how = how if self.ratio > 1 else (1 / self.ratio, "faster")
        return f"{ratio_text(how[0])} {how[1]}"


def odd_ones(names: Sequence[str], took: Sequence[float]) -> dict[str, Odd]:
    """Return which few of several alike stand out by the time that they take.

    They take a quarter more or less than is usual, and are further from it than five times the
    median distance of all: what varies that much anyway is not odd.

    Args:
        names: What each is of: ``a0 (Worker)``; those of one class are alike.
        took: How long each takes.
    """
    by_class: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        found = _NAME.fullmatch(name)
        if found is not None and found[3]:
            by_class.setdefault(re.sub(r"\d+$", "", found[3]), []).append(at)
    odd: dict[str, Odd] = {}
    for of, rest in by_class.items():
        times = np.asarray(took, float)[rest]
        usual = float(np.median(times))
        away = np.abs(times - usual)
        is_odd = (times > _LONGER * usual) | (times * _LONGER < usual)
        is_odd &= away > _FAR * np.median(away)
        if usual > 0 and 0 < is_odd.sum() <= len(rest) // (_ALIKE + 1):
            for at in np.flatnonzero(is_odd).tolist():
                odd[names[rest[at]]] = Odd(
                    float(times[at]) / usual, len(rest) - int(is_odd.sum()), of
                )
    return odd


def odd_text(odd: Mapping[str, Odd]) -> str:
    """Return which stand out: ``31 alike, a18 1.50x slower``; "" for none."""
    if not odd:
        return ""
    most = sorted(odd.items(), key=lambda each: -abs(log(each[1].ratio)))
    named = [f"{name.partition(' ')[0]} {each}" for name, each in most[:_MOST_ODD]]
    more = [f"{len(most) - _MOST_ODD} more"] if len(most) > _MOST_ODD else []
    others = sum({each.of: each.others for each in odd.values()}.values())
    return ", ".join([f"{others} alike", *named, *more])


def name_of_rows(names: Sequence[str]) -> str:
    """Return the name of one row for all of these: ``a0 to a61 (Worker).work``."""
    if len(names) == 1:
        return names[0]
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    found.sort(key=lambda match: int(match[1].partition(".")[0][1:]))
    labels = list(dict.fromkeys(each[3] for each in found if each[3]))
    label = f" ({labels[0]})" if len(labels) == 1 else ""
    label = f" ({labels[0]} to {labels[-1]})" if len(labels) > 1 else label
    what = {each[4] for each in found}
    rest = found[0][4] if len(what) == 1 else _CHANNEL.sub("", found[0][4])
    return f"{run_text(list(dict.fromkeys(each[1] for each in found)))}{label}{rest}"


def members_text(names: Sequence[str]) -> str:
    """Return which rows one stands for, for its hover; "" for one."""
    more = len(names) - _MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    shown = ", ".join(brief(each) for each in names[:_MOST_NAMED])
    return f"median of {len(names)}: {shown}{rest}" if len(names) > 1 else ""
