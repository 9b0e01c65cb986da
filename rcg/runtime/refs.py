# SPDX-License-Identifier: Apache-2.0
"""Refs: the results of executions as the user holds them, and waiting for several of them.

A ref knows its graph and its buffer and nothing of how frames travel.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from rcg.callers import end_at_caller
from rcg.channels.base import timeout_ns
from rcg.channels.shm import Ticket
from rcg.cluster import RefType
from rcg.error_text import is_ctrl_c_possible
from rcg.errors import ChannelTimeout
from rcg.options import FOR_EVER, Deadline, timeout_from_user
from rcg.runtime.by_reference import HeldResult
from rcg.runtime.failure import to_exception
from rcg.runtime.sleepers import take_all
from rcg.runtime.watch import Watch, Watched, ahead_s, polled, verdict_of
from rcg.serialization import Failure

# A get of several refs waits this long for one before it looks whether another has failed: first
# the shortest time, then longer and longer.
_MIN_POLL_S: Final = 0.002
_MAX_POLL_S: Final = 0.1
_MIXED_POLL_S: Final = 0.005
_UNSET: Final[Any] = object()
_NOW: Final = Deadline(0)
_NO_RESULT: Final = "execution {} has no result yet"

# The state of a ref. The native core sets the first two.
NEW: Final = -1  # not submitted yet: one that goes away leaves nothing behind
PENDING: Final = 0
READY: Final = 1
FAILED: Final = 2
HELD: Final = 3  # a ``HeldResult``


class Arrivals(Protocol):
    """One output of a graph, as its refs see it.

    Attributes:
        channel: The id of its channel in the plan.
        number: Which of the graph's outputs it is.
        frames: Results that came and were not fetched, by execution.
        dropped: Executions whose ref went away unread.
    """

    channel: str
    number: int
    dropped: deque[int]

    @property
    def frames(self) -> Mapping[int, object]:
        """See the class."""


class ResultSource(Watched, Protocol):
    """A graph, as its refs see it: one that this process compiled, or a handle on another's.

    Attributes:
        get_timeout_s: The timeout of a ``get`` without one.
        quiet_ns: How long a ``get`` waits before it says what it waits for; None for ever.
        left: The outputs that are still wanted, a bit for each, by execution.
    """

    get_timeout_s: float | None
    left: dict[int, int]

    @property
    def quiet_ns(self) -> int | None:
        """See the class."""

    def try_fetch(
        self, ref: CompiledDAGRef, longest_ns: int | None, deadline: Deadline = FOR_EVER
    ) -> bool:
        """Wait for the result of a ref and fill it; False when the time is up.

        Args:
            ref: The ref.
            longest_ns: How long this waits; None for ever.
            deadline: When the caller's wait ends: why the graph broke is not found out later.
        """

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs."""

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref would not wait."""


class CompiledDAGRef(Ticket, metaclass=RefType):
    """The result of one output of one execution.

    It can be got any number of times (the same object each time), in any order and from any thread
    of the process that executed; it can also be awaited. Dropping it unread discards the result.

    A ref is made before its execution is submitted. The step that publishes the inputs also gives
    the ref its number and state, so a dropped ref belongs to a whole execution or to none. Making a
    ref and dropping it are steps of the native core, in which no signal handler runs.
    """

    __slots__ = ("__dict__", "__weakref__")

    _source: ResultSource
    buffer: Arrivals

    @property
    def execution_index(self) -> int:
        """Which execution this belongs to, counted from 0."""
        return self.execution

    def get(self, timeout: float | None = _UNSET) -> Any:
        """Wait for the result and return it.

        Args:
            timeout: Seconds; None waits as long as the actors live. The default is the graph's
                ``get_timeout``.

        Raises:
            Exception: The exception of a method, both of the user's type and a ``RayTaskError``.
            ChannelTimeout: The result did not come in time; it can be got later.
            ActorDiedError: An actor of the graph is dead.
            ChannelClosed: The graph was torn down first.
        """
        try:
            if self.state < READY:
                dag = self._source
                if timeout is _UNSET:
                    timeout = dag.get_timeout_s
                elif timeout is not None:
                    timeout = timeout_from_user(timeout, "timeout")
                if timeout is not None:
                    _fetch_within(self, timeout)
                elif not dag.try_fetch(self, dag.quiet_ns):
                    _fetch(self, (), FOR_EVER, (dag.quiet_ns or 0) / 1e9)
            if self.state > READY:
                if self.state == HELD:
                    return self.value.reference()
                raise _error_of(self.value)
            return self.value
        except BaseException as error:
            _leave(error, self)
            del self  # the traceback of an exception may hold this frame, and the ref holds it
            raise

    def settle(self) -> Any:
        """Wait for the stored result: the value, a ``Failure``, or the exception of unpickling.

        Raises:
            ActorDiedError, ChannelClosed: There is no result.
        """
        if self.state < READY:
            self._source.try_fetch(self, None)
        return self.value

    def done(self) -> bool:
        """Return whether ``get`` would return, or raise, without waiting."""
        return self.state >= READY or self._source.has(self)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            if self.state < READY:
                yield from self._source.wait_async(self).__await__()
            return self.get()
        except GeneratorExit:  # the coroutine that awaits it is closed
            raise
        except BaseException as error:
            end_at_caller(error)
            raise

    def __repr__(self) -> str:
        return (
            f"CompiledDAGRef({self._source.get_id()}, execution_index={self.execution}, "
            f"channel_index={self.channel_index})"
        )

    def __copy__(self) -> NoReturn:
        raise ValueError("CompiledDAGRef cannot be copied.")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise ValueError("CompiledDAGRef cannot be deep copied.")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "CompiledDAGRef cannot be used as Ray task/actor argument, put or pickled: its result "
            "lives in the process that called execute(). Get it there and pass the value. "
            "(It was found to be non-serializable.)"
        )


CompiledDAGFuture = CompiledDAGRef


class TwinRef(CompiledDAGRef):
    """The second ref of an output that is listed twice: it shares the first one's result."""

    __slots__ = ("_first",)

    _first: CompiledDAGRef

    def __new__(cls, first: CompiledDAGRef, channel_index: int | None) -> TwinRef:
        """Return another ref for the result of ``first``."""
        self = super().__new__(cls, first._source, first.buffer, first.execution, channel_index)
        self.disarm()
        self._first = first
        return self

    def get(self, timeout: float | None = _UNSET) -> Any:
        """Get the first one's result."""
        return self._first.get(timeout)

    def done(self) -> bool:
        """Return whether the first one is done."""
        return self._first.done()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._first.__await__()


