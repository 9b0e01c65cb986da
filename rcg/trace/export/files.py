# SPDX-License-Identifier: Apache-2.0
"""Traces as files: a zip with one JSON text and one NumPy array per lane. No pickle.

```
trace.json        format, times, info, and for each graph its plan and the heads of its lanes
0/driver.npy      events of the driver of the first graph
0/a0.npy          ...
```

A file may come from an untrusted source. The sizes that it claims are compared with its own before
memory is allocated. Everything is checked before a trace is made: types and ranges, that
events refer to existing ops, spans and lanes, and that the plan could run. So a loaded trace can be
analysed and displayed like a recorded one. Any other file raises a ``TraceError``.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from dataclasses import asdict
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

import rcg.checked as checked
from rcg.compiler.simulate import check_deadlock_free
from rcg.errors import DeadlockError, InternalError, TraceError
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.text import visible
from rcg.trace.model import (
    EVENT,
    NO_PEER,
    SPAN_BASE,
    Clock,
    Events,
    GraphTrace,
    LaneTrace,
    Mark,
    OpenOp,
    Recording,
    TensorTransfer,
)

_ALWAYS_ALLOWED_BYTES: Final = 64 << 20
"""This much may be read from any file, however small it is."""

_MAX_RATIO: Final = 50
"""The content may be this many times larger than the file. Events compress less than this, because
their times differ."""

_MAX_MEMBERS: Final = 100_000
_PIECE_BYTES: Final = 1 << 20

_ARRAY: Final = re.compile(
    rb"\{'descr': (\[.{1,2000}\]), 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_LAYOUT: Final = repr(np.lib.format.dtype_to_descr(EVENT)).encode()
_MAGIC: Final = b"\x93NUMPY\x01\x00"


class Archive:
    """The members of a zip file, which together return no more than its size justifies."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise ValueError(f"the file has {len(infos):,} members")
        self._archive = archive
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) != len(infos):
            raise ValueError("two of its members have the same name")
        # Limited by the size of the file, not by what the members claim: members may overlap.
        self._left = max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * size)

    def open(self, name: str, most: int | None = None) -> tuple[Any, int]:
        """Return a member as a file, and the size in bytes that it claims.

        Raises:
            ValueError: It is missing, encrypted, compressed in another way, or too large.
        """
        info = self._infos.get(name)
        if info is None:
            raise ValueError(f"{name} is missing")
        if info.flag_bits & 1 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ValueError(f"{name} is encrypted, or compressed in another way")
        left = self._left if most is None else min(self._left, most)
        if info.file_size > left:
            raise ValueError(
                f"{name} claims {info.file_size:,} bytes, more than a file of this size holds"
            )
        self._left -= info.file_size
        return self._archive.open(info), info.file_size

    def text(self, name: str, most: int) -> bytes:
        """Return the bytes of a member."""
        file, size = self.open(name, most)
        with file:
            stored = bytearray(size)
            _fill(file, memoryview(stored), name)
        return bytes(stored)

    def events(self, name: str, process: str) -> Events:
        """Return the events in a member."""
        file, size = self.open(name)
        with file:
            start = file.read(len(_MAGIC) + 2)
            length = int.from_bytes(start[len(_MAGIC) :], "little")
            if not start.startswith(_MAGIC) or length > 4096:
                raise ValueError(f"{name} is not an array in NumPy's format 1.0")
            head = _ARRAY.fullmatch(file.read(length))
            if head is None or head[1] != _LAYOUT:
                raise ValueError(f"the events of {process} have another layout")
            count = int(head[2])
            holds = size - len(start) - length
            if count * EVENT.itemsize != holds:
                raise ValueError(f"{name} claims {count:,} events and holds {holds:,} bytes")
            events = np.empty(count, EVENT)
            _fill(file, memoryview(events.view(np.uint8).data) if count else memoryview(b""), name)
        return events


def _fill(file: BinaryIO, room: memoryview, name: str) -> None:
    """Fill memory from a member. Reading to the end also makes zipfile check the checksum."""
    at = 0
    while at < len(room):
        piece = file.read(min(_PIECE_BYTES, len(room) - at))
        if not piece:
            raise ValueError(f"{name} is shorter than it says")
        room[at : at + len(piece)] = piece
        at += len(piece)
    if file.read(1):
        raise ValueError(f"{name} is longer than it says")


MAX_PROCESSES: Final = 1_000

