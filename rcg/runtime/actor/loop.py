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
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from rcg import cluster
from rcg.channels.base import GraphEnded, Signal, TransferFailed
from rcg.error_text import describe_error, format_error, trace_of, type_name
from rcg.errors import CommError, CompileError, InternalError, RcgError, UnpicklableError
from rcg.frames import is_plumbing
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Op
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.groups import OpenGroups
from rcg.runtime.actor.methods import Coroutines
from rcg.runtime.actor.spec import Start
from rcg.runtime.actor.steps import ActorExit, Steps
from rcg.runtime.actor.torch_ops import Marks, torch_profiling
from rcg.runtime.actor.turns import turns
from rcg.runtime.control.client import ControlClient
from rcg.runtime.failure import Origin
from rcg.runtime.node import arrays
from rcg.runtime.node.node import Node
from rcg.trace import spans
from rcg.wire.liveness import SETTLE_S

__rcg_plumbing__ = True  # see rcg.frames

_log = Log()

_POLL_S: Final = 0.005
# How long a loop waits for those of others before it closes its groups. An aborted operation has
# ended by then. A method may take longer; when it returns, its loop uses no communicator any more.
_DONE_PATIENCE_S: Final = 2.5

may_exit: Final = threading.Event()
"""Set when the loop in which a method called ``exit_actor`` has cleaned up."""


class Loop:
    """Runs one program on one actor until the graph ends."""

    def __init__(
        self, instance: Any, spec: Start, node: Node, control: ControlClient, groups: OpenGroups
    ) -> None:
        self._node = node
        self._control = control
        self._groups = groups
        self._spec = spec
        label, actor_id, actor_repr = spec.actor
        actor = spec.program.process.partition(".")[0]  # of its lanes, too
        self.origin = Origin(label, actor_id, actor_repr, os.getpid(), cluster.node_ip(), actor)
        self.execution = 0  # the one that runs now
        self._thread = self._task = 0  # in Python, and in the kernel
        self._marks: Marks | None = None  # while torch is profiled
        self.coroutines: Coroutines | None = None
        self._steps = Steps(self, instance, spec, node).make()
        if spec.options.nvtx:
            self._steps = _in_ranges(self._steps, spec)

    @property
    def name(self) -> str:
        """The program and the graph, for names of threads: ``a0.comm-3f09ac``."""
        return f"{self._spec.program.process}-{self._spec.graph_id[:6]}"

    def give_up(self, why: str) -> None:
        """Report why a loop will not run; the end of the graph ends one that does."""
        self._control.finish(why)

    def run(self, prepare: Callable[[], None] | None = None) -> None:
        """Run executions until the graph is closed or breaks; reports any other end.

        A thread that is not the actor's own calls ``prepare`` first.
        """
        failure: str | None = "it ended without a reason"
        is_exiting = False
        try:
            try:
                if prepare is not None:
                    prepare()
                self._open_groups()
                self._run_steps()
            except ActorExit as leaving:
                failure = str(leaving)
                is_exiting = True
                self._control.finish(failure, is_exiting=True)
            except BaseException as error:  # noqa: BLE001 - the loop must not end in silence
                if self._is_end(error):
                    failure = None
                else:
                    failure = type_name(type(error))
                    text = format_error(error, trace_of(error))
                    failure = f"{_public_text(error)}\n{text}"
                    self._control.finish(failure)  # before users' log handlers run
                    _log.exception("the loop of %s ended", self._spec.program.process)
            self._steps = []  # releases the values in the slots
            process = self._spec.program.process
            failpoints.reach(failpoints.Failpoint("stop", process, self.execution))
        finally:
            try:
                self._node.unlink()
                self._node.unpin()
                self._close_groups(failure is None)
            finally:
                self._control.finish(failure)
                if is_exiting:
                    may_exit.set()

    def _open_groups(self) -> None:
        """Build the communicators, and tell the driver."""
        if self._groups:
            timeout_s = self._spec.options.compile_timeout_s
            failpoints.reach(failpoints.Failpoint("groups", self._spec.program.process))
            self._groups.open(timeout_s, lambda: self.execution)
            self._control.report_prepared()

    def _close_groups(self, has_ended_with_others: bool) -> None:
        """Close the communicators when the loops of all members have ended, or after a while.

        What a rank has sent and others have not received yet may be lost when it closes.
        """
        try:
            if self._groups.are_open and has_ended_with_others:
                self._control.done(_DONE_PATIENCE_S)
        finally:
            self._groups.close()

    def _is_end(self, error: BaseException) -> bool:
        """Return whether an exception only shows that the graph has ended.

        A communicator may report a peer's death before the driver does, so this waits for that. If
        no death is reported by then, the communicator itself has failed.
        """
        kind = type(error)
        if issubclass(kind, TransferFailed | CommError | TimeoutError):
            deadline = Deadline(SETTLE_S)
            while not self._node.is_over and not deadline.expired:
                time.sleep(_POLL_S)
        elif not issubclass(kind, GraphEnded):
            return False
        return self._node.is_over

    def _run_steps(self) -> None:
        """Run executions until something is raised."""
        steps = self._steps
        self._thread, self._task = threading.get_ident(), threading.get_native_id()
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

    def blame(self, error: UnpicklableError) -> UnpicklableError:
        """Return the error with the method and the execution that returned the value."""
        facts = {"actor": self.origin.label, "execution": self.execution}
        return UnpicklableError(error.message, **{**error.facts, **facts})

    # --- called by the control socket's thread

    def on_stop(self) -> None:
        """End what poison does not: it ends the loop at its next read or write."""
        self._groups.abort("the graph has ended")
        if self.coroutines is not None:
            self.coroutines.cancel()

    def on_broken(self) -> None:
        """A process of the graph is gone: poison ends the loop, but not inside a communicator."""
        self._groups.abort("a process of the graph is gone")

    def on_owner_gone(self) -> None:
        """End the loop, and every other member's: the driver is dead."""
        with contextlib.suppress(RuntimeError):
            self._node.end_broken(DRIVER)
        self.on_stop()

    def profile_torch(self, is_on: bool) -> str:
        """Run torch's profiler, or stop it and record its events; returns what is in the way."""
        if is_on:
            trouble = torch_profiling.start()
            if not trouble:
                ops = self._spec.program.ops
                self._marks = Marks(self.name, lambda: self.execution)
                self._marks.put_on(self._steps, [at for at, op in enumerate(ops) if _works(op)])
            return trouble
        marks, self._marks = self._marks, None
        if marks is None:
            return ""
        marks.take_off(self._steps)
        return marks.write(torch_profiling.stop(), self._node.span_writer(int).write)

    def processor_ns(self) -> tuple[int, int]:
        """Return the processor time of the thread of its methods, and of its process.

        Both are 0 if that is not known, or if methods run on another thread.
        """
        if not self._task or self.coroutines is not None:
            return 0, 0
        try:  # not the thread's clock: it must not be asked for once the thread has ended
            with open(f"/proc/self/task/{self._task}/schedstat") as file:
                return int(file.read().split()[0]), time.process_time_ns()
        except (OSError, ValueError, IndexError):
            return 0, 0

    def where(self) -> list[str]:
        """Return the stack of the user's method that runs now, innermost last; [] in none."""
        if turns.label_for(self._spec.graph_id) is not None:
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


