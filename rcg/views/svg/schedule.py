# SPDX-License-Identifier: Apache-2.0
"""The schedule: when each actor works on which execution, measured above predicted.

```
a0 (Stage)  fwd 4 ████ fwd 5 ████ ░░░░ fwd 6 ████      measured: bars, coloured by execution
            ┌────────┐┌─────────┐┌─────────┐          predicted: outlines below
  comm             ▬▬▬        ▬▬▬         ▬▬▬          a lane of the actor
```

Methods are full bars, other ops are thin bars, and the background is hatched while the actor does
nothing. If an execution calls a method several times, a colour is one of these calls: a
micro-batch. Lines join the ends of transfers over communicators, and the ranks of collectives.
Without a measurement only the prediction is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np

from rcg.compiler.simulate import Simulation
from rcg.text import brief, plural, ticks_of, time_text
from rcg.trace.analysis.events import TimeKind
from rcg.views.data.alike import folded_slices
from rcg.views.data.colours import EXECUTIONS
from rcg.views.data.lettering import DOT, SMALL, width_of
from rcg.views.data.schedule import CALL_NS, CallMarks, execution_range, fit, initials_of, marks_in
from rcg.views.data.slices import OPS, Slices
from rcg.views.svg.bars import MIN_TEXT_HEIGHT, Band, Bars, Ints, draw
from rcg.views.svg.canvas import Canvas, Paint, swatch
from rcg.views.svg.joins import COLLECTIVE_LINE, Joins, exchange_lines_of
from rcg.views.svg.lanes import ChartRow, LaneChart, fitting, headings_of, heights_for, size_of
from rcg.views.svg.looks import Look, execution_looks, idle

_MAX_BARS_BYTES: Final = 240_000
_LANES_PER_NUMBER: Final = 6  # the number of an execution is repeated after so many lanes
_MAX_NUMBERS: Final = 400
_MAX_JOINS: Final = 48
_NUM: Final = len(EXECUTIONS)
_LANE: Final = 0.5  # the height of a lane, as a share of the bar of its actor
_BUSY: Final = 3 * _NUM
_OUTLINE: Final = 2 * _NUM


def schedule_of(
    slices: Slices | None = None,
    *,
    predicted: Simulation | None = None,
    unit_ns: float | None = None,
    alike: Sequence[Sequence[str]] = (),
    title: str = "Schedule",
    about: str = "",
    width: float = 1040,
) -> str:
    """Return the schedule as the text of an SVG file.

    Args:
        slices: The measured slices of some executions (see ``excerpt_of``).
        predicted: The prediction. Its last executions before the pipeline empties are compared with
            the measured ones.
        unit_ns: The length of a unit of the prediction in nanoseconds. None: a unit is a call, and
            all calls cost the same; see ``rcg.views.data.schedule.fit``.
        alike: The processes that are one row each; see ``rcg.views.data.alike``.
        title: The title.
        about: The line below the title, such as ``executions 7 to 18``.
        width: The width of the picture.

    Raises:
        ValueError: There is neither a measurement nor a prediction.
    """
    if slices is None and predicted is None:
        raise ValueError("a schedule needs `slices`, or `predicted`, or both")
    return _Schedule(slices, predicted, unit_ns, alike, Canvas(), width).text(title, about)


@dataclass(frozen=True, eq=False)
class _Layer:
    """The measured or the predicted bars, and how far they are shifted."""

    slices: Slices
    marks: CallMarks
    shift_ns: float = 0.0
    is_outlined: bool = False


def _runs(slices: Slices) -> Ints:
    """Return a number for each slice: those of a lane in an execution have one."""
    return np.asarray(slices.execution * len(slices.heads) + slices.lane)


class _Schedule:
    def __init__(
        self,
        slices: Slices | None,
        predicted: Simulation | None,
        unit_ns: float | None,
        alike: Sequence[Sequence[str]],
        canvas: Canvas,
        width: float,
    ) -> None:
        self._canvas = canvas
        self._width = width
        self._note = ""
        self._joins = False, False  # of transfers, of collectives
        self._is_in_calls = slices is None and unit_ns is None
        self._layers = []
        if predicted is not None:
            found = fit(predicted, unit_ns, slices)
            self._note = found.note
            if found.slices is not None:
                shown = folded_slices(found.slices, alike)
                layer = _Layer(shown, marks_in(shown), found.shift_ns, is_outlined=True)
                self._layers.append(layer)
        if slices is not None:
            slices = folded_slices(slices, alike)
            self._layers.append(_Layer(slices, marks_in(slices)))
        self._slices, self._marks = self._layers[-1].slices, self._layers[-1].marks
        self._exchanges = exchange_lines_of(self._slices)
        self._is_call = self._slices.where("call")
        heads = self._slices.heads
        calling = {heads[lane].process for lane in np.unique(self._slices.lane[self._is_call])}
        self._lanes = [at for at, head in enumerate(heads) if {head.process, head.under} & calling]
        self._both = len(self._layers) == 2
        # Methods are labelled by their first letters if these differ.
        self._initials = initials_of(
            name.text for name in self._slices.names if name.role == "call"
        )
        self._is_repeated = self._marks.repeats > 1
        self._colours = f"colour = {self._marks.words}"

    def text(self, title: str, about: str) -> str:
        canvas = self._canvas
        slices = self._slices
        heads = [slices.heads[lane] for lane in self._lanes]
        count = size_of(heads)
        actors = sum(head.count for head in heads if not head.under)
        bar = heights_for(count, 28.0, 20.0, 12.0)
        below = heights_for(count, 9.0, 7.0, 4.0) if self._both else 0.0
        gap = heights_for(count, 12.0, 6.0, 3.0)
        apart = 2.0 if below else 0.0  # measured and predicted
        shrink = fitting(count * (bar + apart + below + gap), count)
        bar, apart, below, gap = (round(each * shrink, 1) for each in (bar, apart, below, gap))
        headings = headings_of([head.node for head in heads])
        rows = [
            ChartRow(
                head.short or head.label,
                head.detail,
                bar * _LANE if head.under else bar + apart + below,
                grounds=((0.0, bar * _LANE if head.under else bar),),
                heading=heading,
                is_lane=bool(head.under),
            )
            for head, heading in zip(heads, headings, strict=True)
        ]
        frame = LaneChart(canvas, rows, gap, self._width, slices.heads)
        looks = self._looks()
        body: list[str] = []
        merged = 0
        thin = max(2.0, bar / 7)
        ops = [
            Band(top + row.grounds[0][1] * 0.1, row.grounds[0][1] * 0.8)
            if row.is_lane
            else Band(top + (bar - thin) / 2, thin)
            for row, top in zip(rows, frame.tops, strict=True)
        ]
        transfers, collectives = self._join_lines(frame, ops)
        body += transfers  # below the bars
        for layer in self._layers:
            bands = []
            for top, band in zip(frame.tops, ops, strict=True):
                if layer.is_outlined and self._both:
                    bands += [Band(top + bar + apart, below)] * 2
                else:
                    bands += [Band(top, bar), band]
            shapes, beside, count_of_merged = self._draw(layer, frame, bands, looks)
            body += shapes
            merged += count_of_merged
        body += collectives + beside
        words = [self._about(about), self._note]
        words += ["rows of several actors: medians"] if len(slices.lengths) else []
        drawn = "".join(body)
        words += [
            f"{letter} = {method}"
            for method, letter in self._initials.items()
            if re.search(rf">{letter}\d+<", drawn)
        ]
        if merged > 1 + self._is_call.sum() / 50:
            calls = plural(merged, "call")
            words.append(f"{calls} too narrow to tell apart: height = share")
        return frame.document(
            title,
            f" {DOT} ".join(word for word in words if word),
            self._ticks(frame),
            body,
            self._legend(),
            f"{title}: which execution each of the actors ({actors}) works on when",
        )

    def _join_lines(self, frame: LaneChart, bands: Sequence[Band]) -> tuple[list[str], list[str]]:
        """Return the lines of transfers, and of collectives, between the bars of their ends."""
        layer, slices = self._layers[-1], self._slices
        band_by_lane = dict(zip(self._lanes, bands, strict=True))

        def band_of(row: int) -> Band:
            return band_by_lane[int(slices.lane[row])]

        scale = frame.plot_width / max(slices.duration_ns, 1)
        # An actor that calls nothing has no lane.
        is_shown = np.isin(slices.lane, self._lanes)
        whole = is_shown[slices.transfers].all(axis=1)
        ranks = [bool(is_shown[rows].all()) for rows in slices.collectives]
        shown = replace(
            slices,
            transfers=slices.transfers[whole],
            transfer_times=slices.transfer_times[whole],
            is_wire=slices.is_wire[whole],
            collectives=tuple(compress(slices.collectives, ranks)),
            collective_times=slices.collective_times[np.array(ranks, bool)],
        )
        joins = Joins(self._canvas, shown, scale, band_of, layer.shift_ns)
        transfers = joins.transfers(_MAX_JOINS)
        collectives, _ = joins.collectives(_MAX_JOINS)
        self._joins = bool(transfers), bool(collectives)
        return transfers, collectives

    def _about(self, about: str) -> str:
        if about or not len(self._slices):
            return about
        first, last = execution_range(self._slices)
        return f"execution {first}" if first == last else f"executions {first} to {last}"

    def _looks(self) -> list[Look]:
        canvas = self._canvas
        canvas.define("busy", Paint("fill", "#7d8793", "#8a95a3"))
        return [*execution_looks(canvas), Look(canvas.paint("busy"), "text", 0.0)]

    def _draw(
        self, layer: _Layer, frame: LaneChart, bands: Sequence[Band], looks: Sequence[Look]
    ) -> tuple[list[str], list[str], int]:
        """Return the bars, the numbers beside them, and how many calls are merged."""
        slices = layer.slices
        is_call = slices.where("call")
        number = np.full(max(len(slices.heads), 1), -1)
        number[self._lanes] = np.arange(len(self._lanes))
        lane = number[slices.lane]
        scale = frame.plot_width / max(self._slices.duration_ns, 1)
        left = (slices.start + layer.shift_ns) * scale
        right = left + slices.duration * scale
        left, right = np.maximum(left, 0), np.minimum(right, frame.plot_width)
        is_shown = (slices.track == OPS) & (lane >= 0) & (slices.kind != TimeKind.WAITING)
        is_shown &= right > left
        if layer.is_outlined and self._both:
            # What was not measured here, there is nothing to compare with.
            is_shown &= is_call & np.isin(_runs(slices), _runs(self._slices)[self._is_call])
        row = np.flatnonzero(is_shown)
        band = lane[row] * 2 + np.where(is_call[row], 0, 1)
        order = np.argsort(band, kind="stable")
        row, band = row[order], band[order]
        marks = layer.marks
        number_of = marks.turn if self._is_repeated else slices.execution.astype(np.int64)
        look = marks.colour(slices.execution)[row]
        if layer.is_outlined:
            look += _OUTLINE
        else:
            look += np.where(marks.is_other[row], _NUM, 0)
        look = np.where(is_call[row], look, _BUSY)
        bars = Bars(band.astype(np.int64), left[row], right[row] - left[row], look, row)
        drawn = draw(
            self._canvas,
            bands,
            looks,
            bars,
            frame.plot_width,
            labels_of=lambda at: self._labels(slices, at, int(number_of[at])),
            hover_of=lambda at: self._hover(layer, at),
            budget=_MAX_BARS_BYTES // len(self._layers),
        )
        kind = "rcg-predicted" if layer.is_outlined else "rcg-measured"
        merged = int(is_call[drawn.merged].sum())
        is_alone = not (layer.is_outlined and self._both)
        plot_width = frame.plot_width
        beside = self._numbers(slices, bars, bands, number_of, plot_width) if is_alone else []
        return [f'<g class="{kind}">', *drawn.shapes, *drawn.labels, "</g>"], beside, merged

    def _numbers(
        self, slices: Slices, bars: Bars, bands: Sequence[Band], number_of: Ints, plot_width: float
    ) -> list[str]:
        """Return numbers beside bars that are too narrow for them, if there is room."""
        # Other ops than calls are thin, so a number may cover them.
        calls = np.flatnonzero(bars.look != _BUSY)
        lane = bars.band // 2
        calls = calls[np.lexsort((bars.left[calls], lane[calls]))]
        is_last = np.append(lane[calls][1:] != lane[calls][:-1], True)[: len(calls)]
        following = np.append(bars.left[calls][1:], plot_width)[: len(calls)]
        ends = np.full(len(lane), plot_width)
        ends[calls] = np.where(is_last, plot_width, following)
        latest: dict[tuple[int, int], int] = {}
        texts: list[str] = []
        for at in calls[bars.width[calls] >= 2].tolist():
            row = int(bars.row[at])
            number = int(number_of[row])
            key, here = (int(slices.execution[row]), number), int(lane[at])
            if here - latest.get(key, -_LANES_PER_NUMBER) < _LANES_PER_NUMBER:
                continue
            band, width = bands[int(bars.band[at])], float(bars.width[at])
            room = width_of(f"{number}", SMALL, bold=True)
            labels = self._labels(slices, row, number)
            if band.height >= MIN_TEXT_HEIGHT and any(
                width_of(label, SMALL, bold=True) <= width - 4 for label in labels
            ):
                latest[key] = here
                continue
            x = float(bars.left[at]) + width + 2
            if x + room + 3 > ends[at]:
                continue
            latest[key] = here
            y = band.middle + SMALL * 0.36
            texts.append(f'<text x="{x:.1f}" y="{y:.1f}">{number}</text>')
            if len(texts) == _MAX_NUMBERS:
                break
        if not texts:
            return []
        return [
            f'<g class="rcg-beside"><g{self._canvas.paint("on-idle")} font-size="{SMALL:g}" '
            f'font-weight="600" stroke-width="2.5" paint-order="stroke" pointer-events="none">'
            f"{''.join(texts)}</g></g>"
        ]

    def _labels(self, slices: Slices, row: int, number: int) -> list[str]:
        name = slices.names[slices.name[row]]
        if name.role != "call":
            return []
        short = f"{self._initials.get(name.text, '')}{number}"
        return [f"{name.text} {number}", short, short if self._is_repeated else f"{number}"]

    def _hover(self, layer: _Layer, row: int) -> str:
        slices = layer.slices
        name, head = slices.names[slices.name[row]], slices.heads[slices.lane[row]]
        is_one = head.count == 1
        in_calls = self._is_in_calls
        duration = float(slices.duration[row])
        took = f"{duration / CALL_NS:.3g} calls long" if in_calls else time_text(duration)
        what = name.text if is_one or name.role == "call" else name.role
        words = [
            f"{brief(head.label)} {brief(what)}",
            f"execution {slices.execution[row]}",
            f"{took}, {'predicted' if layer.is_outlined else 'measured'}",
        ]
        if not is_one:
            least, most = map(time_text, slices.lengths[row].tolist())
            words.append(
                f"median of {head.count}" + ("" if in_calls else f", of {least} to {most}")
            )
        if not layer.is_outlined:
            words += self._exchanges.get(row, [])
        words += filter(None, [slices.rank_text(row) if is_one else ""])
        return "\n".join(words)

    def _ticks(self, frame: LaneChart) -> list[tuple[float, str]]:
        duration = self._slices.duration_ns
        if not self._is_in_calls:
            return frame.ticks(duration, self._slices.start_ns - self._slices.origin_ns)
        # A unit is a call, so ticks are whole numbers.
        scale = frame.plot_width / max(duration, 1)
        ticks = ticks_of(duration / CALL_NS * 1e9, frame.most_ticks)
        return [
            (at / 1e9 * CALL_NS * scale, f"{at / 1e9:g} call{'' if at == 1e9 else 's'}")
            for at, _ in ticks
            if at % 1_000_000_000 == 0
        ]

    def _legend(self) -> list[tuple[str, str]]:
        canvas = self._canvas
        entries: list[tuple[str, str]] = []
        if any(not layer.is_outlined for layer in self._layers):
            cut = "".join(
                f'<rect fill="{colour}" x="{position * 5}" width="4" height="10"/>'
                for position, colour in enumerate(EXECUTIONS[:3])
            )
            entries.append((cut, f"measured, {self._colours}"))
            if self._marks.is_other.any():
                tint = f' fill="{EXECUTIONS[0]}" fill-opacity=".5" stroke="{EXECUTIONS[0]}"'
                entries.append((swatch(tint), "another method of the actor"))
        if any(layer.is_outlined for layer in self._layers):
            outline = (
                f'<rect x=".5" y=".5" width="13" height="9" rx="2" fill="{EXECUTIONS[0]}" '
                f'fill-opacity=".14" stroke="{EXECUTIONS[0]}"/>'
            )
            entries.append((outline, "predicted" if self._both else f"predicted, {self._colours}"))
        busy = '<rect{} y="3.5" width="14" height="3"/>'.format(canvas.paint("busy"))
        has_transfers, has_collectives = self._joins
        if has_transfers:
            line = '<path{} fill="none" stroke-width="1.2" d="M3 0L11 10"/>'
            entries.append((line.format(canvas.paint("transfer")), "transfer"))
        if has_collectives:
            entries.append((COLLECTIVE_LINE.format(canvas.paint("collective")), "collective"))
        return [*entries, (busy, "not in a method"), (swatch(idle(canvas)), "waiting or idle")]