MAX_NS: Final = 1 << 60
"""The largest time before or after zero: 36 years. The difference of two times fits 64 bits."""

MAX_COUNT: Final = 1 << 53
"""The most executions and lost events: integers up to here are exact as doubles."""

_MAX_SUM: Final = 1 << 62
"""The most that the figures of a graph's events may add up to."""

_MAX_OPS: Final = 60_000  # of a process


def check_plan(plan: Plan) -> None:
    """Check that the compiler could have made a plan.

    Raises:
        ValueError, InternalError, DeadlockError: The plan is refused.
    """
    if len(plan.programs) > MAX_PROCESSES:
        raise ValueError(f"the plan has {len(plan.programs):,} processes")
    for program in plan.programs:
        if len(program.ops) > _MAX_OPS:
            raise ValueError(f"{program.process} has {len(program.ops):,} ops")
    plan.check()
    lanes = {lane.id for lane in plan.lanes}  # they send on what they read
    for program in plan.programs:
        if program.process in lanes:
            continue
        made = {
            slot
            for op in program.ops
            if not op.values_in and not op.is_holding
            for slot in op.made()
        }
        for op in program.ops:
            if op.values_out and not made.issuperset(op.used()):
                raise ValueError(f"{program.process} writes a value that it does not have: {op}")
    check_deadlock_free(plan)


def check_events(lane: LaneTrace, program: Program) -> None:
    """Check each event of a lane on its own."""
    op = lane.events["op"]
    is_known = np.where(op < SPAN_BASE, op < len(program.ops), op - SPAN_BASE < len(lane.spans))
    _check_rows(lane.events, lane.process, is_known)
    kernels = lane.kernels
    is_known = (kernels["op"] >= SPAN_BASE) & (kernels["op"] - SPAN_BASE < len(lane.spans))
    is_known &= kernels["peer"] < len(lane.streams)
    _check_rows(kernels, f"a device of {lane.process}", is_known)


def _check_rows(events: Events, whose: str, is_known: npt.NDArray[np.bool_]) -> None:
    if not len(events):
        return
    start, end = events["start_ns"], events["end_ns"]
    rules = {
        "is of an op or a span that is not there": is_known,
        "has times that no clock shows": (start >= -MAX_NS) & (end <= MAX_NS),
        "ends before it begins": start <= end,
        "waited, encoded or moved less than nothing": (events["waited_ns"] >= 0)
        & (events["coded_ns"] >= 0)
        & (events["bytes"] >= 0),
        "is of an execution that cannot be": (events["execution"] >= 0)
        & (events["execution"] <= MAX_COUNT),
    }
    for what, holds in rules.items():
        if not holds.all():
            raise ValueError(f"event {int(np.argmin(holds)):,} of {whose} {what}")


def check_peers(lane: LaneTrace, count: int) -> None:
    """Check that events waited for existing processes."""
    peers = [lane.events["peer"]]
    peers += [] if lane.open is None else [np.array([lane.open.peer])]
    for each in peers:
        if not ((each < count) | (each == NO_PEER)).all():
            raise ValueError(f"an event of {lane.process} waited for a process that is not there")


def check_sums(lanes: tuple[LaneTrace, ...]) -> None:
    """Check that the figures of all events can be added in 64 bits."""
    events = [each for lane in lanes for each in (lane.events, lane.kernels)]
    columns = {name: [each[name] for each in events] for name in ("waited_ns", "coded_ns", "bytes")}
    columns["durations"] = [each["end_ns"] - each["start_ns"] for each in events]
    for name, found in columns.items():
        if sum(float(each.astype(np.float64).sum()) for each in found) > _MAX_SUM:
            raise ValueError(f"the {name} of all events add up to more than 64 bits hold")


_FORMAT: Final = 1
_HEAD: Final = "trace.json"

# The exceptions that reading a damaged file raises.
_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    RuntimeError,
    OSError,
    EOFError,
    ArithmeticError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    InternalError,
    DeadlockError,
)
_MAX_REASON_CHARS: Final = 300

_MAX_HEAD_BYTES: Final = 32 << 20
_MAX_GRAPHS: Final = 1_000
_MAX_SPANS: Final = 10_000
_MAX_INFLIGHT: Final = 1 << 31
_MAX_TIME_S: Final = 1 << 36  # since 1970
_MAX_DEPTH: Final = 8
_GRAPH_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{0,128}", re.ASCII)


# --- writing ------------------------------------------------------------------------------------


