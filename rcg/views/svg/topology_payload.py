# SPDX-License-Identifier: Apache-2.0
"""The topology for the widget: its pictures, and which ops and what words belong to each shape.

There is a picture for each level of ``folding`` that shows more than the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Input, Output
from rcg.ir.plan import Plan
from rcg.text import bytes_text, plural, share_text, speed_text, time_text
from rcg.trace.analysis.ops import OpTimes
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.model import GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.edge_styles import style_of
from rcg.views.data.figures import topology_figures_of
from rcg.views.data.folding import LEVELS, Card, Folded, Line, Row, fold
from rcg.views.data.labels import Moved, TopologyLabels, moved_over_lines, size_text
from rcg.views.data.layout import Rect
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.topology import (
    Topology,
    TopologyEdge,
    TopologyNode,
    nodes_of_calls,
    topology_of,
)
from rcg.views.svg.topology import WIDTH_TEXT, shapes_of

_MAX_ROWS: Final = 1200  # of a picture that is not the most folded one

_TIMED: Final = ("call", "collective")
"""The kinds of nodes that take time."""


def topology_payload(
    plan: Plan,
    measured: tuple[GraphTrace, GraphSummary] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> ViewPayload:
    """Return the payload of the topology of a plan, with the figures of its record if there is one.

    It has no columns. The addresses of the nodes of the cluster are by default those of the record.
    """
    if addresses is None:
        addresses = {} if measured is None else addresses_of(measured[0])
    return ViewPayload(_TopologyHead(plan, measured, addresses).head(), {})


class _TopologyHead:
    """Makes the head of the payload of one topology."""

    def __init__(
        self,
        plan: Plan,
        measured: tuple[GraphTrace, GraphSummary] | None,
        addresses: Mapping[str, str],
    ) -> None:
        self._topology: Topology = topology_of(plan, addresses=addresses)
        self._labels = TopologyLabels(self._topology)
        times: Iterable[OpTimes] = () if measured is None else measured[1].ops
        self._times = {(each.process, each.op): each for each in times}
        self._ops = self._ops_of_nodes(plan)
        self._writes: dict[str, tuple[str, int]] = {}
        # By the process of the system, which may read in a lane.
        self._reads: dict[tuple[str, str], tuple[str, int]] = {}
        for program in plan.programs:
            for at, op in enumerate(program.ops):
                here = program.process, at
                self._writes |= dict.fromkeys(op.values_out, here)
                for channel in op.values_in:
                    self._reads[plan.host_of(program.process), channel] = here
        self._figures = None if measured is None else topology_figures_of(*measured)

    def head(self) -> dict[str, Any]:
        topology, labels = self._topology, self._labels
        kinds = dict.fromkeys(edge.kind for edge in topology.edges if not labels.is_owned(edge))
        pictures: dict[tuple[int, int], tuple[str, Folded]] = {}
        odd = {} if self._figures is None else self._figures.odd
        for level in LEVELS:
            folded = fold(topology, level, odd=odd)
            if not pictures or len(folded.rows) <= _MAX_ROWS:
                pictures.setdefault((len(folded.cards), len(folded.rows)), (level, folded))
        return {
            "subtitle": self._subtitle(),
            "kinds": {name: asdict(style_of(name)) for name in kinds},
            "groups": [f"group {labels.group_text(group)}" for group in topology.groups],
            "width": WIDTH_TEXT if self._figures and self._figures.channel_bytes else "",
            "has_path": self._figures is not None and bool(self._figures.on_path),
            "pictures": [self._picture(level, folded) for level, folded in pictures.values()],
        }

    def _picture(self, level: str, folded: Folded) -> dict[str, Any]:
        shapes = shapes_of(folded, self._figures)
        layout = shapes.layout
        return {
            "level": level,
            "width": layout.width,
            "height": layout.height,
            "shapes": shapes.text,
            "dark": shapes.dark,
            "usual": shapes.usual,
            "nodes": [
                {
                    "kind": row.kind,
                    "count": len(row.nodes),
                    "places": [place for node in row.nodes for place in self._places(node)],
                    "tell": self._tell_row(row, folded.cards[row.card]),
                    "box": _box(layout.rows[row.id]),
                }
                for row in folded.rows
            ],
            "edges": [
                {
                    "source": line.source,
                    "target": line.target,
                    "count": len(line.edges),
                    "ops": [op for edge in line.edges for op in self._edge_ops(edge)],
                    "tell": self._tell_line(line, folded, moved),
                }
                for line, moved in zip(folded.lines, self._moved(folded), strict=True)
            ],
        }

    def _moved(self, folded: Folded) -> list[Moved | None]:
        sizes = {} if self._figures is None else self._figures.channel_bytes
        moved = moved_over_lines(folded, sizes)
        return [moved.get(at) for at in range(len(folded.lines))]

    def _places(self, node: TopologyNode) -> list[tuple[str, int]]:
        """Return the process and the op of a node; of a collective, those of each rank."""
        op = self._ops.get(node.id)
        return list(node.ranks) or ([] if op is None else [(node.process, op)])

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
        readers = [target.process, *(process for process, _ in target.ranks)]
        keys = [(reader.partition(".")[0], edge.channel) for reader in readers]
        return [*ops, *(self._reads[key] for key in keys if key in self._reads)]

    # Words

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

    def _tell_node(self, node: TopologyNode) -> list[str]:
        is_collective = node.kind == "collective"
        lines = self._labels.node_lines(node)
        took = self._took(node)
        if took is None or node.kind not in _TIMED:
            return lines
        lines.append(f"median {time_text(took.median_ns)} {DOT} ran {plural(took.count, 'time')}")
        lines.append(f"99 of 100 in {time_text(took.p99_ns)}")
        if is_collective:
            waited = time_text(took.waited_ns / took.count)
            moved = bytes_text(took.bytes / took.count)
            lines.append(f"{moved} from a rank {DOT} waited {waited} for the others, the mean")
        return lines

    def _tell_row(self, row: Row, card: Card) -> list[str]:
        if len(row.nodes) == 1:
            lines = self._tell_node(row.nodes[0])
        else:
            lines = self._labels.row_lines(row, card)
            took = [each for node in row.nodes if (each := self._took(node)) is not None]
            if took and row.kind in _TIMED:
                usual = time_text(median([times.median_ns for times in took]))
                longest = max(took, key=lambda times: times.median_ns)
                most = time_text(longest.median_ns)
                where = self._labels.process_text(longest.process)
                lines.append(f"median {usual} {DOT} at most {most} in {where}")
        if self._figures is not None:
            share = sum(self._figures.on_path.get(node.id, 0.0) for node in row.nodes)
            lines += [f"{share_text(share)} of the critical path"] if share else []
        return lines

    def _tell_line(self, line: Line, folded: Folded, moved: Moved | None) -> list[str]:
        if len(line.edges) == 1:
            return self._tell_edge(line.edges[0])
        lines = self._labels.line_lines(line, folded)
        return lines if moved is None else [*lines, f"{bytes_text(moved.bytes)} in an execution"]

    def _tell_edge(self, edge: TopologyEdge) -> list[str]:
        lines = self._labels.edge_lines(edge)
        channel = self._labels.channel(edge)
        ops = self._edge_ops(edge)
        write = self._times.get(ops[0]) if ops else None
        read = self._times.get(ops[1]) if len(ops) > 1 else None
        if write is not None and channel is not None:
            lines.append(f"{size_text(channel, write.bytes / write.count)}, the mean")
            lines.append(f"write {_took(write)}")
        if read is not None:
            lines.append(f"read {_took(read)}")
        return lines


def _took(times: OpTimes) -> str:
    """Return the own time, the rate and the wait of an op as text."""
    words = [time_text(times.median_ns)]
    if times.gb_per_s is not None:
        words.append(speed_text(times.gb_per_s))
    waited = times.waited_ns / times.count
    words += [f"after waiting {time_text(waited)}"] if waited >= 1 else []
    return ", ".join(words)


def _box(rect: Rect) -> list[float]:
    return [rect.x, rect.y, rect.width, rect.height]
