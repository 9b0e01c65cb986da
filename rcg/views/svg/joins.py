# SPDX-License-Identifier: Apache-2.0
"""Exchanges of tensors in all pictures over time: lines that join their ends, and hover texts.

A collective is a line through the lanes of its ranks, with a dot on each, where the last of them
arrived. So a lane that the line crosses without a dot has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rcg.text import brief, bytes_text, plural, speed_text, time_text
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.slices import Slices
from rcg.views.svg.bars import Band
from rcg.views.svg.canvas import Canvas, Paint

COLLECTIVE_LINE: Final = (
    '<g{}><path fill="none" d="M7 0V10" stroke-width="1.4"/>'
    '<circle cx="7" cy="1.5" r="1.8"/><circle cx="7" cy="8.5" r="1.8"/></g>'
)
"""The shape of a collective in a legend."""

_DOT: Final = 2.4
_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_MAX_ENDS: Final = 4


@dataclass(frozen=True, eq=False)
class Joins:
    """Draws the lines of a picture.

    Attributes:
        canvas: The canvas.
        slices: The slices.
        scale: Pixels per nanosecond.
        band_of: Returns the band of a slice.
        shift_ns: How far slices are moved in time.
    """

    canvas: Canvas
    slices: Slices
    scale: float
    band_of: Callable[[int], Band]
    shift_ns: float = 0.0

    def collectives(self, most: int) -> tuple[list[str], list[str]]:
        """Return the lines of collectives, and a note if there are too many to draw."""
        begins = self.slices.collective_times[:, 0].tolist()
        found = [
            (rows, self._x(begin))
            for rows, begin in zip(self.slices.collectives, begins, strict=True)
            if len(rows) > 1
        ]
        if not found:
            return [], []
        if len(found) > most:
            return [], [f"{plural(len(found), 'collective')} not joined"]
        style = style_of(COLLECTIVE)
        paints = [Paint(each, style.light, style.dark) for each in ("stroke", "fill")]
        self.canvas.define("collective", *paints)
        lines, dots = [], []
        for rows, x in found:
            middles = [self.band_of(row).middle for row in rows.tolist()]
            lines.append(f"M{x:.1f} {min(middles):g}V{max(middles):g}")
            dots += [f'<circle cx="{x:.1f}" cy="{y:g}" r="{_DOT}"/>' for y in middles]
        paint = self.canvas.paint("collective")
        return [
            f'<g class="rcg-collectives" pointer-events="none"><g{paint}>'
            f'<path fill="none" stroke-width="1.4" d="{"".join(lines)}"/>{"".join(dots)}</g></g>'
        ], []

    def transfers(self, most: int) -> list[str]:
        """Return the lines of transfers over communicators; none if there are too many."""
        slices = self.slices
        paths = []
        for write, read, begin, end in slices.exchanges().tolist():
            x, to_x = self._x(begin), self._x(end)
            y, to_y = ends_between(self.band_of(write), self.band_of(read))
            paths.append(f"M{x:.1f} {y:g}L{to_x:.1f} {to_y:g}")
        if not paths or len(paths) > most:
            return []
        lines = transfer_lines(self.canvas, paths)
        return [f'<g class="rcg-transfers" pointer-events="none">{lines}</g>']

    def _x(self, time_ns: float) -> float:
        return (time_ns + self.shift_ns) * self.scale


def ends_between(here: Band, there: Band) -> tuple[float, float]:
    """Return the heights at which a line between two bands begins and ends."""
    if there.y > here.y:
        return here.y + here.height, there.y
    return here.y, there.y + there.height


def transfer_lines(canvas: Canvas, paths: Iterable[str]) -> str:
    """Return the shape of transfers."""
    canvas.define("transfer", Paint("stroke", "#b34e00", "#ff8a3d"))
    return (
        f'<path{canvas.paint("transfer")} fill="none" '
        f'stroke-width="1.2" stroke-opacity=".75" d="{"".join(paths)}"/>'
    )


# --- words ---------------------------------------------------------------------------------------


def exchange_lines_of(slices: Slices) -> dict[int, list[str]]:
    """Return lines of text for each slice that moves tensors over a communicator, by its row.

    They say the other ends, the bytes, the time and the rate. The time is that of the exchange,
    which begins when the last end has arrived, and so is the rate.
    """
    found: dict[int, list[str]] = {}
    for write, read, begin, end in slices.exchanges().tolist():
        here, there = (brief(slices.heads[slices.lane[row]].label) for row in (write, read))
        moved = _moved_text(int(slices.bytes[write]), end - begin)
        for row in (write, read):
            found.setdefault(row, []).append(f"{here} {_ARROW} {there}: {moved}")
    found = {row: lines[:_MAX_ENDS] for row, lines in found.items()}
    for rows, (begin, end) in zip(
        slices.collectives, slices.collective_times.tolist(), strict=True
    ):
        size = max(int(slices.bytes[row]) for row in rows)
        for row in rows.tolist():
            ranks = slices.ranks_of(row)
            found[row] = [f"all {ranks} ranks: {_moved_text(size, end - begin)}"]
    return found


def _moved_text(size: int, took_ns: float) -> str:
    took = f"in {time_text(took_ns)}"
    if not size:
        return took
    if not took_ns:
        return f"{bytes_text(size)} {DOT} {took}"
    return f"{bytes_text(size)} {took} {DOT} {speed_text(size / took_ns)}"
