# SPDX-License-Identifier: Apache-2.0
"""Several profiles side by side, and those of this process that are kept.

```
                 executions   vs first   latency  vs first
before                118 /s             25.1 ms            a2 (Shard).work limits this: ...
two shards            224 /s  1.9x ±0.1  13.4 ms  0.53x ±0.02  ...
```

This room must know neither how profiles are recorded nor how runs are drawn.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, overload

from rcg.callers import at_users_line
from rcg.display import Displayed, Mimebundle, Views
from rcg.table import Table
from rcg.text import rate_text, spread_text, time_text
from rcg.trace.analysis.comparison import Change
from rcg.trace.analysis.summary import GraphSummary, Summary, stall_text
from rcg.trace.model import GraphTrace
from rcg.trace.trace import Trace

MOST_KEPT: Final = 20
"""So many profiles are kept, the newest ones."""

MOST_KEPT_BYTES: Final = 256_000_000
"""Their events take at most so much memory, but for those of the newest."""


_MOST_LETTERS: Final = 80  # of a name


class Run(Protocol):
    """A profile that is complete."""

    @property
    def name(self) -> str:
        """What tells it from others."""

    @property
    def trace(self) -> Trace:
        """What was recorded."""

    @property
    def summary(self) -> Summary:
        """The figures of each graph."""


@dataclass(frozen=True, slots=True)
class Row:
    """One graph in one of several profiles.

    Attributes:
        name: The profile, and the graph if the profiles have several.
        executions: How many executions the profile has of it.
        throughput: Executions per second, in the first profile and in this one. In the row of the
            first profile, ``before`` is None.
        latency: Median latency in ns, likewise.
        verdict: What limits the graph, or on what it hangs, in a sentence; "" if that is not known.
    """

    name: str
    executions: int
    throughput: Change
    latency: Change
    verdict: str


class Runs(Sequence[Run], Displayed):
    """Profiles side by side, each against the first; prints as a table, a notebook shows bars.

    ``rcg.profiles()`` returns those that are kept; ``Profile.compare`` makes one of any.

    Args:
        runs: The profiles. They are complete.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = tuple(runs)

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, at: int | str) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> Runs: ...
    @at_users_line
    def __getitem__(self, at: int | str | slice) -> Run | Runs:
        """Return a profile by its number or its name (the newest of that name), or some of them.

        Raises:
            IndexError: There are fewer.
            KeyError: None has the name.
        """
        if isinstance(at, slice):
            return Runs(self._runs[at])
        if isinstance(at, str):
            for run in reversed(self._runs):
                if run.name == at:
                    return run
            known = ", ".join(repr(run.name) for run in self._runs) or "none"
            raise KeyError(f"there is no profile {at!r}; the names are {known}")
        return self._runs[at]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The graphs that did something, of the first profile, each followed by its like.

        A graph is matched with one of the same plan, else with one of the same name, else with the
        one at the same place among those that are left.
        """
        if not self._runs:
            return ()
        each = [_active(run) for run in self._runs]
        of_first: list[list[tuple[GraphTrace, GraphSummary] | None]] = [
            [(graph, figures)] for graph, figures in each[0]
        ]
        for others in each[1:]:
            for row, found in zip(of_first, _matched(each[0], others), strict=True):
                row.append(found)
        has_several = len(of_first) > 1
        return tuple(
            _row(run.name, matched, found[0], with_graph=has_several)
            for found in of_first
            for run, matched in zip(self._runs, found, strict=True)
            if matched is not None
        )

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.runs(self)

    def __repr__(self) -> str:
        return f"<Runs: {', '.join(run.name for run in self._runs) or 'no profile'}>"

    def __str__(self) -> str:
        rows = self.rows
        if not rows:
            return "no profile" if not self._runs else "no graph did anything in the first profile"
        head = ("", "executions", "vs first", "", "latency", "vs first", "")
        cells = [
            (row.name, rate_text(row.throughput.after), *_against(row.throughput),
             time_text(row.latency.after), *_against(row.latency))
            for row in rows
        ]  # fmt: skip
        lines = [Table(head, cells, "nffffff").text(), ""]
        lines += [f"{row.name}: {row.verdict}" for row in rows if row.verdict]
        return "\n".join(lines).rstrip()


class Kept:
    """The newest profiles: up to a number and an amount of memory. Any thread.

    Those beyond are listed as long as others hold them.
    """

    def __init__(self, most: int = MOST_KEPT, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        # Replaced in one step, because profiles are completed by any thread.
        self._held: tuple[Run, ...] = ()
        self._known: tuple[weakref.ref[Run], ...] = ()

    def add(self, run: Run) -> None:
        """Keep a profile that is complete, instead of the oldest if there is no room."""
        held = [run]
        size_bytes = _bytes_of(run)
        for each in reversed(self._held):
            size_bytes += _bytes_of(each)
            if each is run or len(held) == self._most or size_bytes > self._most_bytes:
                break
            held.append(each)
        self._held = tuple(reversed(held))
        alive = [each for each in self._known if each() not in (None, run)]
        self._known = (*alive, weakref.ref(run))

    def reduce(self, most: int) -> None:
        """Let go of all but the newest so many.

        Raises:
            ValueError: It is negative.
        """
        if most < 0:
            raise ValueError(f"`keep` must be 0 or more, found {most}")
        alive = [each for each in self._known if each() is not None]
        self._known = tuple(alive[max(0, len(alive) - most) :])
        self._held = tuple(each for each in self._held if weakref.ref(each) in self._known)

    def runs(self) -> Runs:
        """Return those that are there, the oldest first."""
        return Runs(found for each in self._known if (found := each()) is not None)


def checked_name(name: str) -> str:
    """Return the name that the user gave to a profile; "" for none.

    Raises:
        TypeError: It is no str.
        ValueError: It cannot be printed, or is too long.
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` of a profile must be a str, found a {type(name).__name__}")
    if len(name) > _MOST_LETTERS or not name.isprintable():
        raise ValueError(
            f"`name` of a profile must have at most {_MOST_LETTERS} letters that can be printed, "
            f"found {name!r}"
        )
    return name


def _bytes_of(run: Run) -> int:
    lanes = [lane for graph in run.trace.graphs for lane in graph.lanes]
    return sum(lane.events.nbytes + lane.kernels.nbytes for lane in lanes)


def _active(run: Run) -> list[tuple[GraphTrace, GraphSummary]]:
    found = list(zip(run.trace.graphs, run.summary.graphs, strict=True))
    return [each for each in found if each[0].is_active]


def _matched(
    first: Sequence[tuple[GraphTrace, GraphSummary]],
    others: Sequence[tuple[GraphTrace, GraphSummary]],
) -> list[tuple[GraphTrace, GraphSummary] | None]:
    """Return the graph of another profile that stands for each one of the first, if any does."""
    left = list(others)
    found: list[tuple[GraphTrace, GraphSummary] | None] = [None] * len(first)

    def match(is_like: Iterator[tuple[int, tuple[GraphTrace, GraphSummary]]]) -> None:
        for at, other in is_like:
            if found[at] is None and any(each is other for each in left):
                found[at] = other
                left[:] = [each for each in left if each is not other]

    pairs = [(at, graph, other) for at, (graph, _) in enumerate(first) for other in others]
    match((at, other) for at, graph, other in pairs if other[0].plan == graph.plan)
    match((at, other) for at, graph, other in pairs if graph.name and other[0].name == graph.name)
    match(zip([at for at, each in enumerate(found) if each is None], list(left), strict=False))
    return found


def _row(
    name: str,
    matched: tuple[GraphTrace, GraphSummary],
    first: tuple[GraphTrace, GraphSummary] | None,
    *,
    with_graph: bool,
) -> Row:
    graph, figures = matched
    before = None if first is None or first is matched else first[1]
    throughput, latency = (
        Change(
            text,
            None if before is None else getattr(before, value),
            getattr(figures, value),
            (None if before is None else getattr(before, spread), getattr(figures, spread)),
        )
        for text, value, spread in (
            ("executions", "throughput", "throughput_spread"),
            ("latency", "latency_p50_ns", "latency_spread_ns"),
        )
    )
    verdict = stall_text(figures) if figures.verdict is None else str(figures.verdict)
    shown = f"{name}: {graph.name or graph.graph_id[:8]}" if with_graph else name
    return Row(shown, figures.executions, throughput, latency, verdict)


def _against(change: Change) -> tuple[str, str]:
    """Return the ratio against the first, and whether it is noise."""
    if change.ratio is None:
        return "", ""
    return spread_text(change.ratio, change.spread), change.doubt
