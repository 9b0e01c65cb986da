# SPDX-License-Identifier: Apache-2.0
"""What the processes of a graph did and when: reading the flight recorder, and what follows."""

from __future__ import annotations

from rcg.trace.parts import Kind, Parts, events_of, parts_of
from rcg.trace.recorder import Recorder
from rcg.trace.trace import Clock, GraphTrace, Lane, OpenOp, Trace

__all__ = [
    "Clock",
    "GraphTrace",
    "Kind",
    "Lane",
    "OpenOp",
    "Parts",
    "Recorder",
    "Trace",
    "events_of",
    "parts_of",
]
