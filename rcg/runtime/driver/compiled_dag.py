# SPDX-License-Identifier: Apache-2.0
"""Executing a compiled graph: ``CompiledDAG``.

The driver's program is run here, lazily: ``execute`` is its inputs and writes, the refs' ``get``
its reads. A full window makes ``execute`` wait, and while it waits it takes results off every
output, so a caller with one thread cannot block himself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import threading
import types
import weakref
from collections.abc import Callable, Generator, Sequence
from os import PathLike
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster
from rcg.channels import open_input, open_output
from rcg.channels.base import FrameWriter, GraphEnded, NoMemory, Signal, TimedOut, timeout_ns
from rcg.channels.shm import release
from rcg.display import Displayed, Mimebundle, Views, views
from rcg.errors import ChannelTimeout, RcgError
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Input, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.signature import ExecutionSignature, Key
from rcg.log import Log
from rcg.options import timeout_from_user
from rcg.runtime.control import registry
from rcg.runtime.driver.asyncio_bridge import AsyncioBridge
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.driver.submission import RING_POLL_S, Inputs, NoRoom, Submission
from rcg.runtime.failure import describe
from rcg.runtime.observe.report import STACKS_TIMEOUT_S, Report, Reports
from rcg.runtime.observe.statistics import ProcessStatistics, Statistics
from rcg.runtime.refs import CompiledDAGRef, refs_of, timed_out
from rcg.runtime.remote.handle import handle_of
from rcg.runtime.remote.server import HandleServer
from rcg.serialization import Encoded, Failure, size_of

if TYPE_CHECKING:
    from rcg.runtime.observe.profiler import Profiler
    from rcg.trace.trace import Trace

__all__ = ["CompiledDAG", "live_graphs", "profile_all", "report_all", "teardown_all"]

_log = Log()

# An await lets the event loop turn so often before it brings in the waiting thread, which costs two
# changes of thread; results are often microseconds away.
_MAX_LOOP_TURNS: Final = 20
_UNSET: Final[Any] = object()


class CompiledDAG(Displayed):
    """A DAG of actor methods that runs on its actors' own loops until it is torn down.

    Made by ``compile``. Usable from any thread of the process that compiled it, in sync and asyncio
    code alike. Torn down by ``teardown()``, at the end of a ``with`` block, when it is garbage
    collected, and at interpreter exit.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._plan = session.plan
        options = session.options
        self.get_timeout_s = options.get_timeout_s
        self.codec = session.node.codec
        self.bridge = AsyncioBridge(session)
        self.buffers, inputs, self._outputs = self._open_channels()
        self._buffer = None if self._plan.is_multi else self._outputs[0]
        self._submission = Submission(session, inputs, self._first_write(), self.buffers)
        self.left = self._submission.window.left
        session.on_client = HandleServer(weakref.ref(self)).serve
        self._finalizer = weakref.finalize(self, session.close_nowait)
        registry.add(self)

    @classmethod
    def main_threads_taken(cls) -> dict[str, CompiledDAG]:
        """Return the graphs of this process that have actors' main threads, by actor id."""
        return {
            cluster.actor_id(handle): dag
            for dag in live_graphs()
            if dag.session.options.thread == "main" and not dag.session.is_over
            for handle in dag.session.handles.values()
        }

    def _open_channels(
        self,
    ) -> tuple[list[OutputBuffer], list[tuple[Key, FrameWriter]], list[OutputBuffer]]:
        """Return the buffers, the writer of each input key, and the buffer of each output."""
        node, channels = self.session.node, self._plan.channels_by_id()
        keys: dict[int, Key] = {}
        buffers: dict[int, OutputBuffer] = {}
        inputs: list[tuple[Key, FrameWriter]] = []
        outputs: list[OutputBuffer] = []
        for index, op in enumerate(self._plan.program(DRIVER).ops):
            match op:
                case Input():
                    keys[op.out] = op.key
                case Write():
                    writer = open_input(channels[op.channel], index, node)
                    inputs.append((keys[op.slot], writer))
                case Read():
                    reader = open_output(channels[op.channel], index, node)
                    buffers[op.out] = OutputBuffer(
                        op.channel, len(buffers), reader, self.bridge.wake
                    )
                case Output():
                    outputs = [buffers[slot] for slot in op.slots]
        return list(buffers.values()), inputs, outputs

    def _first_write(self) -> int:
        """Return the index of the first Write in the driver's program."""
        ops = self._plan.program(DRIVER).ops
        return next(index for index, op in enumerate(ops) if isinstance(op, Write))

    # --- running

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return the ref of its result, or a list of refs.

        Returns at once while the window has room; then it waits for an earlier execution to
        complete (or raises, if the limit was set by the user). Several threads may call it.

        Args:
            *args: What the DAG's input takes by position.
            **kwargs: What it takes by name; others are ignored, as in Ray.

        Raises:
            ValueError: Wrong number or names of arguments; nothing was submitted.
            UnpicklableError: An argument cannot be sent; nothing was submitted.
            MessageTooLarge: An argument is larger than shared memory; nothing was submitted.
            CapacityExceededError: Fetch results first; nothing was submitted.
            ChannelTimeout: No room within ``submit_timeout``; nothing was submitted.
            ActorDiedError, ChannelClosed: The graph has ended.
        """
        if self.session.is_over:
            raise self.session.end_error()
        try:
            submission, buffer = self._submission, self._buffer
            refs = self._refs() if buffer is None else CompiledDAGRef(self, buffer)
            if submission.is_whole and len(args) == 1:
                return submission.submit_value(args[0], refs)
            return submission.submit(submission.encode(args, kwargs), refs)
        except NoRoom:
            raise self._no_room() from None

    def execute_encoded(self, encoded: list[Encoded]) -> list[CompiledDAGRef]:
        """As ``execute``, for inputs that another process has encoded; one ref for each buffer."""
        if self.session.is_over:
            raise self.session.end_error()
        self._submission.check_size(sum(map(size_of, encoded)))
        refs = [CompiledDAGRef(self, buffer) for buffer in self.buffers]
        try:
            self._submission.submit(Inputs(encoded), refs)
        except NoRoom:
            raise self._no_room() from None
        return refs

    def _refs(self) -> Any:
        """Return the ref for an execution that is to be submitted, or the list of them."""
        if self._buffer is not None:
            return CompiledDAGRef(self, self._buffer)
        return refs_of(self, self._outputs)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution without blocking the event loop; returns refs to be awaited.

        It may be mixed with ``execute`` on the same graph. See ``execute`` for arguments and
        errors.
        """
        if self.session.is_over:
            raise await self._end_error()
        inputs = self._submission.encode(args, kwargs)
        refs = self._refs()
        try:
            if not self.bridge.has_queue():
                with contextlib.suppress(NoMemory, TimedOut):
                    if self._submission.try_submit(inputs, refs):
                        return refs
            async with asyncio.timeout(self.session.options.submit_timeout_s), self.bridge.queue():
                await self._submit_async(inputs, refs)
        except TimeoutError:
            # With a report, for which live actors are asked where they are.
            raise await asyncio.to_thread(self._no_room) from None
        except GraphEnded:
            raise await self._end_error() from None
        return refs

    async def _submit_async(self, inputs: Inputs, refs: Any) -> None:
        """Submit as soon as there is room, and memory."""
        for execution in self._submission.attempts(inputs, refs):
            if execution is None:
                await asyncio.sleep(RING_POLL_S)
            else:
                await self._completion_of(execution)

    async def _end_error(self) -> RcgError:
        """Return the error of a graph that ended; another thread asks Ray for the cause."""
        if not self.session.has_cause:
            await self.bridge.wait_for_end(self.buffers[0])
        return self.session.end_error()

    async def _completion_of(self, execution: int) -> None:
        for buffer in self.buffers:
            if buffer.arrived <= execution:
                await self.bridge.wait_for(buffer, execution)
        if not self.session.has_cause:
            await self.bridge.wait_for_end(self.buffers[0])
        self.session.check_running()

    # --- fetching

    def try_fetch(self, ref: CompiledDAGRef, timeout_s: float | None) -> bool:
        """Wait for the result of a ref; False when the time is up."""
        session = self.session
        if session.is_over and session.is_closed:  # what came before it broke can be had
            raise session.end_error()
        buffer: OutputBuffer = ref.buffer  # type: ignore[assignment]  # this graph made it
        try:
            is_first = buffer.fetch(ref, timeout_s)
        except TimedOut:
            return False
        except Signal as signal:
            raise session.public(signal) from None
        if is_first:
            release(self.left, ref.execution, buffer.number)
        return True

    def _no_room(self) -> ChannelTimeout:
        limit_s = self.session.options.submit_timeout_s
        return timed_out(self, "there was no room for another execution", limit_s)

    # --- what refs ask

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""
        session = self.session
        return (
            session.is_closed
            or self.buffers[ref.buffer.number].has(ref.execution)
            or session.is_broken
        )

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs, which are of this graph."""
        buffers = [self.buffers[number] for number in {ref.buffer.number for ref in refs}]
        try:
            readers = [buffer.reader for buffer in buffers]
            self.session.node.wait_any(readers, timeout_ns(timeout_s))
            for buffer in buffers:
                buffer.take_pending()
        except Signal:
            pass

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref returns or raises without waiting."""
        if not self.has(ref):
            for _ in range(_MAX_LOOP_TURNS):
                await _turn()
                if self.has(ref):
                    break
            else:
                await self.bridge.wait_for(self.buffers[ref.buffer.number], ref.execution)
        if not self.session.has_cause and not self.buffers[ref.buffer.number].has(ref.execution):
            await self.bridge.wait_for_end(self.buffers[0])

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self.session.graph_id

    @property
    def signature(self) -> ExecutionSignature:
        """What ``execute`` takes: the input of each key, in the order of the input channels."""
        return self._submission.signature

    @property
    def output_numbers(self) -> tuple[int, ...]:
        """The buffer of each output that the user listed."""
        return tuple(buffer.number for buffer in self._outputs)

    @property
    def plan(self) -> Plan:
        """What runs: programs and channels; prints as text."""
        return self._plan

    @property
    def is_teardown(self) -> bool:
        """Whether it was torn down."""
        return self.session.is_closed

    def report(self) -> Report:
        """Return who does what, since when, and who waits for whom; prints as text.

        It works while actors are stuck in users' code and after they died. Live actors are asked
        where they are, for at most half a second.
        """
        return self._report(STACKS_TIMEOUT_S)

    def report_within(self, patience_s: float) -> str:
        """Return the text of ``report``, asking live actors for at most this long."""
        return str(self._report(patience_s))

    def _report(self, patience_s: float) -> Report:
        found = self.session.report(patience_s)
        completed = self._completed()
        in_flight = self._submission.submitted - completed  # in this order: others submit meanwhile
        return dataclasses.replace(
            found,
            in_flight=in_flight,
            limit=self._submission.window.limit,
            failures_dropped=self._failures_dropped(),
            last_dropped=self._last_dropped(),
        )

    def _completed(self) -> int:
        return min(buffer.here for buffer in self.buffers)

    def _failures_dropped(self) -> int:
        return sum(buffer.failures_dropped for buffer in self.buffers)

    def _last_dropped(self) -> str:
        for buffer in self.buffers:
            if buffer.last_dropped is not None:
                failure = buffer.last_dropped.decode()
                return describe(failure) if type(failure) is Failure else ""
        return ""

    def statistics(self) -> Statistics:
        """Return how much the graph has done so far and what it holds now; prints as text."""
        self._submission.discard_dropped()
        window, found = self._submission.window, self.session.report(0)
        completed = self._completed()
        executions = self._submission.submitted
        return Statistics(
            executions=executions,
            completed=completed,
            in_flight=executions - completed,
            buffered=window.buffered(completed),
            failures_dropped=self._failures_dropped(),
            limit=window.limit,
            used_bytes=found.used_bytes,
            cap_bytes=found.cap_bytes,
            stashes=sum(node.memory().stashes for node in self.session.nodes),
            processes=tuple(map(ProcessStatistics.of, found.processes)),
        )

    def profile(self, *, max_events: int | None = None) -> Profiler:
        """Return what records this graph: ``with cdag.profile() as p: ...; print(p)``.

        It can be switched on at any time, without compiling again. See ``rcg.profile`` for all
        graphs at once.

        Args:
            max_events: How many events are kept; later ones are counted as lost. None for five
                million.

        Raises:
            ValueError: ``max_events`` is no positive integer.
        """
        reference = weakref.ref(self.session)

        def sessions() -> list[Session]:
            session = reference()
            return [] if session is None else [session]

        found: Profiler = _profiler().profiler_of(sessions, max_events=max_events)
        return found

    def trace(self) -> Trace:
        """Return what the flight recorder has now: the newest 4096 events of each process.

        It needs no profile, and works while actors are stuck and after they died.
        """
        found: Trace = _profiler().newest(self.session)
        return found

    def visualize(
        self,
        filename: str | PathLike[str] = "compiled_graph",
        format: str | None = None,
        view: bool = False,
        channel_details: bool = False,
        *,
        legend: bool = True,
        dark: bool | None = None,
    ) -> str:
        """Draw the graph: actors as clusters, methods, and the values between them.

        Args:
            filename: Where to write, with the format as suffix or without. Not used for "ascii".
            format: "ascii" (text; writes no file), "dot" or "gv" (Graphviz source), "svg" (drawn by
                rcg), or one that Graphviz draws ("png", "pdf", ...): without its ``dot`` an SVG is
                written instead, and a warning says so. Without, the suffix decides, else "png".
            view: Open the file where there is a desktop; for "ascii", print.
            channel_details: Tell which channel carries each value.
            legend: Explain the lines.
            dark: Whether an SVG is dark; None leaves it to the reader's browser.

        Returns:
            The text, for "ascii"; Graphviz source for all others.

        Raises:
            ValueError: The format is unknown, or "ascii" with ``channel_details``.
            FileNotFoundError: There is no such folder.
        """
        return views().visualize(
            self._plan,
            self._actor_ids(),
            filename=filename,
            format=format,
            view=view,
            channel_details=channel_details,
            legend=legend,
            title=repr(self),
            dark=dark,
        )

    def _actor_ids(self) -> dict[str, str]:
        return {actor: cluster.actor_id(handle) for actor, handle in self.session.handles.items()}

    def __repr__(self) -> str:
        return f"CompiledDAG({self.session.graph_id})"

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.plan(
            self._plan,
            text=repr(self),
            title=f"CompiledDAG({self.session.graph_id[:8]})",
            actor_ids=self._actor_ids(),
        )

    # --- elsewhere

    def __reduce__(self) -> Any:
        """Pickle as a handle, with which another process on this node can execute and get."""
        return handle_of(self)

    # --- the end

    def teardown(self, kill_actors: bool = False, *, timeout: float | None = _UNSET) -> None:
        """Stop the loops on the actors, which stay usable. Idempotent, from any thread.

        Waits until the loops have ended: the method that an actor runs goes on until it returns, a
        coroutine is cancelled. Ctrl-C finishes first.

        Args:
            kill_actors: Kill the actors as well.
            timeout: Seconds to wait, None for no limit. Without it, the graph's
                ``teardown_timeout``.

        Raises:
            ChannelTimeout: A loop had not ended by then. The graph is torn down all the same, and
                its part there ends when the method returns; call again to go on waiting.
        """
        if timeout is _UNSET:
            timeout = self.session.options.teardown_timeout_s
        elif timeout is not None:
            timeout = timeout_from_user(timeout, "timeout")
        late, interrupted = _run_uninterrupted(
            lambda warn: self.session.close(timeout_s=timeout, kill_actors=kill_actors, warn=warn)
        )
        if not late:
            self._finalizer.detach()
            registry.ended(self)
        if interrupted:
            raise KeyboardInterrupt
        if late:
            names = ", ".join(map(self._plan.label, late))
            raise ChannelTimeout(
                f"teardown() waited {timeout:g} s for {names}. The graph is torn down; the method "
                "that runs there goes on and then its loop ends. Call teardown() again to go on "
                "waiting, or teardown(kill_actors=True) to end it now.",
                timeout_s=timeout,
                report=self.report_within(min(timeout or 0.0, STACKS_TIMEOUT_S)),
            )

    def __enter__(self) -> CompiledDAG:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.teardown()
        except ChannelTimeout as error:
            if kind is None:
                raise
            _log.warning("rcg: %s", error)  # what happened in the block matters more


