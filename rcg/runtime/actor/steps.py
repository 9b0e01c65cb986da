# SPDX-License-Identifier: Apache-2.0
"""The steps of a program: one closure over the slots for each op.

A failed value passes through here as a ``Failure``: a Call that would use one is not made, and what
it would have returned is that ``Failure``.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from rcg import cluster
from rcg.channels import open_reader, open_writer
from rcg.channels.base import Frame, FrameDamaged, GraphEnded, NoMemory, TimedOut, TransferFailed
from rcg.channels.local import LocalWriter
from rcg.channels.tensor import copy_of
from rcg.error_text import type_name
from rcg.errors import (
    CompileError,
    ExecutionError,
    InternalError,
    TensorMismatch,
    TransportError,
    UnpicklableError,
)
from rcg.ir.channels import TENSOR
from rcg.ir.ids import Const, Slot
from rcg.ir.ops import Build, Call, Collective, Copy, Free, Op, Read, Write
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.collectives import collective_step
from rcg.runtime.actor.methods import Coroutines, plain_of
from rcg.runtime.actor.ownership import is_held_only_by
from rcg.runtime.actor.spec import Start
from rcg.runtime.actor.turns import turns
from rcg.runtime.failure import Origin, capture, capture_own, smaller_failures
from rcg.runtime.heap import IDLE_S
from rcg.runtime.node.node import Node
from rcg.serialization import Failure
from rcg.serialization.tensors import lacking, tensor_type
from rcg.trace.clocks import now_ns

__rcg_plumbing__ = True  # see rcg.frames

# A loop that found nothing to read for this long gives its free memory back, once.
_IDLE_TRIM_NS: Final = int(IDLE_S * 1e9)

# What ends the loop, and is never about one value.
_ENDS: Final = (GraphEnded, FrameDamaged, TransferFailed)

_Step = Callable[[], None]


class ActorExit(BaseException):
    """A method has called ``exit_actor``; ends the loop."""


class Running(Protocol):
    """The loop, as its steps see it."""

    execution: int  # the one that runs now
    origin: Origin
    coroutines: Coroutines | None  # once there is an ``async def`` method

    def blame(self, error: UnpicklableError) -> UnpicklableError:
        """Return the error with what is known here."""


class Steps:
    """Makes the steps of a program: op -> closure over the slots."""

    def __init__(self, loop: Running, instance: Any, spec: Start, node: Node) -> None:
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
        if failpoints.on_failpoint is None:
            return steps
        return list(map(self._announce, ops, steps))

    def _announce(self, op: Op, step: _Step) -> _Step:
        process, loop = self._spec.program.process, self._loop
        channels = [self._spec.channels[each] for each in (*op.channels_in, *op.channels_out)]
        has_tensors = any(isinstance(op, Collective) or each.kind == TENSOR for each in channels)

        def announced_step() -> None:
            failpoints.reach(failpoints.Failpoint("op", process, loop.execution, op, has_tensors))
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
            case Collective():
                last_used = self._spec.program.last_used(index)
                return collective_step(
                    index, op, self._slots, self._loop, self._node, self._spec.channels, last_used
                )
            case Build():
                return self._build(op)
            case Copy():
                return self._copy(index, op)
            case Free():
                return self._free(op)
        raise InternalError(f"an actor cannot run the op {op}")

    def _read(self, index: int, op: Read) -> _Step:
        reader = open_reader(self._spec.channels[op.channel], index, self._node)
        slots, outs, read, trim = self._slots, op.outs, reader.read, self._node.trim
        loop, out = self._loop, op.outs[0]

        # It does not raise: an error that its own traceback holds would keep the loop, and with it
        # the shared memory, until the garbage collector comes.
        def is_about_value(error: BaseException) -> bool:
            if reader.seq <= loop.execution or type(error) is TransferFailed:
                return False  # the frame is still there, or the group is lost
            # The frame is taken: this execution fails, the graph goes on.
            fill(failure_of(error))
            return True

        def failure_of(error: BaseException) -> Failure:
            if type(error) is TensorMismatch:  # of a user's communicator
                return capture_own(error)
            return capture(error, loop.origin, "(reading its input)", loop.execution)

        def fill_one(value: Any) -> None:
            slots[out] = value

        def fill_all(parts: Any) -> None:
            if type(parts) is Failure:
                parts = (parts,) * len(outs)
            elif type(parts) is list:
                parts = [decode_part(part) for part in parts]
            if is_row and len(parts) == len(outs):
                slots[out : out + len(outs)] = parts
                return
            for each, value in zip(outs, parts, strict=True):
                slots[each] = value

        def decode_part(part: Frame) -> Any:
            try:
                return part.decode()
            except BaseException as error:  # noqa: BLE001 - unpickling runs any code
                return failure_of(error)

        def step_of_one() -> None:
            try:
                slots[out] = read()
            except BaseException as error:
                if not is_about_value(error):
                    raise

        def step_of_parts() -> None:
            try:
                fill(read())
            except BaseException as error:
                if not is_about_value(error):
                    raise

        has_parts = len(outs) > 1
        is_row = outs == tuple(range(out, out + len(outs)))
        fill = fill_all if has_parts else fill_one
        step = step_of_parts if has_parts else step_of_one

        def first_step() -> None:
            try:
                fill(read(_IDLE_TRIM_NS))
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
        slots, sources, channel = self._slots, op.slots, op.channel
        write: Any = writer.write
        loop, source = self._loop, op.slots[0]

        # What failed was not written: the graph goes on with a failure in place of the value.
        def failure_of(error: BaseException) -> Failure:
            if type(error) is UnpicklableError:
                return capture_own(loop.blame(error))
            if type(error) is NoMemory:
                return capture_own(error.public(channel=channel))
            if isinstance(error, TransportError):
                return capture_own(error)
            return capture(error, loop.origin, "(sending its result)", loop.execution)

        def fail(error: BaseException) -> None:
            value = slots[source]
            is_failure = type(error) is NoMemory and type(value) is Failure
            failure = value if is_failure else failure_of(error)
            try:
                write(failure)
            except NoMemory:
                write_shortened([failure])

        def write_shortened(failures: Sequence[Failure]) -> None:
            shorter = tuple(failures)
            for shorter in zip(*map(smaller_failures, failures), strict=True):
                with contextlib.suppress(NoMemory):
                    put(shorter)
                    return
            put([shorter[0]] * len(sources))  # one in place of all always fits

        def put(failures: Sequence[Failure]) -> None:
            if len(sources) == 1:
                write(failures[0])
            else:
                write(list(failures), failure_of)

        def step() -> None:
            try:
                write(slots[source])
            except _ENDS:
                raise
            except BaseException as error:  # noqa: BLE001 - pickling runs any code
                fail(error)

        def step_of_parts() -> None:
            values = [slots[each] for each in sources]
            try:
                write(values, failure_of)
            except _ENDS:
                raise
            except NoMemory:  # all of them are failures
                write_shortened(values)
            except BaseException as error:  # noqa: BLE001 - there is no memory to encode them
                write_shortened([failure_of(error)] * len(values))

        if isinstance(writer, LocalWriter):
            hand_over = writer.hand_over

            def step_of_lane() -> None:
                try:
                    hand_over(slots, source)
                except _ENDS:
                    raise
                except BaseException as error:  # noqa: BLE001 - an interrupt
                    fail(error)

            return step_of_lane
        return step if len(sources) == 1 else step_of_parts

    def _build(self, op: Build) -> _Step:
        slots, out, sources, loop = self._slots, op.out, op.slots, self._loop
        fill = self._spec.constants[op.template].fill

        def step() -> None:
            values = [slots[source] for source in sources]
            failure = next((value for value in values if type(value) is Failure), None)
            try:
                slots[out] = failure or fill(values)
            except BaseException as error:  # noqa: BLE001 - keys and named tuples are the user's
                slots[out] = capture(error, loop.origin, "(making an argument)", loop.execution)

        return step

    def _copy(self, index: int, op: Copy) -> _Step:
        slots, node, loop, source, out = self._slots, self._node, self._loop, op.slot, op.out
        is_last = source in self._spec.program.last_used(index)

        def step() -> None:
            if is_last and is_held_only_by(slots, source):
                slots[out], slots[source] = slots[source], None
                return
            value = slots[source]
            node.mark(index, loop.execution)
            try:
                slots[out] = value if type(value) is Failure else copy_of(value, node)
            except UnpicklableError as error:
                slots[out] = instead_of(value, error)
            except BaseException as error:  # noqa: BLE001 - pickling runs any code; no memory
                slots[out] = capture(error, loop.origin, "(copying its result)", loop.execution)

        def instead_of(value: Any, error: UnpicklableError) -> Any:
            """What cannot be pickled cannot be sent: what would send it says why."""
            if not isinstance(value, tensor_type()) or lacking(value):
                return value
            try:  # a collective takes it
                return value.detach().clone()
            except BaseException:  # noqa: BLE001 - of a user's class
                return capture_own(loop.blame(error))

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
        slots, mark, waited, loop = self._slots, self._node.mark, self._node.waited, self._loop
        method = self._method(op.method)
        turn = threading.Lock() if self._spec.options.concurrent else turns.lock
        asker = turns.asker(self._spec.graph_id, loop.origin.label)
        name, outs = op.method, op.outs
        args = [self._slot_of(argument) for argument in op.args]
        keys = [key for key, _ in op.kwargs]
        values_of = _getter([*args, *(self._slot_of(argument) for _, argument in op.kwargs)])
        count = len(args)

        def fail(failure: Failure) -> None:
            for out in outs:
                slots[out] = failure

        def failure_of(error: BaseException) -> Failure:
            asker.is_asking = False
            if cluster.is_exiting():
                raise ActorExit(f"its method {name} called exit_actor()")
            return capture(error, loop.origin, name, loop.execution)

        if count == 1 and not keys and len(outs) == 1:
            # The commonest shape, spelt out: it is run thousands of times a second.
            (source,), (out,) = args, outs

            def step_one() -> None:
                value = slots[source]
                if type(value) is Failure:
                    slots[out] = value
                    return
                execution = loop.execution
                mark(index, execution)
                try:
                    asked_ns = now_ns() if turn.locked() else 0
                    asker.is_asking = True
                    with turn:
                        asker.is_asking = False
                        if asked_ns:
                            waited(now_ns() - asked_ns)
                        slots[out] = method(value)
                except BaseException as error:  # noqa: BLE001 - users' code raises anything
                    slots[out] = failure_of(error)

            return step_one

        def step() -> None:
            values = values_of(slots)
            if Failure in map(type, values):
                fail(next(value for value in values if type(value) is Failure))
                return
            execution = loop.execution
            mark(index, execution)
            try:
                asked_ns = now_ns() if turn.locked() else 0
                asker.is_asking = True
                with turn:
                    asker.is_asking = False
                    if asked_ns:
                        waited(now_ns() - asked_ns)
                    if keys:
                        named = dict(zip(keys, values[count:], strict=True))
                        result = method(*values[:count], **named)
                    else:
                        result = method(*values)
                    if len(outs) == 1:
                        slots[outs[0]] = result
                    else:
                        self._take_apart(result, outs, fail, name, execution)
            except BaseException as error:  # noqa: BLE001 - users' code raises anything
                fail(failure_of(error))

        return step

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a method of the actor, to be called on the loop's thread."""
        method: Callable[..., Any] = plain_of(getattr(self._instance, name))
        if not inspect.iscoroutinefunction(method):
            return method
        if self._loop.coroutines is None:
            loop, actor = cluster.actor_event_loop(), self._loop.origin.label
            if loop is None:
                raise CompileError(
                    f"{actor}.{name} is an `async def` method, and the event loop of its actor "
                    "was not found: bind a plain method",
                    actor=actor,
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
        if not isinstance(result, (tuple, list)):
            text = f"Expected a tuple of {len(outs)} outputs, but got {type_name(type(result))}"
        elif len(values := list(result)) != len(outs):
            text = f"Expected {len(outs)} outputs, but got {len(values)} outputs"
        else:
            for out, value in zip(outs, values, strict=True):
                self._slots[out] = value
            return
        actor = self._loop.origin.label
        text += f" from {actor}.{name}, which is declared with num_returns={len(outs)}"
        fail(capture_own(ExecutionError(text, execution=execution, actor=actor)))

    def _slot_of(self, argument: Slot | Const) -> int:
        """Return the slot that holds an argument; a constant gets one that is never freed."""
        if isinstance(argument, Slot):
            return argument.index
        self._slots.append(self._spec.constants[argument.id])
        return len(self._slots) - 1


def _getter(indices: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return a function that picks the values at these indices of a list."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    if not indices:
        return lambda _: ()
    (only,) = indices
    return lambda slots: (slots[only],)
