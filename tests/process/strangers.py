# SPDX-License-Identifier: Apache-2.0
"""Files that look like traces: every way to damage one, and everything that is done with one."""

from __future__ import annotations

import copy
import io
import json
import math
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rcg.compiler.simulate import Simulation
from rcg.errors import TraceError
from rcg.ir.plan import Plan
from rcg.profiling import Profile
from rcg.trace.measured import summarize
from rcg.trace.model import EVENT, SPAN_BASE, Clock, GraphTrace, OpenOp
from rcg.trace.trace import Trace
from rcg.views.html.mimebundle import of_plan
from rcg.views.html.page import page_of
from tests.unit.trace_by_hand import A0_ROWS, DRIVER_APART, END, OPENS, ROWS
from tests.unit.traces import event, events, graph_trace, measure
from tests.unit.views_traces import pipeline, simulated

HUGE = "a number of 5000 digits"
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    3,
    65_536,
    1 << 31,
    1 << 53,
    (1 << 60) + 1,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    HUGE,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a0",
    "\ud800\x00\u202e<script>",
    "x" * 200_000,
    [],
    [[]],
    [0] * 1000,
    {},
    {"op": 1},
)
"""What any field may be replaced with."""

COLUMN_VALUES = (0, 1, -1, 5, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 60, 1 << 62, (1 << 63) - 1)


def sample() -> Trace:
    """A small trace with everything in it: spans, open ops, clocks, two graphs, several events."""
    rows = ROWS | {"driver": DRIVER_APART, "a0": [*A0_ROWS, event(SPAN_BASE, 1, 31, 33)]}
    first = graph_trace(rows, opens=OPENS, spans={"a0": ("load",)})
    lanes = [
        replace(lane, clock=Clock(-3, 9), node="10.0.0.7", pid=7, lost=2) for lane in first.lanes
    ]
    first = GraphTrace(first.graph_id, first.plan, tuple(lanes), 10)
    stuck = graph_trace(ROWS, opens={"a1": OpenOp(1, 2, 65), "driver": OpenOp(3, 2, 66, 66, 2)})
    info = {"host": "here", "cores": 2, "time": 1.7e9, "versions": {"rcg": "0.1"}}
    return Trace((first, stuck), 3, END, info)


def larger() -> Trace:
    """A trace of a simulated pipeline with spans, of some hundred events."""
    return simulated(pipeline(3, is_training=True), 12, spans=True)


# --- use ----------------------------------------------------------------------------------------


def use(found: Trace, folder: Path) -> None:
    """Do everything that can be done with a trace: what raises is a fault."""
    repr(found)
    summary = summarize(found)
    str(summary).encode()
    json.loads(summary.to_json())
    profile = Profile(found)
    repr(profile)
    str(profile).encode()
    for shown in (found, profile):
        for text in shown._repr_mimebundle_().values():
            text.encode()
    str(profile.compare(profile)).encode()
    page_of(found, "a title").encode()
    profile.save_html(folder / "page.html")
    found.to_chrome(folder / "chrome.json")
    json.loads((folder / "chrome.json").read_text())
    found.to_pandas()
    for number, graph in enumerate(found.graphs):
        repr(graph)
        executions = profile.executions(number)
        repr(executions)
        executions.in_flight(found.start_ns, found.end_ns)
        for index in executions.index[:3].tolist():
            profile.critical_path(index, number)
        repr(measure(graph).path)
        of_plan(graph.plan)
        try:
            str(profile.what_if({}, communication=0.5, in_flight=3, graph=number)).encode()
            check_replay(measure(graph).predict(64), graph.plan)
        except TraceError:
            pass  # nothing was recorded
    found.save(folder / "again.trace")
    Trace.load(folder / "again.trace")


def check_replay(replay: Simulation, plan: Plan) -> None:
    """Check that a replay runs every op in every execution, one after the other."""
    assert replay.plan == plan
    gates = {gate.id for gate in plan.gates}  # are not replayed
    ops = sum(len(each.ops) for each in plan.programs if each.process not in gates)
    assert len(replay.timeline) == ops * replay.executions >= 64
    assert all(0 <= each.start <= each.end < math.inf for each in replay.timeline)


# --- files --------------------------------------------------------------------------------------

Members = dict[str, bytes]


