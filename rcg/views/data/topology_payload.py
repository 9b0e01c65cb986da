# SPDX-License-Identifier: Apache-2.0
"""The topology for the widget: boxes, lines and texts, with measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import ceil
from typing import Any, Final

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Input, Output
from rcg.ir.plan import Plan
from rcg.text import bytes_text, plural, speed_text, time_text, visible
from rcg.trace.analysis.ops import OpTimes, ops_of
from rcg.trace.model import GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.arrangement import Sizes
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.labels import (
    MAX_NAME_WIDTH,
    MIN_NODE_WIDTH,
    TopologyLabels,
    frame_text,
    node_text,
    size_text,
)
from rcg.views.data.layout import Rect, lay_out
from rcg.views.data.lettering import DOT, SIZE, SMALL, shorten, width_of
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.tags import TAG, tags_of
from rcg.views.data.topology import (
    Actor,
    Topology,
    TopologyEdge,
    TopologyNode,
    nodes_of_calls,
    topology_of,
)

_HEAD: Final = 42.0
_FRAME_HEAD: Final = 28.0
_PAD: Final = 12.0
_MAX_GB_PER_S: Final = 100  # a higher rate means forwarding instead of copying

_TIMED: Final = ("call", "collective")
"""The kinds of nodes that take time."""

Times = Mapping[tuple[str, int], OpTimes]


def topology_payload(plan: Plan, record: GraphTrace | None) -> ViewPayload:
    """Return the payload of a topology, which has no columns.

    Args:
        plan: The plan.
        record: Its record; None without a measurement.
    """
    return ViewPayload(_TopologyHead(plan, record).head(), {})


class _TopologyHead:
    """Makes the head of the payload of one topology."""

    def __init__(self, plan: Plan, record: GraphTrace | None) -> None:
        lanes = () if record is None else record.lanes
        addresses = {} if record is None else addresses_of(record)
        self._topology: Topology = topology_of(plan, addresses=addresses)
        self._labels = TopologyLabels(self._topology)
        self._times: Times = (
            {} if record is None else {(each.process, each.op): each for each in ops_of(record)}
        )
        self._ops = self._ops_of_nodes(plan)
        self._writes = {
            channel: (program.process, at)
            for program in plan.programs
            for at, op in enumerate(program.ops)
            for channel in op.values_out
        }
        # By the process of the system, which may read in a lane.
        self._reads = {
            (plan.host_of(program.process), channel): (program.process, at)
            for program in plan.programs
            for at, op in enumerate(program.ops)
            for channel in op.values_in
        }
        self._lanes = {each.process: each for each in lanes}

    def head(self) -> dict[str, Any]:
        topology, labels = self._topology, self._labels
        layout = lay_out(topology, self._sizes())
        tags = tags_of(topology, layout)
        kinds = dict.fromkeys(edge.kind for edge in topology.edges if not labels.is_owned(edge))
        return {
            "width": layout.width,
            "height": layout.height,
            "subtitle": self._subtitle(),
            "kinds": {name: asdict(style_of(name)) for name in kinds},
            "frames": [
                {
                    "node": frame.id,
                    "label": shorten(frame_text(frame), MAX_NAME_WIDTH, SIZE, bold=True),
                    "tell": labels.frame_lines(frame),
                    "box": _box(layout.frames[frame.id]),
                }
                for frame in topology.frames
            ],
            "tag": TAG,
            "actors": [
                {
                    "process": actor.id,
                    "label": shorten(visible(actor.label), MAX_NAME_WIDTH, SIZE, bold=True),
                    "detail": self._identity(actor),
                    "name": visible(actor.label),
                    "box": _box(layout.actors[actor.id]),
                }
                for actor in topology.actors
                if actor.id in layout.actors
            ],
            "nodes": [
                {
                    "kind": node.kind,
                    **self._place(node),
                    "ranks": node.ranks,
                    "name": shorten(
                        node_text(node), MAX_NAME_WIDTH, SIZE, monospace=node.kind == "call"
                    ),
                    "time": self._time(node),
                    "tell": self._tell_node(node),
                    "box": _box(layout.nodes[node.id]),
                }
                for node in topology.nodes
            ],
            "edges": [
                {
                    "source": edge.source,
                    "target": edge.target,
                    "kind": edge.kind,
                    "channel": edge.channel,
                    "ops": self._edge_ops(edge),
                    "moved": self._moved(edge),
                    "tell": self._tell_edge(edge),
                    "points": layout.routes.get((edge.source, edge.target)),
                    "tag": _box(tags[ends])
                    if (ends := (edge.source, edge.target)) in tags
                    else None,
                }
                for edge in topology.edges
            ],
            "meeting": asdict(style_of(COLLECTIVE)),
            "groups": [f"group {labels.group_text(group)}" for group in topology.groups],
        }

    def _place(self, node: TopologyNode) -> dict[str, Any]:
        """Return the process and the op of a node; of a collective, those of its first rank."""
        if node.ranks:
            process, op = node.ranks[0]
            return {"process": process, "op": op}
        return {"process": node.process, "op": self._ops.get(node.id)}

    # Ops

    def _ops_of_nodes(self, plan: Plan) -> dict[int, int]:
        """Return the op of each node, as an index in the program of its process."""
        nodes = nodes_of_calls(plan)
        found = {
            nodes[op.node]: at
            for program in plan.programs
            for at, op in enumerate(program.ops)
            if isinstance(op, Call)
        }
        driver = plan.program(DRIVER).ops
        for node in self._topology.nodes:
            for at, op in enumerate(driver):
                match op:
                    case Input(key=key) if node.kind == "input" and key is None:
                        found[node.id] = at
                    case Input(key=key) if node.kind == "attribute" and str(key) == node.name:
                        found[node.id] = at
                    case Output() if node.kind == "output":
                        found[node.id] = at
        return found

    def _edge_ops(self, edge: TopologyEdge) -> list[tuple[str, int]]:
        """Return the write and the read of an edge's value, each with its process."""
        if edge.channel is None:
            return []
        target = self._topology.nodes[edge.target]
        ops = [self._writes[edge.channel]]
        for reader in [target.process, *(process for process, _ in target.ranks)]:
            read = self._reads.get((reader.partition(".")[0], edge.channel))
            if read is not None:
                ops.append(read)
        return ops

    # Sizes

    def _sizes(self) -> Sizes:
        return Sizes(
            nodes={node.id: self._size(node) for node in self._topology.nodes},
            actors={
                actor.id: self._labels.head_width(actor, self._identity(actor))
                for actor in self._topology.actors
            },
            head=_HEAD,
            frames={
                frame.id: min(MAX_NAME_WIDTH, width_of(frame_text(frame), SIZE, bold=True))
                for frame in self._topology.frames
            },
            frame_head=_FRAME_HEAD,
        )

    def _size(self, node: TopologyNode) -> tuple[float, float]:
        is_part = node.owner is not None
        is_code = node.kind not in ("input", "output", "collective")
        text = width_of(node_text(node), SIZE, bold=not is_code, monospace=node.kind == "call")
        name = min(MAX_NAME_WIDTH, text)
        time = self._time(node)
        width = name + (width_of(time, SMALL) + 14 if time else 0)
        if is_part:
            return ceil(width + 14), 22
        return max(MIN_NODE_WIDTH, ceil(width + 2 * _PAD)), 34

    # Words

    def _identity(self, actor: Actor) -> str:
        lane = self._lanes.get(actor.id)
        is_told = lane is not None and lane.node and not self._topology.frames
        return f"{actor.id} {DOT} {visible(lane.node)}" if lane and is_told else actor.id

    def _subtitle(self) -> str:
        words = self._labels.counts()
        if self._times:
            ran = max(each.count for each in self._times.values())
            words.append(f"median times and mean sizes of {plural(ran, 'execution')}")
        return f" {DOT} ".join(words)

    def _took(self, node: TopologyNode) -> OpTimes | None:
        """Return the times of a node; of a collective, those of the rank that takes longest."""
        if node.ranks:
            found = [self._times[rank] for rank in node.ranks if rank in self._times]
            return max(found, key=lambda each: each.median_ns, default=None)
        op = self._ops.get(node.id)
        return None if op is None else self._times.get((node.process, op))

    def _time(self, node: TopologyNode) -> str:
        took = self._took(node)
        return time_text(took.median_ns) if took is not None and node.kind in _TIMED else ""

    def _moved(self, edge: TopologyEdge) -> str:
        """Return the mean size of an edge's value, only for the first edge of its channel."""
        times = self._write_times(edge)
        first = next(each for each in self._topology.edges if each.channel == edge.channel)
        channel = self._labels.channel(edge)
        if channel is None or times is None or not times.bytes or first is not edge:
            return ""
        return size_text(channel, times.bytes / times.count)

    def _write_times(self, edge: TopologyEdge) -> OpTimes | None:
        return None if edge.channel is None else self._times.get(self._writes[edge.channel])

    def _tell_node(self, node: TopologyNode) -> list[str]:
        is_collective = node.kind == "collective"
        lines = self._labels.collective_lines(node) if is_collective else []
        lines = lines or [self._labels.full_name(node)]
        took = self._took(node)
        if took is not None and node.kind in _TIMED:
            lines.append(
                f"median {time_text(took.median_ns)} {DOT} ran {plural(took.count, 'time')}"
            )
            lines.append(f"99 of 100 in {time_text(took.p99_ns)}")
        if took is not None and is_collective:
            waited = time_text(took.waited_ns / took.count)
            moved = bytes_text(took.bytes / took.count)
            lines.append(f"{moved} from a rank {DOT} waited {waited} for the others, the mean")
        return lines

    def _tell_edge(self, edge: TopologyEdge) -> list[str]:
        lines = self._labels.edge_lines(edge)
        write = self._write_times(edge)
        if write is not None:
            channel = self._labels.channel(edge)
            if channel is not None:
                lines.append(f"{size_text(channel, write.bytes / write.count)}, the mean")
            lines.append(f"write {_took(write)}")
        read = self._times.get(ops[1]) if len(ops := self._edge_ops(edge)) > 1 else None
        if read is not None:
            lines.append(f"read {_took(read)}")
        return lines


def _took(times: OpTimes) -> str:
    """Return the own time, the rate and the wait of an op as text."""
    words = [time_text(times.median_ns)]
    if times.gb_per_s is not None and times.gb_per_s <= _MAX_GB_PER_S:
        words.append(speed_text(times.gb_per_s))
    waited = times.waited_ns / times.count
    words += [f"after waiting {time_text(waited)}"] if waited >= 1 else []
    return ", ".join(words)


def _box(rect: Rect) -> list[float]:
    return [rect.x, rect.y, rect.width, rect.height]
