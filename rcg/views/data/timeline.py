# SPDX-License-Identifier: Apache-2.0
"""The data of a timeline: queue depths, the critical path, and what the widget draws.

A queue depth is the number of frames that were written and not yet read, per reading process. In
every execution a channel is written once, and read once by each reader, in order. So its depth
follows from the last written and the last read execution, even if events between were lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.text import plural, time_text
from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.colours import DEVICE_COLOURS, HIDDEN_OPACITY, KIND_COLOURS, SPAN_COLOUR, TITLES
from rcg.views.data.edge_styles import COLLECTIVE, TCP, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.slices import HIDDEN, SPAN, Ints, Slices, TransferEnds

Numbers = npt.NDArray[Any]

_MAX_PATHS: Final = 400  # executions with a path of their own in the widget
_MAX_STEPS: Final = 1_000_000  # of the path through all executions


def timeline_payload(record: GraphTrace, slices: Slices, paths: Paths | None = None) -> ViewPayload:
    """Return the payload of a timeline; the paths of its record save time.

    In addition to ``Slices.to_payload``, the head has ``subtitle``, ``looks`` (title and colour by
    kind; with an opacity if it is pale, hatched if there is none), ``meeting`` (the style of
    collectives), ``wire`` (that of time on the wire between nodes), ``queues``: for each reading
    lane, the position of its part of the columns ``queue_time`` (microseconds) and ``queue_depth``,
    and ``paths``: the executions whose critical path is in the columns ``path_lane``,
    ``path_start`` and ``path_end`` (microseconds), up to their ``path_until``. The first path, of
    None, is through all executions.
    """
    head, columns = slices.to_payload()
    queues, times, depths = _queues(slices)
    work = [*KIND_COLOURS.items(), *DEVICE_COLOURS.items()]
    colours: dict[int, Any] = {int(kind): colour for kind, colour in work}
    colours[SPAN] = SPAN_COLOUR
    colours[HIDDEN] = colours[TimeKind.COMMUNICATION], HIDDEN_OPACITY
    of = _paths(_Chain(paths or _paths_in(record), record, slices))
    runs = np.concatenate(list(of.values())).T
    head |= {
        "subtitle": _subtitle(record, slices),
        "queues": queues,
        "looks": [{"title": TITLES[kind], "colour": colours.get(kind)} for kind in TITLES],
        "meeting": asdict(style_of(COLLECTIVE)),
        "wire": asdict(style_of(TCP)),
        "paths": list(of),
    }
    more = {
        "queue_time": times,
        "queue_depth": depths,
        "path_lane": runs[0].astype("<u2"),
        "path_start": runs[1] / 1e3,
        "path_end": runs[2] / 1e3,
        "path_until": np.cumsum([len(each) for each in of.values()]).astype("<i4"),
    }
    return ViewPayload(head, {**columns, **more})


def _subtitle(record: GraphTrace, slices: Slices) -> str:
    # At the end of a trace, actors wait to read the input of an execution that was not submitted.
    # So executions with nothing but reads do not count, unless there are no others.
    is_more = ~slices.where("read") & (slices.kind != SPAN)
    executions = slices.execution[is_more if is_more.any() else slice(None)]
    which = "nothing ran"
    if len(executions):
        first, last = f"{executions.min():,}", f"{executions.max():,}"
        which = f"executions {first} to {last}" if first != last else f"execution {first}"
    lost = sum(lane.lost for lane in record.lanes)
    words = [which, f"{time_text(slices.duration_ns)} in all"]
    if slices.is_wire.any():
        words.append("dashed: on the wire between nodes")
    words += slices.clock_words()
    if lost:
        words.append(f"{plural(lost, 'event')} {'was' if lost == 1 else 'were'} lost")
    return f" {DOT} ".join(words)


def _queues(slices: Slices) -> tuple[list[dict[str, int]], Numbers, Numbers]:
    heads, times, depths, first = [], [np.empty(0)], [np.empty(0, np.uint16)], 0
    for lane, queue in queues_of(slices).items():
        heads.append(
            {
                "lane": lane,
                "first": first,
                "count": len(queue.at),
                "most": int(queue.depth.max()),
                "slots": queue.slots,
            }
        )
        times.append(queue.at / 1e3)
        depths.append(queue.depth.astype(np.uint16))
        first += len(queue.at)
    return heads, np.concatenate(times), np.concatenate(depths)


@dataclass(frozen=True, eq=False)
class QueueDepth:
    """The unread frames in all channels that one process reads, over time, and their slots.

    ``at`` has the times of changes, in nanoseconds from the start of the slices; the first is 0.
    """

    at: Ints
    depth: Ints
    slots: int


def queues_of(slices: Slices) -> dict[int, QueueDepth]:
    """Return the queue depth of each lane that reads a used channel."""
    queues: dict[int, QueueDepth] = {}
    changes_of: dict[int, list[tuple[Ints, Ints]]] = {}
    slots: dict[int, int] = {}
    before: dict[int, int] = {}
    for channel, readers in slices.reads.items():
        at_put, put = _times(slices.written.get(channel))
        for reader in readers:
            at_taken, took = _times(slices.taken.get((channel, reader)))
            if not len(put) and not len(took):
                continue
            first_put = int(put.min(initial=took.max(initial=-1) + 1))
            first_taken = int(took.min(initial=first_put))
            slots[reader] = slots.get(reader, 0) + slices.slots[channel]
            before[reader] = before.get(reader, 0) + max(0, first_put - first_taken)
            changes_of.setdefault(reader, []).append((at_put, np.ones(len(at_put), np.int64)))
            changes_of[reader].append((at_taken, -np.ones(len(at_taken), np.int64)))
    for reader, changes in changes_of.items():
        at = np.concatenate([each for each, _ in changes])
        change = np.concatenate([each for _, each in changes])
        # At equal times, a write comes before a read.
        order = np.lexsort((-change, at))
        depth = before[reader] + np.concatenate(([0], np.cumsum(change[order])))
        at = np.concatenate(([0], at[order]))
        queues[reader] = QueueDepth(at, np.clip(depth, 0, slots[reader]), slots[reader])
    return dict(sorted(queues.items()))


def _times(ends: TransferEnds | None) -> tuple[Ints, Ints]:
    """Return when frames were written or taken, and their executions."""
    if ends is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return ends.at, ends.execution


# --- the critical path ---------------------------------------------------------------------------

Runs = Ints
"""The parts of a path in one lane each [number, 3], by time: the lane, and when it begins and ends,
in nanoseconds from the start of the slices."""


def path_of(record: GraphTrace, slices: Slices, execution: int) -> Runs:
    """Return the critical path that ends with an execution, through executions before it."""
    return _Chain(_paths_in(record), record, slices).until(execution)


def _paths_in(record: GraphTrace) -> Paths:
    return Measured(record, 0, 0).paths


def _paths(chain: _Chain) -> dict[int | None, Runs]:
    """Return the path through all executions, and those of the last ones."""
    last = chain.completed[-1:]
    found: dict[int | None, Runs] = {None: chain.until(*last) if last else np.empty((0, 3), int)}
    return found | {each: chain.of(each) for each in chain.completed[-_MAX_PATHS:]}


class _Chain:
    """The paths of executions, and how they follow each other."""

    def __init__(self, paths: Paths, record: GraphTrace, slices: Slices) -> None:
        self._paths = paths
        self._slices = slices
        numbers = {head.process: number for number, head in enumerate(slices.heads)}
        self._numbers = np.array([numbers[lane.process] for lane in record.lanes])
        executions = self._paths.executions
        order = np.argsort(executions.completed_ns, kind="stable")
        order = order[executions.is_timed[order]]
        self._ended = executions.completed_ns[order]
        self.completed: list[int] = executions.index[order].tolist()

    def of(self, execution: int) -> Runs:
        """Return the path of an execution."""
        return self._runs([self._paths.lanes_of(execution)])

    def until(self, execution: int) -> Runs:
        """Return the path of an execution, and those of executions that ended before it began.

        The time between two of them is the driver's.
        """
        found = []  # the latest first
        count = 0
        while len((path := self._paths.lanes_of(execution))[0]):
            found.append(path)
            count += len(path[0])
            begun = int(path[1][-1])
            at = int(np.searchsorted(self._ended, begun, side="right")) - 1
            if at < 0 or begun <= self._slices.start_ns or count > _MAX_STEPS:
                break
            found.append((np.zeros(1, np.int64), self._ended[at : at + 1], np.array([begun])))
            execution = self.completed[at]
        return self._runs(found)

    def _runs(self, steps: Sequence[tuple[Ints, Ints, Ints]]) -> Runs:
        """Return steps by time, in the window, those in one lane that follow each other joined."""
        columns = [np.concatenate(each)[::-1] for each in zip(*steps, strict=True)]
        if not columns:
            return np.empty((0, 3), np.int64)
        origin, length = self._slices.start_ns, self._slices.duration_ns
        lane = self._numbers[columns[0]]
        start, end = (np.clip(each - origin, 0, length) for each in columns[1:])
        lane, start, end = (each[start < end] for each in (lane, start, end))
        is_first = np.append(True, (lane[1:] != lane[:-1]) | (start[1:] != end[:-1]))
        is_last = np.append(is_first[1:], True)
        is_first, is_last = is_first[: len(lane)], is_last[: len(lane)]
        return np.column_stack([lane[is_first], start[is_first], end[is_last]])
