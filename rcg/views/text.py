# SPDX-License-Identifier: Apache-2.0
r"""Topologies as text: in the sections that Ray prints, and as Graphviz source.

The drawing has one line per node and one column per value. A column starts where the value is made
(``*``) and runs down (``|``) to the last node that takes the value (``o``). So any graph can be
drawn without crossing lines, and the width is the largest number of values that exist at once::

    0:InputNode           *
    1:Loader_54777d:load  o-*
    2:Left_c927c9:fwd       o-*
    3:Right_1f3c9a:fwd    *-o |
    4:Join_02a6a1:join    o---o-*
    5:MultiOutputNode           o

The Graphviz source has the names, labels and shapes that Ray gives it. Making it needs no Graphviz.
"""

from __future__ import annotations

from typing import Final

from rcg.ir.channels import ChannelSpec
from rcg.text import plural, visible
from rcg.views.data.edge_styles import LOCAL, TCP, is_known, style_of
from rcg.views.data.folding import layers_of
from rcg.views.data.labels import TopologyLabels, frame_text, hints_text
from rcg.views.data.topology import Topology, TopologyEdge, TopologyNode

_PLAIN: Final = ("shm", "tcp", "tensor")
"""Kinds of edges that the arrow alone shows."""

_SHAPES: Final = {"call": "oval", "collective": "hexagon"}
_COLOURS: Final = {
    "input": "lightblue",
    "attribute": "lightblue",
    "output": "yellow",
    "part": "orange",
    "collective": "palegreen",
}
# Okabe and Ito's colours, except the two that have another meaning here.
_ACTOR_COLOURS: Final = ("#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#d55e00")
# The share of white that is mixed in, in each round through the colours.
_WHITES: Final = (0.6, 0.8, 0.4)


def ascii_of(topology: Topology, title: str = "") -> str:
    """Return a topology as text: its nodes, its edges, a legend and a drawing.

    The title is there if something is wrong with an actor.
    """
    labels = TopologyLabels(topology)
    lines = [visible(title), ""] if topology.marks and title else []
    lines.append("Nodes Information:")
    lines += [
        f'{node.id} [label="Task {node.id}  {" ".join(_words(topology, node))}"]'
        for node in topology.nodes
    ]
    lines += ["", "Edges Information:"]
    for edge in topology.edges:
        place = "" if edge.kind in _PLAIN else f" ({visible(_place(topology, edge))})"
        lines.append(f"{edge.source} {style_of(edge.kind).arrow} {edge.target}{place}")
    if topology.groups:
        lines += ["", "Groups:", *map(labels.group_text, topology.groups)]
    if topology.frames:
        lines += ["", "Nodes of the cluster:"]
        lines += [
            f"{frame_text(frame)}: {', '.join(map(labels.process_text, frame.processes))}"
            for frame in topology.frames
        ]
    lines += ["", "Legend:", *_legend(topology), "", "Graph Built:", *_drawing(topology)]
    return "\n".join(lines) + "\n"


def _words(topology: Topology, node: TopologyNode) -> list[str]:
    """Return what a node is, in the words of Ray."""
    name = visible(node.name)
    match node.kind:
        case "input":
            return ["InputNode"]
        case "attribute":
            return [f"InputAttributeNode[{name}]"]
        case "part":
            return [f"ClassMethodOutputNode[{name}]"]
        case "output":
            return ["MultiOutputNode"]
        case "collective":
            return [f"Collective: {name}", f"Group: {node.group}"]
        case "call":
            mark = topology.marks.get(node.process)
            wrong = [f"State: {visible(mark.text)}"] if mark else []
            return [f"Actor: {_key(topology, node, '...')}", f"Method: {name}", *wrong]


def _short_name(topology: Topology, node: TopologyNode) -> str:
    name = visible(node.name)
    match node.kind:
        case "part":
            text = f"Output[{name}]"
        case "collective":
            text = f"{name}@{node.group}"
        case "call":
            actor = topology.actor(node.process)
            label = "Actor" if actor is None else visible(actor.label)
            mark = topology.marks.get(node.process)
            wrong = f" ({visible(mark.text)})" if mark else ""
            text = f"{label}_{_key(topology, node)}:{name}{wrong}"
        case _:
            [text] = _words(topology, node)
    return f"{node.id}:{text}"


def _key(topology: Topology, node: TopologyNode, dots: str = "") -> str:
    """Return the first digits of an actor's id in Ray, or its id in the plan."""
    actor = topology.actor(node.process)
    return f"{visible(actor.key[:6])}{dots}" if actor is not None and actor.key else node.process


def _place(topology: Topology, edge: TopologyEdge) -> str:
    channel = next((each for each in topology.channels if each.id == edge.channel), None)
    group = "" if channel is None or channel.group is None else f" @{channel.group}"
    return f"{style_of(edge.kind).title}{group}"


