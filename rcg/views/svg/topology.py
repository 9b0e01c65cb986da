# SPDX-License-Identifier: Apache-2.0
"""A topology as one SVG file: no script, no font, nothing to load.

Actors are boxes with their name, calls are boxes inside them, and lines are values. The style of a
line shows how the value travels (see ``rcg.views.data.edge_styles``). Where there are several nodes
of the cluster, each is a frame around what is there, and lines between them say TCP. Measured
figures can be shown as well: the time of a call in its box, the size of a value above its line.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from math import ceil
from typing import Any, Final

from rcg.text import brief, plural, time_text, visible
from rcg.views.data.arrangement import Sizes
from rcg.views.data.edge_styles import COLLECTIVE, LOCAL, TCP, EdgeStyle, style_of
from rcg.views.data.figures import TopologyFigures
from rcg.views.data.labels import (
    MAX_NAME_WIDTH,
    MIN_NODE_WIDTH,
    TopologyLabels,
    channel_text,
    frame_text,
    node_text,
    size_text,
)
from rcg.views.data.layout import TAG, Point, Rect, TopologyLayout, lay_out, tags_of
from rcg.views.data.lettering import DOT, SIZE, SMALL, TITLE, width_of
from rcg.views.data.topology import Actor, Channel, NodeFrame, Topology, TopologyEdge, TopologyNode
from rcg.views.svg.canvas import MARGIN, Canvas, Paint

_ARROW: Final = 7.0
_NODE_PAD: Final = 12.0
_PART_PAD: Final = 7.0
_HEAD: Final = 44.0
_FRAME_HEAD: Final = 30.0
_LINE: Final = 15.0
_LEGEND_LINE: Final = 34.0
_AMOUNT_ROOM: Final = 66.0  # less than the gap between columns
_GROUP_LINE: Final = 16.0
_MAX_GROUPS: Final = 8
_GROUP_ROOM: Final = 760.0
_NAMED: Final = ("input", "output", "collective")
"""The kinds of nodes whose text is not that of the user's code."""


def svg_of(
    topology: Topology,
    *,
    title: str = "Compiled graph",
    channel_details: bool = False,
    legend: bool = True,
    dark: bool | None = None,
    measured: TopologyFigures | None = None,
) -> str:
    """Return a picture of a topology, with measured figures, as the text of an SVG file.

    With ``channel_details``, it shows which channel carries each value, and its number of slots.
    """
    return _Drawing(topology, title, channel_details, legend, dark, measured).text()


def shapes_of(
    topology: Topology, measured: TopologyFigures | None
) -> tuple[TopologyLayout, str, str]:
    """Return the layout, the shapes alone, for a widget, and a style sheet of their dark colours.

    Nodes and lines are groups of the classes ``rcg-node`` and ``rcg-edge``, in the order of the
    topology and without hover texts: the widget has its own. The dark colours apply within a
    card with ``data-theme="dark"``.
    """
    drawing = _Drawing(topology, measured=measured, has_hover=False)
    layout = drawing.layout()
    shapes = "".join(drawing.shapes(layout))
    return layout, shapes, drawing.canvas.dark_rules('.rcg-card[data-theme="dark"]')


