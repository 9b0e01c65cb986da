# SPDX-License-Identifier: Apache-2.0
"""The kinds of edges, which say how a value travels, and their styles in all views.

No kind is distinguished by colour alone: each has a dash pattern, an arrow in text and a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rcg.ir.channels import RING

LOCAL: Final = "local"  # inside one process: a slot of its program, no channel
COLLECTIVE: Final = "collective"  # between a collective and a call of one of its processes
SHM: Final = "shm"  # through shared memory
TCP: Final = "tcp"  # to another node; on a node the value travels through shared memory
# Through shared memory, because the driver is at one end; others get the value over a communicator.
FALLBACK: Final = "fallback"
_COMMUNICATOR: Final = "communicator "  # over a user's own communicator; its name follows


@dataclass(frozen=True, slots=True)
class EdgeStyle:
    """The style of one kind of edge: its displayed title, its arrow in text, its line.

    Colour-blind people can distinguish the colours (Okabe, Ito). ``dashes`` has the lengths of dash
    and gap; it is empty for a solid line.
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
        EdgeStyle(SHM, "shared memory", "--->", "#0072b2", "#56b4e9", "", 1.5),
        EdgeStyle(LOCAL, "same process", "--->", "#6b7280", "#9ca3af", "1.5 3.5", 1.5),
        EdgeStyle(TCP, "TCP", "~~~>", "#b37400", "#e69f00", "7 4", 1.5),
        EdgeStyle("tensor", "accelerator", "+++>", "#d55e00", "#ff8a3d", "14 3", 2.5),
        EdgeStyle("gloo", "Gloo", "+++>", "#d55e00", "#ff8a3d", "10 2", 2.5),
        EdgeStyle("nccl", "NCCL", "+++>", "#d55e00", "#ff8a3d", "", 2.5),
        EdgeStyle(COLLECTIVE, "collective", "+++>", "#00795a", "#2fc49a", "", 2.0),
        EdgeStyle(
            FALLBACK, "shared memory for the driver", "--->", "#0072b2", "#56b4e9", "4 3", 1.5
        ),
    )
}


def kind_of_channel(channel_kind: str, backend: str | None = None) -> str:
    """Return the kind of the edges of a channel whose group, if any, has this library."""
    if backend is not None:
        return backend if backend in _STYLES else f"{_COMMUNICATOR}{backend}"
    return SHM if channel_kind == RING else channel_kind


def is_known(name: str) -> bool:
    """Return whether a kind has a style of its own."""
    return name in _STYLES or name.startswith(_COMMUNICATOR)


def style_of(name: str) -> EdgeStyle:
    """Return the style of a kind. An unknown kind is shown by its own name."""
    if name.startswith(_COMMUNICATOR):
        title = name.removeprefix(_COMMUNICATOR)
        return EdgeStyle(name, title, "+++>", "#d55e00", "#ff8a3d", "10 3 2 3", 2.5)
    return _STYLES.get(name) or EdgeStyle(name, name, "--->", "#9c4f7d", "#cc79a7", "8 3 2 3", 1.5)
