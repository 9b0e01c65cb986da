# SPDX-License-Identifier: Apache-2.0
"""Puts a measurement into the tables: ``python -m docs.pictures.speed FILE``.

FILE is what ``python -m rcg.bench --json FILE`` wrote. Its rows replace those with the same titles
in the page on performance and in the README, and the sentence above the first table names the
machine.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from rcg.bench.record import RAY_CALL, RAY_GRAPH, RCG, BenchReport, RowResult
from tests import readme

COLUMNS: Final = (RCG, RAY_GRAPH, RAY_CALL)
_MACHINE: Final = re.compile(r"^One run on [^:]*:$", re.MULTILINE)
_PAGES: Final = ("docs/performance.md", "README.md", "docs/index.md")
_CHAIN: Final = "chain of 4"  # of which the README and the start page speak in a sentence


def main(file: str) -> None:
    """Write the figures of a report into the pages that show them."""
    report = BenchReport.from_json(Path(file).read_text(encoding="utf-8"))
    texts = {name: (readme.ROOT / name).read_text(encoding="utf-8") for name in _PAGES}
    old = medians(texts[_PAGES[0]])
    texts = {name: renewed(text, report) for name, text in texts.items()}
    for name, text in texts.items():
        if name != _PAGES[0]:
            for before, now in zip(old, medians(texts[_PAGES[0]]), strict=True):
                text = text.replace(f"{before} µs", f"{now} µs")
        (readme.ROOT / name).write_text(text, encoding="utf-8")


def renewed(text: str, report: BenchReport) -> str:
    """Return a page with the rows of a report, and the sentence about its machine."""
    for row in report.rows:
        if all(name in row.summaries for name in COLUMNS):
            place = re.compile(rf"^\| {re.escape(row.title)} \|.*$", re.MULTILINE)
            text = place.sub(line(row), text)
    h = report.header
    about = f"{h.machine}, {h.cores} cores, load {h.load:.1f} (Ray {h.ray}, Python {h.python}, "
    return _MACHINE.sub(f"One run on {about}{h.rounds} rounds, seed {h.seed}):", text)


def medians(text: str) -> list[str]:
    """Return the medians of the row that sentences speak of."""
    (row,) = re.findall(rf"^\| {_CHAIN} \|.*$", text, re.MULTILINE)
    return re.findall(r"([\d,.]+) \(", row)


def line(row: RowResult) -> str:
    """Return a row of a table."""
    found = [row.summaries[name] for name in COLUMNS]
    cells = [f"{figure(each.median)} ({figure(each.p99)})" for each in found]
    return f"| {' | '.join([row.title, *cells])} |"


def figure(value: float) -> str:
    """Return a time as the tables show it: 2.3, 84, 1,738."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


if __name__ == "__main__":
    main(sys.argv[1])
