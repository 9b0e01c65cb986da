# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a process and of rcg's threads in it, from the kernel's counters."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

THREAD_PREFIX = "rcg"  # of the names of rcg's threads


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters since the start of a process.

    Attributes:
        process_ticks: CPU ticks (usually 10 ms) of the whole process.
        threads: Number of rcg's threads.
        thread_ticks: CPU ticks of those threads.
        wakeups: Number of voluntary context switches of those threads: each ends in a wake-up.
    """

    process_ticks: int
    threads: int
    thread_ticks: int
    wakeups: int

    def since(self, before: Usage) -> Usage:
        """Return the difference to an earlier usage. `threads` stays as it is."""
        return Usage(
            self.process_ticks - before.process_ticks,
            self.threads,
            self.thread_ticks - before.thread_ticks,
            self.wakeups - before.wakeups,
        )


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of the usage of several processes."""
    found = list(usages)
    return Usage(
        sum(usage.process_ticks for usage in found),
        sum(usage.threads for usage in found),
        sum(usage.thread_ticks for usage in found),
        sum(usage.wakeups for usage in found),
    )


def parse_ticks(stat: str) -> int:
    """Return user and system ticks from the text of `/proc/<pid>/stat`.

    The second field is the program's name in brackets, which may contain spaces and brackets.

    >>> parse_ticks("17 (a (b) c) S 1 1 1 0 -1 0 5 0 0 0 30 12 0 0 20 0 1 0 99")
    42
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def parse_wakeups(status: str) -> int:
    """Return the number of voluntary context switches from `/proc/<pid>/task/<tid>/status`.

    Raises:
        ValueError: The text has no such line.
    """
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    raise ValueError("there is no line voluntary_ctxt_switches")


def read_usage() -> Usage:
    """Return the usage of this process and of rcg's threads in it."""
    own = [
        thread.native_id
        for thread in threading.enumerate()
        if thread.name.startswith(THREAD_PREFIX) and thread.native_id is not None
    ]
    ticks = wakeups = 0
    for native_id in own:
        task = Path(f"/proc/self/task/{native_id}")
        ticks += parse_ticks((task / "stat").read_text())
        wakeups += parse_wakeups((task / "status").read_text())
    process = parse_ticks(Path(f"/proc/{os.getpid()}/stat").read_text())
    return Usage(process, len(own), ticks, wakeups)
