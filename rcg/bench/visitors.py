# SPDX-License-Identifier: Apache-2.0
"""Contestants from elsewhere: a graph of another version of rcg, driven by a process of its own.

This version takes part once more in the same way, so that the two differ in nothing but the rcg
that they import: ``python -m rcg.bench --beside FOLDER``.
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
from rcg.bench.measure import Pace, Turn
from rcg.bench.record import BESIDE, HERE
from rcg.bench.rows import Payload, Row


class VisitorFailed(Exception):
    """The process of a visitor said why it could not do what it was asked to."""


class Visitor:
    """A graph compiled by the rcg in a folder.

    Args:
        name: What the table calls it.
        folder: Where its package ``rcg`` is, with its native core built.

    Raises:
        VisitorFailed: It cannot be imported there, or does not start.
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
        """Returns the ids of its actors' processes."""
        return self._pids

    def open(self, row: Row, payload: Payload, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Compiles the row's graph. Its process has an event loop of its own."""
        task = {
            "shape": row.shape,
            "method": row.method,
            "actors": row.actors,
            "is_async": row.is_async,
            "in_flight": row.in_flight,
        }
        value = self._ask("open", task, payload)
        return RowSession(check=lambda: value, turn=self._turn, close=lambda: self._ask("close"))

    @property
    def _turn(self) -> Turn:
        def turn(pace: Pace) -> array[int]:
            samples = array("q")
            samples.frombytes(self._ask("turn", pace.calls, pace.time_ns, pace.warm_up))
            return samples

        return turn

    def end(self) -> None:
        """Ends its process, and with it its actors."""
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
            raise VisitorFailed("it has no pipes")
        try:
            pickle.dump(request, to, 5)
            to.flush()
            kind, found = pickle.load(back)
        except (BrokenPipeError, EOFError):
            raise VisitorFailed("its process ended; what it printed says why") from None
        if kind == "error":
            raise VisitorFailed(found)
        return found


def start_both(folder: Path) -> tuple[list[Visitor], dict[str, str]]:
    """Returns this rcg and the one in a folder as visitors, and why one is missing, by name."""
    here = Path(str(rcg.__file__)).parents[1]
    found: list[Visitor] = []
    absent: dict[str, str] = {}
    for name, where in ((HERE, here), (BESIDE, folder)):
        try:
            found.append(Visitor(name, where))
        except VisitorFailed as error:
            absent[name] = str(error)
    return found, absent
