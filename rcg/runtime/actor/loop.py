# SPDX-License-Identifier: Apache-2.0
"""The actor's side: a loop that runs one program, and how it starts.

``describe`` and ``start`` are called in the actor through ``__ray_call__``; they are importable by
name, so they travel as a name. The loop is a flat list of steps made from the program's ops; each
step is one closure over the slots. Recording is part of it: reads and writes record themselves in
the native core, a Call is recorded by one ``mark``.

It must not know how graphs are compiled, nor what the driver does with results.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.channels import open_reader, open_writer
from rcg.channels.base import FrameDamaged, GraphEnded, NoMemory, Signal, TimedOut
from rcg.descriptors import out_of_descriptors, telling_exhaustion
from rcg.error_text import describe_error, format_error, trace_of, type_name
from rcg.errors import (
    CompileError,
    ExecutionError,
    InternalError,
    PlacementError,
    UnpicklableError,
)
from rcg.frames import is_plumbing
from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.operands import Const, Slot
from rcg.ir.ops import Build, Call, Free, Op, Read, Write
from rcg.ir.programs import Program
from rcg.log import Log
from rcg.options import Options
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.coroutines import Coroutines
from rcg.runtime.actor.turns import turns
from rcg.runtime.codec import make_codec
from rcg.runtime.control.client import ControlClient
from rcg.runtime.failure import (
    Origin,
    capture,
    capture_own,
    smaller_failures,
)
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.node import ABI_VERSION, Node
from rcg.serialization import Failure
from rcg.trace import spans
from rcg.trace.clocks import now_ns
from rcg.version import __version__

__rcg_plumbing__ = True  # see rcg.frames

__all__ = ["Start", "describe", "start"]

_log = Log()

# A loop that found nothing to read for this long gives its free memory back, once.
_IDLE_TRIM_NS: Final = 2_000_000_000

_Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Start:
    """Everything an actor needs to run its part of a graph.

    Attributes:
        graph_id: Hex id of the graph.
        program: What to run.
        channels: The channels that it reads and writes.
        layout: The numbers of processes and channels on this node.
        address: The endpoint of the driver's process.
        secret: Proves to that endpoint that this actor belongs to the graph.
        constants: The constants and templates that the program names.
        options: The options of the graph.
        actor: The facts of this actor for errors: its label, its id and its repr.
        version: The driver's version of rcg.
        abi: The driver's layout of shared memory.
    """

    graph_id: str
    program: Program
    channels: Mapping[str, ChannelSpec]
    layout: Layout
    address: str
    secret: str
    constants: Mapping[str, Any]
    options: Options
    actor: tuple[str, str, str]
    version: str
    abi: int


def describe(instance: Any, methods: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts that the driver needs to compile for this actor.

    Args:
        instance: The actor.
        methods: The methods that the graph calls.
    """
    failpoints.reach(failpoints.Failpoint("describe"))
    cls = type(instance)
    return {
        "version": __version__,
        "abi": ABI_VERSION,
        "machine": platform.machine(),
        "node": cluster.node_id(),
        "pid": os.getpid(),
        "missing": [name for name in methods if not callable(getattr(instance, name, None))],
        "generators": [
            name for name in methods if inspect.isasyncgenfunction(getattr(cls, name, None))
        ],
    }


def start(instance: Any, spec: Start) -> None:
    """Start the loop of one graph on this actor.

    With ``thread="own"`` it returns once the loop runs; with ``thread="main"`` the loop takes the
    calling thread, and it returns when the graph has ended.

    Raises:
        PlacementError: This process has another rcg than the driver, or cannot reach it.
        OutOfDescriptors: This process, or the driver's, has none left.
    """
    if (spec.version, spec.abi) != (__version__, ABI_VERSION):
        raise PlacementError(
            f"this process has rcg {__version__} (shared memory layout {ABI_VERSION}), the "
            f"driver has {spec.version} ({spec.abi}): install the same version on every node"
        )
    failpoints.reach(failpoints.Failpoint("start", spec.program.process))
    with telling_exhaustion("to take part in a compiled graph", spec.actor[0]):
        loop = _joined(instance, spec)
    if spec.options.thread == "main":
        loop.run()
    else:
        name = f"rcg-{spec.program.process}-{spec.graph_id[:6]}"
        threading.Thread(target=loop.run, name=name, daemon=True).start()


