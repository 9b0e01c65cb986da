# SPDX-License-Identifier: Apache-2.0
"""Compares two traces: which ops became faster, which slower.

A ratio is the second trace's value divided by the first's. A throughput is better if its ratio is
above 1, a time if it is below.

This room must not know how traces are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rcg.display import Displayed
from rcg.text import columns, plural, rate_text, ratio_text, share_text, time_text
from rcg.trace.analysis.figures import summarize
from rcg.trace.analysis.ops import OpTimes
from rcg.trace.analysis.parts import TimeKind
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.model import Recording

_MAX_ROWS: Final = 24  # of a table


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both traces.

    Attributes:
        text: The name of the figure.
        before: Its value in the first trace; None if it has none.
        after: Its value in the second trace; None if it has none.
    """

    text: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """``after`` divided by ``before``; None if one is unknown or ``before`` is 0."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before


@dataclass(frozen=True, repr=False)
class GraphComparison(Displayed):
    """One graph in both traces.

    Attributes:
        graph_ids: Its ids in the two traces.
        is_same_plan: Whether both ran the same plan. Otherwise they were matched by position.
        throughput: Executions per second.
        latency: Median latency in ns.
        ops: Median time of each op without waiting, in ns.
        shares: Share of the window, from 0 to 1, per process and kind: ``a0 (Stage) compute``.
    """

    graph_ids: tuple[str, str]
    is_same_plan: bool
    throughput: Change
    latency: Change
    ops: tuple[Change, ...]
    shares: tuple[Change, ...]

    def __repr__(self) -> str:
        before, after = (graph_id[:8] for graph_id in self.graph_ids)
        return f"<GraphComparison {before!a} -> {after!a}: {_gain(self)}>"

    def __str__(self) -> str:
        before, after = (graph_id[:8] for graph_id in self.graph_ids)
        same = "the same plan" if self.is_same_plan else "another plan, matched by its place"
        rows = [("", "before", "after", "ratio")]
        rows.append(_row(self.throughput, rate_text))
        rows.append(_row(self.latency, time_text))
        lines = [f"Graph {before} -> {after} ({same})", *columns(rows)]
        ops = _largest(self.ops, _length)
        rows = [("", "before", "after", "ratio"), *(_row(op, time_text) for op in ops)]
        lines += ["", "  What each op took, median without waiting", *columns(rows, indent="    ")]
        lines += _left_out(len(self.ops) - len(ops), "op", "comparison.ops")
        seen = [share for share in self.shares if _is_seen(share)]
        shares = _largest(seen, _difference)
        rows = [("", "before", "after", "")]
        rows += [(*_row(share, share_text)[:3], "") for share in shares]
        lines += ["", "  Where the time went", *columns(rows, indent="    ")]
        lines += _left_out(len(seen) - len(shares), "share", "comparison.shares")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Two traces side by side. ``str()`` is a report.

    Attributes:
        graphs: The graphs that are in both.
        only_before: Ids of the graphs that are only in the first.
        only_after: Ids of the graphs that are only in the second.
    """

    graphs: tuple[GraphComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(map(_gain, self.graphs[:3])) or 'no graph in both'}>"

    def __str__(self) -> str:
        blocks = [str(graph) for graph in self.graphs]
        blocks += [f"Graph {graph_id[:8]} is only in the first" for graph_id in self.only_before]
        blocks += [f"Graph {graph_id[:8]} is only in the second" for graph_id in self.only_after]
        return "\n\n".join(blocks) or "Neither trace holds a graph."


def compare(before: Recording, after: Recording) -> Comparison:
    """Compare two traces, graph by graph.

    Graphs with equal plans are matched, in the order of the traces. The remaining graphs are
    matched by position.

    Args:
        before: The first trace.
        after: The second.
    """
    left, right = summarize(before).graphs, summarize(after).graphs
    pairs: list[tuple[int, int]] = []
    free = list(range(len(right)))
    for at, graph in enumerate(before.graphs):
        same = next((other for other in free if after.graphs[other].plan == graph.plan), None)
        if same is not None:
            pairs.append((at, same))
            free.remove(same)
    rest = [at for at in range(len(left)) if at not in {pair[0] for pair in pairs}]
    pairs += zip(rest, free, strict=False)
    pairs.sort()
    return Comparison(
        graphs=tuple(
            _graph(left[a], right[b], before.graphs[a].plan == after.graphs[b].plan)
            for a, b in pairs
        ),
        only_before=tuple(left[at].graph_id for at in rest[len(free) :]),
        only_after=tuple(right[at].graph_id for at in free[len(rest) :]),
    )


def _graph(before: GraphSummary, after: GraphSummary, is_same_plan: bool) -> GraphComparison:
    return GraphComparison(
        graph_ids=(before.graph_id, after.graph_id),
        is_same_plan=is_same_plan,
        throughput=Change("executions", before.throughput, after.throughput),
        latency=Change("latency (median)", before.latency_p50_ns, after.latency_p50_ns),
        ops=_changes({op.text: op for op in before.ops}, {op.text: op for op in after.ops}),
        shares=tuple(_shares(before, after)),
    )


def _changes(before: dict[str, OpTimes], after: dict[str, OpTimes]) -> tuple[Change, ...]:
    return tuple(
        Change(
            text,
            before[text].median_ns if text in before else None,
            after[text].median_ns if text in after else None,
        )
        for text in dict.fromkeys((*before, *after))
    )


def _shares(before: GraphSummary, after: GraphSummary) -> Iterator[Change]:
    sides = [{lane.label: lane for lane in each.shares.lanes} for each in (before, after)]
    for label in dict.fromkeys((*sides[0], *sides[1])):
        for kind in TimeKind:
            was, now = (
                lanes[label].of(kind) / (lanes[label].duration_ns or 1) if label in lanes else None
                for lanes in sides
            )
            yield Change(f"{label} {kind.name.lower()}", was, now)


def _largest(changes: Sequence[Change], size: Callable[[Change], float]) -> list[Change]:
    """Return the largest changes, in their original order."""
    largest = sorted(range(len(changes)), key=lambda at: -size(changes[at]))[:_MAX_ROWS]
    return [changes[at] for at in sorted(largest)]


def _length(op: Change) -> float:
    return max(op.before or 0.0, op.after or 0.0)


def _difference(share: Change) -> float:
    return abs((share.after or 0.0) - (share.before or 0.0))


def _left_out(count: int, word: str, where: str) -> list[str]:
    return [f"    {plural(count, f'more {word}')}: {where}"] if count else []


def _gain(graph: GraphComparison) -> str:
    return f"{ratio_text(graph.throughput.ratio)} the throughput"


def _is_seen(share: Change) -> bool:
    return max(share.before or 0.0, share.after or 0.0) >= 0.0005


def _row(change: Change, text: Callable[[float | None], str]) -> tuple[str, str, str, str]:
    return change.text, text(change.before), text(change.after), ratio_text(change.ratio)
