# SPDX-License-Identifier: Apache-2.0
"""Who gets how many bytes from whom, as one SVG file: a square for each pair, darker for more."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.text import bytes_text, plural, visible
from rcg.views.data.lettering import SIZE, SMALL, width_of
from rcg.views.svg.canvas import MARGIN, WIDTH, Canvas, Paint

_TOP: Final = MARGIN + 72
_MOST: Final = 64  # rows and columns
_CELL: Final = 104.0
_LINE: Final = 26.0
_NAME: Final = 190.0


def matrix_of(
    title: str,
    about: str,
    rows: Sequence[str],
    columns: Sequence[str],
    sizes: npt.NDArray[np.int64],
) -> str:
    """Return a matrix as the text of an SVG file.

    Args:
        title: The title.
        about: The line below it.
        rows: Who sends.
        columns: Who gets.
        sizes: The bytes [rows, columns].
    """
    canvas = Canvas()
    rows, columns = [*map(visible, rows)], [*map(visible, columns)]
    canvas.define("amount", Paint("fill", "#0072b2", "#56b4e9"))
    shown = sizes[:_MOST, :_MOST]
    if shown.shape != sizes.shape:
        about += f" \N{MIDDLE DOT} {plural(sizes.size - shown.size, 'pair')} not shown"
    names = min(_NAME, max(width_of(each, SMALL) for each in rows[:_MOST])) + 14
    cell = min(_CELL, (WIDTH - 2 * MARGIN - names) / shown.shape[1])
    line = _LINE if shown.shape[0] <= 24 else 14.0
    most = max(float(shown.max(initial=0)), 1.0)
    shapes = canvas.heading(title, about, WIDTH - 2 * MARGIN)
    left = MARGIN + names
    for at, name in enumerate(columns[:_MOST]):
        x = left + (at + 0.5) * cell
        shapes.append(canvas.note(name, x, _TOP - 8, cell - 4, anchor="middle"))
    for row, name in enumerate(rows[: len(shown)]):
        y = _TOP + row * line
        shapes.append(canvas.note(name, MARGIN, y + line / 2 + 4, names - 8, role="text"))
        for column, size in enumerate(shown[row].tolist()):
            share = size / most
            x = left + column * cell
            hover = f"{name} to {columns[column]}: {bytes_text(size)}"
            box = f'x="{x:.1f}" y="{y:.1f}" width="{cell - 2:.1f}" height="{line - 2:.1f}" rx="3"'
            tint = f'fill-opacity="{0.06 + 0.4 * share:.2f}"'
            shapes.append(
                f"<g><title>{escape(visible(hover))}</title>"
                f"<rect{canvas.paint('amount')} {tint} {box}/>"
            )
            text = bytes_text(size) if size else ""
            if text and width_of(text, SMALL) < cell - 6 and line == _LINE:
                shapes.append(
                    canvas.note(
                        text, x + cell / 2 - 1, y + line / 2 + 3, cell, role="text", anchor="middle"
                    )
                )
            shapes.append("</g>")
    width = max(left + shown.shape[1] * cell, min(MARGIN + width_of(about, SIZE), WIDTH)) + MARGIN
    return canvas.document(shapes, round(width), round(_TOP + len(shown) * line + MARGIN), title)