def _joined(instance: Any, spec: Start) -> _Loop:
    """Return the loop, ready to run; the control socket's thread listens."""
    control = ControlClient(spec.address, spec.graph_id, spec.secret, spec.program.process)
    try:
        node = Node(
            control.board,
            control.arenas,
            spec.layout,
            spec.program.process,
            spec.options,
            make_codec(),
            is_looping=True,
        )
        control.close_descriptors()
        loop = _Loop(instance, spec, node, control)
    except BaseException as error:
        why = out_of_descriptors(error, "to take part in a compiled graph") or error
        control.finish(f"it could not start: {describe_error(why)}")
        control.close()
        raise
    control.watch(loop, f"rcg-watch-{spec.graph_id[:6]}")
    return loop


class _Loop:
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
        self._steps = _Steps(self, instance, spec, node).make()

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
        try:
            while True:
                for step in steps:
                    step()
                self.execution += 1
        finally:
            spans.here.reset(outside)  # of an actor's main thread, which goes on

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


class _Steps:
    """Makes the steps of a program: op -> closure over the slots."""

    def __init__(
        self,
        loop: _Loop,
        instance: Any,
        spec: Start,
        node: Node,
    ) -> None:
        self._loop = loop
        self._instance = instance
        self._spec = spec
        self._node = node
        made = (slot for op in spec.program.ops for slot in op.made())
        self._slots: list[Any] = [None] * (max(made, default=-1) + 1)
        self._has_read = False

    def make(self) -> list[_Step]:
        """Return one step per op, in order."""
        ops = self._spec.program.ops
        steps = [self._step(index, op) for index, op in enumerate(ops)]
        if failpoints.on_failpoint is not None:
            return [self._announced(op, step) for op, step in zip(ops, steps, strict=True)]
        return steps

    def _announced(self, op: Op, step: _Step) -> _Step:
        process, loop = self._spec.program.process, self._loop

        def announced_step() -> None:
            failpoints.reach(failpoints.Failpoint("op", process, loop.execution, op))
            step()

        return announced_step

    def _step(self, index: int, op: Op) -> _Step:
        match op:
            case Read():
                return self._read(index, op)
            case Call():
                return self._call(index, op)
            case Write():
                return self._write(index, op)
            case Build():
                return self._build(op)
            case Free():
                return self._free(op)
        raise InternalError(f"an actor cannot run the op {op}")

    def _read(self, index: int, op: Read) -> _Step:
        reader = open_reader(self._spec.channels[op.channel], index, self._node)
        slots, out, read, trim = self._slots, op.out, reader.read, self._node.trim
        loop = self._loop

        # It does not raise: an error that its own traceback holds would keep the loop, and with it
        # the shared memory, until the garbage collector comes.
        def is_about_value(error: BaseException) -> bool:
            if reader.seq <= loop.execution:
                return False  # the frame is still there
            # The frame is taken: this execution fails, the graph goes on.
            slots[out] = capture(error, loop.origin, "(reading its input)", loop.execution)
            return True

        def step() -> None:
            try:
                slots[out] = read()
            except BaseException as error:
                if not is_about_value(error):
                    raise

        def first_step() -> None:
            try:
                slots[out] = read(_IDLE_TRIM_NS)
            except BaseException as error:
                if is_about_value(error):
                    return
                if type(error) is not TimedOut:
                    raise
            else:
                return
            trim()
            step()

        is_first, self._has_read = not self._has_read, True
        return first_step if is_first else step

    def _write(self, index: int, op: Write) -> _Step:
        writer = open_writer(self._spec.channels[op.channel], index, self._node)
        slots, source, write, channel = self._slots, op.slot, writer.write, op.channel
        loop = self._loop

        def fail(error: BaseException) -> None:
            """Write that the value could not be written. Nothing was: the graph goes on."""
            if type(error) is UnpicklableError:
                failure = capture_own(loop.blame(error))
            elif type(error) is not NoMemory:
                failure = capture(error, loop.origin, "(sending its result)", loop.execution)
            elif type(slots[source]) is Failure:
                failure = slots[source]
            else:
                failure = capture_own(error.public(channel=channel))
            try:
                write(failure)
            except NoMemory:
                write_shortened(failure)

        def write_shortened(failure: Failure) -> None:
            for shorter in smaller_failures(failure):
                with contextlib.suppress(NoMemory):
                    write(shorter)
                    return

        def step() -> None:
            try:
                write(slots[source])
            except (GraphEnded, FrameDamaged):
                raise
            except BaseException as error:  # noqa: BLE001 - pickling runs any code
                fail(error)

        return step

    def _build(self, op: Build) -> _Step:
        slots, out, sources, loop = self._slots, op.out, op.slots, self._loop
        fill = self._spec.constants[op.template].fill

        def step() -> None:
            values = [slots[source] for source in sources]
            failure = _first_failure(values)
            try:
                slots[out] = failure or fill(values)
            except BaseException as error:  # noqa: BLE001 - keys and named tuples are the user's
                slots[out] = capture(error, loop.origin, "(making an argument)", loop.execution)

        return step

    def _free(self, op: Free) -> _Step:
        slots, freed = self._slots, op.slots
        if len(freed) == 1:
            (only,) = freed

            def step_one() -> None:
                slots[only] = None

            return step_one

        def step() -> None:
            for slot in freed:
                slots[slot] = None

        return step

    def _call(self, index: int, op: Call) -> _Step:
        slots, mark, loop = self._slots, self._node.mark, self._loop
        method = self._method(op.method)
        acquire, release = turns.lock.acquire, turns.lock.release
        if self._spec.options.concurrent:
            acquire, release = _always, _nothing  # type: ignore[assignment]
        name, outs = op.method, op.outs
        args = [self._argument(argument) for argument in op.args]
        kwargs = [(key, *self._argument(argument)) for key, argument in op.kwargs]

        def fail(failure: Failure) -> None:
            for out in outs:
                slots[out] = failure

        if len(args) == 1 and not kwargs and len(outs) == 1 and args[0][0]:
            # The commonest shape, spelt out: it is run thousands of times a second.
            (_, source), (out,) = args[0], outs

            def step_one() -> None:
                value = slots[source]
                if type(value) is Failure:
                    slots[out] = value
                    return
                execution = loop.execution
                mark(index, execution)
                if not acquire(False):
                    loop.wait_for_turn()
                try:
                    slots[out] = method(value)
                except BaseException as error:  # noqa: BLE001 - users' code raises anything
                    slots[out] = capture(error, loop.origin, name, execution)
                finally:
                    release()

            return step_one

        def step() -> None:
            values = [slots[given] if is_slot else given for is_slot, given in args]
            named = {key: slots[given] if is_slot else given for key, is_slot, given in kwargs}
            failure = _first_failure(values) or _first_failure(list(named.values()))
            if failure is not None:
                fail(failure)
                return
            execution = loop.execution
            mark(index, execution)
            if not acquire(False):
                loop.wait_for_turn()
            try:
                result = method(*values, **named)
                if len(outs) == 1:
                    slots[outs[0]] = result
                else:
                    self._take_apart(result, outs, fail, name, execution)
            except BaseException as error:  # noqa: BLE001 - users' code raises anything
                fail(capture(error, loop.origin, name, execution))
            finally:
                release()

        return step

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a method of the actor, to be called on the loop's thread."""
        method: Callable[..., Any] = getattr(self._instance, name)
        if not inspect.iscoroutinefunction(method):
            return method
        if self._loop.coroutines is None:
            loop = cluster.actor_event_loop()
            if loop is None:
                raise CompileError(
                    f"{self._loop.origin.label}.{name} is an `async def` method, and the event "
                    "loop of its actor was not found: bind a plain method",
                    actor=self._loop.origin.label,
                )
            self._loop.coroutines = Coroutines(loop)
        return self._loop.coroutines.blocking(method)

    def _take_apart(
        self,
        result: Any,
        outs: tuple[int, ...],
        fail: Callable[[Failure], None],
        name: str,
        execution: int,
    ) -> None:
        """Spread the values of a method with several outputs over their slots."""
        label = f"{self._loop.origin.label}.{name}"
        if not isinstance(result, (tuple, list)):
            text = f"Expected a tuple of {len(outs)} outputs, but got {type_name(type(result))}"
        elif len(values := list(result)) != len(outs):
            text = f"Expected {len(outs)} outputs, but got {len(values)} outputs"
        else:
            for out, value in zip(outs, values, strict=True):
                self._slots[out] = value
            return
        fail(
            capture_own(
                ExecutionError(
                    f"{text} from {label}, which is declared with num_returns={len(outs)}",
                    execution=execution,
                    actor=self._loop.origin.label,
                )
            )
        )

    def _argument(self, argument: Slot | Const) -> tuple[bool, Any]:
        if isinstance(argument, Slot):
            return True, argument.index
        return False, self._spec.constants[argument.id]


def _translated(error: BaseException) -> str:
    """Return the error that ended a loop: a known one, or an unexpected one as an InternalError."""
    if isinstance(error, Signal):
        return str(error.public())
    return str(InternalError(f"unexpected: {describe_error(error)}"))


def _always(_: bool) -> bool:
    return True


def _nothing() -> None:
    pass


def _first_failure(values: list[Any]) -> Failure | None:
    for value in values:
        if type(value) is Failure:
            return value
    return None
