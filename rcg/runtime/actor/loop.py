# SPDX-License-Identifier: Apache-2.0
"""The loop of an actor: it runs one program, execution after execution, until the graph ends.

The loop is a flat list of steps (``steps``) made from the program's ops. Recording is part of it:
reads and writes record themselves in the native core, a Call is one ``mark`` more.

It must not know how graphs are compiled, nor what the driver does with results.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import Any

from rcg import cluster
from rcg.channels.base import GraphEnded, Signal
from rcg.error_text import describe_error, format_error, trace_of, type_name
from rcg.errors import (
    InternalError,
    UnpicklableError,
)
from rcg.frames import is_plumbing
from rcg.ir.ids import DRIVER
from rcg.log import Log
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.coroutines import Coroutines
from rcg.runtime.actor.spec import Start
from rcg.runtime.actor.steps import Steps
from rcg.runtime.actor.turns import turns
from rcg.runtime.control.client import ControlClient
from rcg.runtime.failure import (
    Origin,
)
from rcg.runtime.node import arrays
from rcg.runtime.node.node import Node
from rcg.trace import spans
from rcg.trace.clocks import now_ns

__rcg_plumbing__ = True  # see rcg.frames

__all__ = ["Loop"]

_log = Log()


class Loop:
    """Runs one program on one actor until the graph ends."""

    def __init__(self, instance: Any, spec: Start, node: Node, control: ControlClient) -> None:
        self._node = node
        self._control = control
        self._spec = spec
        label, actor_id, actor_repr = spec.actor
        self.origin = Origin(label, actor_id, actor_repr, os.getpid(), cluster.node_ip())
        self.execution = 0  # the one that runs now
        self._thread = 0
        self._is_kept_out = False  # by another graph's method
        self.coroutines: Coroutines | None = None
        self._steps = Steps(self, instance, spec, node).make()

    def run(self) -> None:
        """Run executions until the graph is closed or breaks; reports any other end."""
        failure: str | None = "it ended without a reason"
        try:
            try:
                self._run_steps()
            except BaseException as error:  # noqa: BLE001 - the loop must not end in silence
                if issubclass(type(error), GraphEnded) and self._node.is_over:
                    failure = None
                else:
                    failure = type_name(type(error))
                    text = format_error(error, trace_of(error))
                    failure = f"{_translated(error)}\n{text}"
                    self._control.finish(failure)  # before users' log handlers run
                    _log.exception("the loop of %s ended", self._spec.program.process)
            self._steps = []  # releases the values in the slots
            failpoints.reach(
                failpoints.Failpoint("stop", self._spec.program.process, self.execution)
            )
        finally:
            self._control.finish(failure)

    def _run_steps(self) -> None:
        """Run executions until something is raised."""
        steps = self._steps
        self._thread = threading.get_ident()
        writer = self._node.span_writer(lambda: self.execution)
        outside = spans.here.set(writer if self._spec.options.record else None)
        memory_outside = arrays.here.set(self._node.lend)
        try:
            while True:
                for step in steps:
                    step()
                self.execution += 1
        finally:
            # Of an actor's main thread, which goes on.
            arrays.here.reset(memory_outside)
            spans.here.reset(outside)

    def wait_for_turn(self) -> None:
        """Take the lock that another graph's method holds on this actor, or did a moment ago."""
        self._is_kept_out = True
        start_ns = now_ns()
        turns.wait(self._spec.graph_id, self.origin.label)
        self._node.waited(now_ns() - start_ns)
        self._is_kept_out = False

    def blame(self, error: UnpicklableError) -> UnpicklableError:
        """Return the error with the method and the execution that returned the value."""
        facts = {"actor": self.origin.label, "execution": self.execution}
        return UnpicklableError(error.message, **{**error.facts, **facts})

    # --- called by the control socket's thread

    def on_stop(self) -> None:
        """The graph ends. Poison ends the loop at its next read or write; a coroutine now."""
        if self.coroutines is not None:
            self.coroutines.cancel()

    def on_owner_gone(self) -> None:
        """End the loop, and every other member's: the driver is dead."""
        with contextlib.suppress(RuntimeError):
            self._node.end_broken(DRIVER)
        self.on_stop()

    def where(self) -> list[str]:
        """Return the stack of the user's method that runs now, innermost last; [] in none."""
        if self._is_kept_out:
            return ["(not in the method yet: one of another graph runs on this actor)"]
        suspended = [] if self.coroutines is None else self.coroutines.frames()
        frames = [at for at in suspended if not is_plumbing(at[0])]
        if not frames:
            frame = sys._current_frames().get(self._thread)
            # The method's frames: everything inside the last step of ours.
            while frame is not None and not is_plumbing(frame):
                frames.insert(0, (frame, frame.f_lineno))
                frame = frame.f_back
            if frame is None:
                return []  # the loop has not begun, or is over
        summary = traceback.StackSummary.extract(iter(frames), lookup_lines=False)
        return [f"{entry.filename}:{entry.lineno} in {entry.name}" for entry in summary]


def _translated(error: BaseException) -> str:
    """Return the error that ended a loop: a known one, or an unexpected one as an InternalError."""
    if isinstance(error, Signal):
        return str(error.public())
    return str(InternalError(f"unexpected: {describe_error(error)}"))
