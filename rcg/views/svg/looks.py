# SPDX-License-Identifier: Apache-2.0
"""Looks as shapes of a picture: fills, patterns, and the text that is legible on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rcg.views.data import colours
from rcg.views.data.colours import KIND_LOOKS
from rcg.views.svg.canvas import Canvas, Paint, swatch

_FRAMED: Final = (colours.TINTED, colours.OUTLINED, colours.FAINT)
_SHOWN: Final = 3  # colours of a legend's entry
_SHADES: Final = 4  # of a ramp, in a legend


@dataclass(frozen=True, slots=True)
class Look:
    """How a group of bars is drawn.

    Attributes:
        attributes: The attributes of a bar, with a leading space.
        text: The role of text on it.
        radius: The radius of its corners.
        gap: What is left free between it and the next one, in pixels.
    """

    attributes: str
    text: str
    radius: float = 2.0
    gap: float = 0.6


def looks_of(canvas: Canvas, looks: Iterable[colours.Look]) -> list[Look]:
    """Return looks as attributes."""
    return [_look(canvas, each) for each in looks]


def kind_looks(canvas: Canvas) -> dict[int, Look]:
    """Return the looks of kinds of time."""
    return dict(enumerate(looks_of(canvas, KIND_LOOKS)))


def kind_entries(canvas: Canvas, kinds: Iterable[int]) -> list[tuple[str, str]]:
    """Return the entries of kinds of time in a legend."""
    looks = kind_looks(canvas)
    return [(swatch(looks[kind].attributes), KIND_LOOKS[kind].title) for kind in kinds]


def legend_of(
    canvas: Canvas, looks: Sequence[colours.Look], used: Collection[int]
) -> list[tuple[str, str]]:
    """Return an entry for each title of the looks in use: a few of its colours, and the title."""
    by_title: dict[str, list[colours.Look]] = {}
    for number in sorted(used):
        by_title.setdefault(looks[number].title, []).append(looks[number])
    return [(_sign(canvas, own), title) for title, own in by_title.items()]


def _sign(canvas: Canvas, looks: Sequence[colours.Look]) -> str:
    first = looks[0]
    if first.height < 1:
        return f'<rect{_look(canvas, first).attributes} y="3.5" width="14" height="3"/>'
    if first.style == colours.SOLID and len(looks) > 1:
        return "".join(
            f'<rect fill="{each.colour}" x="{at * 5}" width="4" height="10"/>'
            for at, each in enumerate(looks[:_SHOWN])
        )
    if first.style == colours.SHADED and len(looks) > 1:
        count = min(_SHADES, len(looks))
        shades = [looks[at * (len(looks) - 1) // (count - 1)] for at in range(count)]
        width = 14 / count
        return "".join(
            f'<rect{_look(canvas, each).attributes} x="{at * width:g}" width="{width:g}" '
            f'height="10"/>'
            for at, each in enumerate(shades)
        )
    if first.style in _FRAMED:
        frame = _look(canvas, first).attributes
        return f'<rect{frame} x=".5" y=".5" width="13" height="9" rx="2"/>'
    return swatch(_look(canvas, first).attributes)


def idle(canvas: Canvas) -> str:
    """Return the ``fill`` of idle time."""
    return canvas.hatch("lane", "idle-line", gap=8)


def _look(canvas: Canvas, look: colours.Look) -> Look:
    colour = look.colour
    match look.style:
        case colours.DOTTED:
            canvas.define("communication", Paint("fill", colour, colour))
            canvas.define("communication-dots", Paint("fill", "#f7c9a5", "#f7c9a5"))
            fill = canvas.dotted("communication", "communication-dots")
            return Look(fill, _on(canvas, colour, "communication"))
        case colours.CROSSED:
            canvas.define("serialization", Paint("fill", colour, colour))
            canvas.define("serialization-lines", Paint("stroke", "#7a5200", "#7a5200"))
            fill = canvas.crossed("serialization", "serialization-lines")
            return Look(fill, _on(canvas, colour, "serialization"))
        case colours.WAITING:
            return Look(canvas.hatch("wait", "wait-line", gap=5), "on-wait", 0.0)
        case colours.IDLE:
            return Look(idle(canvas), "faint", 0.0)
        case colours.FRAMED:
            frame = Paint("fill", "#f0e6f6", "#3a2a44"), Paint("stroke", colour, "#b98fd4")
            canvas.define("span", *frame)
            return Look(canvas.paint("span"), "text")
        case colours.PALE:
            canvas.define("hidden", Paint("fill", "#f0c5a3", "#62330e"))
            return Look(canvas.paint("hidden"), "text")
        case colours.TINTED | colours.OUTLINED | colours.FAINT:
            share = f"{look.share:g}".removeprefix("0")
            return Look(f' fill="{colour}" fill-opacity="{share}" stroke="{colour}"', "text")
        case colours.SHADED:
            return Look(f' fill="{colour}" fill-opacity="{look.share:g}"', "text", 0.0, gap=0.0)
    radius = 2.0 if look.height == 1 else 0.0
    return Look(f' fill="{colour}"', _on(canvas, colour), radius)


def _on(canvas: Canvas, colour: str, pattern: str = "") -> str:
    """Return the role of text that is legible on a colour, in light and dark pictures."""
    role = "on-dark" if _contrast_with_white(colour) >= 3.6 else "on-bright"
    tone = "#ffffff" if role == "on-dark" else "#16191d"
    if not pattern:
        canvas.define(role, Paint("fill", tone, tone))
        return role
    # The text has a rim, because there is a pattern below it.
    role = f"on-{pattern}"
    canvas.define(role, Paint("fill", tone, tone), Paint("stroke", colour, colour))
    return role


def _contrast_with_white(colour: str) -> float:
    """Return the contrast ratio with white, as in WCAG 2.1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
