# SPDX-License-Identifier: Apache-2.0
"""A topology as one SVG file: no script, no font, nothing to load.

Actors are cards with a box for each method, and lines are values. The style of a line shows how the
values travel (see ``rcg.views.data.edge_styles``). Where there are several nodes of the cluster,
each is a frame around what is there, and lines between them say TCP. Measured figures can be shown
as well: the time of a call in its box, which is tinted by its share of the critical path, and the
size of values on their line, which is as wide as the bytes that it carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise
from math import ceil, log
from statistics import median
from typing import Any, Final

from rcg.text import plural, share_text, time_text, visible
from rcg.views.data.alike import odd_text
from rcg.views.data.arrangement import RowSize, Sizes, Spacing
from rcg.views.data.edge_styles import COLLECTIVE, LOCAL, EdgeStyle, style_of
from rcg.views.data.figures import TopologyFigures
from rcg.views.data.folding import Card, Folded, Layout, Line, Row, fold
from rcg.views.data.labels import (
    TAG,
    Moved,
    TopologyLabels,
    channel_text,
    frame_text,
    moved_over_lines,
    row_text,
)
from rcg.views.data.layout import Point, Rect, TopologyLayout, lay_out
from rcg.views.data.lettering import DOT, SIZE, SMALL, TITLE, width_of
from rcg.views.data.topology import NodeFrame, Topology
from rcg.views.svg.canvas import MARGIN, WIDTH, Canvas, Paint

_MAX_NAME_WIDTH: Final = 190.0  # a longer name is shortened
_LINE: Final = 14.0
_BULGE: Final = 12.0  # of lines inside a card
_FRAME_HEAD: Final = 26.0
_LEGEND_LINE: Final = 20.0
_ASIDE: Final = 8.0  # between a name and the time beside it
_MAX_GROUPS: Final = 8
_GROUP_ROOM: Final = 760.0
_TIP: Final = 8.0  # the length of an arrow, which no text covers
_ROUND: Final = 8.0  # the radius of a line's corners
_LEAST_BYTES, _MOST_BYTES = 1e3, 1e9  # of the thinnest and of the widest line
_THIN: Final = 1.25
_NOTABLE: Final = 0.005  # of the critical path
_HIGH: Final = 0.05  # of it: with less, a dense picture has a tint and no number
_HEAT: Final = Paint("fill", "#d1345b", "#ff6b8f")
_MAX_TEXTS: Final = 24  # on lines; of more, the most frequent text is only in the legend


WIDTH_TEXT: Final = "width: 1 kB to 1 GB"
"""What a legend says of lines."""


@dataclass(frozen=True, slots=True)
class _Density:
    """How close together everything is.

    Attributes:
        spacing: The distances between cards.
        card_pad: Around the boxes of a card.
        row_pad: At both sides of the text in a box.
        head: The height of the name of a card.
        row: The height of a box with one line.
        row_gap: Between two boxes.
        name: The width of a line in a box; a longer one is shortened.
        pill: The height of an input, an output or a collective with one line.
        most_bytes: The width of the line with the most bytes.
        is_one_line: Whether the time of a method stands beside its name, and not below.
    """

    spacing: Spacing = field(default_factory=Spacing)
    card_pad: float = 6.0
    row_pad: float = 9.0
    head: float = 23.0
    row: float = 24.0
    row_gap: float = 4.0
    name: float = _MAX_NAME_WIDTH
    pill: float = 32.0
    most_bytes: float = 6.0
    is_one_line: bool = False


_DENSE: Final = _Density(
    Spacing(14.0, 5.0, 7.0), 4.0, 5.0, 19.0, 16.0, 2.0, pill=24.0, most_bytes=3.5, is_one_line=True
)
_DENSITIES: Final = (
    _Density(),
    _Density(Spacing(columns=24.0)),
    *(replace(_DENSE, name=name) for name in (_MAX_NAME_WIDTH, 158.0, 134.0, 111.0)),
)
"""The first at which a picture fits a screen is taken."""

_SCREEN: Final = 800.0  # the height of a picture there, without its heading and its legend
_TALL: Final = 880.0  # likewise, if names would be cut
_NEARLY: Final = 1.05
_MANY_CARDS: Final = 24  # a picture of fewer is never dense


def svg_of(
    topology: Topology,
    *,
    title: str = "Compiled graph",
    channel_details: bool = False,
    legend: bool = True,
    dark: bool | None = None,
    measured: TopologyFigures | None = None,
    layout: Layout = "phases",
) -> str:
    """Return a picture of a topology, with measured figures, as the text of an SVG file.

    With ``channel_details``, each call has a box of its own, which shows the channels that carry
    its value, and their numbers of slots.
    """
    odd = measured.odd if measured is not None else ()
    folded = fold(topology, "calls" if channel_details else "methods", layout, odd)
    return _Drawing(folded, title, channel_details, legend, dark, measured).text()


@dataclass(frozen=True, slots=True)
class Shapes:
    """A picture for a widget, without heading, legend and hover texts: the widget has its own.

    Attributes:
        layout: The positions.
        text: The shapes. Boxes and lines are groups of the classes ``rcg-node`` and ``rcg-edge``,
            in the order of the rows and lines of the folded topology.
        dark: A style sheet of their dark colours within a card with ``data-theme="dark"``.
        usual: What the text on lines without one would be; "" if there is no such text.
    """

    layout: TopologyLayout
    text: str
    dark: str
    usual: str


def shapes_of(folded: Folded, measured: TopologyFigures | None) -> Shapes:
    """Return the picture of a folded topology for a widget."""
    drawing = _Drawing(folded, measured=measured, has_hover=False)
    layout = drawing.layout
    text = "".join(drawing.shapes())
    dark = drawing.canvas.dark_rules('.rcg-card[data-theme="dark"]')
    return Shapes(layout, text, dark, drawing.usual)


def row_time_ns(row: Row, times: Mapping[int, float]) -> float | None:
    """Return the time of a box: the median of its calls, of the actor where that is longest."""
    by_actor: dict[str, list[float]] = {}
    for node in row.nodes:
        if node.id in times:
            by_actor.setdefault(node.process, []).append(times[node.id])
    return max((median(each) for each in by_actor.values()), default=None)


class _Drawing:
    """The parts of one picture, from back to front."""

    def __init__(
        self,
        folded: Folded,
        title: str = "",
        channel_details: bool = False,
        legend: bool = False,
        dark: bool | None = None,
        measured: TopologyFigures | None = None,
        has_hover: bool = True,
    ) -> None:
        self._folded = folded
        self._topology = folded.topology
        self._labels = TopologyLabels(self._topology)
        self._title = title
        self.canvas = Canvas(dark)
        self._measured = measured or TopologyFigures()
        self._is_measured = measured is not None
        self._legend = legend
        self._details = channel_details
        self._has_hover = has_hover
        channels = {channel.id: channel for channel in self._topology.channels}
        self._channels = {
            row.id: [
                channels[name]
                for name in dict.fromkeys(
                    edge.channel
                    for line in folded.lines
                    for edge in line.edges
                    if line.source == row.id and edge.channel is not None
                )
            ]
            for row in (folded.rows if channel_details else ())
        }
        self._moved = moved_over_lines(folded, self._measured.channel_bytes)
        self._texts = {
            at: "" if folded.is_inside(line) else self._labels.line_text(line, self._moved.get(at))
            for at, line in enumerate(folded.lines)
        }
        texts = Counter(text for text in self._texts.values() if text not in ("", TAG))
        text, count = texts.most_common(1)[0] if texts else ("", 0)
        self.usual = text if texts.total() > _MAX_TEXTS and 2 * count > texts.total() else ""
        if self.usual:
            self._texts = {
                at: "" if text == self.usual else text for at, text in self._texts.items()
            }
        self._looped = {
            folded.rows[line.source].card for line in folded.lines if folded.is_inside(line)
        }
        names = dict.fromkeys(line.kind for line in folded.lines)
        self._kinds = [style_of(name) for name in sorted(names, key=lambda name: name == LOCAL)]
        meeting = style_of(COLLECTIVE)
        stroke = Paint("stroke", meeting.light, meeting.dark)
        self.canvas.define("meeting", Paint("fill", "#ffffff", "#10161d"), stroke)
        self.canvas.define("heat", _HEAT)
        for kind in self._kinds:
            colours = kind.light, kind.dark
            self.canvas.define(f"line-{_class(kind)}", Paint("stroke", *colours))
            self.canvas.define(f"tip-{_class(kind)}", Paint("fill", *colours))
        self._widest = 0.0  # of names and rows, before they are cut
        self.layout = self._lay_out()

    def text(self) -> str:
        layout = self.layout
        subtitle = self._subtitle()
        top = MARGIN + 48
        heading = max(width_of(visible(self._title), TITLE, bold=True), width_of(subtitle, SIZE))
        groups = self._group_lines() if self._legend else []
        room = max(
            [
                layout.width,
                min(heading, 760),
                *(min(width_of(each, SMALL), _GROUP_ROOM) for each in groups),
            ]
        )
        legend, legend_size = self._legend_shapes(room) if self._legend else ([], (0.0, 0.0))
        width = round(max(room, legend_size[0]) + 2 * MARGIN)
        bottom = top + layout.height + (_LEGEND_LINE + 6 if legend or groups else 0)
        below = bottom + legend_size[1]
        body = [
            *self.canvas.heading(self._title, subtitle, width - 2 * MARGIN),
            f'<g transform="translate({MARGIN:g} {top:g})">',
            *self.shapes(),
            "</g>",
        ]
        if legend:
            body += [f'<g transform="translate({MARGIN:g} {bottom:g})">', *legend, "</g>"]
        for text in groups:
            body.append(self.canvas.note(text, MARGIN, below + 4, _GROUP_ROOM))
            below += _LEGEND_LINE - 4
        return self.canvas.document(body, width, round(below + MARGIN - 12), self._title)

    def _lay_out(self) -> TopologyLayout:
        """Return the layout of the first density at which it fits a screen, or nearly the least."""
        found = []
        is_large = len(self._folded.cards) >= _MANY_CARDS and not self._details
        for self._density in _DENSITIES if is_large else _DENSITIES[:1]:
            sizes = self._sizes()
            found.append((lay_out(self._folded, sizes), self._density))
            # Rather a picture that is a little higher than names that are cut.
            most = _SCREEN if self._widest <= _DENSITIES[-1].name else _TALL
            if found[-1][0].height <= most:
                break
        least = max(most, _NEARLY * min(layout.height for layout, _ in found))
        layout, self._density = next(each for each in found if each[0].height <= least)
        return layout

    def shapes(self) -> list[str]:
        """Return all but the heading and the legend."""
        folded, layout = self._folded, self.layout
        return [
            *[
                self._frame(frame, piece)
                for frame in self._topology.frames
                for piece in layout.frames.get(frame.id, ())
            ],
            *[self._card(card, layout.cards[card.id]) for card in folded.cards],
            *[self._edge(at, line, layout) for at, line in enumerate(folded.lines)],
            *[self._row(row, layout.rows[row.id]) for row in folded.rows],
            *self._amounts(layout),
        ]

    # Sizes

    def _sizes(self) -> Sizes:
        cards, rows = {}, {}
        for card in self._folded.cards:
            cards[card.id], own = self._size(card)
            rows.update(own)
        frames = {
            frame.id: min(_MAX_NAME_WIDTH, width_of(frame_text(frame), SIZE, bold=True))
            for frame in self._topology.frames
        }
        if self._density.is_one_line and not self.usual:  # their room would be most of the picture
            self._texts = {at: text if TAG in text else "" for at, text in self._texts.items()}
        texts = {at: width_of(text, SMALL) for at, text in self._texts.items() if text}
        room, spacing = WIDTH - 2 * MARGIN, self._density.spacing
        return Sizes(cards, rows, texts, frames, _FRAME_HEAD, room, spacing)

    def _size(self, card: Card) -> tuple[tuple[float, float], dict[int, RowSize]]:
        """Return the size of a card, and the places of its rows."""
        density = self._density
        width = 0.0
        for row in card.rows:
            widths = [width_of(self._row_text(row), SIZE, monospace=True)]
            widths += [width_of(line, SMALL) for line in self._detail_lines(row)]
            is_one = density.is_one_line and len(widths) > 1
            width = max(width, sum(widths) + _ASIDE if is_one else max(widths))
        natural = width
        width = min(density.name, width) + 2 * density.row_pad
        if self._is_pill(card):
            row = card.rows[0]
            height = _even(density.pill + _LINE * len(self._detail_lines(row)))
            return (max(64.0, ceil(width + 10)), height), {row.id: RowSize(0, height)}
        rows = {}
        y = density.head + (_LINE if self._alike_text(card) else 0)
        pad, aside = density.card_pad, density.card_pad + _BULGE * (card.id in self._looped)
        for row in card.rows:
            lines = 0 if density.is_one_line else len(self._detail_lines(row))
            height = _even(density.row + _LINE * lines)
            rows[row.id] = RowSize(y, height, pad, aside)
            y += height + density.row_gap
        heads = [
            width_of(self._labels.card_text(card), SIZE, bold=True),
            width_of(self._alike_text(card), SMALL),
        ]
        head = min(density.name, max(heads)) + 2 * pad + 4
        self._widest = max(self._widest, *heads, natural)
        return (ceil(max(width + pad + aside, head)), y - density.row_gap + pad), rows

    def _alike_text(self, card: Card) -> str:
        """Return which actors a card stands for, or how the one that it is differs from others."""
        odd = [each for process in card.processes if (each := self._measured.odd.get(process))]
        if len(card.processes) == 1 and odd:
            return f"{odd[0]} than {plural(odd[0].others, 'other')}"
        return self._labels.alike_text(card)

    def _is_pill(self, card: Card) -> bool:
        return len(card.rows) == 1 and card.kind != "actor"

    def _row_text(self, row: Row) -> str:
        return row_text(row, self._folded.cards[row.card])

    def _detail_lines(self, row: Row) -> list[str]:
        """Return the lines below a name: its time and share, and the channels of its value."""
        so_far = row_time_ns(row, self._measured.open_ns)
        time_ns = row_time_ns(row, self._measured.call_ns)
        share = self._share(row)
        # Of several actors the time of the slowest one, and their share together.
        is_one = len({node.process for node in row.nodes}) == 1
        words = [] if time_ns is None else [f"{'' if is_one else '≤ '}{time_text(time_ns)}"]
        if so_far is not None:
            words = [f"not ended: {time_text(so_far)}"]
        if share >= (_HIGH if self._density.is_one_line else _NOTABLE):
            words.append(f"{share_text(share, 0)}{'' if is_one else ' in all'}")
        lines = [f" {DOT} ".join(words)] if words else []
        return lines + [
            f"{channel.id} {DOT} {plural(channel.slots, 'slot')}"
            for channel in self._channels.get(row.id, ())
        ]

    def _share(self, row: Row) -> float:
        return sum(self._measured.on_path.get(node.id, 0.0) for node in row.nodes)

    # Shapes

    def _frame(self, frame: NodeFrame, rect: Rect) -> str:
        lines = "\n".join(self._labels.frame_lines(frame))
        name = self._text(
            frame_text(frame), rect.x + 12, rect.y + 17.5, rect.width - 18, role="faint", bold=True
        )
        paint = f'{self.canvas.paint("frame")} stroke-width="1.5"'
        return (
            f'<g class="rcg-node-frame"><title>{escape(lines)}</title>'
            f'<rect{paint}{_frame(rect)} rx="12"/>{name}</g>'
        )

    def _card(self, card: Card, rect: Rect) -> str:
        if self._is_pill(card):
            return ""
        pad = self._density.card_pad
        x, room = rect.x + pad + 2, rect.width - 2 * pad - 2
        alike = self._alike_text(card)
        y = rect.y + self._density.head
        name = self._text(self._labels.card_text(card), x, y - 6.5, room, bold=True)
        words = "\n".join(self._labels.card_lines(card))
        kind = "rcg-actor-box" if card.kind == "actor" else "rcg-other-box"
        return (
            f'<g class="{kind}"><title>{escape(words)}</title>'
            f'<rect{self.canvas.paint("actor")}{_frame(rect)} rx="9"/>{name}'
            f"{self._note(alike, x, y + 7.5, room) if alike else ''}</g>"
        )

    def _row(self, row: Row, rect: Rect) -> str:
        card = self._folded.cards[row.card]
        is_pill = self._is_pill(card)
        lines = self._detail_lines(row)
        radius = min(rect.height, 34) / 2 if is_pill else 5
        role = "meeting" if row.kind == "collective" else "box" if is_pill else "row"
        heat = self._share(row)
        shade = "faint" if heat < _HIGH else "text"  # what stands on a tint can be read
        tint = ""
        if heat >= _NOTABLE:
            tint = (
                f'<rect{self.canvas.paint("heat")}{_frame(rect)} rx="{radius:g}" '
                f'fill-opacity="{_opacity(heat):g}" pointer-events="none"/>'
            )
        place: dict[str, Any] = {"anchor": "middle"} if is_pill else {}
        pad = self._density.row_pad
        x = rect.x + (rect.width / 2 if is_pill else pad)
        room = rect.width - (pad if is_pill else 2 * pad)
        y = rect.middle + 4 - _LINE * len(lines) / 2
        beside = ""
        if lines and self._density.is_one_line and not is_pill:
            (line,), lines, y = lines, [], rect.middle + 4
            beside = self._note(line, rect.right - pad, y, room, role=shade, anchor="end")
            room -= width_of(line, SMALL) + _ASIDE
        is_named = row.kind in ("input", "output", "collective")
        text = self._text(
            self._row_text(row), x, y, room, bold=is_named, monospace=not is_named, **place
        )
        notes = [
            self._note(line, x, y + _LINE * at, room, role=shade, **place)
            for at, line in enumerate(lines, start=1)
        ]
        folded = " rcg-folded" if len(row.nodes) > 1 else ""
        return (
            f'<g class="rcg-node rcg-{row.kind}{folded}">{self._hover(self._row_words(row))}'
            f'<rect{self.canvas.paint(role)}{_frame(rect)} rx="{radius:g}"/>{tint}{text}'
            f"{beside}{''.join(notes)}</g>"
        )

    def _edge(self, at: int, line: Line, layout: TopologyLayout) -> str:
        kind = style_of(line.kind)
        width = self._width(at, kind)
        hover = self._hover("\n".join(self._line_words(at, line)))
        tip = min(max(7.0, round(3 + 2 * width, 1)), self._density.spacing.columns - 2)
        if self._folded.is_inside(line):
            path, arrow = _arc(layout.rows[line.source], layout.rows[line.target], tip)
        else:
            points = layout.routes[at]
            path = _path(points, tip, is_back=line.is_back)
            (x, y), along = (points[0], tip + 1) if line.is_back else (points[-1], -tip - 1)
            arrow = f"M{x:g} {y:g}l{along:g} {-tip / 2:g}v{tip:g}z"
        return (
            f'<g class="rcg-edge">{hover}'
            f'<path{self.canvas.paint(f"line-{_class(kind)}")} fill="none" '
            f'stroke-width="{width:g}"{_dashes(kind)} d="{path}"/>'
            f'<path{self.canvas.paint(f"tip-{_class(kind)}")} d="{arrow}"/></g>'
        )

    def _width(self, at: int, kind: EdgeStyle) -> float:
        """Return the width of a line: with measured bytes, wider by as much for ten times more."""
        if not self._is_measured:
            return kind.width
        moved = self._moved.get(at, Moved()).bytes
        part = log(max(moved, _LEAST_BYTES) / _LEAST_BYTES) / log(_MOST_BYTES / _LEAST_BYTES)
        return round(_THIN + (self._density.most_bytes - _THIN) * min(part, 1.0), 2)

    def _amounts(self, layout: TopologyLayout) -> list[str]:
        """Return the texts on lines, each where nothing is in its way.

        Lines with a common end and the same text show it once. The ground around a text keeps it
        legible where lines cross it.
        """
        used = Counter(end for at in layout.routes for end in _ends(self._folded.lines[at]))
        said: set[tuple[int, bool, bool, str]] = set()
        level = {at for at, points in layout.routes.items() if len({y for _, y in points}) == 1}
        taken = list(layout.cards.values())
        for (x, y), *_, (to_x, _) in (layout.routes[at] for at in level):
            taken.append(Rect(x, y - 2, to_x - x, 4))
        for at, points in layout.routes.items():
            is_back = self._folded.lines[at].is_back
            x, y = points[0] if is_back else points[-1]
            taken.append(Rect(x - _TIP * (not is_back), y - 3.5, _TIP, 7))
        shapes = []
        # Those on level lines first: they have the fewest places.
        for at in sorted(layout.routes, key=lambda at: at not in level):
            points = layout.routes[at]
            line, text = self._folded.lines[at], self._texts[at]
            ends = _ends(line)
            if not text or any((*end, text) in said for end in ends):
                continue
            width = width_of(text, SMALL)
            left, right = ends[::-1] if line.is_back else ends
            for x, y, anchor in _places(points, is_left=used[left] <= used[right]):
                start = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
                box = Rect(round(start - 2), y - SMALL + 1, ceil(width + 4), SMALL + 1.5)
                if not any(_overlap(box, other) for other in taken):
                    break
            else:
                continue
            taken.append(box)
            said.update((*end, text) for end in ends)
            shapes.append(
                f'<g class="rcg-amount" data-edge="{at}" pointer-events="none">'
                f'<rect{self.canvas.paint("ground")}{_frame(box)} rx="3"/>'
                f"{self._note(text, x, y, width + 1, anchor=anchor)}</g>"
            )
        return shapes

    def _legend_shapes(self, room: float) -> tuple[list[str], tuple[float, float]]:
        """Return the legend in rows, and its size."""
        entries: list[tuple[str, str]] = []
        for kind in self._kinds:
            paint = self.canvas.paint(f"line-{_class(kind)}")
            width = 2.0 if self._is_measured else kind.width
            stroke = f'fill="none" stroke-width="{width:g}"{_dashes(kind)}'
            entries.append((f'<path{paint} {stroke} d="M0 0h32"/>', visible(kind.title)))
        if self._measured.on_path:
            heat = self.canvas.paint("heat")
            shades = "".join(
                f'<rect{heat} x="{8 * at}" y="-5" width="8" height="10" '
                f'fill-opacity="{_opacity(share):g}"/>'
                for at, share in enumerate((0.01, 0.1, 0.4, 1.0))
            )
            entries.append((shades, "share of the critical path"))
        if self._moved:
            wedge = f'<path{self.canvas.paint("queue")} d="M0 -.6L32 -3V3L0 .6z"/>'
            entries.append((wedge, WIDTH_TEXT))
        if self.usual:
            plain = f'<path{self.canvas.paint("joint")} stroke-width="1.5" d="M0 0h32"/>'
            entries.append((plain, f"line without a number: {self.usual}"))
        shapes: list[str] = []
        x = y = widest = 0.0
        for shape, words in entries:
            width = 40 + min(_MAX_NAME_WIDTH, width_of(words, SMALL))
            if x and x + width > room:
                x, y = 0.0, y + _LEGEND_LINE
            note = self._note(words, 40, 4, _MAX_NAME_WIDTH)
            shapes.append(
                f'<g class="rcg-key" transform="translate({x:g} {y:g})">{shape}{note}</g>'
            )
            widest = max(widest, x + width)
            x += width + 24
        return shapes, (widest, y + _LEGEND_LINE if shapes else 0.0)

    def _text(self, text: str, x: float, y: float, room: float, **style: Any) -> str:
        """Return a text without a hover text of its own: its group has one."""
        return self.canvas.text(text, x, y, room, is_whole_in_hover=False, **style)

    def _note(self, text: str, x: float, y: float, room: float, **style: Any) -> str:
        return self.canvas.note(text, x, y, room, is_whole_in_hover=False, **style)

    # Words

    def _subtitle(self) -> str:
        words = list(filter(None, [odd_text(self._measured.odd), *self._labels.counts()]))
        words += ["median time of a call, mean size of a value"] if self._is_measured else []
        return f" {DOT} ".join(words)

    def _hover(self, text: str) -> str:
        return f"<title>{escape(text)}</title>" if self._has_hover else ""

    def _row_words(self, row: Row) -> str:
        carried = [
            f"its value travels by {channel_text(channel)}"
            for channel in self._channels.get(row.id, ())
        ]
        return "\n".join([*self._labels.row_lines(row, self._folded.cards[row.card]), *carried])

    def _line_words(self, at: int, line: Line) -> list[str]:
        return self._labels.line_lines(line, self._folded)

    def _group_lines(self) -> list[str]:
        """Return a line for each group, up to a limit."""
        groups = self._topology.groups
        lines = [f"group {self._labels.group_text(group)}" for group in groups[:_MAX_GROUPS]]
        more = len(groups) - len(lines)
        return [*lines, f"and {plural(more, 'more group')}"] if more else lines


# --- words and shapes ----------------------------------------------------------------------------


def _class(kind: EdgeStyle) -> str:
    """Return a kind as part of a CSS class."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in kind.name)


