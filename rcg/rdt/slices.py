# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors, as strides over their bytes: what one process reads of another's tensors.

A tensor may be split along one dimension in the process that holds it, and along another one where
it is wanted. What both have is a box: a range of each dimension, of which at most two are not
whole. In the memory of either it is ``outer`` times ``inner`` runs of bytes, so one row of seven
numbers says where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rcg.rdt.places import Places, Spans, within

Rows = NDArray[np.int64]
"""Slices, one per row: the fields of ``Region``."""

FIELDS: Final = 7


class Region(NamedTuple):
    """Bytes of a contiguous tensor: ``outer`` times ``inner`` runs.

    Attributes:
        tensor: Which tensor of an object.
        start: Where the first run begins.
        outer: How often the inner runs repeat.
        outer_step: From one repetition to the next.
        inner: How many runs there are in each.
        inner_step: From one run to the next.
        run: The bytes of a run.
    """

    tensor: int
    start: int
    outer: int
    outer_step: int
    inner: int
    inner_step: int
    run: int

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return self.outer * self.inner * self.run

    @property
    def is_contiguous(self) -> bool:
        """Whether there is one run."""
        return self.outer == self.inner == 1

    @property
    def end(self) -> int:
        """Where the last run ends."""
        steps = (self.outer - 1) * self.outer_step + (self.inner - 1) * self.inner_step
        return self.start + steps + self.run

    def of(self, payload: Any) -> Any:
        """Return these bytes of a tensor of uint8 [n]: one of [outer, inner, run], or of [size]."""
        if self.is_contiguous:
            return payload[self.start : self.start + self.run]
        return payload.as_strided(
            (self.outer, self.inner, self.run),
            (self.outer_step, self.inner_step, 1),
            payload.storage_offset() + self.start,
        )

    def starts(self) -> NDArray[np.int64]:
        """Return where the runs begin: of [outer * inner]."""
        outer = np.arange(self.outer, dtype=np.int64) * self.outer_step
        inner = np.arange(self.inner, dtype=np.int64) * self.inner_step
        return (self.start + outer[:, None] + inner).reshape(-1)


def regions_of(
    box: Sequence[range],
    first: tuple[int, Sequence[range]],
    second: tuple[int, Sequence[range]],
    itemsize: int,
) -> tuple[Region, Region]:
    """Return where a box lies in two tensors that have it, in runs of the same sizes.

    Args:
        box: The range of each dimension of the global tensor that is wanted.
        first: The number of a tensor, and which ranges of the global tensor it has.
        second: Those of another one.
        itemsize: The bytes of an element.

    Raises:
        ValueError: More than two dimensions are not whole.
    """
    tensors = [[each.stop - each.start for each in ranges] for _, ranges in (first, second)]
    sizes = [each.stop - each.start for each in box]
    split = [dim for dim, size in enumerate(sizes) if any(size != each[dim] for each in tensors)]
    if len(split) > 2:
        raise ValueError("a slice of a tensor is split along two dimensions at most")
    last = split[-1] if split else 0
    before = split[0] if len(split) == 2 else last
    outer = math.prod(sizes[:before])
    inner = math.prod(sizes[before:last])
    found: list[Region] = []
    for (number, ranges), shape in zip((first, second), tensors, strict=True):
        steps = [math.prod(shape[dim + 1 :]) * itemsize for dim in range(len(shape))]
        start = sum(
            (wanted.start - has.start) * step
            for wanted, has, step in zip(box, ranges, steps, strict=True)
        )
        run = math.prod(sizes[last:]) * itemsize
        inner_step = steps[last - 1] if last else run
        outer_step = steps[before - 1] if before else inner * inner_step
        found.append(Region(number, start, outer, outer_step, inner, inner_step, run))
    return _joined(*found)


