# SPDX-License-Identifier: Apache-2.0
r"""A topology as text, in the sections that Ray prints.

The drawing has one line per node and one column per value. A column starts where the value is made
(``*``) and runs down (``|``) to the last node that takes the value (``o``). So any graph can be
drawn without crossing lines, and the width is the largest number of values that exist at once::

    0:InputNode           *
    1:Loader_54777d:load  o-*
    2:Left_c927c9:fwd       o-*
    3:Right_1f3c9a:fwd    *-o |
    4:Join_02a6a1:join    o---o-*
    5:MultiOutputNode           o
"""

from __future__ import annotations

from typing import Final

from rcg.text import visible
from rcg.views.data.arrangement import layers_of
from rcg.views.data.edge_styles import is_known, style_of
from rcg.views.data.labels import TopologyLabels, frame_text
from rcg.views.data.topology import NodeFrame, Topology, TopologyEdge, TopologyNode


def ascii_of(topology: Topology) -> str:
    """Return a topology as text: its nodes, its edges, a legend and a drawing."""
    lines = ["Nodes Information:"]
    lines += [f'{node.id} [label="{_label(topology, node)}"]' for node in topology.nodes]
    lines += ["", "Edges Information:"]
    for edge in topology.edges:
        place = "" if edge.kind in _PLAIN else f" ({visible(_place(topology, edge))})"
        lines.append(f"{edge.source} {style_of(edge.kind).arrow} {edge.target}{place}")
    if topology.groups:
        labels = TopologyLabels(topology)
        lines += ["", "Groups:", *map(labels.group_text, topology.groups)]
    if topology.frames:
        labels = TopologyLabels(topology)
        lines += ["", "Nodes of the cluster:"]
        lines += [_frame_line(labels, frame) for frame in topology.frames]
    lines += ["", "Legend:", *_legend(topology), "", "Graph Built:", *_draw(topology)]
    return "\n".join(lines) + "\n"


_PLAIN: Final = ("shm", "tcp", "tensor")
"""Kinds of edges that the arrow alone tells."""


def _frame_line(labels: TopologyLabels, frame: NodeFrame) -> str:
    return f"{frame_text(frame)}: {', '.join(map(labels.process_text, frame.processes))}"


def _place(topology: Topology, edge: TopologyEdge) -> str:
    channel = next((each for each in topology.channels if each.id == edge.channel), None)
    group = "" if channel is None or channel.group is None else f" @{channel.group}"
    return f"{style_of(edge.kind).title}{group}"


def _legend(topology: Topology) -> list[str]:
    kinds = dict.fromkeys(edge.kind for edge in topology.edges)
    others = {kind for kind in kinds if style_of(kind).arrow not in ("+++>", "--->")}
    others |= {kind for kind in kinds if not is_known(kind)}
    carriers = [
        style_of(kind).title
        for kind in kinds
        if style_of(kind).arrow == "+++>" and kind not in _PLAIN
    ]
    here = f", here: {', '.join(map(visible, carriers))}" if carriers else ""
    return [
        f"+++> : Represents Accelerator-type data channels{here}",
        "---> : Represents Shared Memory data channels, or no channel in the same process",
        *[
            f"{style_of(kind).arrow} : Represents {visible(style_of(kind).title)} data channels"
            for kind in sorted(others)
        ],
        "* makes a value, o takes it, | is a value on its way to those below",
    ]


def _label(topology: Topology, node: TopologyNode) -> str:
    name = visible(node.name)
    match node.kind:
        case "input":
            text = "InputNode"
        case "attribute":
            text = f"InputAttributeNode[{name}]"
        case "part":
            text = f"ClassMethodOutputNode[{name}]"
        case "output":
            text = "MultiOutputNode"
        case "collective":
            text = f"Collective: {name} Group: {node.group}"
        case "call":
            text = f"Actor: {_key(topology, node, '...')} Method: {name}"
    return f"Task {node.id}  {text}"


def _short_name(topology: Topology, node: TopologyNode) -> str:
    name = visible(node.name)
    match node.kind:
        case "input":
            return f"{node.id}:InputNode"
        case "attribute":
            return f"{node.id}:InputAttributeNode[{name}]"
        case "part":
            return f"{node.id}:Output[{name}]"
        case "output":
            return f"{node.id}:MultiOutputNode"
        case "collective":
            return f"{node.id}:{name}@{node.group}"
        case "call":
            actor = topology.actor(node.process)
            label = "Actor" if actor is None else visible(actor.label)
            return f"{node.id}:{label}_{_key(topology, node)}:{name}"


def _key(topology: Topology, node: TopologyNode, dots: str = "") -> str:
    """Return the first digits of an actor's id in Ray, or its id in the plan."""
    actor = topology.actor(node.process)
    return f"{visible(actor.key[:6])}{dots}" if actor is not None and actor.key else node.process


def _draw(topology: Topology) -> list[str]:
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
    room = max(len(name) for name in names.values())
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
    row: list[str] = []
    for column, value in enumerate(rails):
        is_joined = first <= column <= last and len(places) > 1
        if column == made:
            sign = "*"
        elif column in taken:
            sign = "o"
        elif value is not None:
            sign = "|"
        else:
            sign = "-" if is_joined else " "
        row += [sign, "-" if is_joined and column < last else " "]
    return "".join(row)
