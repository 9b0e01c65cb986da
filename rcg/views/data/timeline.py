# SPDX-License-Identifier: Apache-2.0
"""The data of a timeline: queue depths, and what the widget draws.

A queue depth is the number of frames that were written and not yet read, per reading process. In
every execution a channel is written once, and read once by each reader, in order. So its depth
follows from the last written and the last read execution, even if events between were lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcg.text import plural, time_text
from rcg.trace.model import GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.colours import KIND_COLOURS, SPAN_COLOUR, TITLES
from rcg.views.data.edge_styles import COLLECTIVE, TCP, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.slices import SPAN, Ints, Slices, TransferEnds

Numbers = npt.NDArray[Any]


def timeline_payload(record: GraphTrace, slices: Slices) -> ViewPayload:
    """Return the payload of a timeline.

    In addition to ``Slices.to_payload``, the head has ``subtitle``, ``looks`` (title and colour by
    kind; hatched if there is no colour), ``meeting`` (the style of collectives), ``wire`` (that of
    time on the wire between nodes) and ``queues``: for each reading lane, the position of its part
    of the columns ``queue_time`` (microseconds) and ``queue_depth``.
    """
    head, columns = slices.to_payload()
    queues, times, depths = _queues(slices)
    colours = {int(kind): colour for kind, colour in KIND_COLOURS.items()}  # others are hatched
    colours[SPAN] = SPAN_COLOUR
    head |= {
        "subtitle": _subtitle(record, slices),
        "queues": queues,
        "looks": [{"title": TITLES[kind], "colour": colours.get(kind)} for kind in TITLES],
        "meeting": asdict(style_of(COLLECTIVE)),
        "wire": asdict(style_of(TCP)),
    }
    return ViewPayload(head, {**columns, "queue_time": times, "queue_depth": depths})


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
    words = [
        which,
        f"{time_text(slices.duration_ns)} in all",
        "a line connects the two ends of a transfer",
    ]
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
    """The queue depth of one process over time.

    Attributes:
        at: Times of changes, in nanoseconds from the start of the slices. The first is 0.
        depth: Number of unread frames from then on, in all channels that it reads.
        slots: Number of slots in these channels.
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