def write(trace: Recording, path: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a trace to a file, by its path or open, that ``read`` can read.

    Raises:
        OSError: The file cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_HEAD, json.dumps(_head(trace)))
        for number, graph in enumerate(trace.graphs):
            for lane in graph.lanes:
                members = {_name(number, lane.process): lane.events}
                if lane.streams:
                    members[_kernels_name(number, lane.process)] = lane.kernels
                for name, events in members.items():
                    with archive.open(name, "w") as file:
                        np.lib.format.write_array(file, events, (1, 0), allow_pickle=False)


def _head(trace: Recording) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "info": trace.info,
        "graphs": [
            {
                "graph_id": graph.graph_id,
                "plan": graph.plan.to_json(),
                "limit": graph.limit,
                "name": graph.name,
                "state": graph.state,
                **({"marks": dict(graph.marks)} if graph.marks else {}),
                "lanes": [_lane_head(lane) for lane in graph.lanes],
            }
            for graph in trace.graphs
        ],
        **({"transfers": [*map(asdict, trace.transfers)]} if trace.transfers else {}),
    }


def _lane_head(lane: LaneTrace) -> dict[str, Any]:
    head = {key: getattr(lane, key) for key in ("process", "label", "node", "pid", "lost")}
    return head | {
        "spans": list(lane.spans),
        "clock": asdict(lane.clock),
        "open": None if lane.open is None else asdict(lane.open),
        **({"streams": list(lane.streams)} if lane.streams else {}),
        **({"processor_ns": list(lane.processor_ns)} if lane.processor_ns else {}),
    }


def _name(graph: int, process: str) -> str:
    return f"{graph}/{process}.npy"


def _kernels_name(graph: int, process: str) -> str:
    return f"{graph}/kernels/{process}.npy"


# --- reading ------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str] | bytes) -> Recording:
    """Read a trace from a file, or from the bytes of one.

    Raises:
        TraceError: The file is not a trace, or a later rcg wrote it.
        OSError: The file cannot be opened.
    """
    name = "what came" if isinstance(path, bytes) else visible(os.fspath(path))
    with io.BytesIO(path) if isinstance(path, bytes) else open(path, "rb") as file:
        try:
            size = file.seek(0, os.SEEK_END)
            with zipfile.ZipFile(file) as archive:
                return _trace(Archive(archive, size), name)
        except TraceError:
            raise
        except MemoryError as error:
            raise TraceError(f"there is not enough memory to read {name}") from error
        except _DAMAGED as error:
            reason = visible(str(error) or type(error).__name__)
            if len(reason) > _MAX_REASON_CHARS:
                reason = f"{reason[:_MAX_REASON_CHARS]}..."
            raise TraceError(
                f"{name} is not a trace that rcg wrote ({reason}): give it a file that "
                "`profile.trace.save(path)` made"
            ) from error


def _trace(archive: Archive, name: str) -> Recording:
    head = checked.record(checked.parse(archive.text(_HEAD, _MAX_HEAD_BYTES)), _HEAD)
    version = checked.integer(head, "format", 1, MAX_COUNT)
    if version > _FORMAT:
        raise TraceError(
            f"{name} was written by a later rcg (format {version}, this one reads {_FORMAT}): "
            "install that one"
        )
    start_ns = checked.integer(head, "start_ns", -MAX_NS, MAX_NS)
    end_ns = checked.integer(head, "end_ns", start_ns, MAX_NS)
    graphs = tuple(
        _graph(archive, number, checked.record(graph, f"graph {number}"))
        for number, graph in enumerate(checked.items(head, "graphs", _MAX_GRAPHS))
    )
    transfers = tuple(
        _transfer(checked.record(each, "each of `transfers`"))
        for each in (checked.items(head, "transfers", MAX_COUNT) if "transfers" in head else ())
    )
    return Recording(graphs, start_ns, end_ns, _info(head), transfers)


def _transfer(head: checked.Record) -> TensorTransfer:
    start_ns = checked.integer(head, "start_ns", -MAX_NS, MAX_NS)
    end_ns = checked.integer(head, "end_ns", start_ns, MAX_NS)
    return TensorTransfer(
        checked.text(head, "object"),
        checked.text(head, "source"),
        checked.text(head, "target"),
        checked.text(head, "transport"),
        checked.integer(head, "bytes", 0, MAX_COUNT),
        start_ns,
        checked.integer(head, "waited_ns", 0, end_ns - start_ns),
        end_ns,
        checked.text(head, "error"),
    )


