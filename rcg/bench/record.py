# SPDX-License-Identifier: Apache-2.0
"""The results of a run as plain data, as JSON and as text. It must not know how they are measured.

A report reads back equal to what was written:

>>> figure = Figure("recorder", "recorder, per event", "ns", {"rcg": 41.0}, most=50.0)
>>> header = Header("0.1.0", "2.60.0", "3.11.7", "a machine", cores=2, seed=1, started="today")
>>> report = BenchReport(header, (), (figure,))
>>> BenchReport.from_json(report.to_json()) == report
True
>>> [str(verdict) for verdict in figure.verdicts]
['recorder, per event: 41 <= 50']
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rcg.bench.rows import Target

SCHEMA = 1

RCG = "rcg"
RCG_FUTEX = "rcg futex"
RAY_CALL = "Ray call"
RAY_GRAPH = "Ray graph"
RAW_GLOO = "raw Gloo"
BY_HAND = "by hand"  # a loop on torch.distributed
LIMIT = "limit"
HERE = "rcg here"  # this version and another one, each in a separate process
BESIDE = "rcg beside"
CONTESTANTS = (RCG, RCG_FUTEX, RAY_CALL, RAY_GRAPH, HERE, BESIDE, RAW_GLOO, BY_HAND, LIMIT)
MAX_TO_BESIDE = 1.05  # the largest ratio of this version's median to the other version's


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed (nearest rank).

    Args:
        ordered: The samples, ascending, at least one.
        share: Between 0 and 1.

    Raises:
        ValueError: There is no sample, or `share` is outside [0, 1].

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0, 3.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    if not ordered:
        raise ValueError("a percentile needs at least one sample")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be between 0 and 1, found {share}")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def medians(samples: Mapping[str, Iterable[float]], factor: float = 1.0) -> dict[str, float]:
    """Return the median of the samples of each contestant, in a unit that differs by a factor."""
    return {name: median(found) * factor for name, found in samples.items()}


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """The samples of one contestant on one row, in the unit of the row."""

    samples: int
    p10: float
    median: float
    p99: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> SampleSummary:
        """Return the summary of samples in any order.

        Raises:
            ValueError: There is no sample.
        """
        ordered = sorted(samples)
        p10, p99 = percentile(ordered, 0.10), percentile(ordered, 0.99)
        return cls(len(ordered), p10, median(ordered), p99)

    def scaled(self, factor: float) -> SampleSummary:
        """Return the same summary in another unit."""
        return SampleSummary(
            self.samples, self.p10 * factor, self.median * factor, self.p99 * factor
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the measured value."""

    what: str
    found: float
    most: float

    @property
    def is_met(self) -> bool:
        """Whether the measured value meets the target."""
        return self.found <= self.most

    def __str__(self) -> str:
        relation = "<=" if self.is_met else ">"
        return f"{self.what}: {self.found:.3g} {relation} {self.most:.3g}"


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row.

    Attributes:
        name: The row's name.
        title: The row's title.
        target: The targets of rcg.
        summaries: Times in microseconds, by contestant.
        absent: Why other contestants are missing, by contestant.
    """

    name: str
    title: str
    target: Target
    summaries: Mapping[str, SampleSummary]
    absent: Mapping[str, str] = field(default_factory=dict)

    def ratio(self, contestant: str, to: str, quantity: str = "median") -> float | None:
        """Return a contestant's time divided by another one's, or None if one is missing.

        Args:
            contestant: The contestant of the dividend.
            to: The contestant of the divisor.
            quantity: `median`, `p99` or `p10`.
        """
        if contestant not in self.summaries or to not in self.summaries:
            return None
        dividend, divisor = (getattr(self.summaries[each], quantity) for each in (contestant, to))
        return dividend / divisor if divisor else None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the row's targets whose contestants both ran."""
        asked = (
            ("median", RCG, RAY_GRAPH, "median", self.target.auto),
            ("futex median", RCG_FUTEX, RAY_GRAPH, "median", self.target.futex),
            ("p99", RCG, RAY_GRAPH, "p99", self.target.p99),
            ("to raw Gloo", RCG, RAW_GLOO, "median", self.target.raw),
            ("to a loop by hand", RCG, BY_HAND, "median", self.target.hand),
            ("to the limit", RCG, LIMIT, "median", self.target.limit),
            ("here to beside", HERE, BESIDE, "median", MAX_TO_BESIDE),
        )
        found = []
        if self.target.us is not None and RCG in self.summaries:
            found.append(Verdict("microseconds", self.summaries[RCG].median, self.target.us))
        for what, contestant, to, quantity, most in asked:
            ratio = self.ratio(contestant, to, quantity)
            if most is not None and ratio is not None:
                found.append(Verdict(what, ratio, most))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement without contestants: a few named values in one unit.

    Attributes:
        name: The name for `--rows`.
        title: The displayed title.
        unit: The unit of all values.
        values: The values, by name.
        most: The target: the values in `bound` may not exceed it.
        bound: The names of the values with the target; empty means all.
    """

    name: str
    title: str
    unit: str
    values: Mapping[str, float]
    most: float | None = None
    bound: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on the largest of the bound values; empty without a target."""
        values = [v for k, v in self.values.items() if not self.bound or k in self.bound]
        if self.most is None or not values:
            return ()
        return (Verdict(self.title, max(values), self.most),)


