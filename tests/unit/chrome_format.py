# SPDX-License-Identifier: Apache-2.0
"""A strict reader of Chrome trace JSON: what Perfetto would drop, or misplace, is an error.

It follows `slice_tracker.cc` and `flow_tracker.cc` of Perfetto's trace processor: on each thread a
stack of open events; an event of equal time in the file's order; an arrow belongs to what is on top
of the stack of its thread and points from the earlier event to the later one.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

KEYS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur"},
    "s": {"ph", "cat", "name", "pid", "tid", "ts", "id"},
    "f": {"ph", "cat", "name", "pid", "tid", "ts", "id", "bp"},
    "C": {"ph", "name", "pid", "ts", "args"},
}


@dataclass
class Slice:
    """One complete event, in nanoseconds."""

    category: str
    name: str
    process: str
    thread: int
    start: int
    end: int
    args: dict[str, Any]
    parent: Slice | None = None

    @property
    def op(self) -> Slice:
        """The event of the op that it lies in."""
        return self if self.parent is None else self.parent.op


@dataclass
class Found:
    """What a file says."""

    slices: list[Slice] = field(default_factory=list)
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    processes: dict[int, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    threads: dict[int, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> list[Slice]:
        """The events of a name."""
        return [found for found in self.slices if found.name == name]


def read(path: Path) -> Found:
    """Reads a file; AssertionError where it is not as it has to be."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("ascii")
    assert text.startswith("{")
    document = json.loads(text, parse_float=Decimal)
    assert document.keys() == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] == "ns"
    reader = _Reader()
    reader.found.about = document["otherData"]
    for row in document["traceEvents"]:
        reader.take(row)
    assert not reader.open_arrows, "arrows that begin and do not end"
    assert {found.thread for found in reader.found.slices} <= reader.found.threads.keys()
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found = Found()
        self.open_arrows: dict[tuple[int, str, str], Slice] = {}
        self._ended: set[tuple[int, str, str]] = set()
        self._stacks: dict[int, list[Slice]] = defaultdict(list)
        self._process_of: dict[int, int] = {}
        self._now = 0

    def take(self, row: dict[str, Any]) -> None:
        phase = row["ph"]
        assert phase in KEYS, row
        assert KEYS[phase] <= row.keys() <= KEYS[phase] | {"args"}, row
        assert isinstance(row["name"], str) and row["name"], row
        assert type(row["pid"]) is int and row["pid"] > 0, row
        if "tid" in row:
            assert type(row["tid"]) is int and row["tid"] > 0, row
            assert self._process_of.setdefault(row["tid"], row["pid"]) == row["pid"], row
        if phase == "M":
            self._name(row)
            return
        time = _ns(row["ts"])
        assert time >= self._now, f"not sorted: {row}"
        self._now = time
        assert row["pid"] in self.found.processes, row
        match phase:
            case "X":
                self._slice(row, time)
            case "s" | "f":
                self._arrow(row)
            case "C":
                [frames] = row["args"].values()
                assert type(frames) is int and frames >= 0, row
                self.found.counters[row["name"]].append((time, frames))

    def _name(self, row: dict[str, Any]) -> None:
        assert self._now == 0, "names come first"
        match row["name"]:
            case "thread_name":
                assert row["tid"] not in self.found.threads, row
                self.found.threads[row["tid"]] = row["args"]["name"]
            case "process_name" | "process_labels" | "process_sort_index":
                assert row["name"] not in self.found.processes[row["pid"]], row
                [self.found.processes[row["pid"]][row["name"]]] = row["args"].values()
            case other:
                assert other == "thread_sort_index", row

    def _slice(self, row: dict[str, Any], start: int) -> None:
        end = start + _ns(row["dur"])
        stack = self._stacks[row["tid"]]
        while stack:
            top = stack[-1]
            is_instant = top.start == top.end and start == end
            if not (top.end < start or (top.end == start and not is_instant)):
                break
            stack.pop()
        assert not stack or not start < stack[-1].end < end, f"{row} overlaps {stack[-1]}"
        process = self.found.processes[row["pid"]]["process_name"]
        found = Slice(row["cat"], row["name"], process, row["tid"], start, end, row.get("args", {}))
        found.parent = stack[-1] if stack and start < stack[-1].end else None
        stack.append(found)
        self.found.slices.append(found)

    def _arrow(self, row: dict[str, Any]) -> None:
        assert type(row["id"]) is int
        key = (row["id"], row["cat"], row["name"])
        assert self._stacks[row["tid"]], f"an arrow at nothing: {row}"
        there = self._stacks[row["tid"]][-1]
        assert there.start <= self._now <= there.end, f"an arrow beside its event: {row} {there}"
        if row["ph"] == "s":
            assert key not in self.open_arrows and key not in self._ended, f"twice: {row}"
            self.open_arrows[key] = there
            return
        assert row["bp"] == "e"
        self._ended.add(key)
        begun = self.open_arrows.pop(key)
        assert begun.start <= there.start, f"an arrow against time: {begun} {there}"
        self.found.arrows.append((begun, there))


def _ns(time: Any) -> int:
    assert isinstance(time, Decimal), f"{time!r} is no time in microseconds"
    assert time.as_tuple().exponent == -3 and time >= 0, time
    return int(time * 1000)
