# SPDX-License-Identifier: Apache-2.0
"""Contestants in processes of their own: with ``--beside FOLDER``, two versions of rcg.

A graph of another version of rcg and one of this version are contestants, too. Both are run in a
separate process (``visitor.py``), so they differ only in the rcg that they import.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import ray

import rcg
from rcg.bench import visitor
from rcg.bench.contestants import READY_TIMEOUT_S, RowSession
from rcg.bench.measure import Pace
from rcg.bench.record import BESIDE, HERE
from rcg.bench.rows import Arguments, Row


class VisitorFailed(Exception):
    """A request to the process of a visitor failed."""


class Visitor:
    """A graph compiled by the rcg in a folder, whose native core is built.

    Raises:
        VisitorFailed: The package cannot be imported, or the process does not start.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._pids: list[int] = []
        folder = folder.resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(visitor.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        try:
            files, self._pids = self._ask("start", ray.get_runtime_context().gcs_address)
            if files != {str(folder / "rcg" / "__init__.py")}:
                raise VisitorFailed(f"it imports rcg from {', '.join(sorted(files))}, not {folder}")
        except BaseException:
            self.end()
            raise

    def pids(self) -> list[int]:
        """Return the ids of its actors' processes."""
        return self._pids

    def open(self, row: Row, payload: Arguments, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Compile the row's graph. The process uses its own event loop."""
        names = ("shape", "methods", "transport", "is_async", "in_flight", "lends")
        task = {name: getattr(row, name) for name in names}
        value = self._ask("open", task, payload)
        return RowSession(lambda: value, self._turn, lambda: self._ask("close"))

    def _turn(self, pace: Pace) -> array[int]:
        samples = array("q")
        samples.frombytes(self._ask("turn", pace.calls, pace.time_ns, pace.warm_up))
        return samples

    def end(self) -> None:
        """End its process, which ends its actors."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, *request: Any) -> Any:
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise VisitorFailed("its process has no pipes")
        try:
            pickle.dump(request, to, 5)
            to.flush()
            kind, found = pickle.load(back)
        except (BrokenPipeError, EOFError):
            raise VisitorFailed("its process ended; its output says why") from None
        if kind == "error":
            raise VisitorFailed(found)
        return found


def start_both(folder: Path) -> tuple[list[Visitor], dict[str, str]]:
    """Return this version and the one in a folder as visitors, and why one is missing, by name."""
    here = Path(str(rcg.__file__)).parents[1]
    found: list[Visitor] = []
    absent: dict[str, str] = {}
    for name, where in ((HERE, here), (BESIDE, folder)):
        try:
            found.append(Visitor(name, where))
        except VisitorFailed as error:
            absent[name] = str(error)
    return found, absent
