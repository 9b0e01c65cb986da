# SPDX-License-Identifier: Apache-2.0
"""A topology as one SVG file: no script, no font, nothing to load.

Actors are boxes with their name, calls are boxes in them, and lines are values. The look of a line
says how the value travels (see ``rcg.views.kinds``); that is all that colour is for. The picture
has a ground of its own, so it can be read wherever it is put. Colours are attributes, and the dark
ones come from a style sheet that only speaks to browsers: programs that know no style sheets show
the light picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil
from typing import Final

from rcg.views.kinds import Kind, kind_of
from rcg.views.layout import Layout, Point, Rect, Sizes, lay_out
from rcg.views.text import shorten, visible, width_of
from rcg.views.topology import Actor, Channel, Edge, Node, Topology

__all__ = ["svg_of"]

_SANS: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_MONOSPACE: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

_DOT: Final = "\N{MIDDLE DOT}"

_MARGIN: Final = 24.0
_ARROW: Final = 7.0
_TITLE_SIZE, _SIZE, _SMALL_SIZE = 15.0, 12.0, 10.5
_NODE_PAD: Final = 12.0
_PART_PAD: Final = 7.0
_HEAD: Final = 44.0
_LINE: Final = 15.0
_MOST_TEXT: Final = 190.0
_LEAST_NODE: Final = 84.0
_LEGEND_LINE: Final = 34.0


@dataclass(frozen=True, slots=True)
class _Paint:
    """An attribute and its colour on light and on dark ground."""

    attribute: str
    light: str
    dark: str


_PAINTS: Final[Mapping[str, tuple[_Paint, ...]]] = {
    "ground": (_Paint("fill", "#ffffff", "#0f1419"),),
    "actor": (_Paint("fill", "#f1f3f5", "#1b222b"),),
    "box": (_Paint("fill", "#ffffff", "#10161d"), _Paint("stroke", "#c6ccd4", "#3b4654")),
    "text": (_Paint("fill", "#16191d", "#eceff3"),),
    "joint": (_Paint("stroke", "#c6ccd4", "#3b4654"),),
    "faint": (_Paint("fill", "#59626e", "#a3adb9"),),
}


def svg_of(
    topology: Topology,
    *,
    title: str = "Compiled graph",
    channel_details: bool = False,
    legend: bool = True,
    dark: bool | None = None,
) -> str:
    """Return a picture of a topology as the text of an SVG file.

    Args:
        topology: What to show.
        title: What is written above it.
        channel_details: Write next to each value which channel carries it and how many frames that
            holds.
        legend: Explain the lines.
        dark: Whether the ground is dark; None leaves it to the reader's browser.
    """
    return _Drawing(topology, title, channel_details, legend, dark).text()


class _Drawing:
    """The parts of one picture, from back to front."""

    def __init__(
        self,
        topology: Topology,
        title: str,
        channel_details: bool,
        legend: bool,
        dark: bool | None,
    ) -> None:
        self._topology = topology
        self._title = title
        self._dark = dark
        self._legend = legend
        self._channels = {channel.id: channel for channel in topology.channels}
        self._carried = {edge.source: edge.channel for edge in topology.edges if edge.channel}
        self._details = channel_details
        self._kinds = [
            kind_of(name)
            for name in dict.fromkeys(
                edge.kind
                for edge in sorted(topology.edges, key=lambda edge: edge.kind == "local")
                if not self._is_owned(edge)
            )
        ]

    def text(self) -> str:
        topology = self._topology
        layout = lay_out(topology, self._sizes())
        subtitle = _subtitle(topology)
        top = _MARGIN + 46
        heading = max(
            width_of(visible(self._title), _TITLE_SIZE, bold=True), width_of(subtitle, _SIZE)
        )
        legend = self._legend_marks() if self._legend else ([], 0.0)
        width = round(max(layout.width, min(heading, 600), legend[1]) + 2 * _MARGIN)
        height = round(top + layout.height + _MARGIN + (_LEGEND_LINE if legend[0] else 0))
        body = [
            *self._heading(subtitle, width - 2 * _MARGIN),
            f'<g transform="translate({_MARGIN:g} {top:g})">',
            *[self._actor(actor, layout.actors[actor.id]) for actor in topology.actors],
            *[self._edge(edge, layout) for edge in topology.edges],
            *[self._node(node, layout.nodes[node.id]) for node in topology.nodes],
            "</g>",
        ]
        if legend[0]:
            y = top + layout.height + _LEGEND_LINE
            body += [f'<g transform="translate({_MARGIN:g} {y:g})">', *legend[0], "</g>"]
        auto = ' class="rcg-auto"' if self._dark is None else ""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" role="img" aria-label="{_escaped(self._title)}"'
                f'{auto} font-family="{_SANS}" font-size="{_SIZE:g}">',
                *self._style(),
                f'<rect{self._paint("ground")} width="{width}" height="{height}" rx="8"/>',
                *body,
                "</svg>\n",
            ]
        )

    # Colours

    def _style(self) -> list[str]:
        if self._dark is not None:
            return []
        rules = []
        for role, paints in _PAINTS.items():
            colours = ";".join(f"{each.attribute}:{each.dark}" for each in paints)
            rules.append(f".rcg-auto .rcg-{role}{{{colours}}}")
        for kind in self._kinds:
            rules.append(f".rcg-auto .rcg-line-{_class(kind)}{{stroke:{kind.dark}}}")
            rules.append(f".rcg-auto .rcg-tip-{_class(kind)}{{fill:{kind.dark}}}")
        return [f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"]

    def _paint(self, role: str) -> str:
        """The attributes of a role, with a blank before them."""
        colours = "".join(
            f' {each.attribute}="{each.dark if self._dark else each.light}"'
            for each in _PAINTS[role]
        )
        return f' class="rcg-{role}"{colours}'

    def _colour(self, kind: Kind) -> str:
        return kind.dark if self._dark else kind.light

    # Sizes

    def _sizes(self) -> Sizes:
        topology = self._topology
        return Sizes(
            nodes={node.id: self._size(node) for node in topology.nodes},
            actors={
                actor.id: min(
                    _MOST_TEXT,
                    max(
                        width_of(visible(actor.label), _SIZE, bold=True),
                        width_of(_identity(actor), _SMALL_SIZE),
                    ),
                )
                for actor in topology.actors
            },
            head=_HEAD,
        )

    def _size(self, node: Node) -> tuple[float, float]:
        is_part = node.owner is not None
        width = max(
            [
                width_of(_name(node), _SIZE, monospace=True),
                *[width_of(line, _SMALL_SIZE) for line in self._detail_lines(node)],
            ]
        )
        height = (22 if is_part else 32) + _LINE * len(self._detail_lines(node))
        if is_part:
            return ceil(min(width, _MOST_TEXT) + 2 * _PART_PAD), height
        return max(_LEAST_NODE, ceil(min(width, _MOST_TEXT) + 2 * _NODE_PAD)), height

    def _detail_lines(self, node: Node) -> list[str]:
        """What is written below a node's name: the channel of its value."""
        channel = self._channel(node) if self._details else None
        return [] if channel is None else [f"{channel.id} {_DOT} {_slots_text(channel)}"]

    def _channel(self, node: Node) -> Channel | None:
        channel = self._carried.get(node.id)
        return None if channel is None else self._channels[channel]

    # Marks

    def _heading(self, subtitle: str, room: float) -> list[str]:
        title = visible(self._title)
        return [
            self._text(
                title, _MARGIN, _MARGIN + 12, room, role="text", size=_TITLE_SIZE, bold=True
            ),
            self._text(subtitle, _MARGIN, _MARGIN + 31, room, role="faint", size=_SIZE),
        ]

    def _actor(self, actor: Actor, rect: Rect) -> str:
        # Never wider than the first column, which has this much room: lines may cross the box
        # between columns.
        label, identity = visible(actor.label), _identity(actor)
        x = rect.x + 12
        return (
            f'<g class="rcg-actor-box"><title>{_escaped(label)} ({_escaped(identity)})</title>'
            f'<rect{self._paint("actor")}{_frame(rect)} rx="10"/>'
            + self._text(label, x, rect.y + 19, _MOST_TEXT, role="text", size=_SIZE, bold=True)
            + self._text(identity, x, rect.y + 34, _MOST_TEXT, role="faint", size=_SMALL_SIZE)
            + "</g>"
        )

    def _node(self, node: Node, rect: Rect) -> str:
        is_part = node.owner is not None
        lines = self._detail_lines(node)
        pad = _PART_PAD if is_part else _NODE_PAD
        room = rect.width - 2 * pad
        radius = 6 if node.kind == "call" else min(rect.height, 40) / 2
        middle = rect.x + rect.width / 2
        y = rect.middle + 4 - _LINE * len(lines) / 2
        marks = [
            f'<g class="rcg-node rcg-{node.kind}"><title>{_escaped(self._hover(node))}</title>'
            f'<rect{self._paint("box")}{_frame(rect)} rx="{radius:g}"/>',
            self._text(
                _name(node),
                middle,
                y,
                room,
                role="text",
                size=_SIZE,
                bold=node.kind in ("input", "output"),
                monospace=node.kind not in ("input", "output"),
                anchor="middle",
            ),
        ]
        for position, line in enumerate(lines, start=1):
            marks.append(
                self._text(
                    line,
                    middle,
                    y + _LINE * position,
                    room,
                    role="faint",
                    size=_SMALL_SIZE,
                    anchor="middle",
                )
            )
        return "".join([*marks, "</g>"])

    def _edge(self, edge: Edge, layout: Layout) -> str:
        kind = kind_of(edge.kind)
        hover = f"<title>{_escaped(self._edge_hover(edge))}</title>"
        if self._is_owned(edge):
            source, target = layout.nodes[edge.source], layout.nodes[edge.target]
            line = f"M{source.right:g} {target.middle:g}H{target.x:g}"
            return f'<g class="rcg-edge">{hover}<path{self._paint("joint")} d="{line}"/></g>'
        points = layout.routes[edge.source, edge.target]
        x, y = points[-1]
        tip = f"M{x:g} {y:g}l{-_ARROW - 1:g} {-_ARROW / 2:g}v{_ARROW:g}z"
        colour = self._colour(kind)
        return (
            f'<g class="rcg-edge">{hover}'
            f'<path class="rcg-line-{_class(kind)}" fill="none" stroke="{colour}" '
            f'stroke-width="{kind.width:g}"{_dashes(kind)} d="{_curve(points)}"/>'
            f'<path class="rcg-tip-{_class(kind)}" fill="{colour}" d="{tip}"/></g>'
        )

    def _legend_marks(self) -> tuple[list[str], float]:
        marks: list[str] = []
        x = 0.0
        for kind in self._kinds:
            title = visible(kind.title)
            marks.append(
                f'<g class="rcg-key"><path class="rcg-line-{_class(kind)}" fill="none" '
                f'stroke="{self._colour(kind)}" stroke-width="{kind.width:g}"{_dashes(kind)} '
                f'd="M{x:g} 0h32"/>'
                + self._text(title, x + 40, 4, _MOST_TEXT, role="faint", size=_SIZE)
                + "</g>"
            )
            x += 40 + min(_MOST_TEXT, width_of(title, _SIZE)) + 24
        return marks, max(0.0, x - 24)

    def _text(
        self,
        text: str,
        x: float,
        y: float,
        room: float,
        *,
        role: str,
        size: float,
        bold: bool = False,
        monospace: bool = False,
        anchor: str = "start",
    ) -> str:
        """One line of text, shortened to its room."""
        shown = shorten(text, room, size, bold=bold, monospace=monospace)
        attributes = f'{self._paint(role)} x="{x:g}" y="{y:g}" font-size="{size:g}"'
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        if bold:
            attributes += ' font-weight="600"'
        if monospace:
            attributes += f' font-family="{_MONOSPACE}"'
        return f"<text{attributes}>{_escaped(shown)}</text>"

    # Words

    def _is_owned(self, edge: Edge) -> bool:
        return self._topology.nodes[edge.target].owner == edge.source

    def _hover(self, node: Node) -> str:
        channel = self._channel(node)
        carried = "" if channel is None else f"\nits value travels by {_channel_text(channel)}"
        return f"{self._full_name(node)}{carried}"

    def _full_name(self, node: Node) -> str:
        match node.kind:
            case "call":
                actor = self._topology.actor(node.process)
                label = node.process if actor is None else visible(actor.label)
                return f"{label}.{visible(node.name)}"
            case "part" | "attribute" if node.owner is not None:
                owner = self._topology.nodes[node.owner]
                return f"{self._full_name(owner)}[{visible(node.name)}]"
            case _:
                return node.kind

    def _edge_hover(self, edge: Edge) -> str:
        nodes = self._topology.nodes
        text = f"{self._full_name(nodes[edge.source])} \N{RIGHTWARDS ARROW} "
        text += self._full_name(nodes[edge.target])
        if edge.arguments:
            is_output = nodes[edge.target].kind == "output"
            what = "result" if is_output else "argument"
            text += f"\nas {what} {', '.join(visible(each) for each in edge.arguments)}"
        channel = edge.channel and self._channels[edge.channel]
        return text + (f"\nby {_channel_text(channel)}" if channel else "\ninside the process")


