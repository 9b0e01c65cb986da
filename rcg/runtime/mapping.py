# SPDX-License-Identifier: Apache-2.0
"""``map``: one execution for each input, so many of them in flight, and the results in order.

```
in_flight=3     inputs   0 1 2 . . 3 . . 4      taken when there is room, and not before
                results        0 . . 1 . . 2    each yielded when all before it were
```

An execution is in flight from its start until its result is yielded. So at most ``in_flight``
results wait here, and input n is taken after result n - in_flight was yielded. Where there is room,
one input is taken before a result is yielded, and others only until the result is there.

This room knows no graph but by ``execute`` and ``execute_async``: one that this process compiled
and a handle on another's are mapped in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from rcg.callers import end_at_caller
from rcg.errors import (
    ActorDiedError,
    CapacityExceededError,
    ChannelBroken,
    ChannelClosed,
    ChannelTimeout,
)
from rcg.option_kinds import COUNT
from rcg.runtime.map_inputs import Call, MapInputs
from rcg.runtime.refs import FAILED, CompiledDAGRef, get_refs, wait_for_all

_GRAPH_ENDS: Final = (ActorDiedError, ChannelBroken, ChannelClosed)
_NO_ROOM: Final = (CapacityExceededError, ChannelTimeout)


class Graph(Protocol):
    """What is mapped."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution; return its ref, or a list of refs."""

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """As ``execute``, without blocking the event loop."""

    def has_ended(self) -> bool:
        """Whether nothing can be executed any more."""


