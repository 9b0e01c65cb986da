# SPDX-License-Identifier: Apache-2.0
"""A trace as a pandas DataFrame: one row per event, with names instead of numbers.

Nothing else in rcg loads pandas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from rcg.ir.index import groups_of
from rcg.trace.measured import Measured
from rcg.trace.model import (
    EVENT,
    KERNEL,
    NO_PEER,
    SPAN,
    SPAN_BASE,
    UNKNOWN,
    GraphTrace,
    LaneTrace,
    Recording,
    actor_labels,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = (
    "graph",
    "process",
    "label",
    "op",
    "kind",
    "name",
    "execution",
    "start_ns",
    "end_ns",
    "duration_ns",
    "waited_ns",
    "coded_ns",
    "bytes",
    "peer",
    "group",
    "rank",
    "node",
)
"""The columns, in their order. The first six, ``peer``, ``group`` and ``node`` are categories, the
others integers. ``peer`` is missing if an event did not wait for another process; ``group`` and
``rank``, the rank of the process in it, if it did not exchange tensors over a communicator.
``node`` is the node of the plan that the process is on: ``n0``, the driver's, ``n1``, ..."""


def to_pandas(trace: Recording) -> pd.DataFrame:
    """Return the events of a trace as a DataFrame with ``COLUMNS``, lane by lane.

    Times are nanoseconds from the beginning of the trace. ``op`` is the line of the op in the plan,
    or the name of a user's span or of a device's kernel. ``kind`` is ``call``, ``read``, ``write``,
    ..., ``span``, or ``kernel``. ``waited_ns`` is how long an op waited as in all figures
    (``analysis/events.py``), which may be longer than its recorder saw.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("a DataFrame needs pandas: pip install 'rcg[notebook]'") from error

    lanes = [
        (graph, each)
        for graph in trace.graphs
        for lane in _with_waits(trace, graph)
        for each in _parts(lane)
    ]
    events = np.concatenate([np.empty(0, EVENT), *(lane.events for _, lane in lanes)])
    texts = [_texts(graph, lane) for graph, lane in lanes]
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name in ("graph", "process", "label", "op", "kind", "name", "peer", "group", "node"):
            columns[name] = _category(pd, [text[name] for text in texts])
        elif name == "rank":
            ranks = np.concatenate([np.empty(0, np.int64), *(_ranks(*each) for each in lanes)])
            columns[name] = pd.array(ranks, "Int64")
            columns[name][ranks < 0] = pd.NA
        elif name in ("start_ns", "end_ns"):
            columns[name] = events[name] - trace.start_ns
        elif name == "duration_ns":
            columns[name] = events["end_ns"] - events["start_ns"]
        else:
            columns[name] = events[name]
    return pd.DataFrame(columns)


def _with_waits(trace: Recording, graph: GraphTrace) -> Iterator[LaneTrace]:
    """Yield the lanes of a graph, whose ops wait as long as in all figures."""
    table = Measured.of(trace, graph).table
    for number, lane in enumerate(graph.lanes):
        events, rows = lane.events.copy(), np.arange(len(table))[table.of_lane(number)]
        rows = rows[~table.is_open[rows]]
        events["waited_ns"][table.row[rows]] = table.waited_ns[rows]
        yield replace(lane, events=events)


def _parts(lane: LaneTrace) -> list[LaneTrace]:
    """Return a lane as one with what its process did, and one with what its devices did, if any."""
    if not len(lane.kernels):
        return [lane]
    kernels = lane.kernels.copy()
    kernels["peer"] = NO_PEER
    return [replace(lane, streams=()), replace(lane, events=kernels)]


_Column = tuple[list[str], Any]
"""The different texts of a column in one lane, and the index of each event's text; -1 for none."""


def _texts(graph: GraphTrace, lane: LaneTrace) -> dict[str, _Column]:
    ops = graph.program(lane).ops
    labels = actor_labels(graph.plan)
    numbers = lane.events["op"].astype(np.int64)
    is_span = numbers >= SPAN_BASE
    used, which_span = np.unique(numbers[is_span], return_inverse=True)
    spans = [lane.span_name(op) for op in used.tolist()]
    which = np.minimum(numbers, len(ops))
    which[is_span] = which_span + len(ops) + 1
    peers = lane.events["peer"].astype(np.int64)
    groups = [group.id for group in graph.plan.groups]
    word = KERNEL if lane.streams else SPAN
    same = np.zeros(len(numbers), np.int64)
    return {
        "graph": ([graph.graph_id], same),
        "process": ([lane.process], same),
        "label": ([lane.label], same),
        "node": ([graph.plan.node_of(lane.process)], same),
        "op": ([*(str(op) for op in ops), UNKNOWN, *spans], which),
        "kind": ([*(op.word for op in ops), UNKNOWN, *(word for _ in spans)], which),
        "name": ([*(op.title(labels) for op in ops), UNKNOWN, *spans], which),
        "peer": (
            [other.label for other in graph.lanes],
            np.where(peers < len(graph.lanes), peers, -1),
        ),
        "group": (groups, _groups(graph, lane)),
    }


def _groups(graph: GraphTrace, lane: LaneTrace) -> npt.NDArray[np.int64]:
    """Return the number of the group of each event of a lane; -1 without one."""
    numbers = {group.id: number for number, group in enumerate(graph.plan.groups)}
    found = groups_of(graph.plan, lane.process)
    of_op = np.array([-1 if each is None else numbers[each] for each in found] + [-1])
    of_event: npt.NDArray[np.int64] = of_op[np.minimum(lane.events["op"], len(found))]
    return of_event


def _ranks(graph: GraphTrace, lane: LaneTrace) -> npt.NDArray[np.int64]:
    """Return the rank of a lane's process in the group of each event; -1 without one."""
    ranks = [
        group.members.index(lane.process) if lane.process in group.members else -1
        for group in graph.plan.groups
    ]
    of_event: npt.NDArray[np.int64] = np.array([*ranks, -1])[_groups(graph, lane)]
    return of_event


def _category(pd: Any, columns: list[_Column]) -> Any:
    """Return the column of all lanes as categories. Each text is stored once."""
    numbers: dict[str, int] = {}
    codes = []
    for texts, which in columns:
        found = [numbers.setdefault(text, len(numbers)) for text in texts]
        codes.append(np.array([*found, -1])[which])
    # Texts that do not occur are no categories.
    used, which = np.unique(np.concatenate([[-1], *codes]), return_inverse=True)
    names = list(numbers)
    return pd.Categorical.from_codes(which[1:] - 1, [names[number] for number in used[1:].tolist()])
