# SPDX-License-Identifier: Apache-2.0
"""Who gets which part of which tensor from whom: pure data, made once and replayed.

Only what a reader wants travels, and only from one of those that have it. Where several have it,
the bytes are spread so that no publisher sends much more than the others: what can come from one
publisher only is fixed; the rest goes, the largest pieces first, to whoever has least to send
(longest processing time first: Graham, "Bounds on multiprocessing timing anomalies", 1969). Large
parts are split for that.

Tensors that lie in the same way at all publishers and readers, as those of the layers of a model
do, are planned once. So a model of 70,000 tensors between 256 and 128 processes takes seconds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rcg.display import Displayed, Mimebundle, Views
from rcg.table import Table
from rcg.text import bytes_text, plural, share_text, short_label
from rcg.weights.shards import Member, Shard, holes, item_bytes, mismatches

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LEAST_PIECE: Final = 1 << 20  # bytes: smaller parts are not split
_PIECES: Final = 64  # of what a publisher sends: a piece is at most one part in so many
_MOST_SHOWN: Final = 16  # rows and columns of a matrix


class Copy(NamedTuple):
    """A part of a tensor that goes from one process to another.

    Attributes:
        name: The tensor.
        publisher: The number of the publisher.
        box: The range of each dimension of the whole tensor.
    """

    name: str
    publisher: int
    box: tuple[range, ...]


def plan_of(
    publishers: Sequence[Member], readers: Sequence[Member], which: int | None = None
) -> tuple[WeightsPlan, int]:
    """Return the plan for those readers whose tensors fit what is published.

    One that does not fit has an error of its own, and must not disturb others.

    Returns:
        The plan, and the number of that reader in it; 0 for None.
    """
    missing = set(holes(publishers))
    fitting = [
        (at, each)
        for at, each in enumerate(readers)
        if at == which or not (missing & each.shards.keys() or mismatches(publishers, each.shards))
    ]
    places = [at for at, _ in fitting]
    plan = WeightsPlan(publishers, [each for _, each in fitting])
    return plan, 0 if which is None else places.index(which)


class _Piece(NamedTuple):
    """A part of a tensor that somebody wants, along the dimension in which it is published."""

    reader: int
    start: int
    stop: int
    publishers: tuple[int, ...]
    row_bytes: int  # of one index of that dimension, of what is wanted of it


@dataclass(slots=True)
class _Alike:
    """Tensors that are split in the same way everywhere.

    Attributes:
        names: Their names.
        shape: Their shape.
        dim: Along which dimension they are published.
        wants: What each reader wants of them.
        pieces: What travels of each of them.
        chosen: For each name: from whom the pieces come that several have: the number of the piece,
            the publisher, and which part.
    """

    names: list[str]
    shape: tuple[int, ...]
    dim: int
    wants: dict[int, Shard]
    pieces: list[_Piece]
    chosen: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)


class WeightsPlan(Displayed):
    """Who gets what from whom.

    Args:
        publishers: The processes that have the tensors.
        readers: Those that want them.

    Attributes:
        publishers: What the publishers are called.
        readers: What the readers are called.
        bytes: What each publisher sends to each reader: of [publishers, readers].

    Raises:
        ValueError: Nobody has a part that somebody wants.
    """

    def __init__(self, publishers: Sequence[Member], readers: Sequence[Member]) -> None:
        self.publishers: Final = tuple(each.label for each in publishers)
        self.readers: Final = tuple(each.label for each in readers)
        self.bytes: NDArray[np.int64] = np.zeros((len(publishers), len(readers)), np.int64)
        self._alike = _alike(publishers, readers)
        self._by_reader: dict[int, list[tuple[_Alike, list[int]]]] = {}
        for alike in self._alike:
            of_reader: dict[int, list[int]] = {}
            for number, piece in enumerate(alike.pieces):
                of_reader.setdefault(piece.reader, []).append(number)
            for reader, numbers in of_reader.items():
                self._by_reader.setdefault(reader, []).append((alike, numbers))
        self._balance()

    def _balance(self) -> None:
        """Choose publishers for what several have."""
        open_pieces: list[tuple[int, int, int, _Alike, int]] = []
        for place, alike in enumerate(self._alike):
            for number, piece in enumerate(alike.pieces):
                size = piece.row_bytes * (piece.stop - piece.start)
                if len(piece.publishers) == 1:
                    self.bytes[piece.publishers[0], piece.reader] += size * len(alike.names)
                else:
                    open_pieces.append((len(piece.publishers), -size, place, alike, number))
        if not open_pieces:
            return
        left = sum(-size * len(alike.names) for _, size, _, alike, _ in open_pieces)
        loads = self.bytes.sum(axis=1).tolist()
        fair = max(max(loads), (sum(loads) + left) // len(loads))
        most = max(_LEAST_PIECE, fair // _PIECES)
        parts: list[tuple[int, int, str, _Alike, int, int, int]] = []
        # Those with the fewest publishers first: the others can go around them.
        for count, _, _, alike, number in sorted(open_pieces, key=lambda each: each[:3]):
            piece = alike.pieces[number]
            rows = max(1, most // max(1, piece.row_bytes))
            for start in range(piece.start, piece.stop, rows):
                stop = min(start + rows, piece.stop)
                size = (stop - start) * piece.row_bytes
                parts += [(count, -size, name, alike, number, start, stop) for name in alike.names]
        parts.sort(key=lambda each: each[:2])
        queues: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for _, negative, name, alike, number, start, stop in parts:
            piece = alike.pieces[number]
            queue = queues.get(piece.publishers)
            if queue is None:
                queue = queues[piece.publishers] = [
                    (loads[each], each) for each in piece.publishers
                ]
                heapq.heapify(queue)
            while True:  # what the queue says may be old: others have added to it
                load, publisher = queue[0]
                if load == loads[publisher]:
                    break
                heapq.heapreplace(queue, (loads[publisher], publisher))
            loads[publisher] -= negative
            heapq.heapreplace(queue, (loads[publisher], publisher))
            self.bytes[publisher, piece.reader] -= negative
            alike.chosen.setdefault(name, []).append((number, publisher, start, stop))

    def copies(self, reader: int) -> Iterator[Copy]:
        """Yield what a reader gets."""
        for alike, numbers in self._by_reader.get(reader, ()):
            ours = set(numbers)
            fixed = [n for n in numbers if len(alike.pieces[n].publishers) == 1]
            ranges = alike.wants[reader].ranges
            for name in alike.names:
                for number in fixed:
                    piece = alike.pieces[number]
                    box = _box(ranges, alike, piece.start, piece.stop)
                    yield Copy(name, piece.publishers[0], box)
                for _, publisher, start, stop in _joined(alike.chosen.get(name, ()), ours):
                    yield Copy(name, publisher, _box(ranges, alike, start, stop))

    @property
    def total_bytes(self) -> int:
        """What travels in all."""
        return int(self.bytes.sum())

    @property
    def busiest_bytes(self) -> int:
        """The most that one process sends or gets: its link decides how long it takes."""
        return max(map(int, (*self.bytes.sum(axis=1), *self.bytes.sum(axis=0))), default=0)

    @property
    def least_bytes(self) -> int:
        """The least that this could be, however it is spread: a lower bound."""
        into = self.bytes.sum(axis=0)
        fixed = np.zeros(len(self.publishers), np.int64)
        for alike in self._alike:
            for piece in alike.pieces:
                if len(piece.publishers) == 1:
                    size = piece.row_bytes * (piece.stop - piece.start) * len(alike.names)
                    fixed[piece.publishers[0]] += size
        mean = -(-self.total_bytes // max(1, len(self.publishers)))
        return max(map(int, (*into, *fixed, mean)), default=0)

    def seconds(self, bytes_per_s: float) -> float:
        """Return how long it takes if every process sends and gets so many bytes per second.

        Args:
            bytes_per_s: The rate of each link, in each direction.

        Raises:
            ValueError: The rate is not positive.
        """
        if not bytes_per_s > 0:
            raise ValueError(f"the rate is more than 0 bytes per second, got {bytes_per_s}")
        return self.busiest_bytes / bytes_per_s

    @property
    def summary(self) -> str:
        """What travels in all, and how evenly it is spread, in one line."""
        over = self.busiest_bytes / self.least_bytes - 1 if self.least_bytes else 0.0
        return (
            f"{plural(len(self.publishers), 'publisher')}, {plural(len(self.readers), 'reader')}: "
            f"{bytes_text(self.total_bytes)} travel, at most {bytes_text(self.busiest_bytes)} by "
            f"one process ({share_text(over, 0)} over the least possible)"
        )

    def __str__(self) -> str:
        return f"{self.summary}\n{self.table().text('  ')}"

    __repr__ = __str__

    def _mimebundle(self, _: Views) -> Mimebundle:
        from rcg.views.html.mimebundle import mimebundle  # for notebooks only
        from rcg.views.svg.matrix import matrix_of

        title, (rows, columns) = "Who gets how much from whom", self._names()
        picture = matrix_of(title, self.summary, rows, columns, self.bytes)
        return mimebundle(str(self), [(title, picture)])

    def _names(self) -> tuple[list[str], list[str]]:
        """Return the displayed names of the publishers and of the readers."""
        return [*map(short_label, self.publishers)], [*map(short_label, self.readers)]

    def figure(self, *, dark: bool | None = None) -> Figure:
        """Return who gets how much from whom as a ``plotly.graph_objects.Figure``.

        Args:
            dark: Whether it is for a dark page; None for ink that is legible on both.

        Raises:
            ImportError: plotly is not installed.
        """
        from rcg.views.charts import matrix_figure  # for who asks for charts

        return matrix_figure(self.summary, *self._names(), self.bytes, dark)

    def table(self) -> Table:
        """Return the bytes that go from each publisher to each reader, and in all, as a table.

        Of many the first are shown.
        """
        shown = range(min(len(self.readers), _MOST_SHOWN))
        left = len(self.readers) - len(shown)
        heads = ["", *(short_label(self.readers[at]) for at in shown)]
        heads += [f"{left} more", "all"] if left else ["all"]

        def row(label: str, sizes: NDArray[np.int64]) -> list[str]:
            rest = [bytes_text(int(sizes[len(shown) :].sum()))] if left else []
            cells = [bytes_text(int(sizes[at])) if sizes[at] else "-" for at in shown]
            return [label, *cells, *rest, bytes_text(int(sizes.sum()))]

        rows = [
            row(short_label(each), self.bytes[at])
            for at, each in enumerate(self.publishers[:_MOST_SHOWN])
        ]
        others = len(self.publishers) - len(rows)
        if others:
            rows.append(row(f"{others} more", self.bytes[_MOST_SHOWN:].sum(axis=0)))
        rows.append(row("all", self.bytes.sum(axis=0)))
        return Table(heads, rows, "n" + "f" * (len(heads) - 1))


def _alike(publishers: Sequence[Member], readers: Sequence[Member]) -> list[_Alike]:
    """Return the tensors that are wanted, by how they are split."""
    wanted: dict[str, list[tuple[int, Shard]]] = {}
    for number, reader in enumerate(readers):
        for name, shard in reader.shards.items():
            wanted.setdefault(name, []).append((number, shard))
    had: dict[str, list[tuple[int, Shard]]] = {name: [] for name in wanted}
    for number, publisher in enumerate(publishers):
        for name, shard in publisher.shards.items():
            if name in had:
                had[name].append((number, shard))
    names_of: dict[tuple[tuple[tuple[int, Shard], ...], ...], list[str]] = {}
    for name, wants in wanted.items():
        names_of.setdefault((tuple(had[name]), tuple(wants)), []).append(name)
    return [_split(names, has, wants) for (has, wants), names in names_of.items()]


def _split(
    names: list[str], has: Sequence[tuple[int, Shard]], wants: Sequence[tuple[int, Shard]]
) -> _Alike:
    """Return what travels of tensors that are split in the same way."""
    shape = (has or wants)[0][1].shape
    split = [each.dim for _, each in has if not each.is_whole]
    dim = split[0] if split else 0
    size = shape[dim] if shape else 1
    spans = [
        (0, size, number) if each.is_whole else (each.start, each.stop, number)
        for number, each in has
    ]
    cuts = sorted({0, size, *(at for start, stop, _ in spans for at in (start, stop))})
    regions: list[tuple[int, int, tuple[int, ...]]] = []
    for start, stop in itertools.pairwise(cuts):
        publishers = tuple(n for first, last, n in spans if first <= start and stop <= last)
        regions.append((start, stop, publishers))
    pieces: list[_Piece] = []
    for reader, want in wants:
        first, last = (want.start, want.stop) if want.dim == dim else (0, size)
        part = math.prod(map(len, want.ranges)) * item_bytes(want.dtype)
        row_bytes = part // max(1, last - first)
        for start, stop, publishers in regions:
            start, stop = max(start, first), min(stop, last)
            if start >= stop or not part:
                continue
            if not publishers:
                raise ValueError(f"nobody has {start} to {stop} of dimension {dim} of {names[0]!r}")
            pieces.append(_Piece(reader, start, stop, publishers, row_bytes))
    return _Alike(names, shape, dim, dict(wants), pieces)


def _joined(
    chosen: Sequence[tuple[int, int, int, int]], numbers: set[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the parts of some pieces, those that lie side by side and come from one as one."""
    newest: tuple[int, int, int, int] | None = None
    for each in sorted(part for part in chosen if part[0] in numbers):
        number, publisher, start, stop = each
        if newest is not None and newest[:2] == (number, publisher) and newest[3] == start:
            newest = number, publisher, newest[2], stop
            continue
        if newest is not None:
            yield newest
        newest = each
    if newest is not None:
        yield newest


def _box(ranges: Sequence[range], alike: _Alike, start: int, stop: int) -> tuple[range, ...]:
    if not alike.shape:
        return ()
    return (*ranges[: alike.dim], range(start, stop), *ranges[alike.dim + 1 :])