@dataclass(frozen=True, slots=True)
class Header:
    """The versions, the machine and the settings of a run."""

    rcg: str
    ray: str
    python: str
    machine: str
    cores: int
    seed: int
    started: str
    rounds: int = 0
    seconds: float = 0.0
    load: float = 0.0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a run."""

    header: Header
    rows: tuple[RowResult, ...]
    figures: tuple[Figure, ...]

    @property
    def entries(self) -> tuple[RowResult | Figure, ...]:
        """The rows, then the figures."""
        return (*self.rows, *self.figures)

    @property
    def missed(self) -> tuple[tuple[str, Verdict], ...]:
        """The targets that were missed, each with the title of its row or figure."""
        return tuple(
            (entry.title, verdict)
            for entry in self.entries
            for verdict in entry.verdicts
            if not verdict.is_met
        )

    def to_json(self) -> str:
        """Return the report as JSON, which `from_json` reads back to an equal report.

        The JSON also has ratios and verdicts, for readers other than Python. `from_json` ignores
        them.
        """
        rows = [
            asdict(row)
            | {
                "ratios": {
                    to: {quantity: row.ratio(RCG, to, quantity) for quantity in ("median", "p99")}
                    for to in CONTESTANTS
                    if to != RCG and to in row.summaries
                },
                "verdicts": _verdicts(row),
            }
            for row in self.rows
        ]
        figures = [asdict(figure) | {"verdicts": _verdicts(figure)} for figure in self.figures]
        whole = {"schema": SCHEMA, "unit": "us", "header": asdict(self.header)}
        return json.dumps(whole | {"rows": rows, "figures": figures}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: The text is not a report of this schema.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"this is no report of schema {SCHEMA}")
        return cls(
            header=Header(**data["header"]),
            rows=tuple(_row(entry) for entry in data["rows"]),
            figures=tuple(_figure(entry) for entry in data["figures"]),
        )

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(self.to_json(), encoding="utf-8")


def _verdicts(entry: RowResult | Figure) -> list[dict[str, Any]]:
    return [asdict(verdict) | {"met": verdict.is_met} for verdict in entry.verdicts]


def _row(entry: Mapping[str, Any]) -> RowResult:
    summaries = {name: SampleSummary(**each) for name, each in entry["summaries"].items()}
    target = Target(**entry["target"])
    return RowResult(entry["name"], entry["title"], target, summaries, dict(entry["absent"]))


def _figure(entry: Mapping[str, Any]) -> Figure:
    fields = {name: entry[name] for name in ("name", "title", "unit", "values", "most")}
    return Figure(**fields, bound=tuple(entry["bound"]))


# --- as text ------------------------------------------------------------------------------------

COLUMNS = (
    "",
    "p10",
    "median",
    "p99",
    "samples",
    "to Ray call",
    "to Ray graph",
    "to limit",
    "verdict",
)


def render(report: BenchReport) -> str:
    """Return the whole report as text that ends with a newline."""
    lines = [*_header(report), ""]
    if report.rows:
        lines += [*_align([COLUMNS, *_race(report.rows)]), ""]
    if report.figures:
        lines += [*_align(list(_figures(report.figures))), ""]
    lines += _closing(report)
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a number with about three digits.

    >>> [number(v) for v in (0.1234, 1.876, 26.64, 183.4, 8426.0, 0)]
    ['0.123', '1.88', '26.6', '183', '8426', '0']
    """
    if value == 0:
        return "0"
    places = sum(abs(value) < limit for limit in (100, 10, 1))
    return f"{value:.{places}f}"


