# SPDX-License-Identifier: Apache-2.0
"""Lines that join the ends of exchanges of tensors, in all pictures over time.

A collective is a line through the lanes of its ranks, with a dot on each, where the last of them
arrived. So a lane that the line crosses without a dot has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rcg.text import plural
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.slices import Slices
from rcg.views.svg.bars import Band
from rcg.views.svg.canvas import Canvas, Paint

COLLECTIVE_LINE: Final = (
    '<g{}><path fill="none" d="M7 0V10" stroke-width="1.4"/>'
    '<circle cx="7" cy="1.5" r="1.8"/><circle cx="7" cy="8.5" r="1.8"/></g>'
)
"""The shape of a collective in a legend."""

_DOT: Final = 2.4


class Joins:
    """Draws the lines of a picture.

    Args:
        canvas: The canvas.
        slices: The slices.
        scale: Pixels per nanosecond.
        band_of: Returns the band of a slice.
        shift_ns: How far slices are moved in time.
    """

    def __init__(
        self,
        canvas: Canvas,
        slices: Slices,
        scale: float,
        band_of: Callable[[int], Band],
        shift_ns: float = 0.0,
    ) -> None:
        self._canvas = canvas
        self._slices = slices
        self._scale = scale
        self._band_of = band_of
        self._shift_ns = shift_ns

    def collectives(self, most: int) -> tuple[list[str], list[str]]:
        """Return the lines of collectives, and a note if there are too many to draw."""
        found = [
            (rows, self._x(begin))
            for rows, begin in zip(
                self._slices.collectives, self._slices.collective_times[:, 0].tolist(), strict=True
            )
            if len(rows) > 1
        ]
        if not found:
            return [], []
        if len(found) > most:
            return [], [f"{plural(len(found), 'collective')} not joined"]
        style = style_of(COLLECTIVE)
        self._canvas.define(
            "collective",
            Paint("stroke", style.light, style.dark),
            Paint("fill", style.light, style.dark),
        )
        lines, dots = [], []
        for rows, x in found:
            middles = [band.y + band.height / 2 for band in map(self._band_of, rows.tolist())]
            lines.append(f"M{x:.1f} {min(middles):g}V{max(middles):g}")
            dots += [f'<circle cx="{x:.1f}" cy="{y:g}" r="{_DOT}"/>' for y in middles]
        paint = self._canvas.paint("collective")
        return [
            f'<g class="rcg-collectives" pointer-events="none"><g{paint}>'
            f'<path fill="none" stroke-width="1.4" d="{"".join(lines)}"/>{"".join(dots)}</g></g>'
        ], []

    def transfers(self, most: int) -> list[str]:
        """Return the lines of transfers over communicators; none if there are too many."""
        slices = self._slices
        paths = []
        for (write, read), times in zip(
            slices.transfers.tolist(), slices.transfer_times.tolist(), strict=True
        ):
            if not slices.names[slices.name[write]].group:
                continue
            here, there = self._band_of(write), self._band_of(read)
            x, to_x = map(self._x, times)
            is_down = there.y > here.y
            y = here.y + here.height if is_down else here.y
            to_y = there.y if is_down else there.y + there.height
            paths.append(f"M{x:.1f} {y:g}L{to_x:.1f} {to_y:g}")
        if not paths or len(paths) > most:
            return []
        self._canvas.define("transfer", Paint("stroke", "#b34e00", "#ff8a3d"))
        line = self._canvas.paint("transfer")
        return [
            f'<g class="rcg-transfers" pointer-events="none"><path{line} fill="none" '
            f'stroke-width="1.2" stroke-opacity=".75" d="{"".join(paths)}"/></g>'
        ]

    def _x(self, time_ns: float) -> float:
        return (time_ns + self._shift_ns) * self._scale
