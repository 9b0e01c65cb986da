# SPDX-License-Identifier: Apache-2.0
"""Bars on bands. Bars that are too narrow or too many are merged and drawn as density.

A bar narrower than a pixel is invisible, and a million bars make a file too large. So bars below a
certain width are merged. A column of pixels then shows, for each look, the share of time that the
bars take, as a height. The limit of width grows until the picture is small enough::

    each on its own      ▐███▌ ▐█▌▐██▌ ▐███▌
    merged               ▄▅▄▄▅▄▄▅▄▄▄▅▄▄▅▄▄▅

The share of a column is exact for bars of any width: it is the difference of the time covered up to
its two edges. Nothing here loops over merged bars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.views.data.lettering import SMALL
from rcg.views.svg.canvas import Canvas
from rcg.views.svg.looks import Look

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Box = tuple[float, float, float, float]  # x, y, width, height

_BAR_BYTES: Final = 24
_HOVER_BYTES: Final = 150
_RUN_BYTES: Final = 22
_LABEL_BYTES: Final = 60
_MAX_HOVERS: Final = 900
_MAX_LABELS: Final = 900
MIN_TEXT_HEIGHT: Final = 12.0
_MIN_TEXT_WIDTH: Final = 6.0


@dataclass(frozen=True, slots=True)
class Band:
    """The vertical range of bars: its upper end and its height."""

    y: float
    height: float

    @property
    def middle(self) -> float:
        """The y of its middle."""
        return self.y + self.height / 2


@dataclass(frozen=True, eq=False)
class Placed:
    """Bars as columns, sorted by band and then by ``left``.

    Attributes:
        band: Index of the band.
        left: Left end, in pixels of the plot.
        width: Width in pixels.
        look: Index of the look.
        row: Row of the data that the bar shows.
    """

    band: Ints
    left: Floats
    width: Floats
    look: Ints
    row: Ints


@dataclass(frozen=True, slots=True)
class Label:
    """A text on a bar: how large, and whether it is turned by a right angle."""

    text: str
    size: float = SMALL
    is_turned: bool = False


LabelOf = Callable[[int, float, float], Label | None]
"""Returns the label of a row's bar of a width and a height."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The shapes, from back to front, their labels, and the rows of the merged bars."""

    shapes: list[str]
    labels: list[str]
    merged: Ints


def draw(
    canvas: Canvas,
    bands: Sequence[Band],
    looks: Sequence[Look],
    bars: Placed,
    plot_width: float,
    *,
    label_of: LabelOf,
    hover_of: Callable[[int], str],
    budget: int,
    finest: int = 1,
) -> Drawn:
    """Draw bars into a plot whose left end is at 0.

    ``label_of`` returns the label of a row's bar, and ``hover_of`` its hover text. ``budget`` is
    the approximate limit of the drawing's bytes. Bars that are narrower than ``finest`` pixels are
    merged in any case.
    """
    groups = _Groups(bars, len(looks))
    has_labels = any(band.height >= MIN_TEXT_HEIGHT for band in bands)
    for level in range(12):
        least = finest * 2.0**level
        is_single = bars.width >= least
        count = int(is_single.sum())
        labels = min(int((bars.width >= _MIN_TEXT_WIDTH).sum()), _MAX_LABELS) * has_labels
        size = labels * _LABEL_BYTES
        is_hovering = count <= _MAX_HOVERS and size + count * _HOVER_BYTES <= budget
        size += count * (_HOVER_BYTES if is_hovering else _BAR_BYTES)
        if size > budget and count:
            continue
        columns = [1, 2, 4, 8, 16] if count < len(bars.row) else [1]
        for column in columns:
            runs = groups.density(bands, least, max(column, level, finest), plot_width)
            if size + sum(map(len, runs.values())) * _RUN_BYTES <= budget:
                break
        else:
            continue
        break
    else:
        is_single = np.zeros(len(bars.row), bool)
    shapes = [
        f'<path{looks[look].attributes} style="stroke:none;fill-opacity:1" '
        f'd="{_boxes(runs[look])}"/>'
        for look in sorted(runs)
    ]
    single = np.flatnonzero(is_single)
    shapes += _singles(bands, looks, bars, single, hover_of if is_hovering else None)
    labelled = _labels(canvas, bands, looks, bars, single, label_of)
    return Drawn(shapes, labelled, bars.row[~is_single])


# --- density ------------------------------------------------------------------------------------