def _legend(topology: Topology) -> list[str]:
    kinds = {edge.kind: style_of(edge.kind) for edge in topology.edges}
    others = {
        kind
        for kind, style in kinds.items()
        if style.arrow not in ("+++>", "--->") or not is_known(kind)
    }
    carriers = [
        visible(style.title)
        for kind, style in kinds.items()
        if style.arrow == "+++>" and kind not in _PLAIN
    ]
    here = f", here: {', '.join(carriers)}" if carriers else ""
    return [
        f"+++> : Represents Accelerator-type data channels{here}",
        "---> : Represents Shared Memory data channels, or no channel in the same process",
        *[
            f"{kinds[kind].arrow} : Represents {visible(kinds[kind].title)} data channels"
            for kind in sorted(others)
        ],
        "* makes a value, o takes it, | is a value on its way to those below",
    ]


def _drawing(topology: Topology) -> list[str]:
    layers = layers_of(topology)
    # Owned nodes come right after their owner, so every value is made above the nodes that take it.
    order = sorted(
        topology.nodes,
        key=lambda node: (
            layers[node.id],
            node.id if node.owner is None else node.owner,
            node.owner is not None,
            node.id,
        ),
    )
    sources: dict[int, list[int]] = {node.id: [] for node in topology.nodes}
    left: dict[int, int] = dict.fromkeys(sources, 0)
    for edge in topology.edges:
        sources[edge.target].append(edge.source)
        left[edge.source] += 1
    names = {node.id: _short_name(topology, node) for node in order}
    room = max(map(len, names.values()))
    rails: list[int | None] = []  # which value each column carries
    lines: list[str] = []
    for node in order:
        made: int | None = None
        if left[node.id]:
            made = rails.index(None) if None in rails else len(rails)
            if made == len(rails):
                rails.append(None)
        taken = [column for column, value in enumerate(rails) if value in sources[node.id]]
        lines.append(f"{names[node.id]:{room}}  {_row(rails, taken, made)}".rstrip())
        for column in taken:
            value = rails[column]
            if value is not None:
                left[value] -= 1
                if not left[value]:
                    rails[column] = None
        if made is not None:
            rails[made] = node.id
    return lines


def _row(rails: list[int | None], taken: list[int], made: int | None) -> str:
    """Return one line of the drawing: the connected columns of a node, and those that pass it."""
    places = [*taken, *([] if made is None else [made])]
    first, last = min(places, default=0), max(places, default=0)
    row = ""
    for column, value in enumerate(rails):
        is_joined = first <= column <= last and len(places) > 1
        if column == made:
            row += "*"
        elif column in taken:
            row += "o"
        elif value is not None:
            row += "|"
        else:
            row += "-" if is_joined else " "
        row += "-" if is_joined and column < last else " "
    return row


# --- Graphviz ------------------------------------------------------------------------------------


def dot_of(
    topology: Topology, title: str = "", *, channel_details: bool = False, legend: bool = True
) -> str:
    """Return a topology as Graphviz source.

    With ``channel_details``, the label of an edge is its channel: id, kind and number of slots.
    The title is there if something is wrong with an actor.
    """
    fills = {actor.id: f'"{_fill(number)}"' for number, actor in enumerate(topology.actors)}
    channels = {channel.id: channel for channel in topology.channels}
    lines = ["digraph compiled_graph {"]
    below = [visible(title)] if topology.marks and title else []
    below += _dot_legend(topology) if legend else []
    if below:
        lines += [f"\tlabel={_quote(below)}", "\tlabelloc=b", "\tfontsize=11"]
    for node in topology.nodes:
        colour = fills[node.process] if node.kind == "call" else _COLOURS[node.kind]
        shape = _SHAPES.get(node.kind, "rectangle")
        lines.append(
            f"\t{node.id} [label={_quote(_dot_label(topology, node))} fillcolor={colour} "
            f"shape={shape} style=filled{_dot_mark(topology, node)}]"
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
        if channel_details:
            channel = None if edge.channel is None else channels[edge.channel]
            attributes.insert(0, f"label={_quote(_details(edge.kind, channel))}")
        elif edge.kind == TCP:
            attributes.insert(0, f"label={_quote([kind.title])}")
        lines.append(f"\t{edge.source} -> {edge.target} [{' '.join(attributes)}]")
    return "\n".join([*lines, "}\n"])


def _dot_mark(topology: Topology, node: TopologyNode) -> str:
    mark = topology.marks.get(node.process)
    return "" if mark is None or mark.kind == "over" else ' color="#b3261e" penwidth=3'


def _dot_label(topology: Topology, node: TopologyNode) -> list[str]:
    words = _words(topology, node)
    actor = topology.actor(node.process)
    if node.kind == "call" and actor is not None:
        words[:1] = [f"Actor: {visible(actor.label)}", f"ID: {_key(topology, node, '...')}"]
    return [f"Task {node.id}", *words]


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


def _details(kind: str, channel: ChannelSpec | None) -> list[str]:
    if channel is None:
        return [style_of(kind).title]
    group = "" if channel.group is None else f"group {channel.group}"
    title = visible(style_of(channel.kind).title)
    words = [channel.id, title, group, plural(channel.slots, "slot"), hints_text(channel)]
    return [word for word in words if word]


def _dot_legend(topology: Topology) -> list[str]:
    kinds = dict.fromkeys(edge.kind for edge in topology.edges)
    shown = [f"{_style(kind)}: {visible(style_of(kind).title)}" for kind in kinds]
    groups = map(TopologyLabels(topology).group_text, topology.groups)
    return [", ".join([*shown, "one colour per actor"]), *groups]


def _quote(lines: list[str]) -> str:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
