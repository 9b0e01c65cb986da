# SPDX-License-Identifier: Apache-2.0
"""The diagram of a topology: what is said of each part, how large that is, and where it stands.

Measured figures are shown as well: the median time of its calls in a box, which is tinted by their
share of the critical path, and the size of values on their line, which is as wide as the bytes that
it carries. Large pictures are denser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, inf, log
from typing import Final, Literal

import numpy as np

from rcg.ir.channels import ChannelSpec
from rcg.ir.index import Place
from rcg.text import bytes_text, plural, share_text, speed_text, time_text
from rcg.trace.analysis.alike import Odd, odd_text
from rcg.trace.analysis.ops import OpTimes
from rcg.views.data.edge_styles import style_of
from rcg.views.data.figures import TopologyFigures
from rcg.views.data.folding import Card, Folded, Level, Row, fold
from rcg.views.data.folding import Layout as Folding
from rcg.views.data.folding import Line as FoldedLine
from rcg.views.data.labels import (
    TAG,
    TopologyLabels,
    channel_text,
    frame_text,
    moved_over_lines,
    row_text,
    size_text,
)
from rcg.views.data.layout import Point, Rect, RowSize, Sizes, Spacing, TopologyLayout, lay_out
from rcg.views.data.lettering import DOT, SIZE, SMALL, width_of
from rcg.views.data.topology import Topology
from rcg.views.diagram import NOTABLE, Anchor, Box, Diagram, Font, Label, Line

LayOut = Callable[[Folded, Sizes], TopologyLayout]

ROOM: Final = 1032.0
"""The width of all pictures, without their margins."""

NARROW_ROOM: Final = 420.0
"""The width of a diagram that a phone shows whole, a little smaller than it is drawn."""
_MAX_NAME_WIDTH: Final = 190.0  # a longer name is shortened
_LINE: Final = 14.0
_BULGE: Final = 12.0  # of lines inside a card
_FRAME_HEAD: Final = 26.0
_ASIDE: Final = 8.0  # between a name and the time beside it
_ABOVE, _BELOW = -6, 15  # a line: the base of a text
_BEYOND: Final = 20  # how far a text on a line may reach beyond the boxes: less than the margin
_TIP: Final = 8.0  # the length of an arrow, which no text covers
_ROUND: Final = 8.0  # the radius of a line's corners
_LEAST_BYTES, _MOST_BYTES = 1e3, 1e9  # of the thinnest and of the widest line
_THIN: Final = 1.25
_HIGH: Final = 0.05  # of the critical path: with less, a dense picture has a tint and no number
_MAX_TEXTS: Final = 24  # on lines; of more, the most frequent text is only in the legend


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
_DENSITIES: Final = (_Density(), _DENSE, replace(_DENSE, name=134.0), replace(_DENSE, name=111.0))
"""The first at which a picture fits a screen is taken."""

_SCREEN: Final = 800.0  # the height of a picture there, without its heading and its legend
_MANY_CARDS: Final = 24  # a picture of fewer is never dense


def diagram_of(
    topology: Topology,
    *,
    folding: Folding = "phases",
    channel_details: bool = False,
    figures: TopologyFigures | None = None,
    lay_out: LayOut = lay_out,
    room: float = ROOM,
) -> Diagram:
    """Return the diagram of a topology, with measured figures.

    With ``channel_details``, each call has a box of its own, which shows the channels that carry
    its value, and their numbers of slots. ``room`` is the width that it should not exceed.
    """
    level: Level = "calls" if channel_details else "methods"
    folded = fold(topology, level, folding, figures.odd if figures else ())
    return diagram_of_folded(
        folded, figures, channel_details=channel_details, lay_out=lay_out, room=room
    )


def diagram_of_folded(
    folded: Folded,
    figures: TopologyFigures | None,
    *,
    channel_details: bool = False,
    lay_out: LayOut = lay_out,
    room: float = ROOM,
) -> Diagram:
    """Return the diagram of a topology that is folded already."""
    known = TopologyFigures() if figures is None else figures
    words = _Words(folded, known, channel_details=channel_details)
    is_large = len(folded.cards) >= _MANY_CARDS and not channel_details
    drawings = []
    for density in _DENSITIES if is_large else _DENSITIES[:1]:
        drawing = _Drawing(folded, words, density, lay_out, room, is_measured=figures is not None)
        if drawing.layout.height <= _SCREEN:
            return drawing.diagram()
        drawings.append(drawing)
    return drawings[:2][-1].diagram()  # names are cut only where that helps


_Tone = Literal["bad", "odd", "plain"]  # of a line below the name of a card


class _Words:
    """What is said of each part of a topology: in boxes, on lines, and in hover texts."""

    def __init__(self, folded: Folded, figures: TopologyFigures, *, channel_details: bool) -> None:
        self.folded = folded
        self.figures = figures
        self.labels = TopologyLabels(folded.topology)
        self.moved = moved_over_lines(folded, figures.channel_bytes)
        self._channels: dict[int, list[str]] = {}  # that carry the values of each row
        for line in folded.lines if channel_details else ():
            names = [edge.channel for edge in line.edges if edge.channel is not None]
            self._channels.setdefault(line.source, []).extend(names)
        texts = {
            at: "" if folded.is_inside(line) else self.labels.line_text(line, self.moved.get(at))
            for at, line in enumerate(folded.lines)
        }
        counts = Counter(text for text in texts.values() if text not in ("", TAG))
        text, count = counts.most_common(1)[0] if counts else ("", 0)
        self.usual = text if counts.total() > _MAX_TEXTS and 2 * count > counts.total() else ""
        self.on_lines = {at: "" if text == self.usual else text for at, text in texts.items()}

    def about(self) -> str:
        """Return how much there is, and what the figures are."""
        runs = max((each.count for each in self.figures.ops.values()), default=0)
        words = [odd_text(self.figures.odd), *self.labels.counts()]
        words += [f"median times and mean sizes of {plural(runs, 'execution')}"] if runs else []
        return f" {DOT} ".join(filter(None, words))

    def odd(self, card: Card) -> Odd | None:
        """Return how the one actor of a card differs from others; None if it does not."""
        return self.figures.odd.get(card.processes[0]) if len(card.processes) == 1 else None

    def alike(self, card: Card, most: float = inf) -> str:
        """Return which actors a card stands for, or how the one that it is differs from others.

        ``most`` is the room: from which others it differs is left out if it is too narrow.
        """
        odd = self.odd(card)
        if odd is None:
            return self.labels.alike_text(card)
        text = f"{odd} than {plural(odd.others, 'other')}"
        return text if width_of(text, SMALL, bold=True) <= most else str(odd)

    def notes(self, card: Card, most: float) -> list[tuple[str, _Tone]]:
        """Return the lines below the name of a card, each with what it says of it."""
        found: list[tuple[str, _Tone]] = []
        if (mark := self.labels.mark_of(card)) is not None:
            found.append((mark.text, "plain" if mark.kind == "over" else "bad"))
        if alike := self.alike(card, most):
            found.append((alike, "plain" if self.odd(card) is None else "odd"))
        return found

    def share(self, row: Row) -> float:
        """Return the share of the critical path of a box."""
        return sum(self.figures.on_path.get(op, 0.0) for op in _ops(row))

    def took_ns(self, row: Row) -> float | None:
        """Return the median time of all calls of a box; of a collective that of its longest rank.

        That of calls that did not end is the longest so far.
        """
        runs = self.figures.runs_of(_ops(row))
        if not runs:
            return None
        if row.kind == "collective":
            return max(float(np.median(each)) for each in runs.values())
        return float(np.median(np.concatenate([*runs.values()])))

    def below(self, row: Row, least_share: float) -> list[str]:
        """Return the lines below a name: its time and share, and the channels of its value."""
        so_far = [self.figures.open_ns[op] for op in _ops(row) if op in self.figures.open_ns]
        took, share = self.took_ns(row), self.share(row)
        words = [] if took is None else [time_text(took)]
        if so_far:
            words = [f"not ended: {time_text(max(so_far))}"]
        if share >= least_share:
            is_one = len({node.process for node in row.nodes}) == 1
            words.append(f"{share_text(share, 0)}{'' if is_one else ' in all'}")
        lines = [f" {DOT} ".join(words)] if words else []
        return lines + [
            f"{channel.id} {DOT} {plural(channel.slots, 'slot')}" for channel in self._carried(row)
        ]

    def of_row(self, row: Row, card: Card) -> tuple[str, ...]:
        """Return the hover text of a box."""
        share = self.share(row)
        return (
            *self.labels.row_lines(row, card),
            *self._timed(row),
            *([f"{share_text(share)} of the critical path"] if share else []),
            *[f"its value travels by {channel_text(channel)}" for channel in self._carried(row)],
        )

    def _carried(self, row: Row) -> list[ChannelSpec]:
        return [self.labels.channel(name) for name in dict.fromkeys(self._channels.get(row.id, ()))]

    def _timed(self, row: Row) -> list[str]:
        """Return how long a box takes, and how often."""
        runs, took = self.figures.runs_of(_ops(row)), self.took_ns(row)
        if took is None:
            return []
        medians = {actor: float(np.median(each)) for actor, each in runs.items()}
        longest = max(medians, key=medians.__getitem__)
        if row.kind == "collective":
            count = len(runs[longest])
            ran = [op for op in _ops(row) if op in self.figures.ops]  # others did not, yet
            own = [self.figures.ops[op] for op in ran if op[0].partition(".")[0] == longest]
            moved = bytes_text(sum(each.bytes for each in own) / count)
            waited = time_text(sum(each.waited_ns for each in own) / count)
            more = f"{moved} from a rank {DOT} waited {waited} for the others, the mean"
        else:
            every = np.concatenate([*runs.values()])
            count, more = len(every), f"99 of 100 in {time_text(float(np.percentile(every, 99)))}"
            if len(runs) > 1:
                most = time_text(medians[longest])
                more += f" {DOT} longest in {self.labels.process_text(longest)}: {most}"
        return [f"median {time_text(took)} {DOT} ran {plural(count, 'time')}", more]

    def of_line(self, at: int, line: FoldedLine) -> tuple[str, ...]:
        """Return the hover text of a line."""
        lines = self.labels.line_lines(line, self.folded)
        moved = self.moved.get(at)
        if len(line.edges) > 1:
            size = [] if moved is None else [f"{bytes_text(moved.bytes)} in an execution"]
            return (*lines, *size)
        (edge,) = line.edges
        found = [self.figures.ops.get(op) for op in edge.ops]
        size_of = self.figures.channel_bytes.get(edge.channel or "")
        if size_of is not None:
            lines.append(f"{size_text(self.labels.channel(edge.channel or ''), size_of)}, the mean")
        lines += [f"write {_took(write)}" for write in found[:1] if write is not None]
        lines += [f"read {_took(read)}" for read in found[1:2] if read is not None]
        return tuple(lines)


class _Drawing:
    """The parts of one diagram at one density."""

    def __init__(
        self,
        folded: Folded,
        words: _Words,
        density: _Density,
        lay_out: LayOut,
        room: float,
        *,
        is_measured: bool,
    ) -> None:
        self._folded = folded
        self._words = words
        self._density = density
        self._is_measured = is_measured
        self._texts = words.on_lines
        if density.is_one_line and not words.usual:  # their room would be most of the picture
            self._texts = {at: text if TAG in text else "" for at, text in words.on_lines.items()}
        least_share = _HIGH if density.is_one_line else NOTABLE
        self._names = {row.id: row_text(row, folded.cards[row.card]) for row in folded.rows}
        self._below = {row.id: words.below(row, least_share) for row in folded.rows}
        self._looped = {
            folded.rows[line.source].card for line in folded.lines if folded.is_inside(line)
        }
        self.layout = lay_out(folded, self._sizes(room))

    # Sizes

    def _sizes(self, room: float) -> Sizes:
        cards: dict[int, tuple[float, float]] = {}
        rows: dict[int, RowSize] = {}
        for card in self._folded.cards:
            cards[card.id], own = self._size(card)
            rows |= own
        frames = {
            frame.id: min(_MAX_NAME_WIDTH, width_of(frame_text(frame), SIZE, bold=True))
            for frame in self._folded.topology.frames
        }
        texts = {at: width_of(text, SMALL) for at, text in self._texts.items() if text}
        return Sizes(cards, rows, texts, frames, _FRAME_HEAD, room, self._density.spacing)

    def _size(self, card: Card) -> tuple[tuple[float, float], dict[int, RowSize]]:
        """Return the size of a card, and the places of its rows."""
        density, words = self._density, self._words
        natural = 0.0
        for row in card.rows:
            name = width_of(self._names[row.id], SIZE, monospace=True)
            below = [width_of(line, SMALL) for line in self._below[row.id]]
            is_beside = below and density.is_one_line
            natural = max(
                natural, sum([name, _ASIDE, *below]) if is_beside else max(name, *below, 0)
            )
        width = min(density.name, natural) + 2 * density.row_pad
        if _is_pill(card):
            (row,) = card.rows
            height = _even(density.pill + _LINE * len(self._below[row.id]))
            return (max(64.0, ceil(width + 10)), height), {row.id: RowSize(0, height)}
        rows = {}
        notes = words.notes(card, density.name)
        y = density.head + _LINE * len(notes)
        pad, aside = density.card_pad, density.card_pad + _BULGE * (card.id in self._looped)
        for row in card.rows:
            lines = 0 if density.is_one_line else len(self._below[row.id])
            height = _even(density.row + _LINE * lines)
            rows[row.id] = RowSize(y, height, pad, aside)
            y += height + density.row_gap
        heads = (
            width_of(words.labels.card_text(card), SIZE, bold=True),
            *[width_of(text, SMALL, bold=tone == "odd") for text, tone in notes],
        )
        head = min(density.name, max(heads)) + 2 * pad + 4
        return (ceil(max(width + pad + aside, head)), y - density.row_gap + pad), rows

    # Parts

    def diagram(self) -> Diagram:
        folded, layout, words = self._folded, self.layout, self._words
        return Diagram(
            about=words.about(),
            width=layout.width,
            height=layout.height,
            cards=(*self._frames(), *[self._card(c) for c in folded.cards if not _is_pill(c)]),
            boxes=tuple([self._box(row) for row in folded.rows]),
            lines=tuple(self._lines()),
            usual=words.usual,
            groups=tuple(
                f"group {words.labels.group_text(group)}" for group in folded.topology.groups
            ),
            is_measured=self._is_measured,
        )

    def _frames(self) -> Iterator[Box]:
        for frame in self._folded.topology.frames:
            words = tuple(self._words.labels.frame_lines(frame))
            for rect in self.layout.frames.get(frame.id, ()):
                x, y, room = rect.x + 12, rect.y + 17.5, rect.width - 18
                label = Label(frame_text(frame), x, y, room, "name", is_faint=True)
                yield Box("frame", rect, (label,), words)

    def _card(self, card: Card) -> Box:
        rect, pad, labels = self.layout.cards[card.id], self._density.card_pad, self._words.labels
        x, y, room = rect.x + pad + 2, rect.y + self._density.head, rect.width - 2 * pad - 2
        texts = [Label(labels.card_text(card), x, y - 6.5, room, "name")]
        lines = tuple(labels.card_lines(card))
        is_bad = False
        kind = "actor" if card.kind == "actor" else "other"
        for at, (text, tone) in enumerate(self._words.notes(card, self._density.name)):
            font: Font = "strong" if tone == "odd" else "note"
            below = y + 7.5 + _LINE * at
            texts.append(
                Label(text, x, below, room, font, is_faint=tone == "plain", is_bad=tone == "bad")
            )
            is_bad = is_bad or tone == "bad"
            if tone == "odd":
                kind, lines = "odd", (*lines, self._words.alike(card))
        return Box(kind, rect, tuple(texts), lines, is_bad=is_bad)

    def _box(self, row: Row) -> Box:
        card, rect = self._folded.cards[row.card], self.layout.rows[row.id]
        is_pill = _is_pill(card)
        below = self._below[row.id]
        heat = self._words.share(row)
        pad = self._density.row_pad
        anchor: Anchor = "middle" if is_pill else "start"
        x = rect.x + (rect.width / 2 if is_pill else pad)
        room = rect.width - (pad if is_pill else 2 * pad)
        is_faint = heat < _HIGH  # what stands on a tint can be read
        if below and self._density.is_one_line and not is_pill:
            (line,), y = below, rect.middle + 4
            notes = [Label(line, rect.right - pad, y, room, "note", "end", is_faint)]
            room -= width_of(line, SMALL) + _ASIDE
        else:
            y = rect.middle + 4 - _LINE * len(below) / 2
            notes = [
                Label(line, x, y + _LINE * at, room, "note", anchor, is_faint)
                for at, line in enumerate(below, start=1)
            ]
        font: Font = "name" if row.kind in ("input", "output", "collective") else "method"
        return Box(
            kind=row.kind,
            rect=rect,
            is_round=is_pill,
            labels=(Label(self._names[row.id], x, y, room, font, anchor), *notes),
            words=self._words.of_row(row, card),
            heat=heat,
            ops=tuple(_ops(row)),
            count=len(row.nodes),
        )

    def _lines(self) -> Iterator[Line]:
        labels = self._placed_texts()
        for at, line in enumerate(self._folded.lines):
            width = self._width(at, line)
            yield Line(
                source=line.source,
                target=line.target,
                kind=line.kind,
                width=width,
                path=self._path(at, line, width),
                words=self._words.of_line(at, line),
                ops=tuple([op for edge in line.edges for op in edge.ops]),
                count=len(line.edges),
                label=labels.get(at),
            )

    def _width(self, at: int, line: FoldedLine) -> float:
        """Return the width of a line: with measured bytes, wider by as much for ten times more."""
        if not self._is_measured:
            return style_of(line.kind).width
        moved = self._words.moved.get(at)
        size = max(0.0 if moved is None else moved.bytes, _LEAST_BYTES)
        part = log(size / _LEAST_BYTES) / log(_MOST_BYTES / _LEAST_BYTES)
        return round(_THIN + (self._density.most_bytes - _THIN) * min(part, 1.0), 2)

    def _path(self, at: int, line: FoldedLine, width: float) -> tuple[str, str]:
        """Return the way of a line, and its tip."""
        tip = min(max(7.0, round(3 + 2 * width, 1)), self._density.spacing.columns - 2)
        if self._folded.is_inside(line):
            return _arc(self.layout.rows[line.source], self.layout.rows[line.target])
        points = self.layout.routes[at]
        (x, y), along = (points[0], tip + 1) if line.is_back else (points[-1], -tip - 1)
        drawn = _curve if self.layout.is_curved else _path
        begin, end = (points[0][0] + tip * line.is_back, points[0][1]), points[-1]
        end = end[0] - tip * (not line.is_back), end[1]
        return drawn([begin, *points[1:-1], end]), f"M{x:g} {y:g}l{along:g} {-tip / 2:g}v{tip:g}z"

    def _placed_texts(self) -> dict[int, tuple[Label, Rect]]:
        """Return the texts on lines, each where nothing is in its way, with their ground.

        Lines with a common end and the same text show it once.
        """
        layout, lines = self.layout, self._folded.lines
        used = Counter(end for at in layout.routes for end in _ends(lines[at]))
        said: set[tuple[int, bool, bool, str]] = set()
        level = {at for at, points in layout.routes.items() if len({y for _, y in points}) == 1}
        taken = list(layout.cards.values())
        for (x, y), *_, (to_x, _) in (layout.routes[at] for at in level):
            taken.append(Rect(x, y - 2, to_x - x, 4))
        for at, points in layout.routes.items():
            is_back = lines[at].is_back
            x, y = points[0] if is_back else points[-1]
            taken.append(Rect(x - _TIP * (not is_back), y - 3.5, _TIP, 7))
        found = {}
        # Those on level lines first: they have the fewest places.
        for at in sorted(layout.routes, key=lambda at: at not in level):
            text, ends = self._texts[at], _ends(lines[at])
            if not text or any((*end, text) in said for end in ends):
                continue
            width = width_of(text, SMALL)
            left, right = ends[::-1] if lines[at].is_back else ends
            for x, y in _places(layout.routes[at], width, is_left=used[left] <= used[right]):
                ground = Rect(round(x - 2), y - SMALL + 1, ceil(width + 4), SMALL + 1.5)
                is_inside = -_BEYOND <= ground.x <= layout.width + _BEYOND - ground.width
                if is_inside and not any(ground.overlaps(other) for other in taken):
                    taken.append(ground)
                    said.update((*end, text) for end in ends)
                    found[at] = Label(text, x, y, width + 1, is_faint=True), ground
                    break
        return found


# --- words and shapes ----------------------------------------------------------------------------


def _took(times: OpTimes) -> str:
    """Return the own time, the rate and the wait of an op as text."""
    words = [time_text(times.median_ns)]
    if times.gb_per_s is not None:
        words.append(f"moved at {speed_text(times.gb_per_s)}")
    waited = times.waited_ns / times.count
    words += [f"after waiting {time_text(waited)}"] if waited >= 1 else []
    return ", ".join(words)


def _ops(row: Row) -> list[Place]:
    return [op for node in row.nodes for op in node.ops]


def _is_pill(card: Card) -> bool:
    return len(card.rows) == 1 and card.kind != "actor"


def _even(height: float) -> float:
    """Return the next height whose half is a whole number, so that lines are straight and sharp."""
    return 2 * ceil(height / 2)


def _ends(line: FoldedLine) -> list[tuple[int, bool, bool]]:
    """Return the source and the target of a line, each with the side of the line's end."""
    return [(line.source, line.is_back, True), (line.target, line.is_back, False)]