class _Groups:
    """The bars of each band and look, in order."""

    def __init__(self, bars: Placed, num_looks: int) -> None:
        key = bars.band * num_looks + bars.look
        # NumPy sorts 16-bit integers by counting.
        is_short = len(key) == 0 or int(key.max()) < 1 << 16
        order = np.argsort(key.astype(np.uint16) if is_short else key, kind="stable")
        found, begins = np.unique(key[order], return_index=True)
        ends = np.append(begins, len(order))[1:]
        self._groups: dict[int, dict[int, tuple[Floats, Floats]]] = {}
        for each, begin, end in zip(found.tolist(), begins, ends, strict=True):
            band, look = divmod(each, num_looks)
            rows = order[begin:end]
            self._groups.setdefault(band, {})[look] = (bars.left[rows], bars.width[rows])

    def density(
        self, bands: Sequence[Band], least: float, column: int, plot_width: float
    ) -> dict[int, list[Box]]:
        """Return boxes by look, for bars narrower than ``least``."""
        edges = np.arange(0, plot_width + column, column, dtype=float)
        runs: dict[int, list[Box]] = {}
        for number, looks in self._groups.items():
            band = bands[number]
            below = bottom = np.zeros(len(edges) - 1)
            for look, (left, width) in looks.items():
                is_small = width < least
                if not is_small.any():
                    continue
                share = _cover_of(left[is_small], width[is_small], edges) / column
                below = np.minimum(below + share, 1.0)
                top = np.round(below * band.height)
                # A small share is drawn one pixel high instead of not at all.
                top = np.maximum(top, np.where(share > 0.01, bottom + 1, bottom))
                top = np.minimum(top, band.height)
                boxes = _merge(bottom, top, column, band)
                if boxes:
                    runs.setdefault(look, []).extend(boxes)
                bottom = top
        return runs


def _cover_of(left: Floats, width: Floats, edges: Floats) -> Floats:
    """Return the length that bars, sorted by ``left``, cover between each two edges."""
    total = _before(left, edges) - _before(np.sort(left + width, kind="stable"), edges)
    return np.maximum(np.diff(total), 0.0)


def _before(points: Floats, edges: Floats) -> Floats:
    """Return, for each edge, the sum of its distances from the points before it."""
    count = np.searchsorted(points, edges)
    sums = np.concatenate(([0.0], np.cumsum(points)))
    return np.asarray(count * edges - sums[count])


def _merge(bottom: Floats, top: Floats, column: int, band: Band) -> list[Box]:
    """Return boxes, with neighbouring columns of equal height joined."""
    changes = np.flatnonzero((np.diff(bottom) != 0) | (np.diff(top) != 0)) + 1
    begins = np.concatenate(([0], changes))
    ends = np.concatenate((changes, [len(top)]))
    base = band.y + band.height
    return [
        (float(begin * column), float(base - top[begin]), float((end - begin) * column), height)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        if (height := float(top[begin] - bottom[begin])) > 0
    ]


# --- shapes --------------------------------------------------------------------------------------


def _boxes(boxes: Sequence[Box]) -> str:
    return "".join(
        f"M{_short(x)} {_short(y)}h{_short(width)}v{_short(height)}h-{_short(width)}z"
        for x, y, width, height in boxes
    )


def _singles(
    bands: Sequence[Band],
    looks: Sequence[Look],
    bars: Placed,
    single: Ints,
    hover_of: Callable[[int], str] | None,
) -> list[str]:
    shapes = []
    for number, look in enumerate(looks):
        rows = single[bars.look[single] == number]
        if not len(rows):
            continue
        found = []
        for row in rows.tolist():
            band, width = bands[bars.band[row]], float(bars.width[row])
            # Leave a small gap between bars if there is room for it.
            gap = look.gap if width > 4 else 0.0
            found.append((float(bars.left[row]), band.y, width - gap, band.height))
        if hover_of is None:
            shapes.append(f'<path{look.attributes} d="{_boxes(found)}"/>')
            continue
        shapes.append(f"<g{look.attributes}>")
        for row, (x, y, width, height) in zip(rows.tolist(), found, strict=True):
            radius = f' rx="{look.radius:g}"' if look.radius and width > 6 else ""
            shapes.append(
                f'<rect class="rcg-bar" x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" '
                f'height="{_short(height)}"{radius}>'
                f"<title>{escape(hover_of(int(bars.row[row])))}</title></rect>"
            )
        shapes.append("</g>")
    return shapes


def _labels(
    canvas: Canvas,
    bands: Sequence[Band],
    looks: Sequence[Look],
    bars: Placed,
    single: Ints,
    label_of: LabelOf,
) -> list[str]:
    groups: dict[tuple[str, float], list[str]] = {}
    wide = single[bars.width[single] >= _MIN_TEXT_WIDTH]
    if len(wide) > _MAX_LABELS:
        wide = np.sort(wide[np.argsort(-bars.width[wide], kind="stable")[:_MAX_LABELS]])
    for row in wide.tolist():
        band, width = bands[bars.band[row]], float(bars.width[row])
        if band.height < MIN_TEXT_HEIGHT:
            continue
        label = label_of(int(bars.row[row]), width, band.height)
        if label is None:
            continue
        x, y = float(bars.left[row]) + width / 2, band.middle
        turn = f' transform="rotate(-90 {_short(x)} {_short(y)})"' if label.is_turned else ""
        text = (
            f'<text x="{_short(x)}" y="{_short(y + label.size * 0.36)}"{turn}>'
            f"{escape(label.text)}</text>"
        )
        groups.setdefault((looks[bars.look[row]].text, label.size), []).append(text)
    return [
        f'<g{canvas.paint(role)} font-size="{size:g}" font-weight="600" text-anchor="middle" '
        f'stroke-width="3" paint-order="stroke" pointer-events="none">{"".join(texts)}</g>'
        for (role, size), texts in groups.items()
    ]


def _short(value: float) -> str:
    """Return a number rounded to a tenth of a pixel."""
    return f"{round(value, 1):g}"
