# SPDX-License-Identifier: Apache-2.0
"""Paints a diagram as SVG: no script, no font, nothing to load.

Actors are cards with a box for each method, and lines are values. The style of a line shows how the
values travel (see ``rcg.views.data.edge_styles``). Each node of the cluster is a frame. A box is
tinted by its share of the critical path.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from rcg.text import plural, visible
from rcg.views.data.edge_styles import COLLECTIVE, LOCAL, EdgeStyle, style_of
from rcg.views.data.layout import Rect
from rcg.views.data.lettering import SIZE, SMALL, TITLE, width_of
from rcg.views.diagram import NOTABLE, Box, Diagram, Label, Line
from rcg.views.svg.canvas import MARGIN, Canvas, Paint

_LEGEND_LINE: Final = 20.0
_LEGEND_ROOM: Final = 240.0
_MAX_GROUPS: Final = 8
_TEXT_ROOM: Final = 760.0
_WIDTH_TEXT: Final = "width: 1 kB to 1 GB"
_HEAT: Final = Paint("fill", "#d1345b", "#ff6b8f")
_BAD: Final = ("#b3261e", "#ff8a80")
_FONTS: Final[dict[str, dict[str, Any]]] = {
    "name": {"bold": True},
    "method": {"monospace": True},
    "note": {"size": SMALL},
    "strong": {"size": SMALL, "bold": True},
}
_CARDS: Final = {
    "frame": ("rcg-node-frame", "frame", 12.0),
    "actor": ("rcg-actor-box", "actor", 9.0),
    "odd": ("rcg-actor-box", "odd", 9.0),
    "other": ("rcg-other-box", "actor", 9.0),
}

Legend = list[tuple[str, str]]
"""A shape in 32 x 12 around (0, 0), and what it means."""


def svg_of(
    diagram: Diagram,
    title: str,
    *,
    legend: bool = True,
    dark: bool | None = None,
    room: float = _TEXT_ROOM,
) -> str:
    """Return a diagram with its heading and its legend as the text of an SVG file.

    The texts around it make it at most as wide as ``room``; longer ones are shortened.
    """
    canvas = Canvas(dark)
    painter = _Painter(canvas, diagram)
    shapes = painter.shapes()
    entries, groups = (painter.legend(), _groups(diagram)) if legend else ([], [])
    heading = width_of(visible(title), TITLE, bold=True), width_of(diagram.about, SIZE)
    texts = max(
        diagram.width,
        min(max(heading), room),
        *[min(width_of(each, SMALL), room) for each in groups],
    )
    keys, widest, lines = _placed(canvas, entries, texts)
    width = round(max(texts, widest) + 2 * MARGIN)
    top = MARGIN + 48
    y = top + diagram.height + (_LEGEND_LINE + 6 if entries or groups else 0)
    below = y + lines * _LEGEND_LINE + 4
    body = [
        *canvas.heading(title, diagram.about, width - 2 * MARGIN),
        f'<g transform="translate({MARGIN:g} {top:g})">{shapes}</g>',
        f'<g transform="translate({MARGIN:g} {y:g})">{keys}</g>' if keys else "",
        *[
            canvas.note(text, MARGIN, below + (_LEGEND_LINE - 4) * at, texts)
            for at, text in enumerate(groups)
        ],
    ]
    height = y + lines * _LEGEND_LINE + (_LEGEND_LINE - 4) * len(groups) + MARGIN - 12
    return canvas.document(filter(None, body), width, round(height), title)


def shapes_of(diagram: Diagram) -> tuple[str, Legend, str]:
    """Return the shapes of a diagram for a widget, its legend, and a style sheet.

    Boxes and lines are groups of the classes ``rcg-node`` and ``rcg-edge``, in their order. The
    style sheet has the dark colours, within a card with ``data-theme="dark"``.
    """
    canvas = Canvas()
    painter = _Painter(canvas, diagram)
    shapes, legend = painter.shapes(), painter.legend()
    return shapes, legend, canvas.dark_rules('.rcg-card[data-theme="dark"]')


def _placed(canvas: Canvas, entries: Legend, room: float) -> tuple[str, float, int]:
    """Return the entries of a legend in lines, the width of these, and their number."""
    shapes = []
    x, y, widest = 0.0, 0, 0.0
    for shape, words in entries:
        width = 40 + min(_LEGEND_ROOM, width_of(words, SMALL))
        if x and x + width > room:
            x, y = 0.0, y + 1
        place = f'transform="translate({x:g} {_LEGEND_LINE * y:g})"'
        shapes.append(
            f'<g class="rcg-key" {place}>{shape}{canvas.note(words, 40, 4, _LEGEND_ROOM)}</g>'
        )
        widest = max(widest, x + width)
        x += width + 24
    return "".join(shapes), widest, y + 1 if entries else 0


def _groups(diagram: Diagram) -> list[str]:
    more = len(diagram.groups) - _MAX_GROUPS
    rest = [f"and {plural(more, 'more group')}"] if more > 0 else []
    return [*diagram.groups[:_MAX_GROUPS], *rest]


class _Painter:
    """The shapes of one diagram, from back to front."""

    def __init__(self, canvas: Canvas, diagram: Diagram) -> None:
        self._canvas = canvas
        self._diagram = diagram
        names = dict.fromkeys(line.kind for line in diagram.lines)
        self._styles = {name: style_of(name) for name in sorted(names, key=LOCAL.__eq__)}
        meeting = style_of(COLLECTIVE)
        canvas.define(
            "meeting",
            Paint("fill", "#ffffff", "#10161d"),
            Paint("stroke", meeting.light, meeting.dark),
        )
        canvas.define("heat", _HEAT)
        canvas.define("bad", Paint("fill", *_BAD))
        canvas.define("bad-line", Paint("stroke", *_BAD))
        for style in self._styles.values():
            canvas.define(f"line-{_class(style)}", Paint("stroke", style.light, style.dark))
            canvas.define(f"tip-{_class(style)}", Paint("fill", style.light, style.dark))

    def shapes(self) -> str:
        diagram = self._diagram
        return "\n".join(
            [
                *[self._box(card, *_CARDS[card.kind]) for card in diagram.cards],
                *[self._line(line) for line in diagram.lines],
                *[self._box(box, *_look(box)) for box in diagram.boxes],
                *[
                    self._amount(number, *line.label)
                    for number, line in enumerate(diagram.lines)
                    if line.label is not None
                ],
            ]
        )

    def legend(self) -> Legend:
        paint, entries = self._canvas.paint, []
        for style in self._styles.values():
            width = 2.0 if self._diagram.is_measured else style.width
            line = f'stroke-width="{width:g}"{_dashes(style)} d="M0 0h32"'
            stroke = paint(f"line-{_class(style)}")
            entries.append((f'<path{stroke} fill="none" {line}/>', visible(style.title)))
        if any(box.heat for box in self._diagram.boxes):
            shades = "".join(
                f'<rect{paint("heat")} x="{8 * at}" y="-5" width="8" height="10" '
                f'fill-opacity="{_opacity(share):g}"/>'
                for at, share in enumerate((0.01, 0.1, 0.4, 1.0))
            )
            entries.append((shades, "share of the critical path"))
        if any(card.kind == "odd" for card in self._diagram.cards):
            sign = f'<rect{paint("odd")} x="9" y="-5" width="14" height="10" rx="2"/>'
            entries.append((sign, "unlike others of its class"))
        if self._diagram.is_measured:
            wedge = f'<path{paint("queue")} d="M0 -.6L32 -3V3L0 .6z"/>'
            entries.append((wedge, _WIDTH_TEXT))
        if self._diagram.usual:
            plain = f'<path{paint("joint")} stroke-width="1.5" d="M0 0h32"/>'
            entries.append((plain, f"line without a number: {self._diagram.usual}"))
        return entries

    def _box(self, box: Box, name: str, role: str, radius: float) -> str:
        shape = f'{_frame(box.rect)} rx="{radius:g}"'
        heat = f'{self._canvas.paint("heat")}{shape} fill-opacity="{_opacity(box.heat):g}"'
        tint = f'<rect{heat} pointer-events="none"/>' if box.heat >= NOTABLE else ""
        rect = f"<rect{self._canvas.paint(role)}{shape}/>"
        if box.is_bad:
            edge = f'{self._canvas.paint("bad-line")}{shape} fill="none" stroke-width="2"'
            rect += f'<rect{edge} pointer-events="none"/>'
        return f'<g class="{name}">{_hover(box.words)}{rect}{tint}{self._texts(box.labels)}</g>'

    def _line(self, line: Line) -> str:
        style, (path, tip) = self._styles[line.kind], line.path
        stroke = f'{self._canvas.paint(f"line-{_class(style)}")} fill="none"'
        return (
            f'<g class="rcg-edge">{_hover(line.words)}'
            f'<path{stroke} stroke-width="{line.width:g}"{_dashes(style)} d="{path}"/>'
            f'<path{self._canvas.paint(f"tip-{_class(style)}")} d="{tip}"/></g>'
        )

    def _amount(self, number: int, label: Label, ground: Rect) -> str:
        """Return the text on a line: its ground keeps it legible where lines cross it."""
        rect = f'<rect{self._canvas.paint("ground")}{_frame(ground)} rx="3"/>'
        about = f'class="rcg-amount" data-edge="{number}" pointer-events="none"'
        return f"<g {about}>{rect}{self._texts([label])}</g>"

    def _texts(self, labels: Iterable[Label]) -> str:
        """Return texts without a hover text of their own: their group has one."""
        return "".join(
            self._canvas.text(
                label.text,
                label.x,
                label.y,
                label.room,
                role="bad" if label.is_bad else "faint" if label.is_faint else "text",
                anchor=label.anchor,
                is_whole_in_hover=False,
                **_FONTS[label.font],
            )
            for label in labels
        )


def _look(box: Box) -> tuple[str, str, float]:
    """Return the classes, the role and the radius of a box."""
    role = "meeting" if box.kind == "collective" else "box" if box.is_round else "row"
    radius = min(box.rect.height, 34) / 2 if box.is_round else 5.0
    folded = " rcg-folded" if box.count > 1 else ""
    return f"rcg-node rcg-{box.kind}{folded}", role, radius


def _hover(words: Iterable[str]) -> str:
    return f"<title>{escape(chr(10).join(words))}</title>"


def _class(style: EdgeStyle) -> str:
    """Return a kind as part of a CSS class."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in style.name)


def _dashes(style: EdgeStyle) -> str:
    return f' stroke-dasharray="{style.dashes}"' if style.dashes else ""


def _opacity(share: float) -> float:
    """Return the opacity of the tint of a box with a share of the critical path."""
    return round(0.65 * float(min(1.0, share) ** 0.6), 3)


def _frame(rect: Rect) -> str:
    return f' x="{rect.x:g}" y="{rect.y:g}" width="{rect.width:g}" height="{rect.height:g}"'
