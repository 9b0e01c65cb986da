# SPDX-License-Identifier: Apache-2.0
"""The actor of a soak."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Any

import rcg
from tests.cluster.stage import GUARD_S, resources
from tests.soak import values
from tests.soak.recipe import Step, perform

__all__ = ["Performer", "Spoiled", "inspect_process"]

_KEPT = 20


class Spoiled(Exception):
    """A value that an actor kept is another one now."""


class Plain:
    """Performs the steps of recipes, and keeps some of its arguments for a while."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, int]] = deque()
        self._calls: Counter[str] = Counter()
        # Graphs call without overlapping, ordinary calls beside them.
        self._lock = threading.Lock()

    def perform(self, _step: Step, *args: Any, **kwargs: Any) -> Any:
        if _step.exits_at is not None:
            self._calls[_step.token] += 1
            if self._calls[_step.token] == _step.exits_at:
                os._exit(3)
        if _step.op == "keep":
            with self._lock:
                self._kept.append((args[0], values.digest(args[0])))
                if len(self._kept) > _KEPT:
                    self._look_at_oldest()
        return perform(_step, args, kwargs)

    def _look_at_oldest(self) -> None:
        value, seen = self._kept.popleft()
        if values.digest(value) != seen:
            raise Spoiled(f"{type(value).__name__} with digest {seen} has another one now")

    def pid(self) -> int:
        return os.getpid()

    def join_threads(self, graph_ids: list[str]) -> list[str]:
        """Wait until the threads that run these graphs here have ended; returns those that hang."""
        ends = tuple(graph_id[:6] for graph_id in graph_ids)
        mine = [thread for thread in threading.enumerate() if thread.name.endswith(ends)]
        for thread in mine:
            thread.join(GUARD_S)
        return [thread.name for thread in mine if thread.is_alive()]

    def inspect(self) -> dict[str, int]:
        """Look at everything that is kept, let go of it, and return what this process has."""
        with self._lock:
            while self._kept:
                self._look_at_oldest()
        return inspect_process()


Performer = rcg.remote(num_cpus=0)(Plain)


def _segment_files() -> int:
    """How many descriptors of segments of shared memory this process has open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(("/dev/shm/#", "/memfd:rcg"))
    return found


def inspect_process() -> dict[str, int]:
    """How many threads, files, segments of shared memory and bytes of its own this process has."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    (own,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return {
        **resources(),
        "segment_files": _segment_files(),
        "resident_mb": int(own.split()[1]) >> 10,
        # It takes much memory, and comes with the first tensor.
        "has_torch": int("torch" in sys.modules),
    }
