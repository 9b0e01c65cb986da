# SPDX-License-Identifier: Apache-2.0
"""Puts measurements into the pages: ``python -m docs.pictures.speed``.

``docs/pictures/measured`` has what this writes, on a machine that does nothing else::

    python -m benchmarks --json docs/pictures/measured/NAME.json --rows ROWS

NAME and ROWS are those that `rows` returns; ``two-nodes`` also needs ``--nodes 2``. What stands in
a page between ``<!-- measured: NAME -->`` and ``<!-- end -->`` is made from them: the text of that
name in `TEXTS`. Each says on which machine it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rcg.bench.record import (
    BY_HAND,
    LIMIT,
    RAW_GLOO,
    RAY_CALL,
    RAY_GRAPH,
    RCG,
    BenchReport,
    RowResult,
)
from rcg.bench.rows import ACROSS

ROOT: Final = Path(__file__).resolve().parents[2]
MEASURED: Final = ROOT / "docs/pictures/measured"
PAGES: Final = ("docs/performance.md", "README.md", "docs/index.md")
_BLOCK: Final = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_CALLS: Final = {"rcg": RCG, "Ray's compiled graph": RAY_GRAPH, "Ray Core call": RAY_CALL}


@dataclass(frozen=True)
class Table:
    """The rows of a table.

    Attributes:
        rows: Their names.
        columns: The contestants, by heading.
        unit: ``µs`` or ``ms``.
        has_p10: Whether the cells have the p10, too.
    """

    rows: tuple[str, ...]
    columns: Mapping[str, str]
    unit: str = "µs"
    has_p10: bool = False

    def text(self, report: BenchReport) -> str:
        """Return the table; a contestant that a row does not have leaves its cell empty."""
        found = {row.name: row for row in report.rows}
        quantities = "p10, median (p99)" if self.has_p10 else "median (p99)"
        lines = [
            [f"{quantities} in {self.unit}", *self.columns],
            ["---"] * (1 + len(self.columns)),
        ]
        lines += [
            [found[name].title, *(self._cell(found[name], each) for each in self.columns.values())]
            for name in self.rows
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def _cell(self, row: RowResult, contestant: str) -> str:
        if contestant not in row.summaries or (contestant == LIMIT and row.name not in _BY_TCP):
            return ""
        each = row.summaries[contestant].scaled(1e-3 if self.unit == "ms" else 1)
        p10 = f"{figure(each.p10)}, " if self.has_p10 else ""
        return f"{p10}{figure(each.median)} ({figure(each.p99)})"


_BY_TCP: Final = {row.name for row in ACROSS if row.limit.wire_bytes}  # their limit is raw TCP
_ONE_NODE: Final = Table(
    (
        *("echo", "chain-2", "chain-4", "scatter-2", "scatter-4", "pipeline-4", "arguments-8"),
        *("asyncio", "numpy-1mb", "numpy-10mb", "numpy-64mb", "numpy-10mb-new"),
        *("numpy-10mb-loan", "numpy-64mb-loan", "numpy-10mb-new-loan", "tensors"),
    ),
    _CALLS,
)
_TENSORS: Final = Table(
    ("tensor-1mib", "tensor-chain-3", "tensor-shm-1mb", "tensor-shm-10mb", "tensor-shm-100mb"),
    _CALLS,
)
_GLOO: Final = Table(
    (
        *("gloo-edge-1kb", "gloo-edge-1mb", "gloo-edge-64mb"),
        *("allreduce-2", "allreduce-3", "allreduce-2-kept", "allreduce-3-kept"),
    ),
    {"rcg": RCG, "raw Gloo": RAW_GLOO},
    has_p10=True,
)
_MODELS: Final = Table(
    ("pipeline", "pipeline-gloo", "tensor-parallel"),
    {"rcg": RCG, "by hand": BY_HAND},
    unit="ms",
    has_p10=True,
)
_TWO_NODES: Final = Table(tuple(row.name for row in ACROSS), {**_CALLS, "raw TCP": LIMIT})
_FRONT: Final = Table(("echo", "chain-4", "numpy-1mb"), _CALLS)


def rows() -> dict[str, str]:
    """Return the rows of each run, by its name."""
    tensors = [name for table in (_TENSORS, _GLOO, _MODELS) for name in table.rows]
    wanted = {
        "one-node": [*_ONE_NODE.rows, "idle", "lifecycle", "recorder"],
        "tensors": [*tensors, "rdt"],
        "two-nodes": _TWO_NODES.rows,
    }
    return {name: ",".join(each) for name, each in wanted.items()}


def figure(value: float) -> str:
    """Return a time as the tables show it: 2.3, 84, 1,738."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


@dataclass(frozen=True)
class Reports:
    """The three runs: calls on one node, tensors on one node, calls on two nodes."""

    one: BenchReport
    tensors: BenchReport
    two: BenchReport

    @classmethod
    def load(cls) -> Reports:
        """Read what is stored."""
        files = (MEASURED / f"{name}.json" for name in rows())
        return cls(*(BenchReport.from_json(file.read_text(encoding="utf-8")) for file in files))

    def median(self, name: str, contestant: str = RCG) -> float:
        """Return the median of a row on one node, in microseconds."""
        row = next(row for row in (*self.one.rows, *self.tensors.rows) if row.name == name)
        return row.summaries[contestant].median

    def value(self, name: str, of: str = RCG) -> float:
        """Return a value of a figure on one node, in its unit."""
        every = (*self.one.figures, *self.tensors.figures)
        found = next(each for each in every if each.name == name)
        return found.values[of]


