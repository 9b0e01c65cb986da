# SPDX-License-Identifier: Apache-2.0
"""Alike rows of tables: those with the same figures are one row, and one that differs stands out.

```
a0 (Worker).work    8.1 ms         a0 to a16, a18 to a61 (Worker).work    8.1 ms
a1 (Worker).work    8.2 ms
... 60 more                   ->
a17 (Worker).work  12.3 ms         a17 (Worker).work                     12.3 ms
                                   61 alike, a17 1.50x slower
```

This room knows names and figures, and neither plans nor events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from rcg.text import brief, ratio_text, run_text

FEW: Final = 8
"""So many rows are not folded."""

ALIKE: Final = 3
"""So many rows at least are alike."""

LONGER: Final = 1.25
"""Times what is usual: what takes so long is not like the others."""

SAME_SHARE: Final = 0.03
"""Of the time: the shares of alike rows differ by no more."""

SAME_TIME: Final = 0.1
"""Of a time: those of alike rows differ by no more."""

APART: Final = 9.0
"""A figure by which a row is not like one that lacks it."""

_FAR: Final = 5.0  # times the median distance from what is usual
_MOST_ODD: Final = 3
_MOST_NAMED: Final = 8
_NAME: Final = re.compile(r"(a\d+(\.\w+)?)(?: \((.*?)\))?(.*)")  # of a row
_CHANNEL: Final = re.compile(r" c\d+$")  # at the end of one


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
        while len(rest) >= ALIKE:
            middle = np.median(values[rest], axis=0)
            away = np.abs(values[rest] - middle).max(axis=1)
            # The rows around a row that there is, because the median may be between two groups.
            away = np.abs(values[rest] - values[rest[int(away.argmin())]]).max(axis=1)
            alike = [at for at, each in zip(rest, away.tolist(), strict=True) if each <= tolerance]
            if len(alike) < ALIKE:
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
        is_odd = (times > LONGER * usual) | (times * LONGER < usual)
        is_odd &= away > _FAR * np.median(away)
        if usual > 0 and 0 < is_odd.sum() <= len(rest) // (ALIKE + 1):
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
