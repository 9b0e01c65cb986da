# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference over time: when each process waited for tensors, and got them.

A row is of a process that gets tensors. Transfers that overlap in time have a row each.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rcg.text import plural, short_label, time_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.model import Recording, TensorTransfer
from rcg.views.data.colours import KIND_LOOKS
from rcg.views.data.lettering import DOT
from rcg.views.scene import Bars, Name, Row, Scene

_MAX_TRANSFERS: Final = 5_000


def references_scene(trace: Recording) -> Scene | None:
    """Return the latest transfers of a trace; None without any."""
    shown = trace.transfers[-_MAX_TRANSFERS:]
    if not shown:
        return None
    names: dict[Name, int] = {}
    rows: list[Row] = []
    columns: list[tuple[int, ...]] = []
    for target in sorted({each.target for each in shown}):
        own = [each for each in shown if each.target == target]
        ends: list[int] = []  # of the rows of this process
        first = len(rows)
        for each in sorted(own, key=lambda one: one.start_ns):
            band = next((at for at, end in enumerate(ends) if end <= each.start_ns), len(ends))
            ends[band : band + 1] = [each.end_ns]
            number = names.setdefault(_name_of(each), len(names))
            waited_ns = min(each.waited_ns, each.end_ns - each.start_ns)
            middle = each.start_ns + waited_ns
            for part, begin, end in (
                (TimeKind.WAITING, each.start_ns, middle),
                (TimeKind.COMMUNICATION, middle, each.end_ns),
            ):
                if end > begin:
                    since = begin - trace.start_ns
                    columns.append((first + band, since, end - begin, part, number, each.bytes))
        label = short_label(target)
        rows += [
            Row(target, label, "" if at == 0 else f"{at + 1}", target) for at in range(len(ends))
        ]
    row, start, duration, kind, name, size = np.array(columns, np.int64).reshape(-1, 6).T
    bars = Bars.of(row=row, start=start, duration=duration, kind=kind, name=name, bytes=size)
    found, _ = Bars.joined([bars])
    begun = min(each.start_ns for each in shown) - trace.start_ns
    ended = max(each.end_ns for each in shown) - trace.start_ns
    words = [plural(len(trace.transfers), "transfer"), time_text(ended - begun)]
    if len(shown) < len(trace.transfers):
        words.append(f"the latest {len(shown)} are drawn")
    about = f" {DOT} ".join(words)
    return Scene(
        "references", about, begun, max(ended, begun + 1), tuple(rows), tuple(names), KIND_LOOKS,
        "idle", found,
    )  # fmt: skip


def _name_of(each: TensorTransfer) -> Name:
    failed = f", failed: {each.error}" if each.error else ""
    return Name(f"from {short_label(each.source)} by {each.transport}{failed}", "reference")