def refs_of(
    dag: ResultSource, outputs: Sequence[Arrivals], execution: int = NEW
) -> list[CompiledDAGRef]:
    """Return the refs of an execution, one for each output that the user listed."""
    refs: list[CompiledDAGRef] = []
    first: dict[int, CompiledDAGRef] = {}
    for index, buffer in enumerate(outputs):
        known = first.get(buffer.number)
        if known is None:
            ref = first[buffer.number] = CompiledDAGRef(dag, buffer, execution, index)
        else:
            ref = TwinRef(known, index)
        refs.append(ref)
    return refs


def state_of(value: object) -> int:
    """Return the state of a ref whose result has arrived."""
    if type(value) is Failure:
        return FAILED
    return HELD if isinstance(value, HeldResult) else READY


def confirm(refs: CompiledDAGRef | list[CompiledDAGRef]) -> None:
    """Note that another process has submitted the execution of these refs."""
    for ref in [refs] if isinstance(refs, CompiledDAGRef) else refs:
        ref.state = PENDING


def _leave(error: BaseException, ref: CompiledDAGRef) -> None:
    """Have an exception of a ``get`` end at the user's line; Ctrl-C says what was waited for."""
    if type(error) is KeyboardInterrupt and ref.state < READY and is_ctrl_c_possible():
        # A second Ctrl-C ends only this.
        with contextlib.suppress(Exception, KeyboardInterrupt):
            source = ref._source
            said = not hasattr(error, "__notes__") and verdict_of(source, source.answers_within_s)
            if verdict := said:
                error.add_note(f"rcg: {verdict}")
    end_at_caller(error)


def _error_of(value: Any) -> BaseException:
    """Return what to raise for the value of a failed ref."""
    error: BaseException = to_exception(value) if type(value) is Failure else value
    return BaseException.with_traceback(error, None)  # a user's class may have its own


def get_refs(refs: Sequence[CompiledDAGRef], timeout_s: float | None = _UNSET) -> list[Any]:
    """Return the results of several refs; raises as soon as any of them has failed.

    Args:
        refs: Of any compiled graphs of this process.
        timeout_s: For all of them together; without it, the ``get_timeout`` of the first's graph.

    Raises:
        Exception: See ``CompiledDAGRef.get``.
    """
    deadline = Deadline(refs[0]._source.get_timeout_s if timeout_s is _UNSET else timeout_s)
    values = []
    refs = [ref._first if type(ref) is TwinRef else ref for ref in refs]
    for index, ref in enumerate(refs):
        if ref.state < READY:
            try:
                _fetch(ref, refs[index + 1 :], deadline)
            except BaseException as error:
                _leave(error, ref)
                raise
        if ref.state == FAILED:
            try:
                raise _error_of(ref.value)
            except BaseException as error:
                end_at_caller(error)
                del refs, ref  # the traceback of an exception may hold this frame
                raise
        values.append(ref.value if ref.state == READY else ref.value.reference())
    return values


