# SPDX-License-Identifier: Apache-2.0
"""The driver's side of a running graph: executing, fetching, ending. ``CompiledDAG`` is its face.

It runs the driver's program lazily: ``execute`` does its inputs and writes, ``get`` of a ref its
reads. If the window is full, ``execute`` waits and meanwhile takes results from every output, so a
driver with one thread cannot block itself.

Refs hold the engine, so a graph lives as long as a ref of it. It ends when the last holder is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import types
import weakref
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

from rcg import cluster
from rcg.callers import end_at_caller
from rcg.channels import open_input, open_output
from rcg.channels.base import GraphEnded, NoMemory, Signal, TimedOut, timeout_ns
from rcg.channels.shm import release
from rcg.errors import ChannelTimeout, PlacementError, RcgError
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Input, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.signature import ExecutionSignature, Key
from rcg.options import FOR_EVER, Deadline, timeout_from_user
from rcg.runtime.by_reference import has_references, wait_until_made
from rcg.runtime.control import registry
from rcg.runtime.driver.asyncio_bridge import AsyncioBridge
from rcg.runtime.driver.output import OutputBuffer, Outputs, ResultFeed
from rcg.runtime.driver.session import Inquiry, Session
from rcg.runtime.driver.submission import NO_ROOM, RING_POLL_S, InputChannel, Inputs, Submission
from rcg.runtime.driver.window import Reading
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import (
    STACKS_TIMEOUT_S,
    ProcessStatistics,
    Report,
    Statistics,
    activities,
)
from rcg.runtime.refs import HELD, CompiledDAGRef, refs_of, watch_of, watch_of_submitting
from rcg.runtime.remote.client import HandleFacts
from rcg.runtime.remote.server import serve_client
from rcg.runtime.watch import Watch
from rcg.serialization import Encoded
from rcg.threads import run_behind, start_behind

# An await lets the event loop turn so many times before it asks to be woken: results are often
# microseconds away.
_MAX_LOOP_TURNS: Final = 20
# Statistics wait so long for other nodes, which answer in less than a millisecond.
_NODES_PATIENCE_S: Final = 0.5
_ANSWER_S: Final = 0.05  # for the answer to a handle that there is no room
UNSET: Final[Any] = object()


class EngineInquiry:
    """A question to the processes of a graph of this process; see ``watch.Inquiry``.

    Attributes:
        asked: The question; None if nobody was asked.
    """

    def __init__(self, engine: Engine, asked: Inquiry | None) -> None:
        self._engine = engine
        self.asked = asked

    def wait(self, timeout_s: float) -> None:
        """Wait until all have answered, or for so long."""
        if self.asked is not None:
            self._engine.session.await_answers(self.asked, timeout_s)

    def text(self) -> str:
        """Return the report, with the answers so far."""
        return str(self._engine.report_on(self.asked))


class Engine:
    """Executes one graph and fetches its results; a ``ResultSource`` of its refs.

    Any thread may use it.

    Attributes:
        plan: What runs.
        session: The running graph.
        get_timeout_s: The timeout of a ``get`` without one.
        quiet_ns: ``report_after_s`` as the fetching threads need it.
        left: The outputs that are still wanted, a bit for each, by execution.
        said: The hangs of which it was said what is waited for.
    """

    answers_within_s: Final = STACKS_TIMEOUT_S

    def __init__(self, session: Session, face: Callable[[Engine], Any]) -> None:
        self.session = session
        self.plan: Plan = session.plan
        self.get_timeout_s = session.options.get_timeout_s
        self._make_face = face
        # Weakly: the face holds the engine.
        self._face: Callable[[], Any] = lambda: None
        self._bridge = AsyncioBridge(session)
        self._buffers, inputs, self._outputs = self._open_channels()
        self._buffer = None if self.plan.is_multi else self._outputs[0]
        self.said: dict[int, object] = {}
        self.report_after_s = session.options.report_after_s
        self._submission = Submission(session, inputs, self._buffers)
        self.left = self._submission.window.left
        options = session.options
        self._reading = None
        if options.is_buffered_limit_set_by_user:
            self._reading = Reading(options.max_buffered_results, self.left)
        self.feed = ResultFeed(session, self._buffers)
        session.on_client = partial(serve_client, weakref.ref(self))
        session.on_name = partial(_variable_of, weakref.ref(self))
        for buffer in self._buffers:
            session.on_close(buffer.drop_held)
        self._finalizer = weakref.finalize(self, session.close_nowait)

    def face(self) -> Any:
        """Return the ``CompiledDAG`` of this graph, always the same one while it is in use."""
        found = self._face()
        if found is None:
            found = self._make_face(self)
            self._face = weakref.ref(found)
        return found

    def actor_ids(self) -> dict[str, str]:
        """Return Ray's ids of the actors, by process."""
        return {actor: cluster.actor_id(handle) for actor, handle in self.session.handles.items()}

    def addresses(self) -> dict[str, str]:
        """Return the address of each node of the cluster that the graph is on, if on several."""
        return self.session.control.addresses()

    def _open_channels(self) -> tuple[Outputs, list[InputChannel], list[OutputBuffer]]:
        """Return the buffers, the input channels, and the buffer of each output."""
        node, channels = self.session.node, self.plan.channels_by_id()
        keys: dict[int, Key] = {}
        buffers: dict[int, OutputBuffer] = {}
        inputs: list[InputChannel] = []
        outputs: list[OutputBuffer] = []
        held = self.plan.held_nodes()
        for index, op in enumerate(self.plan.program(DRIVER).ops):
            match op:
                case Input():
                    keys[op.out] = op.key
                case Write():
                    writer = open_input(channels[op.channel], index, node)
                    carried = tuple([keys[slot] for slot in op.slots])
                    nodes = channels[op.channel].nodes
                    inputs.append(InputChannel(writer, index, carried, nodes))
                case Read():
                    reader = open_output(channels[op.channel], index, node)
                    wake = self._bridge.wake
                    for out, node_id in zip(op.outs, channels[op.channel].nodes, strict=True):
                        buffers[out] = OutputBuffer(
                            op.channel, len(buffers), reader, wake, is_held=node_id in held
                        )
                    if len(op.outs) > 1:
                        OutputBuffer.share([buffers[out] for out in op.outs])
                case Output():
                    outputs = [buffers[slot] for slot in op.slots]
        return Outputs(buffers.values()), inputs, outputs

    # --- executing

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """See ``CompiledDAG.execute``."""
        try:  # costs nothing, which a function around this would
            if self.session.is_over:
                raise self.session.end_error()
            submission, buffer = self._submission, self._buffer
            refs = self._refs() if buffer is None else CompiledDAGRef(self, buffer)
            if submission.is_whole and len(args) == 1:
                return submission.submit_value(args[0], refs)
            return submission.submit(submission.encode(args, kwargs), refs)
        except BaseException as error:
            end_at_caller(error)
            raise

    def execute_encoded(self, encoded: list[Encoded]) -> list[CompiledDAGRef]:
        """As ``execute``, for inputs that another process has encoded; one ref for each buffer."""
        if self.session.is_over:
            raise self.session.end_error()
        refs = [CompiledDAGRef(self, buffer) for buffer in self._buffers]
        # The other process waits as long for the answer, and has to hear why there is no room.
        early_s = min(_ANSWER_S, (self.session.options.submit_timeout_s or 0.0) / 10)
        self._submission.submit(self._submission.join(encoded), refs, early_s)
        return refs

    def has_ended(self) -> bool:
        """Whether it was torn down, or lost a process."""
        return self.session.is_over

    def empty(self, shape: Any, dtype: Any) -> Any:
        """See ``CompiledDAG.empty``."""
        if self.session.is_over:
            raise self.session.end_error()
        return self.session.node.empty(shape, dtype)

    def _refs(self) -> Any:
        """Return the ref for an execution that is to be submitted, or the list of them."""
        if self._buffer is not None:
            return CompiledDAGRef(self, self._buffer)
        return refs_of(self, self._outputs)

    # --- fetching, for refs

    def try_fetch(
        self, ref: CompiledDAGRef, longest_ns: int | None, deadline: Deadline = FOR_EVER
    ) -> bool:
        """Wait for the result of a ref; see ``ResultSource``."""
        session = self.session
        if session.is_over and session.is_closed:  # a broken graph keeps its results
            raise session.end_error()
        if self._reading is not None:
            self._reading.look(ref.execution)
        buffer: OutputBuffer = ref.buffer  # type: ignore[assignment]  # this graph made it
        try:
            is_first = buffer.fetch(ref, longest_ns)
        except TimedOut:
            return False
        except Signal as signal:
            raise session.public(signal, deadline) from None
        if is_first:
            release(self.left, ref.execution, buffer.number)
        return True

    def hang(self) -> int:
        """Return what tells one hang of the graph from the next; see ``Watched``."""
        return self._buffers.completed()

    @property
    def report_after_s(self) -> float | None:
        """How long a ``get`` waits before it says what it waits for; None for ever."""
        return self._report_after_s

    @report_after_s.setter
    def report_after_s(self, after_s: float | None) -> None:
        self._report_after_s, self.quiet_ns = after_s, timeout_ns(after_s)

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""
        session = self.session
        return (
            session.is_closed
            or self._buffers[ref.buffer.number].has(ref.execution)
            or session.is_broken
        )

    def keep_held_results(self) -> bool:
        """Have actors keep the tensors of results that have come, and free those of dropped ones.

        Returns:
            Whether the graph goes on.
        """
        for buffer in self._buffers:
            buffer.keep_held()
        return not self.session.is_over

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs, which are of this graph."""
        buffers = [self._buffers[number] for number in {ref.buffer.number for ref in refs}]
        readers = [buffer.reader for buffer in buffers]
        try:
            self.session.node.wait_any(readers, timeout_ns(timeout_s))
            for buffer in buffers:
                buffer.take_pending()
        except (TimedOut, GraphEnded):
            pass
        except Signal as signal:
            raise self.session.public(signal) from None

    # --- both, from an event loop

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """See ``CompiledDAG.execute_async``."""
        if self.session.is_over:
            raise await self._end_error()
        if has_references(args) or has_references(kwargs.values()):
            limit_s = self.session.options.submit_timeout_s
            await wait_until_made((*args, *kwargs.values()), limit_s)
        inputs = self._submission.encode(args, kwargs)
        refs = self._refs()
        if inputs.references:
            self._submission.hold(inputs, refs)
        try:
            if not self._bridge.has_queue():
                with contextlib.suppress(NoMemory, TimedOut):
                    if self._submission.try_submit(inputs, refs):
                        return refs
            await self._submit_in_time(inputs, refs)
        except GraphEnded:
            raise await self._end_error() from None
        return refs

    async def _submit_in_time(self, inputs: Inputs, refs: Any) -> None:
        """Submit within the submit timeout; coroutines of one event loop in their order."""
        loop, deadline = asyncio.get_running_loop(), Deadline(self.session.options.submit_timeout_s)
        watch = watch_of_submitting(refs, deadline)
        ask_s = watch.next_s()
        asking = None if ask_s is None else loop.call_later(ask_s, watch.look)
        try:
            async with asyncio.timeout(deadline.remaining_s()), self._bridge.queue():
                await self._submit_async(inputs, refs)
        except TimeoutError:
            raise watch.error(NO_ROOM) from None
        finally:
            if asking is not None:
                asking.cancel()

    async def _submit_async(self, inputs: Inputs, refs: Any) -> None:
        """Submit as soon as there is room, and memory."""
        for execution in self._submission.attempts(inputs, refs):
            if execution is None:
                await asyncio.sleep(RING_POLL_S)
            else:
                await self._completion_of(execution)

    async def _end_error(self) -> RcgError:
        await self._wait_for_cause()
        return self.session.end_error()

    async def _wait_for_cause(self) -> None:
        """Wait until a graph that broke knows the cause, for which another thread asks Ray."""
        if not self.session.has_cause:
            await self._bridge.wait_for_end(self._buffers[0])

    async def _completion_of(self, execution: int) -> None:
        for buffer in self._buffers:
            if buffer.arrived <= execution:
                await self._bridge.wait_for(buffer, execution)
        await self._wait_for_cause()
        self.session.check_running()

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref returns or raises without waiting."""
        if self._reading is not None:
            self._reading.look(ref.execution)
        if not self.has(ref):
            for _ in range(_MAX_LOOP_TURNS):
                await _turn()
                if self.has(ref):
                    break
            else:
                await self._wait_aloud(ref)
        if not self._buffers[ref.buffer.number].has(ref.execution):
            await self._wait_for_cause()

    async def _wait_aloud(self, ref: CompiledDAGRef) -> None:
        """Wait for a result; after a while it is said what is waited for."""
        loop, watch = asyncio.get_running_loop(), watch_of(ref, Deadline(None))
        arrival = self._bridge.wait_for(self._buffers[ref.buffer.number], ref.execution)
        after_s = watch.next_s()
        if after_s is None:
            return await arrival
        saying = loop.call_later(after_s, watch.look)
        try:
            await arrival
        finally:
            saying.cancel()
        watch.end()

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self.session.graph_id

    @property
    def signature(self) -> ExecutionSignature:
        """What ``execute`` takes: the input of each key, in the order of the input channels."""
        return self._submission.signature

    def facts(self) -> HandleFacts:
        """Return the facts that a handle in another process needs.

        Where Ray has several nodes, this process listens for the others from now on.
        """
        session = self.session
        control, is_connected = session.control, cluster.is_connected()
        if control.tcp_address is None and is_connected and cluster.has_other_nodes():
            # Without a port the handle works on this node, and says so on others.
            with contextlib.suppress(PlacementError, OSError):
                control.listen_tcp(cluster.node_ip())
        return HandleFacts(
            graph_id=session.graph_id,
            address=control.address,
            secret=control.secret,
            owner_pid=session.pid,
            node=cluster.node_id() if is_connected else None,
            signature=self.signature,
            buffers=tuple(buffer.channel for buffer in self._buffers),
            outputs=tuple(buffer.number for buffer in self._outputs),
            held=tuple(buffer.number for buffer in self._buffers if buffer.ready == HELD),
            is_multi=self.plan.is_multi,
            max_inflight_executions=session.options.max_inflight_executions,
            get_timeout_s=self.get_timeout_s,
            report_after_s=session.options.report_after_s,
            submit_timeout_s=session.options.submit_timeout_s,
            tcp=str(control.tcp_address or ""),
        )

    def inquire(self, within_s: float) -> EngineInquiry:
        """See ``Watched``."""
        return EngineInquiry(self, self.session.inquire() if within_s else None)

    def report(self, patience_s: float) -> Report:
        """Return the report, waiting at most this long for the stacks of live actors."""
        inquiry = self.inquire(patience_s)
        inquiry.wait(patience_s)
        return self.report_on(inquiry.asked)

    def report_on(self, asked: Inquiry | None) -> Report:
        """Return the report with the answers to a question; None: nobody was asked."""
        found = self.session.report(asked)
        self._buffers.take_dropped()
        completed = self._buffers.completed()  # first: other threads submit meanwhile
        return dataclasses.replace(
            found,
            processes=(self._with_state(found, completed), *found.processes[1:]),
            in_flight=self._submission.submitted - completed,
            limit=self._submission.window.limit,
            completed=completed,
            failures_dropped=self._buffers.failures_dropped(),
            last_dropped=self._buffers.last_dropped(),
        )

    def _with_state(self, found: Report, completed: int) -> Activity:
        """Return what the driver does: after a get that ended without its result it is not idle.

        Args:
            found: What all processes do.
            completed: How many executions are complete. The driver reads them in order.
        """
        driver = found.processes[0]
        is_reading = driver.op.startswith("Read") and driver.execution >= completed
        if found.state != "running" or driver.state != "idle" or not is_reading:
            return driver
        channel = self.plan.channels_by_id()[driver.op.split()[1]]
        writer = self.plan.label(channel.writer)
        return dataclasses.replace(driver, state="gave up", waiting_for=writer)

    def statistics(self) -> Statistics:
        """See ``CompiledDAG.statistics``."""
        self._buffers.take_dropped()
        window, nodes = self._submission.window, self.session.views(_NODES_PATIENCE_S)
        memory = [node.memory() for node in nodes]
        completed = self._buffers.completed()
        executions = self._submission.submitted
        return Statistics(
            executions=executions,
            completed=completed,
            in_flight=executions - completed,
            buffered=window.buffered(completed),
            failures_dropped=self._buffers.failures_dropped(),
            limit=window.limit,
            used_bytes=sum(each.used_bytes for each in memory),
            cap_bytes=sum(each.cap_bytes for each in memory),
            stashes=sum(each.stashes for each in memory),
            processes=tuple(map(ProcessStatistics.of, activities(nodes, self.plan))),
        )

    # --- the end

    def teardown(self, kill_actors: bool = False, *, timeout: float | None = UNSET) -> None:
        """See ``CompiledDAG.teardown``."""
        session = self.session
        limit_s = session.options.teardown_timeout_s
        if timeout is not UNSET:
            limit_s = timeout_from_user(timeout, "timeout")
        if session.is_forked:
            session.begin_close()
            registry.note_ended(self)
            return

        def end(warn: Callable[[str], object]) -> tuple[list[str], str | None]:
            deadline = Deadline(limit_s)
            watch = Watch(self, deadline)
            self.keep_held_results()
            late = session.close(deadline, kill_actors=kill_actors, warn=warn, watch=watch)
            if not late:
                self._finalizer.detach()
                registry.note_ended(self)
            return late, watch.report() if late else None

        try:
            late, report = run_behind(end)
        except BaseException as error:  # Ctrl-C, perhaps before anything has begun
            session.begin_close()
            start_behind(lambda: end(str))
            names = ", ".join(map(self.plan.label, session.control.lives.late()))
            still = (
                f", but {names} may still run a method; its loop ends when that returns. Call "
                "teardown() again to wait for it, or teardown(kill_actors=True) to end the actors"
            )
            error.add_note(f"rcg: the graph is torn down{still if names else ''}.")
            raise
        if late:
            names = ", ".join(map(self.plan.label, late))
            raise ChannelTimeout(
                f"teardown() waited {limit_s:g} s for {names}. The graph is torn down; its loop "
                "there ends when the running method returns. Call teardown() again to go on "
                "waiting, or teardown(kill_actors=True) to end the actors now.",
                timeout_s=limit_s,
                report=report,
            )


def _variable_of(reference: weakref.ref[Engine]) -> str:
    """Return the global variable of the main program that holds a graph, or ""."""
    engine = reference()
    face = None if engine is None else engine._face()
    names = vars(sys.modules["__main__"]).copy().items() if face is not None else ()
    # `_` and `_7` are IPython's.
    return next((name for name, it in names if it is face and not name.startswith("_")), "")


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Let the event loop turn once."""
    yield
