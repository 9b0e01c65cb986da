# SPDX-License-Identifier: Apache-2.0
"""The results of a run as plain data and as JSON. It must not know how they are measured.

>>> figure = Figure("recorder", "recorder, per event", "ns", {"rcg": 41.0}, most=50.0)
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

    The samples are in ascending order.

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
    """The result of one row: times in microseconds by contestant, and why others are absent."""

    name: str
    title: str
    target: Target
    summaries: Mapping[str, SampleSummary]
    absent: Mapping[str, str] = field(default_factory=dict)

    def ratio(self, contestant: str, to: str, quantity: str = "median") -> float | None:
        """Return a contestant's time divided by another one's, or None if one is missing."""
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

    `most` is the target: the values in `bound`, or all if it is empty, may not exceed it.
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
    """The versions, the machine and the settings of a run; its load at the start and the end."""

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
    end_load: float = 0.0

    @property
    def loads(self) -> str:
        """The load at the start and at the end; the latter has the run's own processes, too."""
        return f"load {self.load:.1f} to {self.end_load:.1f}"


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
        """Return the report as JSON, with ratios and verdicts, which `from_json` ignores."""
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