def _header(report: BenchReport) -> Iterable[str]:
    h = report.header
    yield f"rcg {h.rcg}, Ray {h.ray}, Python {h.python}"
    nodes = "" if h.nodes == 1 else f", {h.nodes} Ray nodes"
    yield f"{h.machine}, {h.cores} cores{nodes}, load {h.load:.1f}"
    yield (
        f"{h.started}, seed {h.seed}, {h.rounds} rounds, {h.seconds:.0f} s. "
        "Times in microseconds; ratios are of medians (p99 beside it)."
    )


def _race(rows: Sequence[RowResult]) -> Iterable[Sequence[str]]:
    for row in rows:
        yield (row.title, *[""] * (len(COLUMNS) - 1))
        for contestant in CONTESTANTS:
            if contestant in row.summaries:
                yield _contestant(row, contestant)
            elif contestant in row.absent:
                yield (f"  {contestant}", "-", "-", "-", "-", "", "", "", row.absent[contestant])


def _contestant(row: RowResult, contestant: str) -> Sequence[str]:
    summary = row.summaries[contestant]
    return (
        f"  {contestant}",
        number(summary.p10),
        number(summary.median),
        number(summary.p99),
        str(summary.samples),
        _ratios(row, contestant, RAY_CALL),
        _ratios(row, contestant, RAY_GRAPH),
        _ratios(row, contestant, LIMIT),
        "; ".join(_judge(v) for v in row.verdicts if _whose(v) == contestant),
    )


def _ratios(row: RowResult, contestant: str, to: str) -> str:
    if contestant in (to, LIMIT):
        return ""
    shares = [row.ratio(contestant, to, quantity) for quantity in ("median", "p99")]
    return " ".join(number(share) for share in shares if share is not None)


def _whose(verdict: Verdict) -> str:
    if verdict.what.startswith("here"):
        return HERE
    return RCG_FUTEX if verdict.what.startswith("futex") else RCG


def _judge(verdict: Verdict) -> str:
    return f"{'ok' if verdict.is_met else 'MISSED'} {verdict}"


def _figures(figures: Sequence[Figure]) -> Iterable[Sequence[str]]:
    for figure in figures:
        values = ", ".join(f"{name} {number(value)}" for name, value in figure.values.items())
        judged = (
            f"ok {number(v.found)} <= {number(v.most)}"
            if v.is_met
            else f"MISSED {number(v.found)} > {number(v.most)}"
            for v in figure.verdicts
        )
        yield (figure.title, f"{values} {figure.unit}", "; ".join(judged))


def _align(cells: Sequence[Sequence[str]]) -> Iterable[str]:
    """Align columns: the first and the last to the left, numbers to the right."""
    last = max(len(line) for line in cells) - 1
    widths = [0] * (last + 1)
    for line in cells:
        for i, cell in enumerate(line):
            # A title may extend over the empty columns beside it.
            if i < last and not (i == 0 and not any(line[1:])):
                widths[i] = max(widths[i], len(cell))
    for line in cells:
        padded = [
            cell.ljust(width) if i in (0, last) or last < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()


def _closing(report: BenchReport) -> Iterable[str]:
    judged = sum(len(entry.verdicts) for entry in report.entries)
    if not judged:
        yield "This run has no targets to check."
        return
    missed = report.missed
    yield f"{judged - len(missed)} of {judged} targets met."
    for title, verdict in missed:
        prefix = "" if title == verdict.what else f"{title}, "
        yield f"  missed: {prefix}{verdict}"
