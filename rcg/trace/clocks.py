# SPDX-License-Identifier: Apache-2.0
"""Clocks of other processes: whether they are this process's clock, and if not, their offset.

Processes of one machine usually read the same monotonic clock, so there is nothing to align. In a
container with a time namespace, or on another node, they do not. Then exchanges give the offset, as
in NTP (RFC 5905, section 8): a question is sent at ``t0``, answered at ``t1`` of the other clock,
and the answer arrives at ``t2``. If both ways take equally long, the other clock reads ``t1`` in
the middle between ``t0`` and ``t2``. The error is at most half of the round trip. The shortest
exchange is the most accurate.

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


def now_ns() -> int:
    """Return the clock that the native core records with, in nanoseconds."""
    return time.monotonic_ns()


class Exchange(NamedTuple):
    """One question to another process about its clock.

    Attributes:
        asked_ns: When the question was sent, on our clock.
        answered_ns: When it was answered, on the other clock.
        heard_ns: When the answer arrived, on our clock.
    """

    asked_ns: int
    answered_ns: int
    heard_ns: int


def clock_of(exchanges: Iterable[Exchange], *, is_same: bool) -> Clock | None:
    """Return how to convert another process's times to ours; None if that is not known.

    Args:
        exchanges: Questions and answers.
        is_same: Whether both processes read the same clock (``clock_identity``).
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

    It names the boot of the machine and the time namespace; "" if the kernel does not provide them.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Kernels without time namespaces have one clock per boot.
        space = "/proc/self/ns/time"
        return f"{boot} {os.stat(space).st_ino if os.path.exists(space) else 0}"
    except OSError:
        return ""