def watch_of(ref: CompiledDAGRef, deadline: Deadline) -> Watch:
    """Return the watch over a wait for a ref."""
    ref = ref._first if type(ref) is TwinRef else ref
    return Watch(ref._source, deadline, ref)


def watch_of_submitting(refs: CompiledDAGRef | list[CompiledDAGRef], deadline: Deadline) -> Watch:
    """Return the watch over a wait for room for the execution of these refs."""
    return Watch((refs[0] if isinstance(refs, list) else refs)._source, deadline)


def late_error(ref: CompiledDAGRef, watch: Watch) -> ChannelTimeout:
    """Return the error of a ``get`` whose time is up."""
    return watch.error(_NO_RESULT.format(ref.execution))


def _fetch_within(ref: CompiledDAGRef, timeout_s: float) -> None:
    """Wait for ``ref`` and fill it; raises ChannelTimeout."""
    dag = ref._source
    if not timeout_s:  # its user looks again and again, and needs no report
        if not dag.try_fetch(ref, 0, _NOW):
            raise polled(dag, _NO_RESULT.format(ref.execution))
        return
    deadline = Deadline(timeout_s)
    # Nothing else is to be done before, and mostly the result is there by then.
    first_ns = timeout_ns(timeout_s - ahead_s(dag, timeout_s))
    if dag.quiet_ns is not None:
        first_ns = min(first_ns, dag.quiet_ns)
    if not dag.try_fetch(ref, first_ns, deadline):
        _fetch(ref, (), deadline, first_ns / 1e9)


def _fetch(
    ref: CompiledDAGRef,
    others: Sequence[CompiledDAGRef],
    deadline: Deadline,
    waited_s: float = 0.0,
) -> None:
    """Wait for ``ref`` and fill it; raises the failure of another one that came first.

    Args:
        ref: What is waited for.
        others: What is waited for after it.
        deadline: Until when.
        waited_s: How long it was waited for by now.
    """
    dag, poll_s = ref._source, _MIN_POLL_S
    watch = Watch(dag, deadline, ref, waited_s)
    while True:
        is_late = watch.is_late  # before the last attempt
        sleep_s = watch.next_s()
        if others:
            sleep_s = poll_s if sleep_s is None else min(sleep_s, poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)
        if dag.try_fetch(ref, timeout_ns(sleep_s), deadline):
            watch.end()
            return
        if is_late:
            raise late_error(ref, watch)
        watch.look()
        for other in others:
            if other.done():
                other.get()


async def wait_for_all(refs: Sequence[CompiledDAGRef]) -> None:
    """Wait until ``get`` of each of the refs would not wait."""
    for ref in refs:
        each = ref._first if type(ref) is TwinRef else ref
        if each.state < READY:
            await each._source.wait_async(each)


def wait_refs(
    refs: Sequence[CompiledDAGRef], *, num_returns: int = 1, timeout_s: float | None = None
) -> tuple[list[CompiledDAGRef], list[CompiledDAGRef]]:
    """Wait until ``num_returns`` of the refs are done; returns (done, others), each in order.

    Nothing is fetched. At most ``num_returns`` refs are in the first list, as in Ray.
    """
    deadline = Deadline(timeout_s)
    while True:
        done = [ref for ref in refs if ref.done()]
        if len(done) >= num_returns or deadline.expired:
            chosen = set(map(id, done[:num_returns]))
            return (
                [ref for ref in refs if id(ref) in chosen],
                [ref for ref in refs if id(ref) not in chosen],
            )
        pending = [ref for ref in refs if not ref.done()]
        if pending:  # another thread may have fetched the missing result
            _wait_for_any(pending, deadline)


def _wait_for_any(pending: Sequence[CompiledDAGRef], deadline: Deadline) -> None:
    """Wait until something happened at the graph of one of these refs, but not for long.

    The caller looks again, also for other graphs and other threads that take the frames.
    """
    left = deadline.remaining_s()
    dag = pending[0]._source
    slice_s = _MAX_POLL_S if all(ref._source is dag for ref in pending) else _MIXED_POLL_S
    wait_s = slice_s if left is None else min(slice_s, left)
    dag.wait_for_any([ref for ref in pending if ref._source is dag], wait_s)


def take_arrived(dropped: deque[int], arrived: int) -> Iterator[int]:
    """Take the executions that have arrived out of a queue of dropped ones; any thread.

    Args:
        dropped: Executions whose refs went away unread. Those still to come stay in it.
        arrived: How many executions have arrived; they do so in order.
    """
    for execution in take_all(dropped):
        if execution < arrived:
            yield execution
        else:
            dropped.append(execution)
