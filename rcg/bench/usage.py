# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a process and of rcg's threads in it, as the kernel counts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

THREAD_PREFIX = "rcg"  # rcg's threads carry names that start so


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters since the start of a process.

    Attributes:
        process_ticks: CPU ticks (usually 10 ms) of the whole process.
        threads: How many threads of rcg's it has.
        thread_ticks: CPU ticks of those threads.
        wakeups: How often those threads gave up the CPU to wait, that is, woke up again later.
    """

    process_ticks: int
    threads: int
    thread_ticks: int
    wakeups: int

    def since(self, before: Usage) -> Usage:
        """Returns what was used after `before`; `threads` stays a count."""
        return Usage(
            self.process_ticks - before.process_ticks,
            self.threads,
            self.thread_ticks - before.thread_ticks,
            self.wakeups - before.wakeups,
        )


def total(usages: Iterable[Usage]) -> Usage:
    """Adds up the usage of several processes."""
    found = list(usages)
    return Usage(
        sum(usage.process_ticks for usage in found),
        sum(usage.threads for usage in found),
        sum(usage.thread_ticks for usage in found),
        sum(usage.wakeups for usage in found),
    )


def parse_ticks(stat: str) -> int:
    """Returns user and system ticks from the text of `/proc/<pid>/stat`.

    The second field is the program's name in brackets, which may itself hold spaces and brackets.

    >>> parse_ticks("17 (a (b) c) S 1 1 1 0 -1 0 5 0 0 0 30 12 0 0 20 0 1 0 99")
    42
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def parse_wakeups(status: str) -> int:
    """Returns the number of voluntary context switches from `/proc/<pid>/task/<tid>/status`.

    Raises:
        ValueError: The text has no such line.
    """
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    raise ValueError("there is no line voluntary_ctxt_switches")


def read_usage() -> Usage:
    """Returns the usage of this process and of the threads in it that are named as rcg's."""
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