def _dashes(kind: EdgeStyle) -> str:
    return f' stroke-dasharray="{kind.dashes}"' if kind.dashes else ""


def _even(height: float) -> float:
    """Return the next height whose half is a whole number, so that lines are straight and sharp."""
    return 2 * ceil(height / 2)


def _opacity(share: float) -> float:
    """Return the opacity of the tint of a box with a share of the critical path."""
    return round(0.65 * float(min(1.0, share) ** 0.6), 3)


def _frame(rect: Rect) -> str:
    return f' x="{rect.x:g}" y="{rect.y:g}" width="{rect.width:g}" height="{rect.height:g}"'


def _overlap(one: Rect, other: Rect) -> bool:
    return (
        one.x < other.right
        and other.x < one.right
        and one.y < other.bottom
        and other.y < one.bottom
    )


def _ends(line: Line) -> list[tuple[int, bool, bool]]:
    """Return the source and the target of a line, each with the side of the line's end."""
    return [(line.source, line.is_back, True), (line.target, line.is_back, False)]


def _arc(source: Rect, target: Rect, tip: float) -> tuple[str, str]:
    """Return a line at the right side of a card from a row to another or to itself, and its tip."""
    aside = 5 if target.y >= source.y else -5
    y, to_y = source.middle + aside, target.middle - aside
    x = source.right
    path = f"M{x:g} {y:g}C{x + 13:g} {y:g} {x + 13:g} {to_y:g} {x + 4:g} {to_y:g}"
    return path, f"M{x:g} {to_y:g}l6 -3v6z"


