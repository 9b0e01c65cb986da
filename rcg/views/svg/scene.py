# SPDX-License-Identifier: Apache-2.0
"""Paints a scene as a picture: rows of bars, names at the left, an axis below.

```
a0 (Stage)  ops    ░░░░│fwd 7 ████████│▓│░░░░░│fwd 8 ███████  idle time is hatched
                        ━━━━━━━━━━━━━━━━┓                      the critical path
a1 (Stage)  ops    ░░░░░░░░░░░░░░░░░░░░│▓│fwd 7 █████████│
                                       ┗━━━━━━━━━━━━━━━━━━
            queue  ▁▁▁▁▁▁▂▂▂▂▁▁▁▁▁▁▁                          one scale for all queues
```

Bars of a few pixels are merged, and their height is a share of the time. A few values have a line
from the write to the read; the ranks of a collective have one through all of them, with a dot on
each, where the last of them arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.text import plural
from rcg.views.data.lettering import DOT, SMALL, width_of
from rcg.views.scene import (
    COLLECTIVE,
    EXCHANGE,
    LINK_LOOKS,
    NUMBER,
    PATH_TITLE,
    PREDICTION,
    VALUE,
    WIRE,
    Ints,
    Scene,
    Steps,
)
from rcg.views.svg.bars import MIN_TEXT_HEIGHT, Band, Label, Placed, draw
from rcg.views.svg.canvas import WIDTH, Canvas, Paint
from rcg.views.svg.lanes import RowChart
from rcg.views.svg.looks import idle, legend_of, looks_of
from rcg.views.svg.numbering import NEARLY_ALL, Alike, Writing, writings_of

_MAX_BARS_BYTES: Final = 210_000
_MAX_VALUES: Final = 16  # lines from writes to reads
_MAX_JOINS: Final = 48  # lines of tensors, and of collectives
_NARROW: Final = 4  # pixels: bars that are narrower are shares of time
_MAX_NUMBERS: Final = 400
_LEAST_NUMBERED: Final = 2  # pixels
_THIN: Final = 0.16  # the height of what is in no method, of its row
_BESIDE: Final = 9.5  # the size of numbers beside bars
_DOT: Final = 2.4
_LEAST_STEP: Final = 1.5
_PATH_WIDTH: Final = 2.2
_MAX_RUNS: Final = 3_000  # parts of the path: more show nothing
_JOIN_SIGNS: Final = (
    "M3 0C3 6 11 4 11 10", "M0 5H14", "M3 0L11 10", ""
)  # fmt: skip
_DOTS: Final = (
    '<g{}><path fill="none" d="M7 0V10" stroke-width="1.4"/>'
    '<circle cx="7" cy="1.5" r="1.8"/><circle cx="7" cy="8.5" r="1.8"/></g>'
)


def picture_of(scene: Scene, *, title: str = "", about: str = "", width: float = WIDTH) -> str:
    """Return a scene as the text of an SVG file, of at most about 300 KB.

    Args:
        scene: The scene.
        title: The title; "" is that of the scene, or the view's name.
        about: Replaces the line below the title.
        width: The width of the picture.
    """
    return _Picture(scene, width).text(
        title or scene.title or scene.view.capitalize(), about or scene.about
    )


class _Picture:
    def __init__(self, scene: Scene, width: float) -> None:
        self._scene, self._canvas = scene, Canvas()
        self._looks = looks_of(self._canvas, scene.looks)
        self._chart = RowChart(self._canvas, scene, width)
        self._bands = self._chart.bands
        self._scale = self._chart.plot_width / max(scene.end - scene.begin, 1)
        self._is_alike = scene.is_numbered | scene.where("span")
        self._signs: set[str] = set()  # that labels have

    def text(self, title: str, about: str) -> str:
        scene, chart = self._scene, self._chart
        placed, bands = self._placed()
        groups = self._alike(placed, bands)
        beside = self._numbers(placed, bands, groups) if scene.view == "schedule" else []
        self._writings = self._written(placed, bands, groups)
        is_timeline = scene.view == "timeline"
        drawn = draw(
            self._canvas,
            bands,
            self._looks,
            placed,
            chart.plot_width,
            label_of=self._label,
            hover_of=lambda bar: "\n".join(scene.hover(bar)),
            budget=_MAX_BARS_BYTES,
            finest=_NARROW if is_timeline else 1,
        )
        words = [about]
        # In a schedule, what is not in a method is thin anyway.
        counts = np.ones(len(scene.bars), bool) if is_timeline else scene.where("call")
        merged, every = int(counts[drawn.merged].sum()), int(counts[placed.row].sum())
        if merged > 1 + every / (5 if is_timeline else 50):
            words.append(f"{plural(merged, 'narrow bar')}: height = share of time")
        curves = [*self._lines(WIRE, _MAX_VALUES), *self._lines(VALUE, _MAX_VALUES)]
        straight = self._lines(EXCHANGE, _MAX_JOINS)
        collectives, note = self._collectives()
        path = self._path()
        shapes = {VALUE: curves, WIRE: curves, EXCHANGE: straight, COLLECTIVE: collectives}
        kinds = {kind for kind, own in shapes.items() if own and (scene.links.kind == kind).any()}
        body = [
            *self._queues(),
            *curves,
            *straight,
            '<g class="rcg-bars">',
            *drawn.shapes,
            "</g>",
            *collectives,
            *path,
            *drawn.labels,  # no line crosses them
            *beside,
        ]
        legend = self._legend(placed, kinds, has_path=bool(path))
        return chart.document(title, f" {DOT} ".join([*words, *note]), body, legend)

    # Bars

    def _x(self, time: float) -> float:
        return (time - self._scene.begin) * self._scale

    def _xs(self, times: Ints) -> npt.NDArray[np.float64]:
        return np.asarray((times - self._scene.begin) * self._scale)

    def _placed(self) -> tuple[Placed, list[Band]]:
        scene, bars = self._scene, self._scene.bars
        shares = sorted({look.height for look in scene.looks})
        of_look = np.array([shares.index(look.height) for look in scene.looks])
        bands = [
            Band(band.y + band.height * (1 - share) / 2, max(band.height * share, 2.0))
            for at in self._bands
            for band in (self._bands[at],)
            for share in shares
        ]
        number = np.full(len(scene.rows), -1)
        number[list(self._bands)] = np.arange(len(self._bands))
        end, width = bars.start + bars.duration, self._chart.plot_width
        left = np.clip(self._xs(bars.start), 0, width)
        right = np.clip(self._xs(end), 0, width)
        row = np.flatnonzero((number[bars.row] >= 0) & (right > left))
        band = number[bars.row[row]] * len(shares) + of_look[bars.look[row]]
        order = np.argsort(band, kind="stable")
        row, band = row[order], band[order]
        look = bars.look[row].astype(np.int64)
        return Placed(band, left[row], right[row] - left[row], look, row), bands

    def _alike(self, placed: Placed, bands: Sequence[Band]) -> dict[tuple[int, str], Ints]:
        """Return the bars of calls and spans that are alike, by row and name, by time.

        Neither those that the picture cuts off are among them, nor short parts of calls.
        """
        scene, height = self._scene, np.array([band.height for band in bands])[placed.band]
        right = placed.left + placed.width
        is_whole = (placed.left > 0) & (right < self._chart.plot_width)
        is_whole &= self._is_alike[placed.row] & (height >= MIN_TEXT_HEIGHT)
        texts = sorted({name.text for name in scene.names})
        method = np.array([texts.index(name.text) for name in scene.names] or [0])
        own = np.flatnonzero(is_whole)
        row, of = scene.bars.row[placed.row[own]], method[scene.bars.name[placed.row[own]]]
        order = np.lexsort((placed.left[own], of, row))
        own, row, of = own[order], row[order], of[order]
        ends = np.flatnonzero((np.diff(row) != 0) | (np.diff(of) != 0)) + 1
        found = {}
        for each in np.split(own, ends) if len(own) else []:
            bar = int(placed.row[each[0]])
            key = int(scene.bars.row[bar]), scene.names[scene.bars.name[bar]].text
            found[key] = each[placed.width[each] * 2 >= np.median(placed.width[each])]
        return found

    def _written(
        self, placed: Placed, bands: Sequence[Band], groups: Mapping[tuple[int, str], Ints]
    ) -> dict[tuple[int, str], Writing | None]:
        """Return how the bars of each group are labelled."""
        scene = self._scene
        calls: dict[tuple[int, str], Alike] = {}
        spans: dict[tuple[int, str], Alike] = {}
        for key, own in groups.items():
            bars = placed.row[own]
            # Numbers ascend: of bars with one name, the last one has the longest label.
            last = {int(scene.bars.name[bar]): bar for bar in bars.tolist()}
            labels = [scene.labels(bar)[::-1] for bar in last.values()]
            lengths = [max(width_of(each, 1, bold=True) for each in each_form)
                       for each_form in zip(*labels, strict=False)]  # fmt: skip
            if not lengths:  # a span may have no name
                continue
            width = float(np.quantile(placed.width[own], 1 - NEARLY_ALL))
            height = bands[int(placed.band[own[0]])].height
            of = calls if scene.is_numbered[placed.row[own[0]]] else spans
            of[key] = Alike(key[1], width, height, tuple(lengths))
        return {
            key: writing
            for of in (calls, spans)
            for key, writing in zip(of, writings_of([*of.values()]), strict=True)
        }

    def _label(self, bar: int, width: float, height: float) -> Label | None:
        """Return the label of a bar: calls and spans as all alike ones."""
        scene, labels = self._scene, self._scene.labels(bar)
        if not self._is_alike[bar]:
            fits = (each for each in labels if width_of(each, SMALL, bold=True) <= width - 4)
            text = next(fits, "")
            return Label(text) if text else None
        key = int(scene.bars.row[bar]), scene.names[scene.bars.name[bar]].text
        writing = self._writings.get(key)
        if writing is None or writing.form >= len(labels):
            return None
        text = labels[-1 - writing.form]
        if not writing.fits(width_of(text, 1, bold=True), width, height):
            return None
        self._note_signs(bar, text)
        return Label(text, writing.size, writing.is_turned)

    def _note_signs(self, bar: int, label: str) -> None:
        """Keep in mind what a label has: the initial of its method, a number of its call."""
        name = self._scene.names[self._scene.bars.name[bar]]
        initial = name.initial
        if initial and label.removeprefix(initial).isdigit() and label.startswith(initial):
            self._signs.add(initial)
        if name.call is not None or name.batch is not None:
            self._signs.add(NUMBER)

    def _numbers(
        self, placed: Placed, bands: Sequence[Band], groups: dict[tuple[int, str], Ints]
    ) -> list[str]:
        """Return numbers beside calls that are too narrow for them, where nothing is done.

        Groups that have them are taken out of ``groups``. All of a row have one, or none.
        """
        scene, chart = self._scene, self._chart
        is_call = scene.where("call")[placed.row]
        lane = scene.bars.row[placed.row]
        is_call &= np.array([row.part != PREDICTION for row in scene.rows])[lane]
        calls = np.flatnonzero(is_call)
        calls = calls[np.lexsort((placed.left[calls], lane[calls]))]
        is_last = np.append(lane[calls][1:] != lane[calls][:-1], True)[: len(calls)]
        following = np.append(placed.left[calls][1:], chart.plot_width)[: len(calls)]
        free = np.zeros(len(placed.row))
        ends = placed.left[calls] + placed.width[calls]
        free[calls] = np.where(is_last, chart.plot_width, following) - ends
        texts: list[str] = []
        for key, own in [*groups.items()]:
            if not scene.is_numbered[placed.row[own[0]]]:
                continue
            labels = [scene.labels(bar)[-1] for bar in placed.row[own].tolist()]
            room = max(width_of(label, SMALL, bold=True) for label in labels)
            width = float(np.quantile(placed.width[own], 1 - NEARLY_ALL))
            if room + 1.5 <= width or width < _LEAST_NUMBERED:
                continue
            has_room = free[own] >= [width_of(x, _BESIDE, bold=True) + 5 for x in labels]
            if has_room.mean() < NEARLY_ALL or len(texts) + len(own) > _MAX_NUMBERS:
                continue
            del groups[key]
            for at, label in zip(own.tolist(), labels, strict=True):
                if free[at] < width_of(label, _BESIDE, bold=True) + 5:
                    continue
                band = bands[int(placed.band[at])]
                x = float(placed.left[at] + placed.width[at]) + 2
                # Above the thin bar of what follows the call, which would read as a minus.
                y = band.middle - band.height * _THIN / 2 - 1.5
                texts.append(f'<text x="{x:.1f}" y="{y:.1f}">{label}</text>')
                self._note_signs(int(placed.row[at]), label)
        if not texts:
            return []
        return [
            f'<g class="rcg-beside"><g{self._canvas.paint("on-idle")} font-size="{_BESIDE:g}" '
            f'font-weight="600" stroke-width="2.5" paint-order="stroke" pointer-events="none">'
            f"{''.join(texts)}</g></g>"
        ]

    # Lines

    def _bands_of(self, link: int) -> list[Band]:
        """Return the bands of the ends of a link that are shown."""
        rows = self._scene.standing[self._scene.bars.row[self._scene.links.ends_of(link)]]
        return [self._bands[row] for row in rows.tolist() if row in self._bands]

    def _shown(self, kind: int) -> list[int]:
        links, scene = self._scene.links, self._scene
        is_shown = (links.kind == kind) & (links.begin <= scene.end) & (links.until >= scene.begin)
        found = np.flatnonzero(is_shown).tolist()
        return [link for link in found if len(self._bands_of(link)) == len(links.ends_of(link))]

    def _line_paint(self, kind: int) -> str:
        look = LINK_LOOKS[kind]
        paints = [Paint(each, look["light"], look["dark"]) for each in ("stroke", "fill")]
        role = "collective" if kind == COLLECTIVE else "wire" if kind == WIRE else "transfer"
        self._canvas.define(role, *(paints if kind == COLLECTIVE else paints[:1]))
        return self._canvas.paint(role)

    def _lines(self, kind: int, most: int) -> list[str]:
        """Return the lines of values, or of tensors, from end to end; none if there are many."""
        scene = self._scene
        found = self._shown(kind)
        if kind != EXCHANGE:
            other = self._shown(VALUE if kind == WIRE else WIRE)
            if scene.view != "timeline" or len(found) + len(other) > most:
                return []
        if not 0 < len(found) <= most:
            return []
        paths = []
        for link in found:
            here, there = self._bands_of(link)
            y, to_y = here.y, there.y + there.height
            if there.y > here.y:
                y, to_y = here.y + here.height, there.y
            times = scene.links.begin[link], scene.links.until[link]
            x, to_x = (self._x(float(time)) for time in times)
            middle = (y + to_y) / 2
            curve = f"C{x:.1f} {middle:g} {to_x:.1f} {middle:g} " if kind != EXCHANGE else "L"
            paths.append(f"M{x:.1f} {y:g}{curve}{to_x:.1f} {to_y:g}")
        dashes = LINK_LOOKS[kind]["dashes"]
        style = (
            f' stroke-width="1.8" stroke-dasharray="{dashes}"'
            if dashes
            else (' stroke-width="1.2" stroke-opacity=".75"')
        )
        return [
            f'<g class="rcg-transfers" pointer-events="none"><path{self._line_paint(kind)} '
            f'fill="none"{style} d="{"".join(paths)}"/></g>'
        ]  # fmt: skip

    def _collectives(self) -> tuple[list[str], list[str]]:
        """Return the lines of collectives, and a note if there are too many to draw."""
        links = self._scene.links
        found = []
        for link in self._shown(COLLECTIVE):
            middles = sorted({band.middle for band in self._bands_of(link)})
            # It is drawn where it began, which may be before the picture does.
            if len(middles) > 1 and links.begin[link] >= self._scene.begin:
                found.append((self._x(float(links.begin[link])), middles))
        if not found:
            return [], []
        if len(found) > _MAX_JOINS:
            return [], [f"{plural(len(found), 'collective')} not joined"]
        lines = "".join(f"M{x:.1f} {min(middles):g}V{max(middles):g}" for x, middles in found)
        dots = "".join(
            f'<circle cx="{x:.1f}" cy="{y:g}" r="{_DOT}"/>' for x, middles in found for y in middles
        )
        return [
            f'<g class="rcg-collectives" pointer-events="none"><g{self._line_paint(COLLECTIVE)}>'
            f'<path fill="none" stroke-width="1.4" d="{lines}"/>{dots}</g></g>'
        ], []

    def _path(self) -> list[str]:
        """Return the critical path: below the bars that are on it, from row to row."""
        paths = self._scene.paths
        if not len(paths.until) or not paths.until[0]:
            return []
        self._canvas.define("path", Paint("stroke", "#16191d", "#ffffff"))
        runs, steps = [], []
        before = None
        count = int(paths.until[0])
        is_thicket = count * _NARROW > self._chart.plot_width
        drawn: dict[int, float] = {}  # up to where, by row
        for at in range(count):
            row = int(paths.row[at])
            x, to_x = self._x(float(paths.begin[at])), self._x(float(paths.end[at]))
            to_x = max(to_x, x + 1)
            if is_thicket and to_x <= drawn.get(row, -1.0) + 0.5:
                continue
            y = self._bands[row].y + self._bands[row].height + 1
            runs.append(f"M{x:.1f} {y:g}H{to_x:.1f}")
            drawn[row] = to_x
            if before is not None and not is_thicket:
                steps.append(f"M{x:.1f} {before:g}V{y:g}")
            before = y
        if len(runs) > _MAX_RUNS:
            return []
        return [
            f'<g class="rcg-critical" pointer-events="none"><g{self._canvas.paint("path")} '
            f'fill="none"><path stroke-width="{_PATH_WIDTH}" d="{"".join(runs)}"/>'
            f'<path stroke-width="1" d="{"".join(steps)}"/></g></g>'
        ]

    # Queues

    def _queues(self) -> list[str]:
        paths = [self._steps(each) for each in self._scene.steps if each.row in self._bands]
        return [f"<g{self._canvas.paint('queue')}>", *paths, "</g>"] if any(paths) else []

    def _steps(self, steps: Steps) -> str:
        """Return the area below the depth. A column of pixels has its highest depth."""
        band = self._bands[steps.row]
        column = 1 if len(self._scene.steps) <= 12 else 2
        edges = np.arange(0, self._chart.plot_width, column)
        first = np.searchsorted(self._xs(steps.at), edges, side="right") - 1
        depth = np.maximum.reduceat(steps.depth, np.maximum(first, 0))
        height = np.round(depth / max(self._scene.depth, 1) * band.height, 1)
        height = np.where(depth > 0, np.maximum(height, _LEAST_STEP), 0.0)
        changes = np.concatenate(([0], np.flatnonzero(np.diff(height)) + 1))
        ends = np.append(edges[changes[1:]], self._chart.plot_width)
        base = band.y + band.height
        boxes = "".join(
            f"M{x:g} {base:g}v-{up:g}H{end:g}V{base:g}z"
            for x, end, up in zip(
                edges[changes].tolist(), ends.tolist(), height[changes].tolist(), strict=True
            )
            if up
        )
        if not boxes:
            return ""
        hover = f"{self._scene.queued}, up to {self._scene.most_text(steps)}"
        return f'<path d="{boxes}"><title>{hover}</title></path>'

    # Words

    def _legend(self, placed: Placed, links: set[int], *, has_path: bool) -> list[tuple[str, str]]:
        canvas, scene = self._canvas, self._scene
        entries = legend_of(canvas, scene.looks, set(placed.look.tolist()))
        for sign, words in scene.signs.items():
            if sign in self._signs:
                letter = f'<text{canvas.paint("text")} x="4" y="9" font-weight="600">'
                entries.append((f"{letter}{escape(sign)}</text>", words))
        if scene.ground:
            entries.append((f'<rect{idle(canvas)} width="14" height="10" rx="2"/>', scene.ground))
        if has_path:
            line = '<path{} fill="none" stroke-width="2.2" d="M0 2H6V8H14"/>'
            entries.append((line.format(canvas.paint("path")), PATH_TITLE))
        for kind in sorted(links):
            paint, look = self._line_paint(kind), LINK_LOOKS[kind]
            dashes = ' stroke-dasharray="4 2"' if look["dashes"] else ""
            line = f'fill="none" stroke-width="1.3"{dashes} d="{_JOIN_SIGNS[kind]}"'
            sign = _DOTS.format(paint) if kind == COLLECTIVE else f"<path{paint} {line}/>"
            if all(words != look["title"] for _, words in entries):
                entries.append((sign, look["title"]))
        if any(each.row in self._bands for each in scene.steps) and scene.depth:
            step = f'<path{canvas.paint("queue")} d="M0 10v-3h5v-5h5v4h4v4z"/>'
            entries.append((step, scene.queue_text))
        return entries
