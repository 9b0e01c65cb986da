# SPDX-License-Identifier: Apache-2.0
"""The results of a run as text: a table of the rows, one of the figures, and the missed targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rcg.bench.record import (
    CONTESTANTS,
    HERE,
    LIMIT,
    RAY_CALL,
    RAY_GRAPH,
    RCG,
    RCG_FUTEX,
    BenchReport,
    Figure,
    RowResult,
    Verdict,
)

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
    yield f"{h.machine}, {h.cores} cores{nodes}, {h.loads}"
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