def machine(report: BenchReport) -> str:
    """Return what a run was measured on, and with what."""
    h = report.header
    return (
        f"{h.machine}, {h.cores} cores, {h.loads} "
        f"(Ray {h.ray}, Python {h.python}, {h.rounds} rounds, {h.started[:10]})"
    )


def _chain(of: Reports) -> str:
    times = [figure(of.median("chain-4", each)) for each in (RCG, RAY_GRAPH, RAY_CALL)]
    return (
        f"A value through four actors and back takes **{times[0]} µs**. Ray's own compiled graph\n"
        f"takes {times[1]} µs, and Ray Core calls take {times[2]} µs"
    )


def _why(of: Reports) -> str:
    """Return why one would not use Ray's own compiled graphs, in a sentence."""
    times = of.median("chain-4", RAY_GRAPH) / of.median("chain-4", RCG)
    return (
        f"**Why not Ray's own compiled graphs?** A chain of four is {times:.0f} times as fast, "
        "results stay yours, a death or a\nhang is an error that names the actor and the line, and "
        "you see where the time goes ([differences](docs/differences.md)).\n"
    )


def _costs(of: Reports) -> str:
    across = next(row for row in of.two.rows if row.name == "echo").summaries
    further = (of.median("chain-4") - of.median("echo")) / 3
    arrays = [figure(of.median(f"numpy-{size}mb")) for size in (1, 10, 64)]
    gloo = [figure(of.median(f"gloo-edge-{size}")) for size in ("1kb", "1mb")]
    small, calls = (of.value("rdt-1kb", each) for each in (RCG, "two calls"))
    ticks = sum(of.value("idle-ticks", each) for each in ("driver", "4 actors"))
    lines = {
        "step": "costs",
        "---": "---",
        "`execute` and `get` through one actor": f"{figure(of.median('echo'))} µs; each further "
        f"actor {figure(further)} µs, the time to wake a process",
        "the same, awaited in asyncio": f"{figure(of.median('asyncio'))} µs",
        "to another node and back": f"{figure(across[RCG].median)} µs, of which a raw TCP "
        f"ping-pong takes {figure(across[LIMIT].median)}",
        "an array of 1, 10 or 64 MB": f"{arrays[0]}, {arrays[1]} or {arrays[2]} µs: the copy into "
        "shared memory; [made there](guide/arrays.md): "
        f"{figure(of.median('numpy-64mb-loan'))} µs at any size",
        "a tensor over Gloo": f"{gloo[0]} µs at 1 KB, {gloo[1]} at 1 MB",
        "a tensor by reference, 1 KB": f"{figure(small / 1e3)} ms, of which two plain calls of Ray "
        f"take {figure(calls / 1e3)}",
        "compiling four actors": f"{figure(of.value('compile'))} ms, if they are idle",
        "recording": f"{figure(of.value('recorder', 'recording'))} ns an event, always",
        "a graph that waits": "no CPU" if not ticks else f"{ticks:.0f} ticks of CPU in 10 s",
    }
    return "".join(f"| {step} | {cost} |\n" for step, cost in lines.items())


def _beside(of: Reports) -> str:
    compiling = [figure(of.value("compile", each)) for each in (RCG, RAY_GRAPH)]
    return (
        f"Compiling a chain of four actors took {compiling[0]} ms (Ray's compiled graph: "
        f"{compiling[1]} ms). `memcpy` of 10 MB took {figure(of.median('numpy-10mb', LIMIT))} µs:\n"
        "the numpy rows without a loan are bound by copies.\n"
    )


def _references(of: Reports) -> str:
    headings = ("rcg", "Ray's RDT", "object store", "raw Gloo", "two calls")
    found = {each.name: each for each in of.tensors.figures}
    lines = [["median in µs", *headings], ["---"] * (1 + len(headings))]
    for name in ("rdt-1kb", "rdt-many", "rdt-100mb"):
        values = found[name].values
        cells = (figure(values[each]) if each in values else "" for each in headings)
        lines.append([found[name].title, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TEXTS: Final[Mapping[str, Callable[[Reports], str]]] = {
    "front": lambda of: f"{_chain(of)}:\n\n{_FRONT.text(of.one)}\nOn {machine(of.one)}.\n",
    "why": _why,
    "sentence": lambda of: f"{_chain(of)} ([all figures](performance.md)).\n",
    "costs": lambda of: f"From the tables below:\n\n{_costs(of)}",
    "one-node": lambda of: (
        f"One run on {machine(of.one)}:\n\n{_ONE_NODE.text(of.one)}\n{_beside(of)}"
    ),
    "two-nodes": lambda of: f"One run on {machine(of.two)}:\n\n{_TWO_NODES.text(of.two)}",
    "tensors": lambda of: f"One run on {machine(of.tensors)}:\n\n{_TENSORS.text(of.tensors)}",
    "gloo": lambda of: _GLOO.text(of.tensors),
    "models": lambda of: _MODELS.text(of.tensors),
    "references": _references,
}


def renewed(text: str, of: Reports) -> str:
    """Return a page with what was measured."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TEXTS[found[2]](of)}\n{found[3]}", text)


def main() -> None:
    """Write what was measured into the pages."""
    of = Reports.load()
    for name in PAGES:
        page = ROOT / name
        page.write_text(renewed(page.read_text(encoding="utf-8"), of), encoding="utf-8")


if __name__ == "__main__":
    main()
