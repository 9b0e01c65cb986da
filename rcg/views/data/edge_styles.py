# SPDX-License-Identifier: Apache-2.0
"""How a value travels along an edge, and how every view shows that: one table.

A kind is never told by its colour alone. Each has a dash pattern, an arrow in text and a name as
well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LOCAL", "EdgeStyle", "style_of", "kind_of_channel"]

LOCAL: Final = "local"
"""The kind of an edge inside one process: a slot of its program, no channel."""


@dataclass(frozen=True, slots=True)
class EdgeStyle:
    """The look of one kind of edge. Colours are Okabe and Ito's, which the colour-blind can tell.

    Attributes:
        name: The kind: ``shm``.
        title: Its name for people.
        arrow: What stands for it in text.
        light: Colour on a light ground.
        dark: Colour on a dark ground.
        dashes: Lengths of dash and gap; empty for a solid line.
        width: How wide the line is.
    """

    name: str
    title: str
    arrow: str
    light: str
    dark: str
    dashes: str
    width: float


_STYLES: Final = {
    kind.name: kind
    for kind in (
        EdgeStyle("shm", "shared memory", "--->", "#0072b2", "#56b4e9", "", 1.5),
        EdgeStyle(LOCAL, "same process", "--->", "#6b7280", "#9ca3af", "1.5 3.5", 1.5),
        EdgeStyle("tcp", "TCP", "~~~>", "#b37400", "#e69f00", "7 4", 1.5),
        EdgeStyle("tensor", "accelerator", "+++>", "#d55e00", "#ff8a3d", "14 3", 2.5),
    )
}

_KIND_OF_CHANNEL: Final = {"ring": "shm"}


def kind_of_channel(channel_kind: str) -> str:
    """Return the kind of the edges that a channel carries; ``ring`` is shared memory."""
    return _KIND_OF_CHANNEL.get(channel_kind, channel_kind)


def style_of(name: str) -> EdgeStyle:
    """Return the look of a kind; one that nobody has drawn yet is shown under its own name."""
    return _STYLES.get(name) or EdgeStyle(name, name, "--->", "#9c4f7d", "#cc79a7", "8 3 2 3", 1.5)