def members_of(made: Trace, folder: Path) -> Members:
    """The members of the file of a trace."""
    made.save(folder / "made.trace")
    with zipfile.ZipFile(folder / "made.trace") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Members, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A file of these members."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, stored in members.items():
            archive.writestr(name, stored)
    return made.getvalue()


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_of(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy with one field changed: ``change`` gets what holds it and its key."""
    made = copy.deepcopy(value)
    held = made
    for key in path[:-1]:
        held = held[key]
    change(held, path[-1])
    return made


def _drop(held: Any, key: Any) -> None:
    del held[key]


def _double(held: Any, key: Any) -> None:
    if isinstance(held, list):
        held.insert(key, held[key])
    else:
        held[f"{key} "] = held[key]


def _replace(value: Any) -> Callable[[Any, Any], None]:
    def change(held: Any, key: Any) -> None:
        held[key] = value

    return change


CHANGES = (_drop, _double, *map(_replace, VALUES))


def dumped(head: Any) -> bytes:
    """JSON with the plans in it, which are texts of JSON themselves."""
    head = copy.deepcopy(head)
    for graph in head["graphs"] if isinstance(head.get("graphs"), list) else []:
        if isinstance(graph, dict) and "plan" in graph:
            graph["plan"] = _json(graph["plan"])
    return _json(head).encode()


def _json(value: Any) -> str:
    # A number of so many digits is made of text: Python does not print it.
    return json.dumps(value).replace(f'"{HUGE}"', "9" * 5000)


def parsed(members: Members) -> Any:
    """The head, with its plans as values."""
    head = json.loads(members["trace.json"])
    for graph in head["graphs"]:
        graph["plan"] = json.loads(graph["plan"])
    return head


def of_fields(members: Members, step: int = 1) -> Iterator[tuple[str, bytes]]:
    """Every field of the JSON, changed in every way; of these every so manieth."""
    head = parsed(members)
    every = ((path, number) for path in paths_of(head) for number in range(len(CHANGES)))
    for path, number in islice(every, 0, None, step):
        made = changed(head, path, CHANGES[number])
        yield f"field {path} change {number}", zipped(members | {"trace.json": dumped(made)})


def of_bytes(whole: bytes, chance: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Bytes flipped, cut off, put in, and moved."""
    for number in range(count):
        made = bytearray(whole)
        at = chance.randrange(len(made))
        match number % 4:
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                for _ in range(chance.randrange(2, 9)):
                    made[chance.randrange(len(made))] = chance.randrange(256)
        yield f"bytes {number} at {at}", bytes(made)


def of_members(members: Members, chance: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Bytes of the members changed, with a sum that is right again."""
    for number in range(count):
        name = chance.choice(list(members))
        [(change, stored)] = of_bytes(members[name], chance, 1)
        yield f"{name}: {change} ({number})", zipped(members | {name: stored})


def of_events(made: Trace, members: Members) -> Iterator[tuple[str, bytes]]:
    """Each column of some events set to each value, alone and in all events of a lane."""
    for number, graph in enumerate(made.graphs):
        for lane in graph.lanes:
            for column in EVENT.names or ():
                for value in COLUMN_VALUES:
                    for rows in (slice(0, 1), slice(-1, None), slice(None)):
                        other = lane.events.copy()
                        other[column][rows] = np.array(value).astype(EVENT[column])
                        change = f"graph {number} {lane.process} {column} {value} {rows}"
                        name = f"{number}/{lane.process}.npy"
                        yield change, zipped(members | {name: array(other)})


def of_random_events(
    made: Trace, members: Members, chance: random.Random, count: int
) -> Iterator[tuple[str, bytes]]:
    """Events that any process may have had, in any order and number: they are a trace."""
    for number in range(count):
        other = dict(members)
        for graph_number, graph in enumerate(made.graphs):
            for lane in graph.lanes:
                rows = []
                ops = len(graph.plan.program(lane.process).ops)
                for _ in range(chance.randrange(12)):
                    begun = chance.choice([0, 1, 50, 10**9, -(1 << 59), 1 << 59])
                    took = chance.choice([0, 1, 7, 10**6, 1 << 40])
                    is_span = lane.spans and chance.random() < 0.2
                    rows.append(
                        event(
                            SPAN_BASE if is_span else chance.randrange(ops),
                            chance.choice([0, 1, 2, 5, 1 << 31, 1 << 53]),
                            begun,
                            begun + took,
                            waited=chance.choice([0, took // 2, took, 2 * took]),
                            coded=chance.choice([0, took // 2, took, 3 * took]),
                            bytes=chance.choice([0, 1, 10**7]),
                            peer=chance.choice([0, 1, 2, (1 << 32) - 1]),
                        )
                    )
                other[f"{graph_number}/{lane.process}.npy"] = array(events(rows))
        yield f"random events {number}", zipped(other)


def array(values: Any) -> bytes:
    """The bytes of an array as NumPy stores it."""
    made = io.BytesIO()
    np.save(made, values)
    return made.getvalue()


def claims(shape: str, layout: str | None = None) -> bytes:
    """The head of an array that claims a shape, and nothing behind it."""
    layout = layout or repr(np.lib.format.dtype_to_descr(EVENT))
    head = f"{{'descr': {layout}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


def of_claims(members: Members) -> Iterator[tuple[str, bytes]]:
    """Files that claim more than they hold, and archives that are no usual ones."""
    name = "0/a0.npy"
    for shape in ("(10000000000,)", "(-1,)", "(2, 5)", "()", "(1.5,)", "(99999999999999999999,)"):
        yield f"shape {shape}", zipped(members | {name: claims(shape)})
    for layout in ("'|O'", "'<f8'", "[('start_ns', '<i8')]", "[" * 900 + "]" * 900):
        yield f"layout {layout[:30]}", zipped(members | {name: claims("(1,)", layout)})
    for text in (b"[" * 100_000, b'{"a":' * 50_000, b"[[]," * 3_000_000, b"\xff\xfe", b"1", b""):
        yield f"head {text[:9]!r}", zipped(members | {"trace.json": text})
    for key in ("format", "start_ns", "graphs", "info"):
        text = members["trace.json"].replace(b"{", f'{{"{key}": 1, '.encode(), 1)
        yield f"{key} twice", zipped(members | {"trace.json": text})
    for deep in (10, 990, 100_000):
        nested = b'{"info": ' + b'{"a": ' * deep + b"1" + b"}" * deep + b", "
        yield (
            f"info nested {deep}",
            zipped(members | {"trace.json": members["trace.json"].replace(b"{", nested, 1)}),
        )
    yield "nested archive", zipped({"trace.json": zipped(members)})
    yield "an archive in the place of events", zipped(members | {name: zipped(members)})
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield f"method {method}", zipped(members, method)
    yield "path-like", zipped({f"../{name}": stored for name, stored in members.items()})
    yield "more members", zipped(members | {"/etc/passwd": b"x", "../../x": b"y"})
    made = bytearray(zipped(members))
    for at in (6, made.find(b"PK\x01\x02") + 8):
        made[at] |= 1  # encrypted
    yield "encrypted", bytes(made)
    for size in (0, 1, 1 << 31, (1 << 32) - 1):
        for at in (20, 24, 42):  # of the directory: packed, unpacked, where
            made = bytearray(zipped(members))
            where = made.find(b"PK\x01\x02")
            made[where + at : where + at + 4] = struct.pack("<I", size)
            yield f"size {size} at {at}", bytes(made)


def bomb(size: int, name: str = "0/a0.npy") -> bytes:
    """A small file of which a member is huge: zeros."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        with tempfile.TemporaryDirectory() as folder:
            for each, stored in members_of(sample(), Path(folder)).items():
                if each != name:
                    archive.writestr(each, stored)
        with archive.open(name, "w", force_zip64=True) as file:
            if name.endswith(".npy"):
                file.write(claims(f"({size // EVENT.itemsize},)"))
                size = size // EVENT.itemsize * EVENT.itemsize
            piece = bytes(1 << 20)
            while size:
                size -= file.write(piece[: min(size, len(piece))])
    return made.getvalue()


def try_all(files: Iterator[tuple[str, bytes]], folder: Path) -> tuple[int, int, list[str]]:
    """Load and use each file; returns how many were refused, how many worked, and the faults."""
    refused = worked = 0
    faults = []
    for change, stored in files:
        (folder / "mutant.trace").write_bytes(stored)
        step = "load"
        try:
            found = Trace.load(folder / "mutant.trace")
            step = "use"
            use(found, folder)
            worked += 1
        except TraceError as error:
            if step == "use" or not is_a_sentence(str(error)):
                faults.append(f"{change}: {step}: {error!r}"[:400])
            refused += 1
        except Exception as error:  # noqa: BLE001 - any is a fault
            faults.append(f"{change}: {step}: {error!r}"[:400])
    return refused, worked, faults


def is_a_sentence(text: str) -> bool:
    """Whether a message is one line of a length that can be read."""
    return text.isprintable() and 20 < len(text) < 700
