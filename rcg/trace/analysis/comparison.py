# SPDX-License-Identifier: Apache-2.0
"""The figures of two traces, compared.

A ratio is the second trace's value divided by the first's. A throughput is better if its ratio is
above 1, a time if it is below.

This room must not know how traces are recorded or measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rcg.display import Charted, Displayed
from rcg.ir.plan import Plan
from rcg.table import Table
from rcg.text import (
    hundredths,
    plural,
    rate_text,
    ratio_text,
    share_text,
    spread_text,
    time_text,
    visible,
)
from rcg.trace.analysis.alike import (
    APART,
    FEW,
    SAME_SHARE,
    SAME_TIME,
    alike_rows,
    name_of_rows,
)
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.spread import LEAST, is_noise
from rcg.trace.analysis.summary import GraphSummary

_LITTLE: Final = 0.03  # of a time that is said to have changed
_LITTLE_SHARE: Final = 0.01  # of the time, by which a share changed
_SHORT: Final = 0.01  # of the longest op: what changed by less is not said
_MAX_ROWS: Final = 24  # of a table in a comparison
_ALIKE: Final = 0.05  # a spread of a ratio that is no larger shows that there is no change
_SURE: Final = 1.5  # times as many executions, because a spread is an estimate itself

Side = Sequence[tuple[Plan, GraphSummary]]
"""The graphs of one trace."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both traces.

    Attributes:
        text: The name of the figure.
        before: Its value in the first trace; None if it has none.
        after: Its value in the second trace; None if it has none.
        spreads: How far each of the two may be off (``spread.py``); None of too few executions.
    """

    text: str
    before: float | None
    after: float | None
    spreads: tuple[float | None, float | None] = (None, None)

    @property
    def ratio(self) -> float | None:
        """``after`` divided by ``before``; None if one is unknown or ``before`` is 0."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before

    @property
    def spread(self) -> float | None:
        """How far ``ratio`` may be off; None if one of the spreads is unknown.

        1 is within it, as it is shown, exactly if the change is noise: of one that is noise by the
        spread of its inverse alone, it reaches to 1. Of 0.62 ±0.33 the inverse is 1.61 ±0.86: then
        it is 0.62 ±0.38.
        """
        ratio, noise = self.ratio, self.is_noise
        if ratio is None or noise is None:
            return None
        least = abs(hundredths(ratio) - 100) / 100 if noise else 0.0
        return max(self._spread_of(ratio), least)

    @property
    def is_noise(self) -> bool | None:
        """Whether 1 is within the spread of ``ratio``, or of its inverse; None if that is unknown.

        So it is the same whichever of the traces is the first.
        """
        if not self.before or not self.after or None in self.spreads:
            return None
        ratios = self.after / self.before, self.before / self.after
        return any(is_noise(each, self._spread_of(each)) for each in ratios)

    def _spread_of(self, ratio: float) -> float:
        """Return the spread of the ratio, or of its inverse: the same part of each."""
        sides = zip((self.before, self.after), self.spreads, strict=True)
        parts = sorted((off or 0.0) / (side or 1.0) for side, off in sides)  # none of them is None
        return ratio * math.hypot(*parts)

    @property
    def doubt(self) -> str:
        """``noise``, or ``not known`` if there are too few executions to tell, or ""."""
        if self.ratio is None:
            return ""
        return "not known" if self.is_noise is None else "noise" if self.is_noise else ""

    def row(self, text: Callable[[float | None], str]) -> tuple[str, ...]:
        """Return its row in a table, with values as this text."""
        gain = spread_text(self.ratio, self.spread)
        return (self.text, text(self.before), text(self.after), gain, self.doubt)


