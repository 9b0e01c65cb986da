# SPDX-License-Identifier: Apache-2.0
"""Clocks of other processes: whether they are this process's clock, and if not, their offset.

Processes of one machine usually read one monotonic clock, and then there is nothing to align. In a
container with a time namespace, or on another node, they do not. Then an exchange tells the offset,
as in NTP (RFC 5905, section 8): asked at ``t0``, answered at ``t1`` of the other clock, heard at
``t2``. If both ways took equally long, the other clock was at ``t1`` when ours was in the middle;
it is off by at most half of the round trip. Of several exchanges the shortest tells most.

>>> clock_of([Exchange(100, 1_160, 200), Exchange(300, 1_310, 320)], is_same=False)
Clock(offset_ns=-1000, error_ns=10)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rcg.trace.model import Clock

__all__ = ["Exchange", "clock_identity", "clock_of", "now_ns"]


def now_ns() -> int:
    """Return the clock that the native core records with, in nanoseconds."""
    return time.monotonic_ns()


class Exchange(NamedTuple):
    """One question to another process about its clock.

    Attributes:
        asked_ns: When it was sent, on our clock.
        answered_ns: What the other clock said.
        heard_ns: When the answer came, on our clock.
    """

    asked_ns: int
    answered_ns: int
    heard_ns: int


def clock_of(exchanges: Iterable[Exchange], *, is_same: bool) -> Clock | None:
    """Return how to turn another process's times into ours; None if nothing is known.

    Args:
        exchanges: What was asked and answered.
        is_same: Whether both read the same clock (``clock_identity``).
    """
    if is_same:
        return Clock()
    best = min(exchanges, key=lambda each: each.heard_ns - each.asked_ns, default=None)
    if best is None:
        return None
    middle = (best.asked_ns + best.heard_ns) // 2
    return Clock(middle - best.answered_ns, (best.heard_ns - best.asked_ns + 1) // 2)


def clock_identity() -> str:
    """Return a text that is the same in all processes that read the same monotonic clock.

    That is the boot of the machine and the time namespace; "" where the kernel does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Absent in kernels without time namespaces: then there is one clock per boot.
        space = "/proc/self/ns/time"
        return f"{boot} {os.stat(space).st_ino if os.path.exists(space) else 0}"
    except OSError:
        return ""
