# SPDX-License-Identifier: Apache-2.0
"""What every process did when: ``timeline.js`` draws the marks of ``rcg.views.marks``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.trace.trace import GraphTrace
from rcg.views.marks import COLUMNS, SPAN, Marks, marks_of
from rcg.views.palette import KIND_COLOURS, TITLES
from rcg.views.text import visible
from rcg.views.units import time_text
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import timelines
from rcg_widgets.subject import recorded

__all__ = ["TimelineWidget"]

_NO_OP: Final = (1 << 16) - 1
_SPAN_COLOUR: Final = "#9b6fb8"
_HATCHED: Final = ("waiting", "idle")

Numbers = npt.NDArray[Any]


class TimelineWidget(View):
    """A timeline of what the processes of one graph did, to look into.

    Drag to zoom, wheel to zoom (after a click, or with Ctrl), Shift and drag to pan, double click
    to see all. Click a bar to see what it is and, of a transfer, both its ends. All of it works
    from the keyboard as well.

    Args:
        trace: A trace, one graph of one, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        title: What stands above it.

    Raises:
        TypeError: There is no trace in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
    """

    _esm = script("common", "lanes", "timeline")

    def __init__(
        self, trace: Any, *, graph: int | str | None = None, title: str = "Timeline"
    ) -> None:
        subject, record = recorded(trace, graph)
        marks = marks_of(record, subject.start_ns, subject.end_ns)
        about = f"{len(record.lanes)} processes, {len(marks):,} bars"
        super().__init__(about, timelines(subject), payload=_payload(record, marks), title=title)


def _payload(record: GraphTrace, marks: Marks) -> bytes:
    head, buffers = marks.to_payload()
    columns: dict[str, Numbers] = {
        name: np.frombuffer(buffer, dtype)
        for (name, dtype), buffer in zip(COLUMNS, buffers, strict=True)
    }
    columns["op"] = ops_of(record, marks)
    queues, columns["queue_time"], columns["queue_depth"] = _queues(marks)
    executions = _submitted(marks)
    which = ""
    if len(executions):
        first, last = f"{executions[0]:,}", f"{executions[-1]:,}"
        which = f"executions {first} to {last}" if first != last else f"execution {first}"
    lost = sum(lane.lost for lane in record.lanes)
    subtitle = [
        which or "nothing ran",
        f"{time_text(marks.duration_ns)} in all",
        "each transfer joins its two ends",
        f"{lost:,} events were lost" if lost else "",
    ]
    head["subtitle"] = " \N{MIDDLE DOT} ".join(filter(None, subtitle))
    head["queues"] = queues
    colours = {int(kind): colour for kind, colour in KIND_COLOURS.items()}
    head["looks"] = [
        {
            "title": title,
            "colour": None if title in _HATCHED else colours.get(kind, _SPAN_COLOUR),
        }
        for kind, title in TITLES.items()
    ]
    return pack(head, columns)


def _submitted(marks: Marks) -> Numbers:
    """Which executions are shown, ascending.

    At the end actors wait to read the input of an execution that nobody submitted: what was only
    read does not count, unless nothing else was seen.
    """
    is_more = ~marks.where("read") & (marks.kind != SPAN)
    return np.unique(marks.execution[is_more if is_more.any() else slice(None)])


def ops_of(record: GraphTrace, marks: Marks) -> npt.NDArray[np.uint16]:
    """Return for each bar the index of its op in the program of its process."""
    found = np.full(len(marks), _NO_OP, np.uint16)
    for number, lane in enumerate(record.lanes):
        here = np.flatnonzero((marks.lane == number) & (marks.track == 0))
        ops = record.program(lane).ops
        by_name: dict[int, list[int]] = {}
        numbers = {(name.role, name.text): at for at, name in enumerate(marks.names)}
        for op, each in enumerate(ops):
            name = numbers.get((each.word, visible(each.title())))
            if name is not None:
                by_name.setdefault(name, []).append(op)
        for name, candidates in by_name.items():
            rows = here[marks.name[here] == name]
            if len(candidates) == 1:
                found[rows] = candidates[0]
            else:
                # A method that is called more than once per execution: by which event it lies in.
                events = lane.events[np.isin(lane.events["op"], candidates)]
                if len(events):
                    starts = marks.start[rows] + marks.start_ns
                    at = np.searchsorted(events["start_ns"], starts, "right") - 1
                    found[rows] = events["op"][np.maximum(at, 0)]
    return found


def _queues(marks: Marks) -> tuple[list[dict[str, int]], Numbers, Numbers]:
    """How many frames wait for each lane over time: written for it, not yet taken by it."""
    target = marks.links[:, 1]
    written, taken = marks.moments[:, 0], marks.moments[:, 1]
    heads, times, depths, first = [], [np.empty(0)], [np.empty(0, np.uint16)], 0
    for lane in range(len(marks.heads)):
        mine = marks.lane[target] == lane
        count = int(mine.sum())
        when = np.concatenate([written[mine], taken[mine]])
        change = np.repeat([1, -1], count)
        order = np.lexsort((-change, when))
        depth = np.cumsum(change[order])
        slots = sum(
            marks.slots[channel] for channel, readers in marks.reads.items() if lane in readers
        )
        heads.append(
            {
                "lane": lane,
                "first": first,
                "count": 2 * count,
                "most": int(depth.max(initial=0)),
                "slots": slots,
            }
        )
        times.append(when[order] / 1e3)
        depths.append(depth.astype(np.uint16))
        first += 2 * count
    return heads, np.concatenate(times), np.concatenate(depths)
