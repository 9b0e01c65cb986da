# SPDX-License-Identifier: Apache-2.0
"""Colours and names of kinds of time, and colours of executions, for all views.

The colours are those of Okabe and Ito, which colour-blind people can distinguish, and two more.
"""

from __future__ import annotations

from typing import Final

from rcg.trace.analysis.events import TimeKind
from rcg.views.data.slices import DEVICE_COMMUNICATION, DEVICE_COMPUTE, HIDDEN, SPAN

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

HIDDEN_OPACITY: Final = 0.36
"""The opacity of the colour of communication where a method of its actor hides it."""

TITLES: Final = {
    **{kind.value: kind.name.lower() for kind in TimeKind},
    SPAN: "span",
    HIDDEN: "hidden communication",
    DEVICE_COMPUTE: "GPU compute",
    DEVICE_COMMUNICATION: "GPU copy or NCCL",
}
"""Displayed names of kinds."""

DEVICE_COLOURS: Final = {DEVICE_COMPUTE: "#56b4e9", DEVICE_COMMUNICATION: "#cc79a7"}
"""Colours of what devices do."""

HATCHED: Final = {TimeKind.WAITING: "#98a2ae", TimeKind.IDLE: "#d5dae0"}
"""Colours of hatched time, in which a process does not work."""

SPAN_COLOUR: Final = "#9b6fb8"
"""The colour of the user's spans."""
