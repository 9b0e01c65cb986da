# SPDX-License-Identifier: Apache-2.0
"""``rcg top``: what the graphs of other processes of this user do now, in a terminal.

It finds and asks their drivers (``rcg.runtime.observe.drivers``). A ``Watch`` keeps what rates and
maxima need between two looks. The text of one look needs nothing; rich draws the live form.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from rcg.runtime.observe.drivers import Driver, find_drivers
from rcg.runtime.observe.live import FIGURES, STUCK_AFTER_S, Meter, Row, Sample
from rcg.runtime.observe.report import Report
from rcg.table import Cell, Table, state_cell
from rcg.text import (
    bytes_text,
    count_text,
    plural,
    rate_text,
    share_text,
    visible,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_NO_RICH: Final = (
    "the live view needs rich: pip install 'rcg[notebook]'; `rcg top --once` needs nothing"
)
_MOST_COMMAND: Final = 60
_ROOMY: Final = 12  # so many actors are in one column
_ROOMY_WIDTH: Final = 80  # characters: there is room for what each does
_COLUMN: Final = 54
_BAR: Final = 10


@dataclass(frozen=True, slots=True)
class Look:
    """A driver, and its graphs as they are now: the report and a sample of each."""

    driver: Driver
    graphs: tuple[tuple[Report, Sample], ...]


class Watch:
    """Looks again and again at the graphs of drivers.

    Args:
        find: Returns the drivers, with their reports.
        stuck_after_s: See ``Meter``.
    """

    def __init__(
        self, find: Callable[[], list[Driver]], stuck_after_s: float = STUCK_AFTER_S
    ) -> None:
        self._find, self._stuck_after_s = find, stuck_after_s
        self._meters: dict[str, Meter] = {}

    def look(self) -> list[Look]:
        """Ask all drivers."""
        return [Look(each, tuple(self._samples(each))) for each in self._find()]

    def _samples(self, driver: Driver) -> Iterator[tuple[Report, Sample]]:
        for graph in driver.graphs:
            new = Meter(self._stuck_after_s)
            meter = self._meters.setdefault(graph.report.graph_id, new)
            yield graph.report, meter.take(graph.at_s, graph.report)


def top(
    pid: int | None, *, is_once: bool, is_json: bool, interval_s: float, stuck_after_s: float
) -> str:
    """Show the graphs of other processes, until Ctrl-C or once.

    Args:
        pid: Only this driver.
        is_once: Print text once, after two looks, between which the rates are.
        is_json: The same as JSON.
        interval_s: The time between two looks.
        stuck_after_s: See ``rcg.runtime.observe.live.Meter``.

    Returns:
        A sentence about what is in the way, or "".
    """
    watch = Watch(lambda: find_drivers(pid), stuck_after_s)
    if is_once or is_json or not sys.stdout.isatty():
        looks = watch.look()
        if any(each.graphs for each in looks):
            time.sleep(interval_s)
            looks = watch.look()
        if is_json:
            print(json.dumps(plain_of(looks), indent=1, allow_nan=False))
        elif looks:
            print(text_of(looks))
        return "" if looks else nothing_found(pid)
    try:
        from rich.live import Live
    except ImportError:
        return _NO_RICH
    try:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(drawing_of(watch.look(), live.console.width, pid), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return ""


def nothing_found(pid: int | None) -> str:
    """Return the sentence that no graph was found."""
    if pid is not None:
        return f"process {pid} has no compiled graph, has ended, or is another user's"
    return "no process of this user on this machine has a compiled graph"


def plain_of(looks: Sequence[Look]) -> list[dict[str, Any]]:
    """Return all of it as data for JSON; None is not known."""
    return [
        {
            "pid": each.driver.pid,
            "command": each.driver.command,
            "trouble": each.driver.trouble,
            "graphs": [
                {"name": report.name, "graph_id": report.graph_id, **_finite(asdict(sample))}
                for report, sample in each.graphs
            ],
        }
        for each in looks
    ]


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    del found["time_s"]
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in found.items()
    }


def text_of(looks: Sequence[Look]) -> str:
    """Return all of it as text."""
    blocks = []
    for each in looks:
        lines = [_driver_text(each.driver), *filter(None, [each.driver.trouble])]
        for report, sample in each.graphs:
            lines += [
                "",
                f"{_title_of(report)}: {status_of(sample)}",
                ", ".join(figures_of(sample)),
            ]
            lines.append(_table(sample.rows).text("  "))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _driver_text(driver: Driver) -> str:
    command = visible(driver.command)
    if len(command) > _MOST_COMMAND:
        command = f"{command[: _MOST_COMMAND - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f"process {driver.pid}: {command}"


def _title_of(report: Report) -> str:
    return visible(report.title)


def status_of(sample: Sample) -> str:
    """Return the state of a graph in a sentence: why it hangs, if it does."""
    if sample.verdict:
        return visible(sample.verdict)
    if sample.state == "running":
        return "running" if sample.in_flight else "ready: nothing in flight"
    return sample.state


def figures_of(sample: Sample) -> list[str]:
    """Return the figures of a graph as texts, each with its maximum so far."""
    texts: dict[str, Callable[[float], str]] = {
        "throughput": rate_text,
        "in_flight": lambda value: f"{count_text(value)} of {count_text(sample.limit)} in flight",
        "queued": lambda value: f"{plural(int(value), 'value')} queued",
        "waiting": lambda value: f"waiting {share_text(value, 0)}",
        "memory": lambda value: f"{bytes_text(value)} of {bytes_text(sample.cap)}",
    }
    found = []
    for name in FIGURES:
        value = getattr(sample, name)
        if isfinite(value):
            now, most = texts[name](value), texts[name](sample.most[name])
            short = most.partition(" of ")[0].removeprefix("waiting ")
            found.append(now if now == most else f"{now} (max {short})")
    return found


def _table(rows: Sequence[Row], *, is_roomy: bool = True) -> Table:
    """Return what each process does; if there is no room, without the last two columns."""
    head = ("process", "state", "busy", "queue", "memory", "doing")
    cells = [
        (
            row.label,
            state_cell(row.state),
            "" if row.busy is None else f"{_bar(row.busy)} {share_text(row.busy, 0):>5}",
            Cell(
                f"{row.queued} of {row.slots}" if row.slots else "",
                "slow" if row.queued >= row.slots else "",
            ),
            Cell(bytes_text(row.memory) if is_roomy else "", "dim"),
            row.doing if is_roomy else "",
        )
        for row in rows
    ]
    return Table(head, cells, "nwfffw")


def _bar(share: float) -> str:
    return ("\N{BLACK RECTANGLE}" * round(min(share, 1.0) * _BAR)).ljust(_BAR)


# --- with rich ------------------------------------------------------------------------------------


def drawing_of(looks: Sequence[Look], width: int, pid: int | None = None) -> RenderableType:
    """Return what rich draws, for a terminal of so many columns."""
    from rich.console import Group
    from rich.text import Text

    if not looks:
        return Text(nothing_found(pid))
    found: list[RenderableType] = []
    for each in looks:
        found.append(Text(_driver_text(each.driver), style="bright_black"))
        if each.driver.trouble:
            found.append(Text(each.driver.trouble, style="bold red"))
        for report, sample in each.graphs:
            style = "bold red" if sample.verdict or sample.is_last else ""
            found += [
                Text.assemble((_title_of(report), "bold"), "  ", (status_of(sample), style)),
                Text("   ".join(figures_of(sample))),
                _actors(sample.rows, width),
            ]
        found.append(Text())
    return Group(*found, Text("Ctrl-C ends this view; the graphs go on", style="bright_black"))


def _actors(rows: Sequence[Row], width: int) -> RenderableType:
    """Return the rows of actors, of many in as many columns as fit, from top to bottom."""
    from rich.table import Table as Grid

    count = 1 if len(rows) <= _ROOMY else max(1, width // _COLUMN)
    height = -(-len(rows) // count)
    is_roomy = count == 1 and width >= _ROOMY_WIDTH
    parts = [rows[first : first + height] for first in range(0, len(rows), height)]
    grid = Grid.grid(padding=(0, 2))
    grid.add_row(*(_table(part, is_roomy=is_roomy).rich() for part in parts))
    return grid
