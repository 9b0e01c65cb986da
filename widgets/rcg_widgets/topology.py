# SPDX-License-Identifier: Apache-2.0
"""What is computed where and how values get there: laid out here, drawn by ``topology.js``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import ceil
from typing import Any, Final

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Input, Output
from rcg.ir.plan import Plan
from rcg.trace.ops import OpTimes, ops_of
from rcg.trace.trace import GraphTrace
from rcg.units import bytes_text
from rcg.views.kinds import kind_of
from rcg.views.layout import Sizes, lay_out
from rcg.views.text import shorten, visible, width_of
from rcg.views.topology import Edge, Node, Topology, nodes_of_calls, topology_of
from rcg.views.units import time_text
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import topologies
from rcg_widgets.subject import subject_of

__all__ = ["TopologyWidget"]

_SIZE, _SMALL = 12.0, 10.5
_HEAD: Final = 42.0
_PAD: Final = 12.0
_MOST_NAME: Final = 190.0
_LEAST_NODE: Final = 84.0
_DOT: Final = "\N{MIDDLE DOT}"
_MOST_GB_PER_S: Final = 100  # faster is no copy: the block was handed on
_ARROW: Final = "\N{RIGHTWARDS ARROW}"

Times = Mapping[tuple[str, int], OpTimes]


class TopologyWidget(View):
    """The actors of a graph, their calls, and the values between them.

    With a trace, calls show the median time they took and values how large they were. Click a call
    to highlight it and what it takes and gives; a line, to highlight the value. Drag to pan, wheel
    to zoom (after a click, or with Ctrl); arrows go from call to call, Enter selects.

    Args:
        what: A plan, a compiled graph, a trace, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        title: What stands above it.

    Raises:
        TypeError: There is no graph in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
    """

    _esm = script("common", "topology")

    def __init__(
        self, what: Any, *, graph: int | str | None = None, title: str = "Topology"
    ) -> None:
        subject = subject_of(what, graph)
        drawing = _Drawing(subject.plan, subject.record)
        about = f"{len(subject.plan.actors)} actors, {len(subject.plan.channels)} channels"
        super().__init__(
            about, topologies(subject, title), payload=pack(drawing.head(), {}), title=title
        )


class _Drawing:
    """Boxes, lines and words of one topology."""

    def __init__(self, plan: Plan, record: GraphTrace | None) -> None:
        self._plan = plan
        self._record = record
        self._topology: Topology = topology_of(plan)
        self._times: Times = (
            {} if record is None else {(each.process, each.op): each for each in ops_of(record)}
        )
        self._ops = self._ops_of_nodes()
        self._writes = {
            channel: (program.process, at)
            for program in plan.programs
            for at, op in enumerate(program.ops)
            for channel in op.channels_out
        }
        self._reads = {
            (program.process, channel): at
            for program in plan.programs
            for at, op in enumerate(program.ops)
            for channel in op.channels_in
        }
        self._locations = {} if record is None else {each.process: each for each in record.lanes}

    def head(self) -> dict[str, Any]:
        """Return what the browser draws."""
        topology = self._topology
        layout = lay_out(topology, self._sizes())
        kinds = dict.fromkeys(edge.kind for edge in topology.edges if not self._is_owned(edge))
        return {
            "width": layout.width,
            "height": layout.height,
            "subtitle": self._subtitle(),
            "kinds": {name: asdict(kind_of(name)) for name in kinds},
            "actors": [
                {
                    "process": actor.id,
                    "label": shorten(self._label(actor.id), _MOST_NAME, _SIZE, bold=True),
                    "detail": self._detail(actor.id),
                    "name": self._label(actor.id),
                    "box": _box(layout.actors[actor.id]),
                }
                for actor in topology.actors
                if actor.id in layout.actors
            ],
            "nodes": [
                {
                    "kind": node.kind,
                    "process": node.process,
                    "op": self._ops.get(node.id),
                    "name": shorten(_name(node), _MOST_NAME, _SIZE, monospace=node.kind == "call"),
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
                }
                for edge in topology.edges
            ],
        }

    # Ops

    def _ops_of_nodes(self) -> dict[int, int]:
        """The index of the op that each node is, in the program of its process."""
        nodes = nodes_of_calls(self._plan)
        found = {
            nodes[op.node]: at
            for program in self._plan.programs
            for at, op in enumerate(program.ops)
            if isinstance(op, Call)
        }
        driver = self._plan.program(DRIVER).ops
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

    def _edge_ops(self, edge: Edge) -> list[tuple[str, int]]:
        """The write and the read of an edge's value, each with its process."""
        if edge.channel is None:
            return []
        reader = self._topology.nodes[edge.target].process
        ops = [self._writes[edge.channel]]
        read = self._reads.get((reader, edge.channel))
        return ops if read is None else [*ops, (reader, read)]

    # Sizes

    def _sizes(self) -> Sizes:
        return Sizes(
            nodes={node.id: self._size(node) for node in self._topology.nodes},
            actors={
                actor.id: min(
                    _MOST_NAME,
                    max(
                        width_of(self._label(actor.id), _SIZE, bold=True),
                        width_of(self._detail(actor.id), _SMALL),
                    ),
                )
                for actor in self._topology.actors
            },
            head=_HEAD,
        )

    def _size(self, node: Node) -> tuple[float, float]:
        is_part = node.owner is not None
        name = min(_MOST_NAME, width_of(_name(node), _SIZE, monospace=node.kind == "call"))
        time = self._time(node)
        width = name + (width_of(time, _SMALL) + 14 if time else 0)
        if is_part:
            return ceil(width + 14), 22
        return max(_LEAST_NODE, ceil(width + 2 * _PAD)), 34

    # Words

    def _is_owned(self, edge: Edge) -> bool:
        return self._topology.nodes[edge.target].owner == edge.source

    def _label(self, process: str) -> str:
        actor = self._topology.actor(process)
        return process if actor is None else visible(actor.label)

    def _detail(self, process: str) -> str:
        lane = self._locations.get(process)
        node = f" {_DOT} {visible(lane.node)}" if lane is not None and lane.node else ""
        return process + node

    def _subtitle(self) -> str:
        calls = sum(node.kind == "call" for node in self._topology.nodes)
        counts = [
            (len(self._topology.actors), "actor"),
            (calls, "call"),
            (len(self._topology.channels), "channel"),
        ]
        words = [f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts]
        if self._times:
            ran = max(each.count for each in self._times.values())
            words.append(
                f"median times and mean sizes of {ran:,} execution{'' if ran == 1 else 's'}"
            )
        return f" {_DOT} ".join(words)

    def _took(self, node: Node) -> OpTimes | None:
        op = self._ops.get(node.id)
        return None if op is None else self._times.get((node.process, op))

    def _time(self, node: Node) -> str:
        took = self._took(node)
        return time_text(took.median_ns) if took is not None and node.kind == "call" else ""

    def _moved(self, edge: Edge) -> str:
        """How large its value is; told once, on the first of the edges that a channel serves."""
        times = self._write_times(edge)
        first = next(each for each in self._topology.edges if each.channel == edge.channel)
        is_told = times is not None and times.bytes and first is edge
        return bytes_text(times.bytes / times.count) if times is not None and is_told else ""

    def _write_times(self, edge: Edge) -> OpTimes | None:
        return None if edge.channel is None else self._times.get(self._writes[edge.channel])

    def _full_name(self, node: Node) -> str:
        match node.kind:
            case "call":
                return f"{visible(self._plan.label(node.process))}.{visible(node.name)}"
            case "part" | "attribute" if node.owner is not None:
                return f"{self._full_name(self._topology.nodes[node.owner])}[{visible(node.name)}]"
            case _:
                return node.kind

    def _tell_node(self, node: Node) -> list[str]:
        lines = [self._full_name(node)]
        took = self._took(node)
        if took is not None and node.kind == "call":
            times = f"ran {took.count:,} time{'' if took.count == 1 else 's'}"
            lines.append(f"median {time_text(took.median_ns)} {_DOT} {times}")
            lines.append(f"99 of 100 in {time_text(took.p99_ns)}")
        return lines

    def _tell_edge(self, edge: Edge) -> list[str]:
        nodes = self._topology.nodes
        source, target = nodes[edge.source], nodes[edge.target]
        lines = [f"{self._full_name(source)} {_ARROW} {self._full_name(target)}"]
        if edge.arguments:
            what = "result" if target.kind == "output" else "argument"
            lines.append(f"as {what} {', '.join(map(visible, edge.arguments))}")
        if edge.channel is None:
            return [*lines, "inside the process"]
        channel = next(each for each in self._topology.channels if each.id == edge.channel)
        slots = f"{channel.slots} slot{'' if channel.slots == 1 else 's'}"
        lines.append(f"{channel.id} {_DOT} {kind_of(channel.kind).title} {_DOT} {slots}")
        write = self._write_times(edge)
        if write is not None:
            lines.append(f"{bytes_text(write.bytes / write.count)}, the mean")
            lines.append(f"write {_took(write)}")
        read = self._times.get(ops[1]) if len(ops := self._edge_ops(edge)) > 1 else None
        if read is not None:
            lines.append(f"read {_took(read)}")
        return lines


def _took(times: OpTimes) -> str:
    """Its own time, how fast that was, and what it waited before."""
    words = [time_text(times.median_ns)]
    if times.gb_per_s is not None and times.gb_per_s <= _MOST_GB_PER_S:
        words.append(f"{times.gb_per_s:.3g} GB/s")
    waited = times.waited_ns / times.count
    words += [f"after waiting {time_text(waited)}"] if waited >= 1 else []
    return ", ".join(words)


def _name(node: Node) -> str:
    match node.kind:
        case "call":
            return visible(node.name)
        case "attribute" | "part":
            return f"[{visible(node.name)}]"
        case _:
            return node.kind


def _box(rect: Any) -> list[float]:
    return [rect.x, rect.y, rect.width, rect.height]
