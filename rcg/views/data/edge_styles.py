# SPDX-License-Identifier: Apache-2.0
"""The kinds of edges, which say how a value travels, and their styles in all views.

No kind is distinguished by colour alone: each has a dash pattern, an arrow in text and a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LOCAL", "EdgeStyle", "style_of", "kind_of_channel"]

LOCAL: Final = "local"
"""The kind of an edge inside one process: a slot of its program, no channel."""


@dataclass(frozen=True, slots=True)
class EdgeStyle:
    """The style of one kind of edge. Colour-blind people can distinguish the colours (Okabe, Ito).

    Attributes:
        name: The kind: ``shm``.
        title: Its displayed name.
        arrow: Its arrow in text.
        light: Its light colour.
        dark: Its dark colour.
        dashes: Lengths of dash and gap; empty for a solid line.
        width: Width of the line.
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
    """Return the kind of the edges of a channel; ``ring`` is shared memory."""
    return _KIND_OF_CHANNEL.get(channel_kind, channel_kind)


def style_of(name: str) -> EdgeStyle:
    """Return the style of a kind. An unknown kind is shown by its own name."""
    return _STYLES.get(name) or EdgeStyle(name, name, "--->", "#9c4f7d", "#cc79a7", "8 3 2 3", 1.5)
