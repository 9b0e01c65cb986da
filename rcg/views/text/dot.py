# SPDX-License-Identifier: Apache-2.0
"""A topology as Graphviz source, with the names, labels and shapes that Ray gives it.

This needs no Graphviz.
"""

from __future__ import annotations

from typing import Final

from rcg.text import plural, visible
from rcg.views.data.edge_styles import LOCAL, TCP, style_of
from rcg.views.data.labels import TopologyLabels, frame_text, hints_text
from rcg.views.data.topology import Actor, Channel, Topology, TopologyNode

_INPUT, _OUTPUT, _PART, _COLLECTIVE = "lightblue", "yellow", "orange", "palegreen"
_SHAPES: Final = {"call": "oval", "collective": "hexagon"}
# Okabe and Ito's colours, except the two that have another meaning here.
_ACTOR_COLOURS: Final = ("#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#d55e00")
# The share of white that is mixed in, in each round through the colours.
_WHITES: Final = (0.6, 0.8, 0.4)


def dot_of(topology: Topology, *, channel_details: bool = False, legend: bool = True) -> str:
    """Return a topology as Graphviz source.

    Args:
        topology: The topology.
        channel_details: Label each edge with its channel: id, kind and number of slots.
        legend: Add a legend of the lines below the graph.
    """
    actors = {actor.id: actor for actor in topology.actors}
    fills = {actor.id: _fill(number) for number, actor in enumerate(topology.actors)}
    channels = {channel.id: channel for channel in topology.channels}
    lines = ["digraph compiled_graph {"]
    if legend:
        lines += [f"\tlabel={_quote(_legend(topology))}", "\tlabelloc=b", "\tfontsize=11"]
    for node in topology.nodes:
        shape = _SHAPES.get(node.kind, "rectangle")
        lines.append(
            f"\t{node.id} [label={_quote(_label(node, actors))} fillcolor={_colour(node, fills)} "
            f"shape={shape} style=filled]"
        )
    for frame in topology.frames:
        inside = [str(node.id) for node in topology.nodes if topology.frame_of(node) == frame.id]
        lines += [
            f"\tsubgraph cluster_{frame.id} {{",
            f"\t\tlabel={_quote([frame_text(frame)])}",
            '\t\tstyle="rounded,dashed"',
            f"\t\t{'; '.join(inside)}",
            "\t}",
        ]
    for edge in topology.edges:
        kind = style_of(edge.kind)
        attributes = [f'color="{kind.light}"', f"style={_style(edge.kind)}"]
        if edge.kind == TCP and not channel_details:
            attributes.insert(0, f"label={_quote([kind.title])}")
        if channel_details:
            channel = None if edge.channel is None else channels[edge.channel]
            attributes.insert(0, f"label={_quote(_details(edge.kind, channel))}")
        lines.append(f"\t{edge.source} -> {edge.target} [{' '.join(attributes)}]")
    return "\n".join([*lines, "}\n"])


def _label(node: TopologyNode, actors: dict[str, Actor]) -> list[str]:
    task = f"Task {node.id}"
    name = visible(node.name)
    match node.kind:
        case "input":
            return [task, "InputNode"]
        case "attribute":
            return [task, f"InputAttributeNode[{name}]"]
        case "part":
            return [task, f"ClassMethodOutputNode[{name}]"]
        case "output":
            return [task, "MultiOutputNode"]
        case "collective":
            return [task, f"Collective: {name}", f"Group: {node.group}"]
        case "call":
            actor = actors[node.process]
            key = f"{visible(actor.key[:6])}..." if actor.key else actor.id
            return [task, f"Actor: {visible(actor.label)}", f"ID: {key}", f"Method: {name}"]


def _colour(node: TopologyNode, fills: dict[str, str]) -> str:
    match node.kind:
        case "input" | "attribute":
            return _INPUT
        case "output":
            return _OUTPUT
        case "part":
            return _PART
        case "collective":
            return _COLLECTIVE
        case "call":
            return f'"{fills[node.process]}"'


def _fill(number: int) -> str:
    """Return a light colour for an actor's number: six hues in three tints, repeated."""
    turn, hue = divmod(number, len(_ACTOR_COLOURS))
    white = _WHITES[turn % len(_WHITES)]
    colour = _ACTOR_COLOURS[hue]
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def _style(kind: str) -> str:
    if style_of(kind).arrow == "+++>":
        return "bold"
    return {"shm": "solid", LOCAL: "dotted"}.get(kind, "dashed")


def _details(kind: str, channel: Channel | None) -> list[str]:
    if channel is None:
        return [style_of(kind).title]
    slots = plural(channel.slots, "slot")
    group = [] if channel.group is None else [f"group {channel.group}"]
    hints = hints_text(channel)
    return [
        channel.id,
        visible(style_of(channel.kind).title),
        *group,
        slots,
        *([hints] if hints else []),
    ]


def _legend(topology: Topology) -> list[str]:
    kinds = dict.fromkeys(edge.kind for edge in topology.edges)
    shown = [f"{_style(kind)}: {visible(style_of(kind).title)}" for kind in kinds]
    groups = map(TopologyLabels(topology).group_text, topology.groups)
    return [", ".join([*shown, "one colour per actor"]), *groups]


def _quote(lines: list[str]) -> str:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
