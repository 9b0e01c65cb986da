# SPDX-License-Identifier: Apache-2.0
"""Labels of the parts of a topology, and their sizes, for all views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rcg.ir.channels import ChannelSpec, Group
from rcg.text import brief, bytes_text, plural, visible
from rcg.trace.model import Mark
from rcg.views.data.edge_styles import TCP, style_of
from rcg.views.data.folding import Card, Folded, Line, Row
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import node_head
from rcg.views.data.topology import NodeFrame, Topology, TopologyEdge, TopologyNode

TIMES: Final = "\N{MULTIPLICATION SIGN}"
TAG: Final = style_of(TCP).title
"""What lines between nodes of the cluster say."""

_MAX_ARGUMENTS: Final = 8
_MAX_MEMBERS: Final = 8
_ARROW: Final = "\N{RIGHTWARDS ARROW}"


def node_text(node: TopologyNode) -> str:
    """Return the text in the box of a node."""
    match node.kind:
        case "call":
            return visible(node.name)
        case "attribute" | "part":
            return f"[{visible(node.name)}]"
        case "collective":
            return f"{node.name} @{node.group}"
        case _:
            return node.kind


def channel_text(channel: ChannelSpec) -> str:
    """Return the id, the kind and the number of slots of a channel, and how many values it has."""
    kind = visible(style_of(channel.kind).title)
    group = "" if channel.group is None else f" @{channel.group}"
    text = f"{channel.id} {DOT} {kind}{group} {DOT} {plural(channel.slots, 'slot')}"
    values = len(channel.nodes)
    return text if values == 1 else f"{text} {DOT} {values} values together"


def frame_text(frame: NodeFrame) -> str:
    """Return the name of a node of the cluster, with its address or the start of its id in Ray."""
    return node_head(frame.id, frame.address or frame.key[:6])


def hints_text(channel: ChannelSpec) -> str:
    """Return what the user promised about a channel's tensors, and where they arrive."""
    hints = [f"tensors arrive on {visible(channel.device)}"] if channel.device != "default" else []
    hints += ["shapes as in the first execution"] if channel.is_static_shape else []
    hints += ["exactly one tensor"] if channel.is_direct_return else []
    return f" {DOT} ".join(hints)


def size_text(channel: ChannelSpec, frame_bytes: float) -> str:
    """Return the size of a channel's frame: that of its value, or the sum of its values."""
    text = bytes_text(frame_bytes)
    return text if len(channel.nodes) == 1 else f"{text} in all"


def row_text(row: Row, card: Card) -> str:
    """Return the text in a box: a method and how often an actor calls it, ``forward x16``."""
    if row.kind == "attribute" and len(row.nodes) > 1:
        return plural(len(row.nodes), "argument")
    count = len(row.nodes) // max(1, len(card.processes))
    text = node_text(row.nodes[0])
    return text if count == 1 else f"{text} {TIMES}{count}"


@dataclass(frozen=True, slots=True)
class Moved:
    """What an execution moves over a line: how many frames, and their bytes together."""

    frames: int = 0
    bytes: float = 0.0


def moved_over_lines(folded: Folded, channel_bytes: Mapping[str, float]) -> dict[int, Moved]:
    """Return what an execution moves over each line, by its position.

    Of several values in a frame only the sum is known: it belongs to the line of the first one. A
    value that several calls of one process take crosses once.
    """
    seen: set[tuple[str, str]] = set()
    found: dict[int, Moved] = {}
    for at, line in enumerate(folded.lines):
        for edge in line.edges:
            name = edge.channel or ""
            key = name, folded.topology.nodes[edge.target].process
            if name in channel_bytes and key not in seen:
                seen.add(key)
                so_far = found.get(at, Moved())
                found[at] = Moved(so_far.frames + 1, so_far.bytes + channel_bytes[name])
    return found