# --- words and marks ----------------------------------------------------------------------------


def _subtitle(topology: Topology) -> str:
    calls = sum(node.kind == "call" for node in topology.nodes)
    counts = [(len(topology.actors), "actor"), (calls, "call")]
    counts.append((len(topology.channels), "channel"))
    return f" {_DOT} ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)


def _identity(actor: Actor) -> str:
    """An actor's id in the plan, and the first digits of that in Ray."""
    return f"{actor.id} {_DOT} {visible(actor.key[:6])}" if actor.key else actor.id


def _name(node: Node) -> str:
    match node.kind:
        case "call":
            return visible(node.name)
        case "attribute" | "part":
            return f"[{visible(node.name)}]"
        case _:
            return node.kind


def _channel_text(channel: Channel) -> str:
    kind = visible(kind_of(channel.kind).title)
    return f"{channel.id} {_DOT} {kind} {_DOT} {_slots_text(channel)}"


def _slots_text(channel: Channel) -> str:
    return f"{channel.slots} slot{'' if channel.slots == 1 else 's'}"


def _class(kind: Kind) -> str:
    """A kind as part of a class name."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in kind.name)


def _dashes(kind: Kind) -> str:
    return f' stroke-dasharray="{kind.dashes}"' if kind.dashes else ""


def _escaped(text: str) -> str:
    return escape(text)


def _frame(rect: Rect) -> str:
    return f' x="{rect.x:g}" y="{rect.y:g}" width="{rect.width:g}" height="{rect.height:g}"'


def _curve(points: tuple[Point, ...]) -> str:
    """A path through the points that ends at the foot of its arrow."""
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for position, ((x, y), (to_x, to_y)) in enumerate(pairwise(points), start=2):
        if position == len(points):
            to_x -= _ARROW
        if y == to_y:
            path.append(f"H{to_x:g}")
        else:
            middle = round((x + to_x) / 2, 1)
            path.append(f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
    return "".join(path)