def _info(head: checked.Record) -> dict[str, Any]:
    """Return the information for people, of which only what views show is checked."""
    info = checked.record(head.get("info"), "`info`")
    if "time" in info:
        at = info["time"]
        is_number = isinstance(at, int | float) and not isinstance(at, bool)
        if not is_number or not 0 <= at <= _MAX_TIME_S:
            raise ValueError(f"`time` must be seconds since 1970, found {checked.found(at)}")
    if "host" in info:
        checked.text(info, "host")
    if "cores" in info:
        checked.integer(info, "cores", 0, MAX_COUNT)
    if "versions" in info:
        versions = checked.record(info["versions"], "`versions`")
        for each in versions:
            checked.text(versions, each)
    level: list[Any] = [info]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("`info` is nested too deep")
    return info


def _graph(archive: Archive, number: int, head: checked.Record) -> GraphTrace:
    graph_id = checked.text(head, "graph_id")
    if not _GRAPH_ID.fullmatch(graph_id):
        raise ValueError(f"{checked.found(graph_id)} is not the id of a graph")
    plan = Plan.from_json(checked.text(head, "plan", _MAX_HEAD_BYTES))
    check_plan(plan)
    heads = [
        checked.record(each, "each of `lanes`")
        for each in checked.items(head, "lanes", MAX_PROCESSES)
    ]
    processes = [checked.text(each, "process") for each in heads]
    if processes != [program.process for program in plan.programs]:
        raise ValueError("the lanes are not those of the plan's processes, in their order")
    lanes = tuple(
        _lane(archive, number, each, program)
        for each, program in zip(heads, plan.programs, strict=True)
    )
    check_sums(lanes)
    for lane in lanes:
        check_peers(lane, len(lanes))
    limit = checked.integer(head, "limit", 1, _MAX_INFLIGHT)
    name, state = (checked.text(head, key) if key in head else "" for key in ("name", "state"))
    marks = _marks(head["marks"], plan) if "marks" in head else {}
    return GraphTrace(graph_id, plan, lanes, limit, name, state, marks)


def _marks(stored: Any, plan: Plan) -> dict[str, Mark]:
    held = checked.record(stored, "`marks`")
    found = {actor.id: checked.texts(held, actor.id) for actor in plan.actors if actor.id in held}
    if len(found) < len(held) or any(len(each) != len(Mark._fields) for each in found.values()):
        raise ValueError("`marks` are not those of the plan's actors")
    return {actor: Mark(*each) for actor, each in found.items()}


def _lane(archive: Archive, number: int, head: checked.Record, program: Program) -> LaneTrace:
    process = program.process
    spans = checked.texts(head, "spans", _MAX_SPANS)
    streams = checked.texts(head, "streams", _MAX_SPANS) if "streams" in head else ()
    kernels = np.empty(0, EVENT)
    if streams:
        kernels = archive.events(_kernels_name(number, process), process)
    clock = checked.record(head.get("clock"), "`clock`")
    lane = LaneTrace(
        process,
        checked.text(head, "label"),
        archive.events(_name(number, process), process),
        spans,
        checked.text(head, "node"),
        checked.integer(head, "pid", 0, MAX_COUNT),
        Clock(
            checked.integer(clock, "offset_ns", -MAX_NS, MAX_NS),
            checked.integer(clock, "error_ns", 0, MAX_NS),
        ),
        checked.integer(head, "lost", 0, MAX_COUNT),
        _open_op(head.get("open"), program),
        kernels,
        streams,
        _processor_ns(head.get("processor_ns")),
    )
    check_events(lane, program)
    return lane


def _processor_ns(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"`processor_ns` must be two numbers, found {checked.found(value)}")
    thread, process = (checked.whole(each, "`processor_ns`", 0, MAX_NS) for each in value)
    return thread, process


def _open_op(value: object, program: Program) -> OpenOp | None:
    if value is None:
        return None
    head = checked.record(value, "`open`")
    waiting = checked.integer(head, "waiting_since_ns", -MAX_NS, MAX_NS)
    return OpenOp(
        checked.integer(head, "op", 0, len(program.ops) - 1),
        checked.integer(head, "execution", 0, MAX_COUNT),
        checked.integer(head, "since_ns", -MAX_NS, MAX_NS),
        waiting,
        checked.integer(head, "peer", 0, NO_PEER),
    )
