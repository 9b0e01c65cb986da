# SPDX-License-Identifier: Apache-2.0
"""Kinds of time and executions: their names, their colours and their looks in all views.

The colours are those of Okabe and Ito, which colour-blind people can distinguish, and two more. No
kind is distinguished by colour alone: each has a pattern or a frame as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rcg.trace.analysis.events import TimeKind

SPAN: Final = 5
"""The kind of a user's span."""

HIDDEN: Final = 6
"""The kind of communication in a lane while a method of its actor runs."""

DEVICE_COMPUTE: Final = 7
"""The kind of what a device computes."""

DEVICE_COMMUNICATION: Final = 8
"""The kind of a device's copies, and of NCCL's kernels."""

PREDICTED: Final = 9
"""The kind of what was simulated."""

IDEAL: Final = 10
"""The kind of a call without delays. The other kinds are those of ``TimeKind``."""

EXECUTIONS: Final = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8f7fd8",
    "#7f8f2e",
)
"""Colours of executions, by their number modulo 8."""

KIND_COLOURS: Final = {
    TimeKind.COMPUTE: "#0072b2",
    TimeKind.COMMUNICATION: "#d55e00",
    TimeKind.SERIALIZATION: "#e69f00",
}
"""Colours of work, for light and dark pictures."""

TITLES: Final = {
    **{kind.value: kind.name.lower() for kind in TimeKind},
    SPAN: "span",
    HIDDEN: "hidden communication",
    DEVICE_COMPUTE: "GPU compute",
    DEVICE_COMMUNICATION: "GPU copy or NCCL",
    PREDICTED: "predicted",
    IDEAL: "ideal",
}
"""Displayed names of kinds."""

HATCHED: Final = {TimeKind.WAITING: "#98a2ae", TimeKind.IDLE: "#d5dae0"}
"""Colours of hatched time, in which a process does not work."""

SOLID, DOTTED, CROSSED, WAITING, IDLE, PALE, TINTED, OUTLINED, FAINT, FRAMED, SHADED = (
    "solid", "dotted", "crossed", "waiting", "idle", "pale", "tinted", "outlined", "faint",
    "framed", "shaded",
)  # fmt: skip
"""Styles of bars. ``PALE`` and ``SHADED`` have a part of their colour; ``TINTED``, ``OUTLINED`` and
``FAINT`` a part of it and a frame. ``FRAMED`` is a light box."""

_SHARES: Final = {PALE: 0.36, TINTED: 0.5, OUTLINED: 0.3, FAINT: 0.07}


@dataclass(frozen=True, slots=True)
class Look:
    """How bars are drawn.

    Attributes:
        title: What they are, in a legend. Looks of one title are one entry.
        colour: Their colour; "" if their style has its own.
        style: Their style.
        height: Their height, as a share of that of their row.
        opacity: How much of their colour there is; None for that of their style.
    """

    title: str
    colour: str = ""
    style: str = SOLID
    height: float = 1.0
    opacity: float | None = None

    @property
    def share(self) -> float:
        """How much of their colour there is, from 0 to 1."""
        return _SHARES.get(self.style, 1.0) if self.opacity is None else self.opacity


KIND_LOOKS: Final = tuple(
    Look(TITLES[kind], colour, style)
    for kind, (colour, style) in enumerate(
        [
            (KIND_COLOURS[TimeKind.COMPUTE], SOLID),
            (KIND_COLOURS[TimeKind.COMMUNICATION], DOTTED),
            (KIND_COLOURS[TimeKind.SERIALIZATION], CROSSED),
            ("", WAITING),
            ("", IDLE),
            ("#9b6fb8", FRAMED),
            (KIND_COLOURS[TimeKind.COMMUNICATION], PALE),
            ("#56b4e9", SOLID),
            ("#cc79a7", SOLID),
        ]
    )
)
"""The looks of kinds of time, by the kind."""
