# SPDX-License-Identifier: Apache-2.0
"""How the numbers of calls are written on their bars: bars that are alike are labelled alike.

A label that is chosen for each bar on its own makes a pattern that looks as if it meant something::

    each on its own    │fwd 7│   │9│F10│        because 8 was a little shorter
    alike              │7│8│9│10│               one form in a picture, one size for a method

Bars are alike if they are in one row and of one method. A number is written upright where there is
room for it, and turned by a right angle where there is not. Rows of a method that differ by noise
are turned together; one whose bars are much wider than the others' stays upright. ``lanes.js`` has
the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Step = tuple[float, bool]

_SIZES: Final[tuple[Step, ...]] = ((11.5, False), (10.0, False))
_LAST_SIZES: Final[tuple[Step, ...]] = (*_SIZES, (9.0, False), (10.0, True), (8.5, True))
_DIGIT: Final = 0.73  # how high a digit is, for a size of 1
_ROOM: Final = 4.0
_NUMBER_ROOM: Final = 1.5
_TURNED_ROOM: Final = 3.0
NEARLY_ALL: Final = 0.9
"""The share of alike bars that a label has to fit on."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Bars that are alike.

    Attributes:
        method: Their method.
        width: The width that nearly all of them have.
        height: Their height.
        lengths: How long their longest label of each form is for a font of size 1; the shortest
            form comes first.
    """

    method: str
    width: float
    height: float
    lengths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Writing:
    """How a label is written: which form, from the shortest one, how large, and if turned."""

    form: int
    size: float
    is_turned: bool

    def fits(self, length: float, width: float, height: float) -> bool:
        """Return whether a label of a length, for a font of size 1, fits on a bar."""
        along, across = length * self.size, self.size * _DIGIT
        if self.is_turned:
            return across + 1 <= width and along + _TURNED_ROOM <= height
        room = _ROOM if self.form else _NUMBER_ROOM
        return along + room <= width and self.size <= height


def writings_of(groups: Sequence[Alike]) -> list[Writing | None]:
    """Return how each group is labelled; None if its labels do not fit.

    All have the same form: the longest that fits on all groups that can be labelled. The groups of
    a method have the size of the smallest; where that is turned, those with room for a large
    upright label have one.
    """
    labelled = [each for each in groups if _steps(each, 0)]
    if not labelled:
        return [None] * len(groups)
    deepest = min(len(each.lengths) for each in labelled)
    form = max(at for at in range(deepest) if all(_steps(each, at) for each in labelled))
    steps: dict[str, list[Step]] = {}
    for each in labelled:
        steps.setdefault(each.method, []).append(_steps(each, form)[0])

    def step_of(group: Alike) -> Step:
        every = steps[group.method]
        smallest = max(every, key=_LAST_SIZES.index)
        if smallest[1] and _steps(group, form)[0] in _SIZES:
            return max((each for each in every if each in _SIZES), key=_SIZES.index)
        return smallest

    return [Writing(form, *step_of(each)) if _steps(each, 0) else None for each in groups]


def _steps(group: Alike, form: int) -> list[Step]:
    """Return in which sizes a form fits, the largest first."""
    return [
        (size, is_turned)
        for size, is_turned in (_SIZES if form else _LAST_SIZES)
        if Writing(form, size, is_turned).fits(group.lengths[form], group.width, group.height)
    ]
