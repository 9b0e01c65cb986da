# SPDX-License-Identifier: Apache-2.0
"""Executing a compiled graph: ``CompiledDAG``.

The driver's program is run here, lazily: ``execute`` is its inputs and writes, the refs' ``get``
its reads. A full window makes ``execute`` wait, and while it waits it takes results off every
output, so a caller with one thread cannot block himself.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn

from rcg import _native, cluster
from rcg.channels.segments import MOST_IN_FLIGHT
from rcg.channels.shm import NATIVE_ERRORS, Reader, Writer
from rcg.errors import ChannelTimeout, ExecutionError, GraphError, MessageTooLarge
from rcg.options import Deadline
from rcg.plan import DRIVER, Input, Output, Plan, Read, Write
from rcg.runtime.awaiting import Awaiter
from rcg.runtime.failure import capture_own
from rcg.runtime.outlet import Outlet
from rcg.runtime.results import CompiledDAGRef, TwinRef
from rcg.runtime.session import Session
from rcg.runtime.window import Window
from rcg.runtime.worker import make_codec
from rcg.values import Encoded, size_of

__all__ = ["CompiledDAG", "teardown_all"]

_UNTIL_IDLE_S: Final = 3.0  # longer than a loop waits before it gives its free memory back
_MOMENT_S: Final = 0.01


class CompiledDAG:
    """A DAG of actor methods that runs on its actors' own loops until it is torn down.

    Made by ``compile``. Usable from any thread of the process that compiled it, in sync and asyncio
    code alike. Torn down by ``teardown()``, at the end of a ``with`` block, when it is garbage
    collected, and at interpreter exit.
    """

    _live: ClassVar[weakref.WeakSet[CompiledDAG]] = weakref.WeakSet()

    def __init__(self, session: Session) -> None:
        self.session = session
        self._plan = session.plan
        options = session.options
        self.get_timeout_s = options.get_timeout_s
        self._codec = make_codec()
        self._submitting = threading.Lock()
        # Outputs that were fetched or dropped, for the window to count, as one number each:
        # execution * num_outlets + outlet.number. A deque,
        # because refs die anywhere, also inside our own locks: appending needs none.
        self.finished: deque[int] = deque()
        self.awaiter = Awaiter(session)
        self._outlets, self._writers, self._outputs = self._open_channels()
        is_whole = [key for key, _ in self._writers] == [None]
        self._whole = self._writers[0][1] if is_whole else None
        self._outlet = None if self._plan.is_multi else self._outputs[0]
        self.num_outlets = len(self._outlets)
        self._cap_bytes: int = session.member.statistics()["cap_bytes"]
        self._window = Window(
            limit=min(options.max_inflight_executions, MOST_IN_FLIGHT),
            capacity=options.max_inflight_executions,
            buffered_limit=options.max_buffered_results,
            outputs=len(self._outlets),
            is_strict=options.is_inflight_limit_set_by_user,
        )
        self._finalizer = weakref.finalize(self, session.close_nowait)
        CompiledDAG._live.add(self)

    @classmethod
    def main_threads_taken(cls) -> dict[str, CompiledDAG]:
        """Return the graphs of this process that have actors' main threads, by actor id."""
        return {
            cluster.actor_id(handle): dag
            for dag in cls._live
            if dag.session.options.thread == "main" and not dag.session.is_over
            for handle in dag.session.handles.values()
        }

    def _open_channels(
        self,
    ) -> tuple[list[Outlet], list[tuple[int | str | None, Writer]], list[Outlet]]:
        """Return the outlets, the writer of each input key, and the outlet of each output."""
        session, rings = self.session, self.session.layout.rings
        keys: dict[int, int | str | None] = {}
        outlets: dict[int, Outlet] = {}
        writers: list[tuple[int | str | None, Writer]] = []
        outputs: list[Outlet] = []
        for index, op in enumerate(self._plan.program(DRIVER).ops):
            match op:
                case Input():
                    keys[op.out] = op.key
                case Write():
                    writer = Writer(session.member, rings[op.channel], index, self._codec)
                    writers.append((keys[op.slot], writer))
                case Read():
                    reader = Reader(session.member, rings[op.channel], index)
                    outlets[op.out] = Outlet(op.channel, len(outlets), reader, self.awaiter.wake)
                case Output():
                    outputs = [outlets[slot] for slot in op.slots]
        return list(outlets.values()), writers, outputs

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
        if self._whole is not None:
            # One input, one value: the commonest shape, spelt out.
            if len(args) != 1:
                self._refuse_count(len(args))
            with self._submitting:
                window = self._window
                if window.submitted >= window.free_until:
                    self._make_room()
                try:
                    # The refs come first: whatever happens from here on, one that goes away lets
                    # go of what was written.
                    refs = self._refs(window.submitted)
                    try:
                        self._whole.write(args[0])
                    except NATIVE_ERRORS as error:
                        self._write_again(error, self._whole, self._codec.encode(args[0]))
                    window.submit()
                    return refs
                except BaseException:
                    window.free_until = 0  # maybe Ctrl-C in between: see _mend
                    raise
        arguments = self._arguments(args, kwargs)
        encode = self._codec.encode
        ready = [(writer, encode(arguments[key])) for key, writer in self._writers]
        self._check_size(sum(size_of(encoded) for _, encoded in ready))
        with self._submitting:
            window = self._window
            if window.submitted >= window.free_until:
                self._make_room()
            try:
                refs = self._refs(window.submitted)
                self._write(ready)
                window.submit()
                return refs
            except BaseException:
                window.free_until = 0
                raise

    def _refs(self, execution: int) -> Any:
        """Return the ref of an execution, or the list of them."""
        if self._outlet is not None:
            return CompiledDAGRef(self, self._outlet, execution, None)
        refs: list[CompiledDAGRef] = []
        first: dict[str, CompiledDAGRef] = {}
        for index, outlet in enumerate(self._outputs):
            known = first.get(outlet.channel)
            if known is None:
                known = first[outlet.channel] = CompiledDAGRef(self, outlet, execution, index)
                refs.append(known)
            else:
                refs.append(TwinRef(known, index))
        return refs

    @property
    def written(self) -> int:
        """How many executions were begun: their first input is written."""
        return self._writers[0][1].seq

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._cap_bytes:
            raise MessageTooLarge(
                f"arguments of {size_bytes:,} bytes do not fit into the graph's shared memory of "
                f"{self._cap_bytes:,} bytes: raise `memory_cap_bytes` or pass them in parts",
                size_bytes=size_bytes,
                limit_bytes=self._cap_bytes,
            )

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int | str | None, Any]:
        """Return the value of each input key."""
        if len(args) != self._plan.num_positional:
            self._refuse_count(len(args))
        table: dict[int | str | None, Any] = dict(enumerate(args))
        for name in self._plan.keywords:
            if name not in kwargs:
                raise GraphError(
                    f"dag.execute() or dag.execute_async() must be called with kwarg `{name}`"
                )
            table[name] = kwargs[name]
        return table

    def _refuse_count(self, found: int) -> NoReturn:
        raise GraphError(
            "dag.execute() or dag.execute_async() must be called with "
            f"{self._plan.num_positional} positional args, got {found}"
        )

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution without blocking the event loop; returns refs to be awaited.

        It may be mixed with ``execute`` on the same graph. See ``execute`` for arguments and
        errors.
        """
        options, window = self.session.options, self._window
        is_full = window.submitted - self._complete() >= window.limit
        # A user who set the limit himself is not made to wait: execute() raises.
        if (is_full or self.awaiter.has_queue()) and not options.is_inflight_limit_set_by_user:
            try:
                async with asyncio.timeout(options.submit_timeout_s), self.awaiter.queue():
                    await self._wait_for_room()
            except TimeoutError:
                raise self._timeout(
                    "there was no room for another execution", options.submit_timeout_s
                ) from None
        return self.execute(*args, **kwargs)

    async def _wait_for_room(self) -> None:
        """Wait until the window has room, without a thread that an exit would have to wait for."""
        window = self._window
        while (complete := window.submitted - window.limit + 1) > self._complete():
            for outlet in self._outlets:
                if outlet.arrived < complete:
                    await self.awaiter.wait_for(outlet, complete - 1)
            self.session.check_running()

    def _write(self, ready: list[tuple[Writer, Encoded]]) -> None:
        """Write all inputs of one execution, or none."""
        is_first = True
        for writer, encoded in ready:
            try:
                writer.write_encoded(encoded)
            except NATIVE_ERRORS as error:
                if is_first:
                    self._write_again(error, writer, encoded)
                elif isinstance(error, _native.NoMemory):
                    # Others of this execution are out: it runs, and fails with the reason.
                    writer.write(capture_own(self.session.translate(error)))
                else:
                    raise self.session.translate(error) from None
            is_first = False

    def _write_again(self, error: Exception, writer: Writer, encoded: Encoded) -> None:
        """Go on after the first write of an execution failed: wait for memory, or raise."""
        if not isinstance(error, _native.NoMemory):
            raise self.session.translate(error) from None
        self._write_when_memory_is_free(writer, encoded)

    def _write_when_memory_is_free(self, writer: Writer, encoded: Encoded) -> None:
        """Memory is waited for here only, where nothing of the execution is held yet."""
        self._check_size(size_of(encoded))
        window = self._window
        deadline = Deadline(self.session.options.submit_timeout_s)
        # What the actors only keep warm they give up when they are idle, which takes a moment.
        idle = Deadline(_UNTIL_IDLE_S)
        while True:
            complete = self._complete()
            try:
                writer.write_encoded(encoded)
                return
            except _native.NoMemory as error:
                if complete >= window.submitted and (idle.expired or deadline.expired):
                    raise self.session.translate(error) from None
            if complete < window.submitted:
                self._advance(complete + 1, deadline)
            else:
                time.sleep(_MOMENT_S)

    def _make_room(self) -> None:
        """Let the window look at what happened since; wait while it is full."""
        window, finished = self._window, self.finished
        self._mend()
        while finished:
            window.release(*divmod(finished.popleft(), self.num_outlets))
        for outlet in self._outlets:
            if outlet.dropped:
                outlet.discard_dropped()
        self._complete()
        window.look()
        if window.is_full:
            wanted = window.submitted - window.limit + 1
            self._advance(wanted, Deadline(self.session.options.submit_timeout_s))
            window.look()

    def _mend(self) -> None:
        """Finish what an interrupted ``execute`` left: inputs written in part, or not counted.

        Nobody has a ref of such an execution: its missing inputs fail, its results are dropped.
        """
        writers = [writer for _, writer in self._writers]
        written = max(writer.seq for writer in writers)
        if written == self._window.submitted == min(writer.seq for writer in writers):
            return
        missing = capture_own(
            ExecutionError("this execution was interrupted while it was submitted")
        )
        for writer in writers:
            while writer.seq < written:
                writer.write(missing)
        while self._window.submitted < written:
            execution = self._window.submit()
            for outlet in self._outlets:
                outlet.dropped.append(execution)
                self.finished.append(execution * self.num_outlets + outlet.number)

    def _advance(self, complete: int, deadline: Deadline) -> None:
        """Wait until so many executions are complete, taking results off every output."""
        try:
            for outlet in self._outlets:
                outlet.advance_to(complete, deadline)
        except NATIVE_ERRORS as error:
            if isinstance(error, _native.TimedOut):
                raise self._timeout(
                    "there was no room for another execution", deadline.timeout_s
                ) from None
            raise self.session.translate(error) from None
        self._complete()

    def _complete(self) -> int:
        """Count what has arrived; returns how many executions are complete."""
        outlets = self._outlets
        complete = outlets[0].arrived
        for outlet in outlets:
            arrived = outlet.arrived
            if arrived < complete:
                complete = arrived
        self._window.arrive(complete)
        return complete

    # --- fetching

    def fetch(
        self,
        ref: CompiledDAGRef,
        outlet: Outlet,
        timeout_s: float | None,
        asked_s: float | None = None,
    ) -> None:
        """Wait for the result of a ref; see ``CompiledDAGRef.get`` for the errors.

        Args:
            ref: The ref, whose outlet is the next argument.
            outlet: Where its result arrives.
            timeout_s: How long to wait.
            asked_s: The timeout that the user gave, if this wait is only the last part of it.
        """
        if not self.try_fetch(ref, outlet, timeout_s):
            asked_s = timeout_s if asked_s is None else asked_s
            raise self._timeout(f"execution {ref.execution} has no result yet", asked_s)

    def try_fetch(self, ref: CompiledDAGRef, outlet: Outlet, timeout_s: float | None) -> bool:
        """Wait for the result of a ref; False when the time is up."""
        session = self.session
        if session.is_closed:
            raise session.end_error()
        try:
            is_first = outlet.fetch(ref, timeout_s)
        except _native.TimedOut:
            return False
        except NATIVE_ERRORS as error:
            raise session.translate(error) from None
        if is_first:
            self.finished.append(ref.execution * self.num_outlets + outlet.number)
        return True

    def _timeout(self, what: str, timeout_s: float | None) -> ChannelTimeout:
        return ChannelTimeout(
            f"{what} after {timeout_s:g} s. Nothing is lost: call again to go on waiting.",
            timeout_s=timeout_s,
            report=self.report(),
        )

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self.session.graph_id

    @property
    def plan(self) -> Plan:
        """What runs: programs and channels; prints as text."""
        return self._plan

    @property
    def is_teardown(self) -> bool:
        """Whether it was torn down."""
        return self.session.is_closed

    def report(self) -> str:
        """Return who does what, since when, and who waits for whom, as a table."""
        return self.session.report()

    def __repr__(self) -> str:
        return f"CompiledDAG({self.session.graph_id})"

    # --- the end

    def teardown(self, kill_actors: bool = False) -> None:
        """Stop the loops on the actors, which stay usable. Idempotent, from any thread.

        Waits until the loops have ended, at most the graph's ``teardown_timeout``; Ctrl-C finishes
        first.

        Args:
            kill_actors: Kill the actors as well.
        """
        interrupted = _run_uninterrupted(
            lambda: self.session.close(
                timeout_s=self.session.options.teardown_timeout_s, kill_actors=kill_actors
            )
        )
        self._finalizer.detach()
        CompiledDAG._live.discard(self)
        if interrupted:
            raise KeyboardInterrupt

    def __enter__(self) -> CompiledDAG:
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()


def _run_uninterrupted(call: Callable[[], None]) -> bool:
    """Run an idempotent ``call`` to its end; returns whether Ctrl-C was pressed meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        call()
        return False
    interrupted = False
    while True:
        try:
            # Ctrl-C may come before, in or after the start, so the next turn calls once more.
            thread = threading.Thread(target=call, name="rcg-teardown", daemon=True)
            thread.start()
            thread.join()
            return interrupted
        except KeyboardInterrupt:
            interrupted = True


def teardown_all() -> None:
    """Tear down every live graph of this process."""
    for dag in list(CompiledDAG._live):
        dag.teardown()