def _joined(one: Region, other: Region) -> tuple[Region, Region]:
    """Join runs that lie side by side in both tensors."""
    if all(each.inner_step == each.run for each in (one, other)):
        one, other = (_replace(each, each.outer, 1, each.run * each.inner) for each in (one, other))
        if all(each.outer_step == each.run for each in (one, other)):
            one, other = (_replace(each, 1, 1, each.run * each.outer) for each in (one, other))
    elif all(each.outer_step == each.inner * each.inner_step for each in (one, other)):
        one, other = (_replace(each, 1, each.inner * each.outer, each.run) for each in (one, other))
    return one, other


def _replace(region: Region, outer: int, inner: int, run: int) -> Region:
    return region._replace(outer=outer, inner=inner, run=run)


def pieces_of(there: Region, here: Region, most_bytes: int) -> Iterator[tuple[Region, Region]]:
    """Yield the parts of a region of at most so many bytes, with where each goes.

    Args:
        there: The region.
        here: Where it goes: runs of the same number and size.
        most_bytes: At least 1.
    """
    if there.size <= most_bytes:
        yield there, here
        return
    if there.outer > 1:
        field, of_one = "outer", there.inner * there.run
    elif there.inner > 1:
        field, of_one = "inner", there.run
    else:
        field, of_one = "run", 1
    count = max(1, most_bytes // of_one)
    for first in range(0, getattr(there, field), count):
        left = min(count, getattr(there, field) - first)
        part, place = (
            each._replace(
                start=each.start + first * getattr(each, f"{field}_step", 1), **{field: left}
            )
            for each in (there, here)
        )
        yield from pieces_of(part, place, most_bytes)


def rows_of(regions: Sequence[Region]) -> bytes:
    """Return regions as bytes; ``regions_from`` is the other end."""
    return np.array(regions, dtype="<i8").reshape(-1, FIELDS).tobytes()


def regions_from(data: bytes, sizes: Sequence[int]) -> list[Region]:
    """Return regions that came from another process.

    Args:
        data: As ``rows_of`` made it.
        sizes: The bytes of each tensor.

    Raises:
        ValueError: They are none of these tensors.
    """
    if len(data) % (8 * FIELDS):
        raise ValueError("the table of slices has a wrong size")
    found = [Region(*row) for row in np.frombuffer(data, "<i8").reshape(-1, FIELDS).tolist()]
    for each in found:
        is_inside = (
            0 <= each.tensor < len(sizes)
            and min(each) >= 0
            and each.outer >= 1
            and each.inner >= 1
            and each.end <= sizes[each.tensor]
        )
        if not is_inside:
            raise ValueError(f"there is no such slice: {each}")
    return found


class Runs(NamedTuple):
    """Which bytes of another process go where in this one, run by run.

    Attributes:
        tensors: In which tensor each run lies there, of [n].
        starts: Where in it, of [n].
        targets: Into which tensor it goes here, of [n].
        offsets: Where in it, of [n].
        sizes: Its bytes, of [n].
    """

    tensors: NDArray[np.int64]
    starts: NDArray[np.int64]
    targets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def spans(self, there: Places, here: Places) -> Spans:
        """Return the memory of the runs, given where the tensors lie.

        Raises:
            ValueError: A run is not inside of its tensor.
        """
        return Spans(
            within(there, self.tensors, self.starts, self.sizes),
            within(here, self.targets, self.offsets, self.sizes),
        )


def runs_of(pairs: Sequence[tuple[Region, Region]]) -> Runs:
    """Return the runs of regions there, each with where it goes here."""
    columns: tuple[list[NDArray[np.int64]], ...] = ([], [], [], [], [])
    for there, here in pairs:
        count = there.outer * there.inner
        rows = (
            np.full(count, there.tensor, np.int64),
            there.starts(),
            np.full(count, here.tensor, np.int64),
            here.starts(),
            np.full(count, there.run, np.int64),
        )
        for column, row in zip(columns, rows, strict=True):
            column.append(row)
    empty = np.empty(0, np.int64)
    return Runs(*(np.concatenate([empty, *column]) for column in columns))
