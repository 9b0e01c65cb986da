# SPDX-License-Identifier: Apache-2.0
"""The timeline for the widget: slices, queues, and the texts around them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from rcg.text import plural, time_text
from rcg.trace.model import GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.colours import HATCHED, KIND_COLOURS, SPAN_COLOUR, TITLES
from rcg.views.data.edge_styles import COLLECTIVE, TCP, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.queues import queues_of
from rcg.views.data.slices import SPAN, Slices

Numbers = npt.NDArray[Any]


def timeline_payload(record: GraphTrace, slices: Slices) -> ViewPayload:
    """Return the payload of a timeline.

    In addition to ``Slices.to_payload``, the head has ``subtitle``, ``looks`` (title and colour by
    kind; hatched if there is no colour), ``meeting`` (the style of collectives), ``wire`` (that of
    time on the wire between nodes) and ``queues``: for each reading lane, the position of its part
    of the columns ``queue_time`` (microseconds) and ``queue_depth``.

    Args:
        record: The record of the graph.
        slices: Its slices.
    """
    head, columns = slices.to_payload()
    queues, times, depths = _queues(slices)
    head |= {
        "subtitle": _subtitle(record, slices),
        "queues": queues,
        "looks": _looks(),
        "meeting": asdict(style_of(COLLECTIVE)),
        "wire": asdict(style_of(TCP)),
    }
    return ViewPayload(head, {**columns, "queue_time": times, "queue_depth": depths})


def _subtitle(record: GraphTrace, slices: Slices) -> str:
    executions = _submitted(slices)
    which = "nothing ran"
    if len(executions):
        first, last = f"{executions[0]:,}", f"{executions[-1]:,}"
        which = f"executions {first} to {last}" if first != last else f"execution {first}"
    lost = sum(lane.lost for lane in record.lanes)
    words = [
        which,
        f"{time_text(slices.duration_ns)} in all",
        "a line connects the two ends of a transfer",
    ]
    if slices.is_wire.any():
        words.append("dashed: on the wire between nodes")
    error_ns = max((head.error_ns for head in slices.heads if head.node), default=0)
    if error_ns:
        words.append(f"clocks of nodes to within {time_text(error_ns)}")
    if lost:
        words.append(f"{plural(lost, 'event')} {'was' if lost == 1 else 'were'} lost")
    return f" {DOT} ".join(words)


def _looks() -> list[dict[str, str | None]]:
    colours = {int(kind): colour for kind, colour in KIND_COLOURS.items()} | {SPAN: SPAN_COLOUR}
    return [
        {"title": title, "colour": None if kind in HATCHED else colours[kind]}
        for kind, title in TITLES.items()
    ]


def _submitted(slices: Slices) -> Numbers:
    """Return the executions that are shown, ascending.

    At the end of a trace, actors wait to read the input of an execution that was not submitted. So
    executions with nothing but reads do not count, unless there are no others.
    """
    is_more = ~slices.where("read") & (slices.kind != SPAN)
    return np.unique(slices.execution[is_more if is_more.any() else slice(None)])


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