class TopologyLabels:
    """The labels of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._channels = {channel.id: channel for channel in topology.channels}
        self._actors = {actor.id: actor for actor in topology.actors}

    def channel(self, name: str) -> ChannelSpec:
        """Return a channel that carries values."""
        return self._channels[name]

    def full_name(self, node: TopologyNode) -> str:
        """Return the name of a node, with that of its actor or owner."""
        match node.kind:
            case "call":
                actor = self._actors.get(node.process)
                label = node.process if actor is None else visible(actor.label)
                return f"{brief(label)}.{brief(node.name)}"
            case "collective":
                return node_text(node)
            case "part" | "attribute" if node.owner is not None:
                owner = self._topology.nodes[node.owner]
                return f"{self.full_name(owner)}[{brief(node.name)}]"
            case _:
                return node.kind

    def _edge_lines(self, edge: TopologyEdge) -> list[str]:
        """Return a description of an edge: its ends, its arguments, and how the value travels."""
        nodes = self._topology.nodes
        source, target = nodes[edge.source], nodes[edge.target]
        lines = [f"{self.full_name(source)} {_ARROW} {self.full_name(target)}"]
        if edge.arguments:
            what = {"output": "result", "collective": "tensors of"}.get(target.kind, "argument")
            names = ", ".join(map(brief, edge.arguments[:_MAX_ARGUMENTS]))
            more = len(edge.arguments) - _MAX_ARGUMENTS
            lines.append(f"as {what} {names}" + (f" and {more} more" if more > 0 else ""))
        if edge.channel is None:
            return [*lines, "inside the process"]
        # One channel may have near and far readers.
        channel = replace(self._channels[edge.channel], kind=edge.kind)
        hints = hints_text(channel)
        return [*lines, f"by {channel_text(channel)}", *([hints] if hints else [])]

    def process_text(self, process: str) -> str:
        """Return the displayed name of a process or a lane: ``a0 (Stage)``."""
        actor = self._actors.get(process.partition(".")[0])
        return process if actor is None else f"{process} ({brief(visible(actor.label))})"

    def _processes_text(self, processes: Sequence[str]) -> str:
        names = [self.process_text(process) for process in processes[:_MAX_MEMBERS]]
        more = len(processes) - len(names)
        return ", ".join([*names, f"{more} more"] if more else names)

    def frame_lines(self, frame: NodeFrame) -> list[str]:
        """Return a description of a node of the cluster: its name, its id in Ray, what is there."""
        key = [f"node {visible(frame.key)} in Ray"] if frame.key else []
        return [frame_text(frame), *key, self._processes_text(frame.processes)]

    def group_text(self, group: Group) -> str:
        """Return a group as text: its id, its library and its members in the order of ranks."""
        title, members = style_of(group.backend).title, self._processes_text(group.members)
        return f"{group.id} {DOT} {visible(title)} {DOT} {members}"

    def counts(self) -> list[str]:
        """Return the numbers of actors, calls and channels as text."""
        topology = self._topology
        calls = sum(node.kind == "call" for node in topology.nodes)
        collectives = sum(node.kind == "collective" for node in topology.nodes)
        counts = [(len(topology.actors), "actor"), (calls, "call")]
        counts += [(collectives, "collective")] if collectives else []
        counts.append((len(topology.channels), "channel"))
        counts += [(len(topology.frames), "node")] if topology.frames else []
        return [plural(*each) for each in counts]

    def card_text(self, card: Card) -> str:
        """Return the name of a card: ``a0 (Stage)``, ``Shard x26``."""
        if card.kind != "actor":
            return card.kind if card.kind != "collective" else card.rows[0].nodes[0].group or ""
        if len(card.processes) == 1:
            return self.process_text(card.processes[0])
        return (
            f"{brief(visible(self._actors[card.processes[0]].label))} {TIMES}{len(card.processes)}"
        )

    def alike_text(self, card: Card) -> str:
        """Return which actors a card of several stands for: ``a1 to a26``; "" for one."""
        if len(card.processes) <= 1:
            return ""
        places = [
            place for place, actor in enumerate(self._topology.actors) if actor.id in card.processes
        ]
        first, last = card.processes[0], card.processes[-1]
        is_run = places[-1] - places[0] == len(places) - 1
        return f"{first} to {last}" if is_run else f"{first}, {card.processes[1]} ... {last}"

    def mark_of(self, card: Card) -> Mark | None:
        """Return what is wrong with the actors of a card, as with the first; None if nothing is."""
        return self._topology.marks.get(card.processes[0]) if card.processes else None

    def card_lines(self, card: Card) -> list[str]:
        """Return a description of a card: its actors, with their ids in Ray."""
        mark = self.mark_of(card)
        lines = [self.card_text(card), *([visible(mark.text)] if mark else [])]
        if len(card.processes) > 1:
            return [*lines, self._processes_text(card.processes)]
        keys = [self._actors[process].key for process in card.processes]
        return [*lines, *(f"actor {visible(key)} in Ray" for key in keys if key)]

    def row_lines(self, row: Row, card: Card) -> list[str]:
        """Return a description of a box; of a collective its group, and its processes by rank."""
        node = row.nodes[0]
        if row.kind == "collective":
            ranks = [
                f"rank {at}: {self.process_text(each)}" for at, (each, _) in enumerate(node.ops)
            ]
            more = len(ranks) - _MAX_MEMBERS
            rest = [f"and {more} more"] if more > 0 else []
            return [node_text(node), *ranks[:_MAX_MEMBERS], *rest]
        if len(row.nodes) == 1:
            return [self.full_name(node)]
        lines = [f"{self.card_text(card)} {DOT} {row_text(row, card)}", self.alike_text(card)]
        return list(filter(None, lines))

    def _row_name(self, row: Row, card: Card) -> str:
        if card.kind != "actor":
            return row_text(row, card)
        return f"{self.card_text(card)} {node_text(row.nodes[0])}"

    def line_text(self, line: Line, moved: Moved | None) -> str:
        """Return the text on a line: how many values, of how many bytes; TCP between nodes."""
        count = len(line.edges)
        words = [TAG] if line.kind == TCP else []
        if moved is None:
            words += [f"{TIMES}{count}"] if count > 1 else []
        elif any(len(channel.nodes) > 1 for channel in self._channels_of(line)):
            words.append(f"{bytes_text(moved.bytes)} in all")
        else:
            size = bytes_text(moved.bytes / moved.frames)
            words.append(size if moved.frames == 1 else f"{moved.frames} {TIMES} {size}")
        return f" {DOT} ".join(words)

    def _channels_of(self, line: Line) -> list[ChannelSpec]:
        names = dict.fromkeys(edge.channel for edge in line.edges if edge.channel is not None)
        return [self._channels[name] for name in names]

    def line_lines(self, line: Line, folded: Folded) -> list[str]:
        """Return a description of a line: of its edge, or of its ends and how its values travel."""
        if len(line.edges) == 1:
            return self._edge_lines(line.edges[0])
        source, target = (
            self._row_name(folded.rows[row], folded.card_of(row))
            for row in (line.source, line.target)
        )
        kinds = Counter(edge.kind for edge in line.edges).most_common()
        how = ", ".join(f"{count} by {visible(style_of(kind).title)}" for kind, count in kinds)
        return [f"{source} {_ARROW} {target}", f"{plural(len(line.edges), 'value')}: {how}"]