def _in_ranges(steps: list[Callable[[], None]], spec: Start) -> list[Callable[[], None]]:
    """Return steps that are ranges of NVTX's domain ``rcg``, named as in the other views."""
    try:
        import nvtx
    except ImportError as error:
        raise CompileError(
            "nvtx=True shows ops to Nsight Systems with the package nvtx, which this actor's "
            "process has not: `pip install 'rcg[gpu]'` on its node, or give it in the actor's "
            "runtime_env",
            actor=spec.actor[0],
        ) from error
    domain = nvtx.get_domain("rcg")
    names = {spec.program.process: spec.actor[0]}

    def ranged(step: Callable[[], None], attributes: Any) -> Callable[[], None]:
        def ranged_step() -> None:
            domain.push_range(attributes)
            try:
                step()
            finally:
                domain.pop_range()

        return ranged_step

    return [
        ranged(step, domain.get_event_attributes(message=op.title(names)))
        for step, op in zip(steps, spec.program.ops, strict=True)
    ]


def _works(op: Op) -> bool:
    """Return whether torch may have something to do in an op: a method, or a transfer."""
    return op.is_call or (op.is_rendezvous and bool(op.channels_in or op.channels_out))


def _public_text(error: BaseException) -> str:
    """Return the error that ended a loop: a known one, or an unexpected one as an InternalError."""
    if isinstance(error, Signal):
        return str(error.public())
    if isinstance(error, RcgError):
        return str(error)
    if isinstance(error, TimeoutError):
        return str(error) or "a communicator group was not complete in time"
    return str(InternalError(f"unexpected: {describe_error(error)}"))
