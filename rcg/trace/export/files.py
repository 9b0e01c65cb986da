# SPDX-License-Identifier: Apache-2.0
"""Traces as files: a zip with one JSON text and one NumPy array per lane. No pickle.

```
trace.json        format, times, info, and for each graph its plan and the heads of its lanes
0/driver.npy      events of the driver of the first graph
0/a0.npy          ...
```

A file may come from an untrusted source. `archive` compares claimed sizes with the size of the file
before memory is allocated. Everything is checked before a trace is made: types and ranges, that
events refer to existing ops, spans and lanes, and that the plan could run. So a loaded trace can be
analysed and displayed like a recorded one. Any other file raises a ``TraceError``.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from dataclasses import asdict
from typing import Any, Final

import numpy as np

import rcg.checked as checked
from rcg.errors import DeadlockError, InternalError, TraceError
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.text import visible
from rcg.trace.export.archive import Archive
from rcg.trace.export.checks import (
    MAX_COUNT,
    MAX_NS,
    MAX_PROCESSES,
    check_events,
    check_peers,
    check_plan,
    check_sums,
)
from rcg.trace.model import NO_PEER, Clock, GraphTrace, LaneTrace, OpenOp, Recording, TensorTransfer

_FORMAT: Final = 1
_HEAD: Final = "trace.json"

# The exceptions that reading a damaged file raises.
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
_MAX_REASON_CHARS: Final = 300

_MAX_HEAD_BYTES: Final = 32 << 20
_MAX_GRAPHS: Final = 1_000
_MAX_SPANS: Final = 10_000
_MAX_INFLIGHT: Final = 1 << 31
_MAX_TIME_S: Final = 1 << 36  # since 1970
_MAX_DEPTH: Final = 8
_GRAPH_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{0,128}", re.ASCII)


# --- writing ------------------------------------------------------------------------------------


def write(trace: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file that ``read`` can read.

    Raises:
        OSError: The file cannot be written.
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
        **({"transfers": [*map(asdict, trace.transfers)]} if trace.transfers else {}),
    }


def _lane_head(lane: LaneTrace) -> dict[str, Any]:
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
        TraceError: The file is not a trace, or a later rcg wrote it.
        OSError: The file cannot be opened.
    """
    name = visible(os.fspath(path))
    with open(path, "rb") as file:
        try:
            size = os.fstat(file.fileno()).st_size
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
    return GraphTrace(graph_id, plan, lanes, checked.integer(head, "limit", 1, _MAX_INFLIGHT))


def _lane(archive: Archive, number: int, head: checked.Record, program: Program) -> LaneTrace:
    process = program.process
    spans = checked.texts(head, "spans", _MAX_SPANS)
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
    )
    check_events(lane, program)
    return lane


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
