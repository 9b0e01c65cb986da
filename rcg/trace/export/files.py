# SPDX-License-Identifier: Apache-2.0
"""Traces as files: a zip of one JSON text and one NumPy array per lane; no pickle.

```
trace.json        format, times, info, and for each graph its plan and what is known of its lanes
0/driver.npy      events of the driver of the first graph
0/a0.npy          ...
```

A file may come from an untrusted source. Claimed sizes are compared with the size of the file
before memory is allocated, and everything is checked before a trace is made: types, ranges, that
events
    name
existing ops, spans and lanes, and that the plan could run. So a loaded trace can be analysed and
shown like a recorded one, and every other file raises a ``TraceError``.

This room must know neither analyses nor views.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO, Final

import numpy as np

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
    Lane,
    OpenOp,
    Recording,
)

__all__ = ["read", "write"]

_FORMAT: Final = 1
_HEAD: Final = "trace.json"

# What reading a damaged file raises, here and there.
_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    NotImplementedError,
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
_LONGEST_REASON: Final = 300

# --- limits -------------------------------------------------------------------------------------

_ALWAYS_BYTES: Final = 64 << 20
"""So much may always be read, however small the file is."""

_MOST_RATIO: Final = 50
"""How many times larger than the file that may be which is read from it: events differ in their
times, so they never become so much smaller."""

_MOST_HEAD_BYTES: Final = 32 << 20
_MOST_MEMBERS: Final = 100_000
_MOST_GRAPHS: Final = 1_000
_MOST_PROCESSES: Final = 1_000
_MOST_OPS: Final = 60_000  # of a process
_MOST_SPANS: Final = 10_000
_PIECE_BYTES: Final = 1 << 20

_MOST_NS: Final = 1 << 60
"""Of a moment, before or after zero: 36 years. Any two may be subtracted in 64 bits."""

_MOST_SUM: Final = 1 << 62
"""What the figures of a graph's events may add up to."""

_MOST_COUNT: Final = 1 << 53
"""Of executions and lost events: what a double holds exactly."""

_MOST_LIMIT: Final = 1 << 31
_LATEST_S: Final = 1 << 36
_MOST_DEPTH: Final = 8

_GRAPH_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{0,128}", re.ASCII)
_ARRAY: Final = re.compile(
    rb"\{'descr': (\[.{1,2000}\]), 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_LAYOUT: Final = repr(np.lib.format.dtype_to_descr(EVENT)).encode()
_MAGIC: Final = b"\x93NUMPY\x01\x00"


# --- writing ------------------------------------------------------------------------------------


def write(trace: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file, which ``read`` reads.

    Raises:
        OSError: It cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_HEAD, json.dumps(_head(trace)))
        for number, graph in enumerate(trace.graphs):
            for lane in graph.lanes:
                with archive.open(_name(number, lane.process), "w") as file:
                    np.lib.format.write_array(file, lane.events, (1, 0), allow_pickle=False)


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
                "lanes": [_lane_head(lane) for lane in graph.lanes],
            }
            for graph in trace.graphs
        ],
    }


def _lane_head(lane: Lane) -> dict[str, Any]:
    head = {key: getattr(lane, key) for key in ("process", "label", "node", "pid", "lost")}
    return head | {
        "spans": list(lane.spans),
        "clock": asdict(lane.clock),
        "open": None if lane.open is None else asdict(lane.open),
    }


def _name(graph: int, process: str) -> str:
    return f"{graph}/{process}.npy"


