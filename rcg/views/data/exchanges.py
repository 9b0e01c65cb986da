# SPDX-License-Identifier: Apache-2.0
"""What the slices of exchanges of tensors say: the other ends, the bytes, the time and the rate.

The time is that of the exchange, which begins when the last end has arrived, and so is the rate.
"""

from __future__ import annotations

from typing import Final

from rcg.text import brief, bytes_text, time_text
from rcg.views.data.lettering import DOT
from rcg.views.data.slices import Slices

_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_MAX_ENDS: Final = 4


def exchange_lines_of(slices: Slices) -> dict[int, list[str]]:
    """Return lines of text for each slice that moves tensors over a communicator, by its row."""
    found: dict[int, list[str]] = {}
    for (write, read), (begin, end) in zip(
        slices.transfers.tolist(), slices.transfer_times.tolist(), strict=True
    ):
        if not slices.names[slices.name[write]].group:
            continue
        ends = f"{_label(slices, write)} {_ARROW} {_label(slices, read)}"
        line = f"{ends}: {_moved(int(slices.bytes[write]), end - begin)}"
        for row in (write, read):
            lines = found.setdefault(row, [])
            if len(lines) < _MAX_ENDS:
                lines.append(line)
    for rows, (begin, end) in zip(
        slices.collectives, slices.collective_times.tolist(), strict=True
    ):
        size = max(int(slices.bytes[row]) for row in rows)
        for row in rows.tolist():
            found[row] = [f"all {len(rows)} ranks: {_moved(size, end - begin)}"]
    return found


def _label(slices: Slices, row: int) -> str:
    return brief(slices.heads[slices.lane[row]].label)


def _moved(size: int, took_ns: float) -> str:
    words = [bytes_text(size)] if size else []
    words.append(f"in {time_text(took_ns)}")
    words += [f"{bytes_text(size / took_ns * 1e9)}/s"] if size and took_ns else []
    return f" {DOT} ".join(words) if len(words) < 3 else f"{words[0]} {words[1]} {DOT} {words[2]}"