def _run_uninterrupted(
    call: Callable[[Callable[[str], object]], list[str]],
) -> tuple[list[str], bool]:
    """Run an idempotent ``call`` to its end; returns its result, and whether Ctrl-C was pressed.

    What it warns of goes to the log on the calling thread: if that is in a log handler, no other
    thread gets in.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(_log.warning), False
    interrupted = False
    results: list[list[str]] = []

    def run(said: SimpleQueue[str | None]) -> None:
        try:
            results.append(call(said.put))
        finally:
            said.put(None)

    while True:
        try:
            # Ctrl-C may come before, in or after the start, so the next turn calls once more.
            said: SimpleQueue[str | None] = SimpleQueue()
            thread = threading.Thread(target=run, args=(said,), name="rcg-teardown", daemon=True)
            thread.start()
            while (text := said.get()) is not None:
                _log.warning(text)
            thread.join()
            return (results[-1] if results else []), interrupted
        except KeyboardInterrupt:
            interrupted = True


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Let the event loop turn once."""
    yield


def live_graphs() -> list[CompiledDAG]:
    """Return the graphs of this process that are not torn down."""
    return registry.live(CompiledDAG)


def teardown_all() -> None:
    """Tear down every live graph of this process; what does not end in time is told to the log."""
    for dag in live_graphs():
        try:
            dag.teardown()
        except ChannelTimeout as error:
            _log.warning("rcg: %s", error)


def _profiler() -> Any:
    """Return the profiler's module: analysis and views are loaded when somebody looks."""
    return importlib.import_module("rcg.runtime.observe.profiler")


def profile_all(*, max_events: int | None = None) -> Profiler:
    """Return what records all live graphs of this process, and those compiled meanwhile."""

    def sessions() -> list[Session]:
        return [dag.session for dag in live_graphs()]

    found: Profiler = _profiler().profiler_of(sessions, is_following=True, max_events=max_events)
    return found


def report_all() -> Reports:
    """Return what every live compiled graph of this process does; prints as text."""
    live = sorted(live_graphs(), key=lambda dag: dag.get_id())
    return Reports(dag.report() for dag in live)