# --- reading ------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a trace from a file.

    Raises:
        TraceError: It is no trace, or one of a later rcg.
        OSError: It cannot be opened.
    """
    name = visible(os.fspath(path))
    with open(path, "rb") as file:
        try:
            size = os.fstat(file.fileno()).st_size
            with zipfile.ZipFile(file) as archive:
                return _trace(_Members(archive, size), name)
        except TraceError:
            raise
        except MemoryError as error:
            raise TraceError(f"there is not enough memory to read {name}") from error
        except _DAMAGED as error:
            reason = visible(str(error) or type(error).__name__)
            if len(reason) > _LONGEST_REASON:
                reason = f"{reason[:_LONGEST_REASON]}..."
            raise TraceError(
                f"{name} is not a trace that rcg wrote ({reason}): give it a file that "
                "`profile.trace.save(path)` made"
            ) from error


class _Members:
    """The members of an archive, which give out no more than the size of the file allows."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        infos = archive.infolist()
        if len(infos) > _MOST_MEMBERS:
            raise ValueError(f"the file has {len(infos):,} members")
        self._archive = archive
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) != len(infos):
            raise ValueError("two of its members have the same name")
        # Of what was stored, not of what the members say: these may share what they hold.
        self._left = max(_ALWAYS_BYTES, _MOST_RATIO * size)

    def open(self, name: str, most: int | None = None) -> tuple[Any, int]:
        """Return a member to be read, and how many bytes it says that it has.

        Raises:
            ValueError: It is missing, packed in a way that is not used here, or too large.
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
        """Return the array in a member."""
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
    """Fill memory from a member, whose end also is where its checksum is looked at."""
    at = 0
    while at < len(room):
        piece = file.read(min(_PIECE_BYTES, len(room) - at))
        if not piece:
            raise ValueError(f"{name} is shorter than it says")
        room[at : at + len(piece)] = piece
        at += len(piece)
    if file.read(1):
        raise ValueError(f"{name} is longer than it says")


def _trace(members: _Members, name: str) -> Recording:
    head = checked.record(checked.parse(members.text(_HEAD, _MOST_HEAD_BYTES)), _HEAD)
    version = checked.integer(head, "format", 1, _MOST_COUNT)
    if version > _FORMAT:
        raise TraceError(
            f"{name} was written by a later rcg (format {version}, this one reads {_FORMAT}): "
            "install that one"
        )
    start_ns = checked.integer(head, "start_ns", -_MOST_NS, _MOST_NS)
    end_ns = checked.integer(head, "end_ns", start_ns, _MOST_NS)
    graphs = tuple(
        _graph(members, number, checked.record(graph, f"graph {number}"))
        for number, graph in enumerate(checked.items(head, "graphs", _MOST_GRAPHS))
    )
    return Recording(graphs, start_ns, end_ns, _info(head))


def _info(head: checked.Record) -> dict[str, Any]:
    """Return what is only for people; what is shown of it is checked, the rest may be anything."""
    info = checked.record(head.get("info"), "`info`")
    if "time" in info:
        at = info["time"]
        is_number = isinstance(at, int | float) and not isinstance(at, bool)
        if not is_number or not 0 <= at <= _LATEST_S:
            raise ValueError(f"`time` must be seconds since 1970, found {checked.found(at)}")
    if "host" in info:
        checked.text(info, "host")
    if "cores" in info:
        checked.integer(info, "cores", 0, _MOST_COUNT)
    if "versions" in info:
        versions = checked.record(info["versions"], "`versions`")
        for each in versions:
            checked.text(versions, each)
    level: list[Any] = [info]
    for _ in range(_MOST_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("`info` is nested too deep")
    return info


# --- graphs and lanes ---------------------------------------------------------------------------


def _graph(members: _Members, number: int, head: checked.Record) -> GraphTrace:
    graph_id = checked.text(head, "graph_id")
    if not _GRAPH_ID.fullmatch(graph_id):
        raise ValueError(f"{checked.found(graph_id)} is not the id of a graph")
    plan = Plan.from_json(checked.text(head, "plan", _MOST_HEAD_BYTES))
    _check_plan(plan)
    heads = [
        checked.record(each, "each of `lanes`")
        for each in checked.items(head, "lanes", _MOST_PROCESSES)
    ]
    processes = [checked.text(each, "process") for each in heads]
    if processes != [program.process for program in plan.programs]:
        raise ValueError("the lanes are not those of the plan's processes, in their order")
    lanes = tuple(
        _lane(members, number, each, program)
        for each, program in zip(heads, plan.programs, strict=True)
    )
    _check_sums(lanes)
    for lane in lanes:
        _check_peers(lane, len(lanes))
    return GraphTrace(graph_id, plan, lanes, checked.integer(head, "limit", 1, _MOST_LIMIT))


def _check_plan(plan: Plan) -> None:
    """Check that a plan is one that the compiler could have made."""
    if len(plan.programs) > _MOST_PROCESSES:
        raise ValueError(f"the plan has {len(plan.programs):,} processes")
    for program in plan.programs:
        if len(program.ops) > _MOST_OPS:
            raise ValueError(f"{program.process} has {len(program.ops):,} ops")
    plan.check()
    for program in plan.programs:
        made = {
            slot
            for op in program.ops
            if not op.channels_in and not op.is_holding
            for slot in op.made()
        }
        for op in program.ops:
            if op.channels_out and not made.issuperset(op.used()):
                raise ValueError(f"{program.process} writes a value that it does not have: {op}")
    check_deadlock_free(plan)


def _lane(members: _Members, number: int, head: checked.Record, program: Program) -> Lane:
    process = program.process
    spans = checked.texts(head, "spans", _MOST_SPANS)
    clock = checked.record(head.get("clock"), "`clock`")
    lane = Lane(
        process,
        checked.text(head, "label"),
        members.events(_name(number, process), process),
        spans,
        checked.text(head, "node"),
        checked.integer(head, "pid", 0, _MOST_COUNT),
        Clock(
            checked.integer(clock, "offset_ns", -_MOST_NS, _MOST_NS),
            checked.integer(clock, "error_ns", 0, _MOST_NS),
        ),
        checked.integer(head, "lost", 0, _MOST_COUNT),
        _open_op(head.get("open"), program),
    )
    _check_events(lane, program)
    return lane


def _open_op(value: object, program: Program) -> OpenOp | None:
    if value is None:
        return None
    head = checked.record(value, "`open`")
    waiting = checked.integer(head, "waiting_since_ns", -_MOST_NS, _MOST_NS)
    return OpenOp(
        checked.integer(head, "op", 0, len(program.ops) - 1),
        checked.integer(head, "execution", 0, _MOST_COUNT),
        checked.integer(head, "since_ns", -_MOST_NS, _MOST_NS),
        waiting,
        checked.integer(head, "peer", 0, NO_PEER),
    )


def _check_events(lane: Lane, program: Program) -> None:
    """Check each event by itself."""
    events = lane.events
    if not len(events):
        return
    op = events["op"]
    is_known = np.where(op < SPAN_BASE, op < len(program.ops), op - SPAN_BASE < len(lane.spans))
    start, end = events["start_ns"], events["end_ns"]
    rules = {
        "is of an op or a span that is not there": is_known,
        "has times that no clock shows": (start >= -_MOST_NS) & (end <= _MOST_NS),
        "ends before it begins": start <= end,
        "waited, encoded or moved less than nothing": (events["waited_ns"] >= 0)
        & (events["coded_ns"] >= 0)
        & (events["bytes"] >= 0),
        "is of an execution that cannot be": (events["execution"] >= 0)
        & (events["execution"] <= _MOST_COUNT),
    }
    for what, holds in rules.items():
        if not holds.all():
            raise ValueError(f"event {int(np.argmin(holds)):,} of {lane.process} {what}")


def _check_peers(lane: Lane, count: int) -> None:
    peers = [lane.events["peer"]]
    peers += [] if lane.open is None else [np.array([lane.open.peer])]
    for each in peers:
        if not ((each < count) | (each == NO_PEER)).all():
            raise ValueError(f"an event of {lane.process} waited for a process that is not there")


def _check_sums(lanes: tuple[Lane, ...]) -> None:
    """Check that figures can be added up in 64 bits."""
    sums: Mapping[str, float] = {
        name: sum(float(lane.events[name].astype(np.float64).sum()) for lane in lanes)
        for name in ("waited_ns", "coded_ns", "bytes")
    }
    lasted = sum(
        float((lane.events["end_ns"] - lane.events["start_ns"]).astype(np.float64).sum())
        for lane in lanes
    )
    for name, total in (*sums.items(), ("durations", lasted)):
        if total > _MOST_SUM:
            raise ValueError(f"the {name} of all events add up to more than 64 bits hold")