def _arc(source: Rect, target: Rect) -> tuple[str, str]:
    """Return a line at the right side of a card from a row to another or to itself, and its tip."""
    aside = 5 if target.y >= source.y else -5
    y, to_y = source.middle + aside, target.middle - aside
    x = source.right
    path = f"M{x:g} {y:g}C{x + 13:g} {y:g} {x + 13:g} {to_y:g} {x + 4:g} {to_y:g}"
    return path, f"M{x:g} {to_y:g}l6 -3v6z"


def _curve(points: Sequence[Point]) -> str:
    """Return a path of the control points of cubic curves."""
    (x, y), *rest = points
    return f"M{x:g} {y:g}C{' '.join(f'{x:g} {y:g}' for x, y in rest)}"


def _path(points: Sequence[Point]) -> str:
    """Return a path through points, with round corners."""
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for at, ((x, y), (to_x, to_y)) in enumerate(pairwise(points), start=1):
        after = points[at + 1] if at + 1 < len(points) else None
        if x != to_x and y != to_y:
            middle = round((x + to_x) / 2, 1)
            path.append(f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
        elif after is None or (x == to_x) == (to_x == after[0]) or to_y != after[1] != y != to_y:
            path.append(f"L{to_x:g} {to_y:g}")
        else:
            here, corner = points[at - 1], points[at]
            radius = min(_ROUND, _length(here, corner) / 2, _length(corner, after) / 2)
            before, beyond = _toward(corner, here, radius), _toward(corner, after, radius)
            turn = f"Q{to_x:g} {to_y:g} {beyond[0]:g} {beyond[1]:g}"
            path.append(f"L{before[0]:g} {before[1]:g}{turn}")
    return "".join(path)


def _length(one: Point, other: Point) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _toward(start: Point, end: Point, by: float) -> Point:
    part = by / (_length(start, end) or 1.0)
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part


def _places(points: Sequence[Point], width: float, *, is_left: bool) -> Iterator[Point]:
    """Yield where a text of this width on a line may begin, best first."""
    half = width / 2
    for (x, y), (to_x, to_y) in pairwise(points[1:-1]):
        if y == to_y and x > to_x:  # between two rows
            yield from ((to_x + (x - to_x) * part - half, y + 4) for part in (0.5, 0.4, 0.6, 0.3))
    (x, y), (next_x, next_y) = points[0], points[1]
    (last_x, last_y), (to_x, to_y) = points[-2], points[-1]
    if len(points) == 2 and y == next_y:
        yield from (((x + next_x) / 2 - half, y + aside) for aside in (_ABOVE, _BELOW))
        return
    # On the side to which the line does not turn.
    begin = x + 6, y + (_BELOW if next_y < y else _ABOVE)
    end = to_x - 10 - width, to_y + (_BELOW if last_y < to_y else _ABOVE)
    yield from (begin, end) if is_left else (end, begin)
    yield (x + next_x) / 2 - half, (y + next_y) / 2 + 4
    yield (last_x + to_x) / 2 - half, (last_y + to_y) / 2 + 4
