# SPDX-License-Identifier: Apache-2.0
"""Paints scenes as a file of the Trace Event Format, which ui.perfetto.dev and others show.

```
process  an actor or the driver, with a pid that is made here (real pids of nodes may collide);
         and one of tensors by reference
 thread  a row of a graph's timeline: ops, spans (a thread for each depth), a stream of a device
   bar   one complete event (ph X); its category is its kind of time
  arrow  a link (ph s and f), from bar to bar
 counter the queue of a process: values written and not yet read
```

The rest follows from Perfetto's parser. It stores whole nanoseconds, so times are in microseconds
with three decimals. It drops an event that partly overlaps another one of its thread; bars of a row
never do. An arrow belongs to the event that began last on its thread, and points from the one that
began first: a link between clocks that disagree about that is left out, and counted.

Rows are sorted as arrays and turned into text in pieces, so the whole text is never in memory.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from rcg.progress import progress
from rcg.text import time_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace, LaneTrace, Recording
from rcg.version import __version__
from rcg.views.data.colours import TITLES
from rcg.views.scene import COLLECTIVE, NOBODY, QUEUE, Scene
from rcg.views.scenes.references import references_scene
from rcg.views.scenes.timeline import cut_of

PIECE_ROWS: Final = 1 << 15
"""Number of rows that are turned into text at a time."""

_COMPRESSION: Final = 1
"""Level of gzip. A higher one takes several times as long and saves little."""

_ROW: Final = np.dtype(
    [("time", "<i8"), ("what", "u1"), ("text", "<u4")]
    + [(name, "<i8") for name in ("length", "execution", "bytes")]
)
"""A line of the file: its time, its format, the number of its texts, and up to three numbers."""

# The formats of rows. Rows of one time are in this order.
_BAR, _OUT, _IN, _COUNT = range(4)
_TIME: Final = "%d.%03d"
_FORMATS: Final = {
    _BAR: f'%s{_TIME},"dur":{_TIME},"args":{{%s"execution":%d,"bytes":%d}}}}',
    _OUT: f'%s{_TIME},"id":%d}}',
    _IN: f'%s{_TIME},"id":%d,"bp":"e"}}',
    _COUNT: f'%s{_TIME},"args":{{"values":%d}}}}',
}

Rows = npt.NDArray[np.void]


def to_chrome(trace: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace as Chrome trace JSON, which ui.perfetto.dev opens.

    The file is compressed if its name ends in ``.gz``; Perfetto reads that as well.

    Raises:
        OSError: The file cannot be written.
    """
    sheet = _Sheet(trace)
    with _open(path) as file:
        file.write(sheet.head().encode())
        for piece in sheet.pieces():
            file.write(piece.encode())
        file.write(b"\n]}\n")


@contextlib.contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[BinaryIO | gzip.GzipFile]:
    with open(path, "wb") as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        # Without name and time inside, the same trace gives the same file.
        with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
            yield packed