class _Drawing:
    """The parts of one picture, from back to front."""

    def __init__(
        self,
        topology: Topology,
        title: str = "",
        channel_details: bool = False,
        legend: bool = False,
        dark: bool | None = None,
        measured: TopologyFigures | None = None,
        has_hover: bool = True,
    ) -> None:
        self._topology = topology
        self._labels = TopologyLabels(topology)
        self._title = title
        self.canvas = Canvas(dark)
        self._measured = measured or TopologyFigures()
        self._is_measured = measured is not None
        self._legend = legend
        self._channels = {channel.id: channel for channel in topology.channels}
        self._carried: dict[int, dict[str, None]] = {}  # the channels of each node's value
        for edge in topology.edges:
            if edge.channel is not None:
                self._carried.setdefault(edge.source, {})[edge.channel] = None
        self._details = channel_details
        self._has_hover = has_hover
        edges = [edge for edge in topology.edges if not self._labels.is_owned(edge)]
        names = dict.fromkeys(edge.kind for edge in edges)
        self._kinds = [style_of(name) for name in sorted(names, key=lambda name: name == LOCAL)]
        meeting = style_of(COLLECTIVE)
        stroke = Paint("stroke", meeting.light, meeting.dark)
        self.canvas.define("meeting", Paint("fill", "#ffffff", "#10161d"), stroke)
        for kind in self._kinds:
            colours = kind.light, kind.dark
            self.canvas.define(f"line-{_class(kind)}", Paint("stroke", *colours))
            self.canvas.define(f"tip-{_class(kind)}", Paint("fill", *colours))

    def text(self) -> str:
        layout = self.layout()
        subtitle = self._subtitle()
        top = MARGIN + 46
        heading = max(width_of(visible(self._title), TITLE, bold=True), width_of(subtitle, SIZE))
        legend, legend_width = self._legend_shapes() if self._legend else ([], 0.0)
        groups = self._group_lines() if self._legend else []
        room = max([legend_width, *(min(width_of(each, SMALL), _GROUP_ROOM) for each in groups)])
        width = round(max(layout.width, min(heading, 760), room) + 2 * MARGIN)
        below = (_LEGEND_LINE if legend else 0) + _GROUP_LINE * len(groups)
        height = round(top + layout.height + MARGIN + below)
        body = [
            *self.canvas.heading(self._title, subtitle, width - 2 * MARGIN),
            f'<g transform="translate({MARGIN:g} {top:g})">',
            *self.shapes(layout),
            "</g>",
        ]
        if legend:
            y = top + layout.height + _LEGEND_LINE
            body += [f'<g transform="translate({MARGIN:g} {y:g})">', *legend, "</g>"]
            body += [
                self.canvas.note(text, MARGIN, y + 6 + _GROUP_LINE * at, _GROUP_ROOM)
                for at, text in enumerate(groups, start=1)
            ]
        return self.canvas.document(body, width, height, self._title)

    def layout(self) -> TopologyLayout:
        return lay_out(self._topology, self._sizes())

    def shapes(self, layout: TopologyLayout) -> list[str]:
        """Return all but the heading and the legend."""
        topology = self._topology
        return [
            *[self._frame(frame, layout.frames[frame.id]) for frame in topology.frames],
            *[
                self._actor(actor, layout.actors[actor.id])
                for actor in topology.actors
                if actor.id in layout.actors  # one that only takes part in collectives has no box
            ],
            *[self._edge(edge, layout) for edge in topology.edges],
            *self._tags(layout),
            *[self._node(node, layout.nodes[node.id]) for node in topology.nodes],
            *self._amounts(layout),
        ]

    # Sizes

    def _sizes(self) -> Sizes:
        topology = self._topology
        return Sizes(
            nodes={node.id: self._size(node) for node in topology.nodes},
            actors={
                actor.id: self._labels.head_width(actor, _identity(actor))
                for actor in topology.actors
            },
            head=_HEAD,
            frames={
                frame.id: min(MAX_NAME_WIDTH, width_of(frame_text(frame), SIZE, bold=True))
                for frame in topology.frames
            },
            frame_head=_FRAME_HEAD,
        )

    def _size(self, node: TopologyNode) -> tuple[float, float]:
        is_part = node.owner is not None
        lines = self._detail_lines(node)
        widths = [width_of(node_text(node), SIZE, monospace=True)]
        if node.kind in _NAMED:
            widths.append(width_of(node_text(node), SIZE, bold=True))
        width = min(MAX_NAME_WIDTH, max([*widths, *(width_of(line, SMALL) for line in lines)]))
        if is_part:
            return ceil(width + 2 * _PART_PAD), 22 + _LINE * len(lines)
        return max(MIN_NODE_WIDTH, ceil(width + 2 * _NODE_PAD)), 32 + _LINE * len(lines)

    def _detail_lines(self, node: TopologyNode) -> list[str]:
        """Return the lines below a node's name: its time, and the channel of its value."""
        time_ns = self._measured.call_ns.get(node.id)
        channels = self._channels_of(node) if self._details else []
        so_far = self._measured.open_ns.get(node.id)
        lines = [] if time_ns is None else [time_text(time_ns)]
        if so_far is not None:
            lines = [f"not ended: {time_text(so_far)}"]
        return lines + [
            f"{channel.id} {DOT} {plural(channel.slots, 'slot')}" for channel in channels
        ]

    def _channels_of(self, node: TopologyNode) -> list[Channel]:
        return [self._channels[channel] for channel in self._carried.get(node.id, ())]

    # Shapes

    def _frame(self, frame: NodeFrame, rect: Rect) -> str:
        lines = "\n".join(self._labels.frame_lines(frame))
        x, y = rect.x + 14, rect.y + 20
        return (
            f'<g class="rcg-node-frame"><title>{escape(lines)}</title>'
            f'<rect{self.canvas.paint("frame")}{_frame(rect)} rx="14" stroke-width="1.5"/>'
            f"{self._text(frame_text(frame), x, y, MAX_NAME_WIDTH, role='faint', bold=True)}</g>"
        )

    def _tags(self, layout: TopologyLayout) -> list[str]:
        """Return the tags of lines between nodes of the cluster."""
        tags = tags_of(self._topology, layout)
        if not tags:
            return []
        boxes = "".join(f'<rect{_frame(rect)} rx="4"/>' for rect in tags.values())
        style = {"role": f"tip-{_class(style_of(TCP))}", "size": SMALL, "anchor": "middle"}
        texts = "".join(
            self._text(TAG, rect.x + rect.width / 2, rect.y + 11.3, rect.width, bold=True, **style)
            for rect in tags.values()
        )
        ground = self.canvas.paint("ground")
        return [
            f'<g class="rcg-tags" pointer-events="none"><g{ground}>',
            boxes,
            "</g>",
            texts,
            "</g>",
        ]

    def _actor(self, actor: Actor, rect: Rect) -> str:
        # The text is no wider than the first column, because lines may cross the box between
        # columns.
        label, identity = visible(actor.label), _identity(actor)
        x = rect.x + 12
        return (
            f'<g class="rcg-actor-box"><title>{escape(brief(label))} ({escape(identity)})</title>'
            f'<rect{self.canvas.paint("actor")}{_frame(rect)} rx="10"/>'
            + self._text(label, x, rect.y + 19, MAX_NAME_WIDTH, bold=True)
            + self._note(identity, x, rect.y + 34, MAX_NAME_WIDTH)
            + "</g>"
        )

    def _node(self, node: TopologyNode, rect: Rect) -> str:
        lines = self._detail_lines(node)
        room = rect.width - 2 * (_NODE_PAD if node.owner is None else _PART_PAD)
        radius = 6 if node.kind == "call" else min(rect.height, 40) / 2
        frame = self.canvas.paint("meeting" if node.kind == "collective" else "box")
        middle = rect.x + rect.width / 2
        y = rect.middle + 4 - _LINE * len(lines) / 2
        shapes = [
            f'<g class="rcg-node rcg-{node.kind}">{self._hover(self._node_words(node))}'
            f'<rect{frame}{_frame(rect)} rx="{radius:g}"/>',
            self._text(
                node_text(node),
                middle,
                y,
                room,
                bold=node.kind in _NAMED,
                monospace=node.kind not in _NAMED,
                anchor="middle",
            ),
        ]
        shapes += [
            self._note(line, middle, y + _LINE * position, room, anchor="middle")
            for position, line in enumerate(lines, start=1)
        ]
        return "".join([*shapes, "</g>"])

    def _edge(self, edge: TopologyEdge, layout: TopologyLayout) -> str:
        kind = style_of(edge.kind)
        hover = self._hover("\n".join(self._labels.edge_lines(edge)))
        if self._labels.is_owned(edge):
            source, target = layout.nodes[edge.source], layout.nodes[edge.target]
            line = f"M{source.right:g} {target.middle:g}H{target.x:g}"
            return f'<g class="rcg-edge">{hover}<path{self.canvas.paint("joint")} d="{line}"/></g>'
        points = layout.routes[edge.source, edge.target]
        x, y = points[-1]
        tip = f"M{x:g} {y:g}l{-_ARROW - 1:g} {-_ARROW / 2:g}v{_ARROW:g}z"
        return (
            f'<g class="rcg-edge">{hover}'
            f'<path{self.canvas.paint(f"line-{_class(kind)}")} fill="none" '
            f'stroke-width="{kind.width:g}"{_dashes(kind)} d="{_curve(points)}"/>'
            f'<path{self.canvas.paint(f"tip-{_class(kind)}")} d="{tip}"/></g>'
        )

    def _amounts(self, layout: TopologyLayout) -> list[str]:
        """Return the size of each value, or of those in one frame, where its line begins."""
        starts: dict[int, tuple[float, float, str]] = {}
        is_rising: dict[int, bool] = {}
        for edge in self._topology.edges:
            channel = edge.channel
            if channel is None or channel not in self._measured.channel_bytes:
                continue
            if edge.source != self._labels.source_of_size(channel):
                continue
            (x, y), (_, to_y), *_ = layout.routes[edge.source, edge.target]
            if edge.source not in starts or y < starts[edge.source][1]:
                starts[edge.source] = (x, y, channel)
            is_rising[edge.source] = is_rising.get(edge.source, True) and to_y < y
        # Below a rising line, if there is room. A rim in the colour of the background keeps the
        # number legible where lines cross it.
        shapes = []
        for source, (x, y, channel) in starts.items():
            node = self._topology.nodes[source]
            rim = "actor-rim" if self._topology.actor(node.process) else "rim"
            paint = self.canvas.paint(rim)
            below = 15 if is_rising[source] and node.owner is None else -6
            text = size_text(self._channels[channel], self._measured.channel_bytes[channel])
            shapes.append(
                f'<g class="rcg-amount" data-node="{source}" pointer-events="none">'
                f'<g{paint} stroke-width="3" paint-order="stroke">'
                f"{self._note(text, x + 6, y + below, _AMOUNT_ROOM)}</g></g>"
            )
        return shapes

    def _legend_shapes(self) -> tuple[list[str], float]:
        shapes: list[str] = []
        x = 0.0
        for kind in self._kinds:
            title = visible(kind.title)
            shapes.append(
                f'<g class="rcg-key"><path{self.canvas.paint(f"line-{_class(kind)}")} fill="none" '
                f'stroke-width="{kind.width:g}"{_dashes(kind)} d="M{x:g} 0h32"/>'
                + self._text(title, x + 40, 4, MAX_NAME_WIDTH, role="faint")
                + "</g>"
            )
            x += 40 + min(MAX_NAME_WIDTH, width_of(title, SIZE)) + 24
        return shapes, max(0.0, x - 24)

    def _text(self, text: str, x: float, y: float, room: float, **style: Any) -> str:
        """Return a text without a hover text of its own: its group has one."""
        return self.canvas.text(text, x, y, room, is_whole_in_hover=False, **style)

    def _note(self, text: str, x: float, y: float, room: float, **style: Any) -> str:
        return self.canvas.note(text, x, y, room, is_whole_in_hover=False, **style)

    # Words

    def _subtitle(self) -> str:
        words = self._labels.counts()
        return f" {DOT} ".join([*words, self._measured.title] if self._is_measured else words)

    def _hover(self, text: str) -> str:
        return f"<title>{escape(text)}</title>" if self._has_hover else ""

    def _node_words(self, node: TopologyNode) -> str:
        carried = "".join(
            f"\nits value travels by {channel_text(channel)}" for channel in self._channels_of(node)
        )
        return "\n".join(self._labels.node_lines(node)) + carried

    def _group_lines(self) -> list[str]:
        """Return a line for each group, up to a limit."""
        groups = self._topology.groups
        lines = [f"group {self._labels.group_text(group)}" for group in groups[:_MAX_GROUPS]]
        more = len(groups) - len(lines)
        return [*lines, f"and {plural(more, 'more group')}"] if more else lines


# --- words and shapes ----------------------------------------------------------------------------


def _identity(actor: Actor) -> str:
    """Return an actor's id in the plan, and the first digits of its id in Ray."""
    return f"{actor.id} {DOT} {visible(actor.key[:6])}" if actor.key else actor.id


def _class(kind: EdgeStyle) -> str:
    """Return a kind as part of a CSS class."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in kind.name)


def _dashes(kind: EdgeStyle) -> str:
    return f' stroke-dasharray="{kind.dashes}"' if kind.dashes else ""


def _frame(rect: Rect) -> str:
    return f' x="{rect.x:g}" y="{rect.y:g}" width="{rect.width:g}" height="{rect.height:g}"'


def _curve(points: tuple[Point, ...]) -> str:
    """Return a path through the points that ends at the base of its arrow."""
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