class MapResults:
    """The results of ``map``, in the order of the inputs: an iterator, also an asynchronous one.

    ``CompiledDAG.map`` returns it and says what it does. Nothing happens before the first result
    is asked for. One thread or coroutine at a time may ask.
    """

    _pull: asyncio.Task[Call | None] | None = None

    def __init__(self, graph: Graph, inputs: MapInputs, in_flight: int) -> None:
        self._graph = graph
        self._inputs: MapInputs | None = inputs  # None once there are no more
        self._in_flight = in_flight
        self._next: Call | None = None  # taken from the inputs, and not started yet
        self._started: deque[_Started | _Refused] = deque()
        self._turn: dict[int, object] = {}  # who asks for a result now, under 0

    # --- sync

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        mine = object()
        try:
            self._take_turn(mine)
            if self._inputs is not None:
                self._inputs.open(is_async=False)
            self._start()
            if self._started:
                return self._take()
        except BaseException as error:
            end_at_caller(error)
            raise
        finally:
            self._leave_turn(mine)
        raise StopIteration

    def _start(self) -> None:
        """Start executions while there is room: one, and others while no result is there."""
        is_first = True
        while self._has_room(is_first=is_first) and self._take_next():
            is_first = False
            call = self._next
            if call is None:  # closed meanwhile
                return
            try:
                self._note(self._graph.execute(*call.args, **call.keywords))
            except _NO_ROOM:
                if not self._started:
                    raise
                return  # a result that is yielded makes room
            except Exception as error:  # noqa: BLE001 - it is raised in its place
                self._refuse(error)

    def _take_next(self) -> bool:
        """Take the next input, unless one was taken that is not started; whether there is one."""
        if self._next is None and self._inputs is not None:
            try:
                self._next = next(self._inputs.calls, None)
            except Exception as error:  # noqa: BLE001 - it is raised in its place
                self._refuse(error)
                self._inputs = None
            if self._next is None:
                self._inputs = None
        return self._next is not None

    # --- async

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        mine = object()
        try:
            self._take_turn(mine)
            if self._inputs is not None:
                self._inputs.open(is_async=True)
            await self._start_async()
            if self._started:
                await wait_for_all(self._started[0].refs)
            if self._started:  # not closed meanwhile
                return self._take()
        except GeneratorExit:  # the coroutine that asks is closed
            raise
        except BaseException as error:
            end_at_caller(error)
            raise
        finally:
            self._leave_turn(mine)
        raise StopAsyncIteration

    async def _start_async(self) -> None:
        """As ``_start``."""
        is_first = True
        while self._has_room(is_first=is_first) and await self._take_next_async():
            is_first = False
            call = self._next
            if call is None:
                return
            try:
                self._note(await self._graph.execute_async(*call.args, **call.keywords))
            except _NO_ROOM:
                if not self._started:
                    raise
                return
            except Exception as error:  # noqa: BLE001 - it is raised in its place
                self._refuse(error)

    async def _take_next_async(self) -> bool:
        """As ``_take_next``; also ends, with False, when there is a result to yield."""
        if self._inputs is None or self._next is not None or not self._inputs.is_async:
            return self._take_next()
        if self._pull is None:
            self._pull = asyncio.ensure_future(self._inputs.next_async())
        pull = self._pull
        arrival = self._started[0].arrival() if self._started else None
        # It cancels neither: an input that is on its way comes, also after a timeout of the caller.
        await asyncio.wait({pull, arrival} if arrival else {pull}, return_when="FIRST_COMPLETED")
        if not pull.done() or self._pull is not pull:
            return False
        self._pull = None
        try:
            self._next = pull.result()
        except Exception as error:  # noqa: BLE001 - it is raised in its place
            self._refuse(error)
            self._inputs = None
        if self._next is None:
            self._inputs = None
        return self._next is not None

    # --- both

    def _take_turn(self, mine: object) -> None:
        """Refuse if somebody else asks now. Ctrl-C between any two lines leaves nobody's turn."""
        if self._turn.setdefault(0, mine) is not mine:
            raise RuntimeError(
                "a result of this map() is being asked for already, by another thread or "
                "coroutine, or by its own inputs"
            )

    def _leave_turn(self, mine: object) -> None:
        if self._turn.get(0) is mine:
            del self._turn[0]

    def _has_room(self, *, is_first: bool) -> bool:
        """Whether an execution is to be started before a result is yielded.

        The first always is, so that the actors have work while the caller has a result. Of others,
        a result that is there is yielded first: the next input may take its time.
        """
        return len(self._started) < self._in_flight and (
            is_first or not self._started or not self._started[0].is_done()
        )

    def _note(self, refs: CompiledDAGRef | list[CompiledDAGRef]) -> None:
        """Note that the next execution was started."""
        if self._next is not None:  # else it was closed meanwhile, and drops the refs
            self._started.append(_Started(refs))
            self._next = None

    def _refuse(self, error: Exception) -> None:
        """Raise an error in place of the next result, when those before it were yielded."""
        self._started.append(_Refused(error))
        self._next = None
        if self._graph.has_ended():
            self._inputs = None

    def _take(self) -> Any:
        """Take the first result, which async code has waited for; raises its exception."""
        first = self._started[0]
        try:
            value = first.get()
        except BaseException as error:
            if first.has_failed():
                self._drop_first(first)
            elif issubclass(type(error), _GRAPH_ENDS) and self._graph.has_ended():
                self.close()
            raise
        self._drop_first(first)
        return value

    def _drop_first(self, first: _Started | _Refused) -> None:
        first.let_go()
        if self._started and self._started[0] is first:  # not closed meanwhile
            self._started.popleft()
        if isinstance(first, _Refused) and self._inputs is None and self._graph.has_ended():
            self.close()

    # --- the end

    def close(self) -> None:
        """Take no more inputs, and let go of all results that were not yielded.

        It does not wait: executions that were started run to their end, and their results are
        discarded. Dropping the iterator does the same. Idempotent, from any thread.
        """
        self._inputs = self._next = None
        while self._started:
            with contextlib.suppress(IndexError):  # another thread closes it as well
                self._started.popleft().let_go()
        pull, self._pull = self._pull, None
        if pull is not None:
            _cancel(pull)

    async def aclose(self) -> None:
        """As ``close``; also waits until an async iterable that was asked for an input has ended.

        Then the caller may close it.
        """
        pull = self._pull
        self.close()
        if pull is not None:
            await asyncio.wait({pull})

    def __del__(self) -> None:
        self.close()


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task; any thread."""
    with contextlib.suppress(RuntimeError):  # its event loop is closed
        task.get_loop().call_soon_threadsafe(task.cancel)


def map_over(
    graph: Graph,
    iterables: Sequence[Any],
    keywords: Mapping[str, Any],
    in_flight: object,
    limit: int,
) -> MapResults:
    """Return the results of a graph for these inputs; see ``CompiledDAG.map``.

    Args:
        graph: What is executed.
        iterables: One for each positional argument of an execution.
        keywords: One for each keyword argument.
        in_flight: As the user gave it.
        limit: How many executions the graph allows in flight.

    Raises:
        TypeError: There is nothing to iterate, or what is given cannot be iterated.
        ValueError: ``in_flight`` is not a positive integer, or more than the limit.
    """
    count = limit if in_flight is None else COUNT.check(in_flight, "in_flight")
    if not isinstance(count, int) or count > limit:
        raise ValueError(
            f"`in_flight` is {count}, and the graph was compiled for at most {limit} executions in "
            f"flight: compile it with max_inflight_executions={count}, or map with "
            f"in_flight={limit}"
        )
    return MapResults(graph, MapInputs(iterables, keywords), count)


class _Started:
    """An execution whose result was not yielded yet."""

    __slots__ = ("_arrival", "_is_multi", "refs")

    def __init__(self, refs: CompiledDAGRef | list[CompiledDAGRef]) -> None:
        self._is_multi = isinstance(refs, list)
        self.refs = refs if isinstance(refs, list) else [refs]
        self._arrival: asyncio.Task[None] | None = None

    def is_done(self) -> bool:
        """Whether ``get`` would not wait."""
        return all(ref.done() for ref in self.refs)

    def arrival(self) -> asyncio.Task[None]:
        """Return a task of the running loop that is done when ``get`` would not wait."""
        if self._arrival is None:
            self._arrival = asyncio.ensure_future(wait_for_all(self.refs))
            # What it raises is raised again when the result is taken.
            self._arrival.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._arrival

    def get(self) -> Any:
        """Return the result, or the list of results."""
        return get_refs(self.refs) if self._is_multi else self.refs[0].get()

    def has_failed(self) -> bool:
        """Whether an exception is the result; else an exception of ``get`` tells nothing of it."""
        return any(ref.state == FAILED for ref in self.refs)

    def let_go(self) -> None:
        """Wait for it no longer."""
        if self._arrival is not None and not self._arrival.done():
            _cancel(self._arrival)


class _Refused:
    """An exception that stands in place of a result: of the inputs, or of starting."""

    refs: Sequence[CompiledDAGRef] = ()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def is_done(self) -> bool:
        return True

    def arrival(self) -> None:
        """Nothing is to be waited for."""

    def get(self) -> Any:
        raise self.error

    def has_failed(self) -> bool:
        return True

    def let_go(self) -> None:
        """Nothing is waited for."""
