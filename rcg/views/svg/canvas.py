# SPDX-License-Identifier: Apache-2.0
"""The canvas of all pictures: colours by role, text fitted to its room, and the SVG around them.

A role names the purpose of a shape ("text", "lane") and has a light and a dark colour. Light
colours are attributes. Dark colours are in a style sheet, so programs without style sheets show the
light picture. A picture has no script, no font and nothing to load. It has its own background, so
it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, Final
from zlib import crc32

from rcg.text import brief, visible
from rcg.views.data.lettering import DOT, SIZE, SMALL, TITLE, shorten, width_of

SANS: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
MONOSPACE: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

WIDTH: Final = 1080
"""The width of all pictures; that of small topologies is less."""

LEGEND_LINE: Final = 18.0  # between rows of a legend
MARGIN: Final = 24.0
"""The space at each edge of a picture."""

_MAX_HOVER_CHARS: Final = 160
_BETWEEN: Final = f" {DOT} "  # the parts of a subtitle


@dataclass(frozen=True, slots=True)
class Paint:
    """An attribute, and its light and its dark colour."""

    attribute: str
    light: str
    dark: str


_ROLES: Final[dict[str, tuple[Paint, ...]]] = {
    "ground": (Paint("fill", "#ffffff", "#0f1419"),),
    "actor": (Paint("fill", "#f1f3f5", "#1b222b"),),
    "frame": (Paint("fill", "#fafbfc", "#131920"), Paint("stroke", "#c6ccd4", "#3b4654")),
    "row": (Paint("fill", "#ffffff", "#10161d"),),
    "box": (Paint("fill", "#ffffff", "#10161d"), Paint("stroke", "#c6ccd4", "#3b4654")),
    "text": (Paint("fill", "#16191d", "#eceff3"),),
    "joint": (Paint("stroke", "#c6ccd4", "#3b4654"),),
    "faint": (Paint("fill", "#59626e", "#a3adb9"),),
    "grid": (Paint("stroke", "#e3e7eb", "#252d37"),),
    "lane": (Paint("fill", "#f4f6f8", "#171d25"),),
    "idle-line": (Paint("stroke", "#c9d0d8", "#3f4b5a"),),
    "wait": (Paint("fill", "#e6e9ed", "#2a323d"),),
    "wait-line": (Paint("stroke", "#bcc4cd", "#4d5967"),),
    "on-idle": (Paint("fill", "#59626e", "#a3adb9"), Paint("stroke", "#f4f6f8", "#171d25")),
    "on-wait": (Paint("fill", "#4a535e", "#b4bdc8"), Paint("stroke", "#e6e9ed", "#2a323d")),
    "queue": (Paint("fill", "#a3aebb", "#5d6b7a"),),
    "marked": (Paint("fill", "#fbeadf", "#33231a"),),
    "odd": (Paint("fill", "#fbeadf", "#33231a"), Paint("stroke", "#d55e00", "#ff8a3d")),
}

# A placeholder for the picture's id. It cannot occur in a name, which is visible text.
_KEY: Final = "\x00"


class Canvas:
    """Returns shapes as text, and collects the colours and patterns that they use.

    Args:
        dark: Whether to use dark colours; None leaves it to the reader's browser.
    """

    def __init__(self, dark: bool | None = None) -> None:
        self._dark = dark
        self._roles = dict(_ROLES)
        self._used: dict[str, None] = {}
        self._patterns: dict[str, str] = {}

    def define(self, role: str, *paints: Paint) -> None:
        """Add a role."""
        self._roles[role] = paints

    def paint(self, role: str) -> str:
        """Return the attributes of a role, with a leading space."""
        self._used[role] = None
        colours = "".join(
            f' {each.attribute}="{each.dark if self._dark else each.light}"'
            for each in self._roles[role]
        )
        return f' class="rcg-{role}"{colours}'

    def hatch(self, ground: str, lines: str, *, gap: int) -> str:
        """Return the ``fill`` of an area with rising lines, with a leading space."""
        rect = self.paint(ground)
        rise = f"M0 {gap}L{gap} 0M-1 1L1 -1M{gap - 1} {gap + 1}L{gap + 1} {gap - 1}"
        path = f'<path{self.paint(lines)} stroke-width="1" d="{rise}"/>'
        return self._pattern(f"{ground}-{lines}-{gap}-up", gap, rect, path)

    def dotted(self, ground: str, dots: str) -> str:
        """Return the ``fill`` of a dotted area, with a leading space."""
        shapes = "".join(f'<circle cx="{at}" cy="{at}" r=".9"/>' for at in ("1.5", "4.5"))
        group = f"<g{self.paint(dots)}>{shapes}</g>"
        return self._pattern(f"{ground}-dotted-6", 6, self.paint(ground), group)

    def crossed(self, ground: str, lines: str) -> str:
        """Return the ``fill`` of an area with crossing lines, with a leading space."""
        path = f'<path{self.paint(lines)} stroke-width=".7" d="M0 0L7 7M7 0L0 7"/>'
        return self._pattern(f"{ground}-crossed-7", 7, self.paint(ground), path)

    def _pattern(self, name: str, size: int, ground: str, shapes: str) -> str:
        self._patterns[name] = (
            f'<pattern id="rcg-{_KEY}-{name}" width="{size}" height="{size}" '
            f'patternUnits="userSpaceOnUse"><rect{ground} width="{size}" height="{size}"/>'
            f"{shapes}</pattern>"
        )
        return f' fill="url(#rcg-{_KEY}-{name})"'

    def text(
        self,
        text: str,
        x: float,
        y: float,
        room: float,
        *,
        role: str = "text",
        size: float = SIZE,
        bold: bool = False,
        monospace: bool = False,
        anchor: str = "start",
        is_whole_in_hover: bool = True,
    ) -> str:
        """Return one line of text. If it is shortened to its room, it gets a hover text."""
        text = visible(text)
        shown = shorten(text, room, size, bold=bold, monospace=monospace)
        attributes = f'{self.paint(role)} x="{x:g}" y="{y:g}" font-size="{size:g}"'
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        if bold:
            attributes += ' font-weight="600"'
        if monospace:
            attributes += f' font-family="{MONOSPACE}"'
        is_in_hover = is_whole_in_hover and shown != text
        hover = f"<title>{escape(brief(text, _MAX_HOVER_CHARS))}</title>" if is_in_hover else ""
        return f"<text{attributes}>{escape(shown)}{hover}</text>"

    def note(self, text: str, x: float, y: float, room: float, **style: Any) -> str:
        """Return one line of small text, faint unless it has another role; see ``text``."""
        return self.text(text, x, y, room, **{"role": "faint", "size": SMALL, **style})

    def head(self, name: str, middle: float, room: float, size: float, hover: str) -> str:
        """Return the name at the left of a row whose middle is at this height."""
        text = self.text(
            name, 0, middle + size * 0.36, room, size=size, bold=True, is_whole_in_hover=False
        )
        return f'<g class="rcg-head"><title>{escape(hover)}</title>{text}</g>'

    def heading(self, title: str, subtitle: str, room: float) -> list[str]:
        """Return the two lines above a picture; parts of the second are left out at its end."""
        words = subtitle.split(_BETWEEN)
        while len(words) > 1 and width_of(_BETWEEN.join(words), SIZE) > room:
            words.pop()
        subtitle = _BETWEEN.join(words)
        return [
            self.text(title, MARGIN, MARGIN + 12, room, size=TITLE, bold=True),
            self.text(subtitle, MARGIN, MARGIN + 31, room, role="faint"),
        ]

    def legend(self, entries: Iterable[tuple[str, str]], x: float, y: float, room: float) -> Legend:
        """Return a legend in rows; each entry is a shape in 14 x 10 from (0, 0), and words."""
        shapes: list[str] = []
        at, row = x, y
        for shape, words in entries:
            width = 20 + width_of(words, SMALL) + 18
            if at > x and at + width - 18 > x + room:
                at, row = x, row + LEGEND_LINE
            shapes.append(
                f'<g transform="translate({at:g} {row - 9:g})">{shape}</g>'
                + self.note(words, at + 20, row, room)
            )
            at += width
        return Legend(shapes, row - y + LEGEND_LINE if shapes else 0.0)

    def document(self, body: Iterable[str], width: float, height: float, label: str) -> str:
        """Return the file: a background, and the shapes on it, from back to front.

        The label describes the picture for people who cannot see it.
        """
        size = f'width="{width:g}" height="{height:g}"'
        auto = ' class="rcg-auto"' if self._dark is None else ""
        ground = f'<rect{self.paint("ground")} {size} rx="8"/>'
        patterns = "".join(self._patterns.values())
        text = "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
                f'viewBox="0 0 {width:g} {height:g}" role="img" '
                f'aria-label="{escape(visible(label))}"{auto} font-family="{SANS}" '
                f'font-size="{SIZE:g}">',
                *self._style(),
                *([f"<defs>{patterns}</defs>"] if patterns else []),
                ground,
                *body,
                "</svg>\n",
            ]
        )
        # Ids are global in the page that contains a picture, so each picture has its own.
        return text.replace(_KEY, f"{crc32(text.encode('utf-8', 'replace')):08x}")

    def dark_rules(self, within: str) -> str:
        """Return the dark colours of the shapes so far as rules of a style sheet.

        ``within`` selects what contains the shapes where these colours apply.
        """
        rules = []
        for role in self._used:
            paints = [each for each in self._roles[role] if each.dark != each.light]
            colours = ";".join(f"{each.attribute}:{each.dark}" for each in paints)
            if colours:
                rules.append(f"{within} .rcg-{role}{{{colours}}}")
        return "".join(rules)

    def _style(self) -> list[str]:
        if self._dark is not None:
            return []
        rules = self.dark_rules(".rcg-auto")
        return [f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"]


def swatch(attributes: str) -> str:
    """Return the shape of an area in a legend."""
    return f'<rect{attributes} width="14" height="10" rx="2"/>'


@dataclass(frozen=True, slots=True)
class Legend:
    """The shapes of a legend, and their height."""

    shapes: list[str]
    height: float
