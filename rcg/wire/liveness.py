# SPDX-License-Identifier: Apache-2.0
"""Whether a process lives, as the kernel tells it, and how one left a graph unasked."""

from __future__ import annotations

import enum
import os
import select
from dataclasses import dataclass
from typing import Final

from rcg.descriptors import Descriptor, exhaustion_in

# How long after its connection a process may take to end: the kernel closes sockets first.
EXIT_TIMEOUT_S: Final = 0.25


class How(enum.Enum):
    """How a process left; the value is the text for people."""

    DIED = "its process ended"
    LEFT = "it closed its connection"
    FAILED = "its loop failed"  # the process lives on
    UNREACHABLE = "it cannot be reached"  # on another node; it may live


@dataclass(frozen=True, slots=True)
class Ending:
    """How and why a process left a graph.

    Attributes:
        how: What happened.
        why: The reason that a failed loop reported, or the known part of it.
    """

    how: How
    why: str = ""

    def __str__(self) -> str:
        return f"{self.how.value}: {self.why}" if self.why else self.how.value


def pidfd_of(pid: int) -> Descriptor:
    """Return a descriptor that becomes readable when the process ends.

    There is none for this very process, for an unknown one (0), for one of another namespace, and
    on an old kernel: there the end of a socket has to do.

    Raises:
        OSError: This process has no descriptor left, so a death would go unseen.
    """
    if pid in (0, os.getpid()):
        return Descriptor()
    try:
        return Descriptor(os.pidfd_open, pid)
    except OSError as error:
        if exhaustion_in(error):
            raise
        return Descriptor()


def ends_within(pidfd: int, timeout_s: float | None) -> bool:
    """Wait for the end of a process; returns whether it came."""
    poller = select.poll()  # `select.select` takes no descriptor above 1023
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1e3))


def how_it_ended(pidfd: int) -> How:
    """Return whether a process whose connection ended has ended too; that may take a moment."""
    return How.DIED if pidfd >= 0 and ends_within(pidfd, EXIT_TIMEOUT_S) else How.LEFT
