# SPDX-License-Identifier: Apache-2.0
"""The looks of bars: kinds of time, and executions. All pictures use this table.

No kind is distinguished by colour alone, so pictures work in greyscale: communication is dotted,
and without dots where a method of the actor hides it, serialization is crossed, waiting and idle
time is hatched, spans are outlined, executions show their number, and bars, tables and legends name
the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rcg.trace.analysis.events import TimeKind
from rcg.views.data.colours import (
    DEVICE_COLOURS,
    EXECUTIONS,
    KIND_COLOURS,
    SPAN_COLOUR,
    TITLES,
)
from rcg.views.data.slices import HIDDEN, SPAN
from rcg.views.svg.canvas import Canvas, Paint, swatch


@dataclass(frozen=True, slots=True)
class Look:
    """How a group of bars is drawn.

    Attributes:
        attributes: The attributes of a bar, with a leading space.
        text: The role of text on it.
        radius: The radius of its corners.
    """

    attributes: str
    text: str
    radius: float = 2.0


def kind_looks(canvas: Canvas) -> dict[int, Look]:
    """Return the looks of kinds of time, by ``Slices.kind``."""
    looks = {
        int(kind): Look(_fill(canvas, kind, colour), _on(canvas, colour, kind))
        for kind, colour in KIND_COLOURS.items()
    }
    looks[TimeKind.WAITING] = Look(canvas.hatch("wait", "wait-line", gap=5), "on-wait", 0.0)
    looks[TimeKind.IDLE] = Look(idle(canvas), "faint", 0.0)
    canvas.define(
        "span", Paint("fill", "#f0e6f6", "#3a2a44"), Paint("stroke", SPAN_COLOUR, "#b98fd4")
    )
    looks[SPAN] = Look(canvas.paint("span"), "text")
    canvas.define("hidden", Paint("fill", "#f0c5a3", "#62330e"))
    looks[HIDDEN] = Look(canvas.paint("hidden"), "text")
    for each, colour in DEVICE_COLOURS.items():
        looks[each] = Look(f' fill="{colour}"', _on(canvas, colour))
    return looks


def execution_looks(canvas: Canvas) -> list[Look]:
    """Return the looks of executions: full, then tinted, then outlined."""
    full = [Look(f' fill="{colour}"', _on(canvas, colour)) for colour in EXECUTIONS]
    paler = [
        Look(f' fill="{colour}" fill-opacity="{opacity}" stroke="{colour}"', "text")
        for opacity in (".5", ".14")
        for colour in EXECUTIONS
    ]
    return [*full, *paler]


def kind_entries(canvas: Canvas, kinds: Iterable[int]) -> list[tuple[str, str]]:
    """Return the entries of kinds of time in a legend."""
    looks = kind_looks(canvas)
    return [(swatch(looks[kind].attributes), TITLES[kind]) for kind in kinds]


def idle(canvas: Canvas) -> str:
    """Return the ``fill`` of idle time."""
    return canvas.hatch("lane", "idle-line", gap=8)


def _fill(canvas: Canvas, kind: TimeKind, colour: str) -> str:
    if kind == TimeKind.COMPUTE:
        return f' fill="{colour}"'
    name = kind.name.lower()
    canvas.define(name, Paint("fill", colour, colour))
    if kind == TimeKind.COMMUNICATION:
        canvas.define(f"{name}-dots", Paint("fill", "#f7c9a5", "#f7c9a5"))
        return canvas.dotted(name, f"{name}-dots")
    canvas.define(f"{name}-lines", Paint("stroke", "#7a5200", "#7a5200"))
    return canvas.crossed(name, f"{name}-lines")


def _on(canvas: Canvas, colour: str, kind: TimeKind = TimeKind.COMPUTE) -> str:
    """Return the role of text that is legible on a colour, in light and dark pictures."""
    role = "on-dark" if _contrast_with_white(colour) >= 3.6 else "on-bright"
    tone = "#ffffff" if role == "on-dark" else "#16191d"
    if kind == TimeKind.COMPUTE:
        canvas.define(role, Paint("fill", tone, tone))
        return role
    # The text has a rim, because there is a pattern below it.
    role = f"on-{kind.name.lower()}"
    canvas.define(role, Paint("fill", tone, tone), Paint("stroke", colour, colour))
    return role


def _contrast_with_white(colour: str) -> float:
    """Return the contrast ratio with white, as in WCAG 2.1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