@dataclass(frozen=True, repr=False)
class GraphComparison(Charted, Displayed):
    """One graph in both traces.

    Attributes:
        titles: What it is called in the two traces.
        is_same_plan: Whether both ran the same plan. Otherwise they were matched by position.
        throughput: Executions per second.
        latency: Median latency in ns.
        ops: Median time of each op without waiting, in ns; of all calls of a method by an actor. Of
            different plans, those that both have.
        shares: Share of the window, from 0 to 1, per process and kind: ``a0 (Stage) compute``.
        executions: How many executions the figures are of, in both traces.
    """

    titles: tuple[str, str]
    is_same_plan: bool
    throughput: Change
    latency: Change
    ops: tuple[Change, ...]
    shares: tuple[Change, ...]
    executions: tuple[int, int] = (0, 0)

    @property
    def title(self) -> str:
        """What it is called: once, if it is the same in both traces."""
        return " -> ".join(dict.fromkeys(self.titles))

    @property
    def answer(self) -> str:
        """The answer in one line: ``1.90x ±0.05: 118 /s to 224 /s; largest change: ...``."""
        rate, late = self.throughput, self.latency
        ratio = f"{spread_text(rate.ratio, rate.spread)}: {_sides(rate, rate_text)}"
        if rate.is_noise is not False:
            is_alike = rate.is_noise and (rate.spread or 0.0) <= _ALIKE
            if late.is_noise is False:
                said = f"latency {spread_text(late.ratio, late.spread)}: {_sides(late, time_text)}"
                rest = spread_text(rate.ratio, rate.spread)
                return f"{said}; throughput {'alike' if is_alike else 'not known'}, {rest}"
            if is_alike:
                return f"alike, {ratio}"
            return f"not enough to say, {ratio}; {self._enough()}"
        most = max(self.ops, key=_gained_ns, default=None)
        if most is None or _gained_ns(most) <= _SHORT * max(map(_size, self.ops)):
            return ratio
        return f"{ratio}; largest change: {most.text} {_sides(most, time_text)}"

    def _enough(self) -> str:
        """Return how many executions would tell a change of the throughput from noise, as text.

        A spread becomes smaller as the root of the number of executions.
        """
        rate, count = self.throughput, min(self.executions)
        ratio, spread = rate.ratio or 1.0, rate.spread
        if spread is None:
            return f"run at least {LEAST + 1} executions"
        if hundredths(ratio) == 100:
            return "run more executions"
        needed = count * (spread / (ratio - 1)) ** 2 * _SURE
        digits = max(len(str(round(needed))) - 2, 0)
        return f"about {math.ceil(needed / 10**digits) * 10**digits:,} executions would tell"

    def __repr__(self) -> str:
        return f"<GraphComparison {visible(self.title)}: {_gain(self)}>"

    def __str__(self) -> str:
        same = "the same plan" if self.is_same_plan else "another plan, matched by its place"
        head = ("", "before", "after", "ratio", "")
        rows = [self.throughput.row(rate_text), self.latency.row(time_text)]
        lines = [visible(self.answer), "", f"{visible(self.title)}: {same}"]
        lines.append(Table(head, rows, "nfffw").text("  "))
        lines += ["", "  What each op took, median without waiting", *self._ops(head)]
        lines += ["", "  Where the time went", *self._shares(head[:3])]
        return "\n".join(lines)

    def _ops(self, head: tuple[str, ...]) -> list[str]:
        """Return the table of ops; of many, those that did not change are a line."""
        folded = alike_ops(self.ops)
        changed = [each for each in folded if not each[0].is_noise]
        same = sum(len(names) for change, names in folded if change.is_noise)
        if len(folded) <= FEW:
            changed, same = folded, 0
        shown = _largest([change for change, _ in changed], _size)
        lines = [Table(head, [each.row(time_text) for each in shown], "nfffw").text("    ")]
        lines = lines if shown else []
        lines += _left_out(len(changed) - len(shown), "op", "comparison.ops")
        if same:
            others = plural(same, "other" if shown else "op")
            lines.append(f"    {others} as before, within the noise: comparison.ops")
        return lines

    def _shares(self, head: tuple[str, ...]) -> list[str]:
        """Return the table of shares, those of alike processes as one row."""
        seen = [share for share in self.shares if _size(share) >= 0.0005]
        rows = [(share.before or 0.0, share.after or 0.0) for share in seen]
        groups = alike_rows([share.text for share in seen], rows, SAME_SHARE)
        folded = folded_changes(seen, groups)
        is_short = len(folded) <= FEW
        changed, same = [], 0
        for change, names in folded:
            if is_short or _difference(change) >= _LITTLE_SHARE:
                changed.append(change)
            else:
                same += len(names)
        shown = _largest(changed, _difference)
        lines = [Table(head, [share.row(share_text)[:3] for share in shown], "nff").text("    ")]
        lines = lines if shown else []
        lines += _left_out(len(changed) - len(shown), "share", "comparison.shares")
        if same:
            others, little = (
                plural(same, "other" if shown else "share"),
                share_text(_LITTLE_SHARE, 0),
            )
            lines.append(f"    {others} changed by less than {little}: comparison.shares")
        return lines