def _path(points: Sequence[Point], tip: float, *, is_back: bool) -> str:
    """Return a path through the points, with round corners, that ends at the base of its tip."""
    (x, y), (to_x, to_y) = points[0], points[-1]
    way = [(x + tip * is_back, y), *points[1:-1], (to_x - tip * (not is_back), to_y)]
    path = [f"M{way[0][0]:g} {way[0][1]:g}"]
    for at in range(1, len(way)):
        (x, y), (to_x, to_y) = way[at - 1], way[at]
        if x != to_x and y != to_y:
            middle = round((x + to_x) / 2, 1)
            path.append(f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
            continue
        after = way[at + 1] if at + 1 < len(way) else None
        if after is None or (x == to_x) == (to_x == after[0]) or to_y != after[1] != y != to_y:
            path.append(f"L{to_x:g} {to_y:g}")
            continue
        radius = min(_ROUND, _length(way[at - 1], way[at]) / 2, _length(way[at], after) / 2)
        before, beyond = _toward(way[at], way[at - 1], radius), _toward(way[at], after, radius)
        path.append(f"L{before[0]:g} {before[1]:g}Q{to_x:g} {to_y:g} {beyond[0]:g} {beyond[1]:g}")
    return "".join(path)


def _length(one: Point, other: Point) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _toward(start: Point, end: Point, by: float) -> Point:
    part = by / (_length(start, end) or 1.0)
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part


def _places(points: Sequence[Point], *, is_left: bool) -> Iterator[tuple[float, float, str]]:
    """Yield where the text on a line may stand, best first: x, y and anchor."""
    around = [
        (one, other)
        for one, other in pairwise(points[1:-1])
        if one[1] == other[1] and one[0] > other[0]
    ]
    for (x, y), (to_x, _) in around:  # between two rows
        for part in (0.5, 0.4, 0.6, 0.3, 0.7):
            yield to_x + (x - to_x) * part, y + 4, "middle"
    (x, y), (next_x, next_y) = points[0], points[1]
    (last_x, last_y), (to_x, to_y) = points[-2], points[-1]
    if len(points) == 2 and y == next_y:
        yield (x + next_x) / 2, y - 6, "middle"
        yield (x + next_x) / 2, y + 15, "middle"
        return
    begin, end = (x + 6, y - 6, "start"), (to_x - 10, to_y - 6, "end")
    yield from (begin, end) if is_left else (end, begin)
    yield (x + next_x) / 2, (y + next_y) / 2 + 4, "middle"
    yield (last_x + to_x) / 2, (last_y + to_y) / 2 + 4, "middle"