class _Sheet:
    """All lines of a file as rows of numbers."""

    def __init__(self, trace: Recording) -> None:
        self._trace = trace
        self._names: list[str] = []  # lines that name processes and threads
        self._processes: dict[object, int] = {}
        self._count = 0  # of processes and threads; all numbers differ
        self._heads: list[str] = []
        self._args: list[str] = []
        self._arrows = self._arrows_left_out = 0
        rows: list[Rows] = [np.empty(0, _ROW)]
        for graph in trace.graphs:
            scene = cut_of(Measured.of(trace, graph))
            lanes = {lane.process: lane for lane in graph.lanes}
            threads = [
                "" if row.part == QUEUE else self._thread(graph, lanes[row.process], row.part)
                for row in scene.rows
            ]
            rows += [self._bars(scene, threads), *self._links(scene, threads)]
            is_whole = not any(lane.lost for lane in graph.lanes)
            rows += self._queues(scene, graph, lanes) if is_whole else []
        references = references_scene(trace)
        if references is not None:
            process = self._process(references, "tensors by reference")
            labels = [f"{row.process} {row.part}".rstrip() for row in references.rows]
            threads = [self._named_thread(process, label) for label in labels]
            rows.append(self._bars(references, threads))
        joined = np.concatenate(rows)
        # Of one time: bars before what belongs to them, those that end at once first.
        self._rows = joined[np.lexsort((joined["length"], joined["what"], joined["time"]))]

    # Processes and threads

    def _process(self, key: object, label: str, facts: str = "") -> int:
        if key not in self._processes:
            self._count += 1
            self._processes[key] = number = self._count
            self._name("process_name", number, number, name=label)
            self._name("process_sort_index", number, number, sort_index=number)
            if facts:
                self._name("process_labels", number, number, labels=facts)
        return self._processes[key]

    def _process_of(self, graph: GraphTrace, lane: LaneTrace) -> int:
        """Return the number of a lane's process: the same in all graphs if the pid is known."""
        key = (lane.node, lane.pid) if lane.pid else (graph.graph_id, lane.process)
        facts = [f"pid {lane.pid}"] if lane.pid else []
        facts += [lane.node] if lane.node else []
        error_ns = lane.clock.error_ns
        facts += [f"clock within {time_text(error_ns)}"] if error_ns else []
        return self._process(key, lane.label, ", ".join(facts))

    def _thread(self, graph: GraphTrace, lane: LaneTrace, part: str) -> str:
        name = f"graph {graph.graph_id[:8]}" + (f" ({part})" if part else "")
        return self._named_thread(self._process_of(graph, lane), name)

    def _named_thread(self, process: int, name: str) -> str:
        """Return the fields of a new thread, such as ``"pid":1,"tid":2``."""
        self._count += 1
        self._name("thread_name", process, self._count, name=name)
        self._name("thread_sort_index", process, self._count, sort_index=self._count)
        return f'"pid":{process},"tid":{self._count}'

    def _name(self, what: str, process: int, thread: int, **args: Any) -> None:
        row = {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
        self._names.append(_dumps(row))

    # Rows

    def _bars(self, scene: Scene, threads: list[str]) -> Rows:
        bars = scene.bars
        columns = [getattr(bars, each).astype(np.int64) for each in ("row", "kind", "name", "peer")]
        keys = np.ravel_multi_index(tuple(columns), (1 << 16, 1 << 8, 1 << 16, 1 << 16))
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        number = len(self._heads) + which
        for bar in first.tolist():
            name, process = scene.names[bars.name[bar]], scene.rows[bars.row[bar]].process
            kind, peer = int(bars.kind[bar]), int(bars.peer[bar])
            text = name.text
            args: dict[str, object] = {}
            if peer != NOBODY:
                args["waits for"] = scene.rows[peer].label
            if kind == TimeKind.WAITING:
                text = f"wait: {text}"
            if name.call is not None:
                args["call"] = name.call
            if name.group:
                ranks = scene.groups[name.group].processes
                args |= {"group": name.group, "rank": ranks.index(process)}
            self._heads.append(_beginning("X", TITLES[kind], text, threads[bars.row[bar]]))
            self._args.append(_dumps(args)[1:-1] + ("," if args else ""))
        return _rows(bars.start, _BAR, number, bars.duration, bars.execution, bars.bytes)

    def _links(self, scene: Scene, threads: list[str]) -> list[Rows]:
        """Return an arrow for each link between two bars, from the beginnings of both."""
        bars, links = scene.bars, scene.links
        pairs = np.flatnonzero(links.kind != COLLECTIVE)
        source, target = links.ends[links.first[pairs]], links.ends[links.first[pairs] + 1]
        fits = bars.start[source] <= bars.start[target]
        self._arrows_left_out += int(np.count_nonzero(~fits))
        source, target = source[fits], target[fits]
        number = self._arrows + np.arange(len(source)) + 1
        self._arrows += len(source)
        found = []
        for phase, what, ends in (("s", _OUT, source), ("f", _IN, target)):
            # An arrow is of one channel or group, which its source names.
            keys = bars.row[ends].astype(np.int64) << 16 | bars.name[source]
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            text = len(self._heads) + which
            for at in first.tolist():
                name = scene.names[bars.name[source[at]]]
                thread = threads[bars.row[ends[at]]]
                self._heads.append(_beginning(phase, "value", name.channel or name.text, thread))
                self._args.append("")
            found.append(_rows(bars.start[ends], what, text, number))
        return found

    def _queues(self, scene: Scene, graph: GraphTrace, lanes: dict[str, LaneTrace]) -> list[Rows]:
        found = []
        for steps in scene.steps:
            process = self._process_of(graph, lanes[scene.rows[steps.row].process])
            name = _dumps(f"unread values ({graph.graph_id[:8]})")
            self._heads.append(f'{{"ph":"C","name":{name},"pid":{process},"ts":')
            self._args.append("")
            found.append(_rows(steps.at, _COUNT, len(self._heads) - 1, steps.depth))
        return found

    # Text

    def head(self) -> str:
        """Return the beginning of the file, up to the first row with a time."""
        trace = self._trace
        about = {
            "rcg": __version__,
            "start_ns": trace.start_ns,
            "duration_ns": trace.duration_ns,
            "lost_events": trace.lost,
            "arrows_left_out": self._arrows_left_out,
            **trace.info,
        }
        names = ",\n".join(self._names)
        return f'{{"displayTimeUnit":"ns","otherData":{_dumps(about)},"traceEvents":[\n{names}'

    def pieces(self) -> Iterator[str]:
        """Yield the text of all rows, some thousands at a time."""
        for begin in progress(range(0, len(self._rows), PIECE_ROWS), "writing the trace"):
            rows = self._rows[begin : begin + PIECE_ROWS]
            lines = np.empty(len(rows), object)
            for what in np.unique(rows["what"]).tolist():
                chosen = np.flatnonzero(rows["what"] == what)
                lines[chosen] = self._lines(what, rows[chosen])
            yield ",\n" + ",\n".join(lines)

    def _lines(self, what: int, rows: Rows) -> list[str]:
        texts = rows["text"].tolist()
        columns: list[Any] = [[self._heads[text] for text in texts], *_us(rows["time"])]
        if what == _BAR:
            columns += [*_us(rows["length"]), [self._args[text] for text in texts]]
            columns += [rows["execution"].tolist(), rows["bytes"].tolist()]
        else:
            columns.append(rows["length"].tolist())
        form = _FORMATS[what]
        return [form % values for values in zip(*columns, strict=True)]


def _rows(time: Any, what: int, text: Any, length: Any, execution: Any = 0, size: Any = 0) -> Rows:
    """Return rows. Each argument but the times may be one value for all rows."""
    rows = np.empty(len(time), _ROW)
    given = (time, what, text, length, execution, size)
    for name, values in zip(_ROW.names or (), given, strict=True):
        rows[name] = values
    return rows


def _us(times_ns: Any) -> tuple[list[int], list[int]]:
    """Return whole microseconds and the remaining nanoseconds, because floats are not exact."""
    whole, rest = np.divmod(times_ns, 1000)
    return whole.tolist(), rest.tolist()


def _beginning(phase: str, category: str, name: str, thread: str) -> str:
    return f'{{"ph":"{phase}","cat":"{category}","name":{_dumps(name)},{thread},"ts":'


def _dumps(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