@dataclass(frozen=True, repr=False)
class Comparison(Charted, Displayed):
    """Two traces side by side. ``str()`` is a report.

    Attributes:
        graphs: The graphs that are in both.
        only_before: Titles of the graphs that are only in the first.
        only_after: Titles of the graphs that are only in the second.
    """

    graphs: tuple[GraphComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def active(self) -> tuple[GraphComparison, ...]:
        """The graphs that did something in one of the traces; all if none did."""
        return tuple(graph for graph in self.graphs if graph.ops) or self.graphs

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(map(_gain, self.active[:3])) or 'no graph in both'}>"

    def __str__(self) -> str:
        blocks = [str(graph) for graph in self.active]
        blocks += [f"{visible(title)} is only in the first" for title in self.only_before]
        blocks += [f"{visible(title)} is only in the second" for title in self.only_after]
        return "\n\n".join(blocks) or "Neither trace holds a graph."


def compare(before: Side, after: Side) -> Comparison:
    """Compare two traces, graph by graph.

    Graphs with equal plans are matched, in the order of the traces. The remaining graphs are
    matched by position.
    """
    pairs: list[tuple[int, int]] = []
    free = list(range(len(after)))
    for at, (plan, _) in enumerate(before):
        same = next((other for other in free if after[other][0] == plan), None)
        if same is not None:
            pairs.append((at, same))
            free.remove(same)
    matched = {at for at, _ in pairs}
    rest = [at for at in range(len(before)) if at not in matched]
    pairs += zip(rest, free, strict=False)
    pairs.sort()
    return Comparison(
        graphs=tuple(
            _graph(before[a][1], after[b][1], before[a][0] == after[b][0]) for a, b in pairs
        ),
        only_before=tuple(before[at][1].title for at in rest[len(free) :]),
        only_after=tuple(after[at][1].title for at in free[len(rest) :]),
    )


def _graph(before: GraphSummary, after: GraphSummary, is_same_plan: bool) -> GraphComparison:
    return GraphComparison(
        titles=(before.title, after.title),
        is_same_plan=is_same_plan,
        throughput=Change(
            "executions",
            before.throughput,
            after.throughput,
            (before.throughput_spread, after.throughput_spread),
        ),
        latency=Change(
            "latency (median)",
            before.latency_p50_ns,
            after.latency_p50_ns,
            (before.latency_spread_ns, after.latency_spread_ns),
        ),
        ops=tuple(
            # Of another plan, what has the name of another channel is no change.
            change
            for change in _ops(before, after)
            if is_same_plan or change.ratio is not None
        ),
        shares=tuple(_shares(before, after)),
        executions=(before.complete, after.complete),
    )


def _ops(before: GraphSummary, after: GraphSummary) -> Iterator[Change]:
    sides = [{op.text: op for op in each.methods} for each in (before, after)]
    for text in dict.fromkeys((*sides[0], *sides[1])):
        was, now = (side.get(text) for side in sides)
        yield Change(
            text,
            None if was is None else was.median_ns,
            None if now is None else now.median_ns,
            (None if was is None else was.spread_ns, None if now is None else now.spread_ns),
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


def _size(change: Change) -> float:
    return max(change.before or 0.0, change.after or 0.0)


def _difference(change: Change) -> float:
    return abs((change.after or 0.0) - (change.before or 0.0))


def _gained_ns(change: Change) -> float:
    """Return by how much a time changed; 0 if that is noise, little, or it is in one trace only."""
    if change.ratio is None or change.is_noise is not False or abs(change.ratio - 1) < _LITTLE:
        return 0.0
    return abs((change.after or 0.0) - (change.before or 0.0))


def folded_changes(
    changes: Sequence[Change], groups: Sequence[Sequence[int]]
) -> list[tuple[Change, list[str]]]:
    """Return a change for those of each group, and the names of these."""
    found = []
    for group in groups:
        alike = [changes[at] for at in group]
        names = [each.text for each in alike]
        middle = sorted(alike, key=_size)[len(alike) // 2]
        found.append((replace(middle, text=name_of_rows(names)), names))
    return found


def alike_ops(ops: Sequence[Change]) -> list[tuple[Change, list[str]]]:
    """Return the changes of ops, those of many actors that changed alike as one."""
    rows = [(*map(_logarithm, (op.before, op.after)), APART * (op.is_noise is True)) for op in ops]
    return folded_changes(ops, alike_rows([op.text for op in ops], rows, SAME_TIME))


def _logarithm(value: float | None) -> float:
    return math.log(value) if value else -1.0


def _left_out(count: int, word: str, where: str) -> list[str]:
    return [f"    {plural(count, f'more {word}')}: {where}"] if count else []


def _sides(change: Change, text: Callable[[float | None], str]) -> str:
    return f"{text(change.before)} to {text(change.after)}"


def _gain(graph: GraphComparison) -> str:
    return f"{ratio_text(graph.throughput.ratio)} the throughput"
