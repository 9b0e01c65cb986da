# SPDX-License-Identifier: Apache-2.0
"""The contestants, and how each runs a row.

A contestant makes its actors once and then runs one row after the other: it *opens* a row, which
returns a `RowSession`, and closes it. Ray's own compiled graph is a contestant if the installed Ray
still has one. Only this module and `rcg.interop` may import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import warnings
from array import array
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray

import rcg
import rcg.dag
from rcg.bench.graphs import Worker, build, lent
from rcg.bench.measure import Pace, Turn, async_turn, call_turn, pipelined_turn
from rcg.bench.record import RAY_CALL, RAY_GRAPH, RCG, RCG_FUTEX
from rcg.bench.rows import Arguments, Row
from rcg.options import WaitPolicy

__rcg_user__ = True  # see rcg.frames

Seats = Sequence[int | None]
"""The number of the Ray node of each actor, or None where it does not matter."""

ANYWHERE: Seats = (None,) * 4
ON_TWO_NODES: Seats = (0, 0, 1, 1)
READY_TIMEOUT_S = 120
ACTOR_OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}


def resource(node: int) -> str:
    """Return the name of the resource that only the Ray node with a number has."""
    return f"node{node}"


@contextlib.contextmanager
def ending(actors: Iterable[Any]) -> Iterator[None]:
    """Kill actors at the end of a block."""
    try:
        yield
    finally:
        for actor in actors:
            rcg.kill(actor)


class WrongResult(Exception):
    """A contestant returned a wrong value."""


@dataclass(frozen=True, slots=True)
class RowSession:
    """A contestant that is ready to run one row; `check` runs one execution, for its value."""

    check: Callable[[], Any]
    turn: Turn
    close: Callable[[], object]


def session(
    row: Row,
    loop: asyncio.AbstractEventLoop,
    *,
    call: Callable[[], Any],
    call_async: Callable[[], Coroutine[Any, Any, Any]],
    submit: Callable[[], Any],
    fetch: Callable[[Any], Any],
    close: Callable[[], object],
) -> RowSession:
    """Return the session of a contestant in this process.

    `call` runs one execution and returns its value, as `call_async` does in the loop; `submit`
    starts one and returns an argument for `fetch`, which waits for it and returns its value.
    """
    if row.is_async:
        turn = async_turn(call_async, loop)
        return RowSession(lambda: loop.run_until_complete(call_async()), turn, close)
    if row.in_flight > 1:
        return RowSession(call, pipelined_turn(submit, fetch, row.in_flight), close)
    return RowSession(call, call_turn(call), close)


class Contestant(Protocol):
    """One way to run the rows."""

    name: str

    def pids(self) -> list[int]:
        """Return the ids of the processes of its actors."""
        ...

    def open(self, row: Row, payload: Arguments, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Prepare a row. An async row is run in the event loop."""
        ...


class WithActors:
    """A contestant whose actors this process started."""

    def __init__(self, actor_class: Any, seats: Seats) -> None:
        self._class, self._seats = actor_class, seats
        self.start_actors()

    def start_actors(self) -> None:
        """Start the actors, in place of earlier ones if any, and wait until they answer."""
        self.actors = [self.start_one(seat) for seat in self._seats]
        rcg.get([actor.count.remote() for actor in self.actors], timeout=READY_TIMEOUT_S)

    def start_one(self, seat: int | None = None) -> Any:
        """Start an actor, on the node with a number or on any."""
        place = {} if seat is None else {"resources": {resource(seat): 0.01}}
        return self._class.options(**ACTOR_OPTIONS, **place).remote()

    def methods(self, row: Row) -> list[Any]:
        """Return the method of each actor that a row needs, on the nodes that it needs."""
        free = dict(enumerate(self._seats))
        chosen = []
        for seat in row.nodes or [None] * row.actors:
            number = next(n for n, found in free.items() if seat in (None, found))
            del free[number]
            chosen.append(self.actors[number])
        return [getattr(actor, method) for actor, method in zip(chosen, row.methods, strict=True)]

    def pids(self) -> list[int]:
        """Return the ids of its actors' processes."""
        found: list[int] = rcg.get([actor.pid.remote() for actor in self.actors])
        return found


class GraphContestant(WithActors):
    """A contestant that compiles graphs.

    `nodes` are the classes of the input node and of the node that gathers several outputs; `get`
    waits for an execution and returns its value.
    """

    name: str

    def __init__(
        self, actor_class: Any, seats: Seats, nodes: tuple[Any, Any], get: Callable[..., Any]
    ) -> None:
        self.input_node, self._multi_output = nodes
        self.get = get
        super().__init__(actor_class, seats)

    def compile(self, row: Row, payload: Arguments) -> Any:
        """Compile and return the graph of a row."""
        nodes = self.input_node, self._multi_output
        dag = build(row.shape, self.methods(row), len(payload), *nodes, row.transport)
        return self.compile_dag(dag, is_async=row.is_async)

    def compile_dag(self, dag: Any, *, is_async: bool = False) -> Any:
        """Compile a DAG, for calls from an event loop or from threads."""
        raise NotImplementedError

    def open(self, row: Row, payload: Arguments, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Compile the row's graph."""
        graph, get = self.compile(row, payload), self.get
        if row.lends:
            payload = lent(graph, payload)
        execute, execute_async = graph.execute, graph.execute_async

        async def call_async() -> Any:
            return await (await execute_async(*payload))

        return session(
            row,
            loop,
            call=lambda: get(execute(*payload)),
            call_async=call_async,
            submit=lambda: execute(*payload),
            fetch=get,
            close=graph.teardown,
        )


class RcgGraph(GraphContestant):
    """A graph compiled by rcg, with one wait policy."""

    def __init__(self, name: str, wait: WaitPolicy, seats: Seats = ANYWHERE) -> None:
        self.name, self._wait = name, wait
        nodes = rcg.dag.InputNode, rcg.dag.MultiOutputNode
        super().__init__(rcg.remote(Worker), seats, nodes, rcg.get)

    def compile_dag(self, dag: Any, *, is_async: bool = False) -> Any:
        """Compile a DAG."""
        return rcg.compile(dag, wait=self._wait)


class RayGraph(GraphContestant):
    """A graph compiled by Ray.

    Raises:
        ImportError: The installed Ray has no compiled graphs.
    """

    name = RAY_GRAPH

    def __init__(self, seats: Seats = ANYWHERE) -> None:
        with warnings.catch_warnings(action="ignore"):
            from ray.dag import DAGNode, InputNode, MultiOutputNode  # not in every Ray

        if not hasattr(DAGNode, "experimental_compile"):
            raise ImportError("this Ray has a ray.dag that compiles nothing")
        super().__init__(ray.remote(Worker), seats, (InputNode, MultiOutputNode), ray.get)

    def compile(self, row: Row, payload: Arguments) -> Any:
        """Compile and return the graph of a row."""
        with warnings.catch_warnings(action="ignore"):  # its deprecation
            return super().compile(row, payload)

    def compile_dag(self, dag: Any, *, is_async: bool = False) -> Any:
        """Compile a DAG, for calls from an event loop or from threads."""
        with warnings.catch_warnings(action="ignore"):
            return dag.experimental_compile(enable_asyncio=is_async)

    def open(self, row: Row, payload: Arguments, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Compile the row's graph."""
        if row.is_async:

            async def inside() -> RowSession:  # it must be compiled inside its loop
                return super(RayGraph, self).open(row, payload, loop)

            return loop.run_until_complete(inside())
        found = super().open(row, payload, loop)
        return found if row.transport is None else replace(found, close=lambda: self._end(found))

    def _end(self, ended: RowSession) -> None:
        """Tear a graph with a tensor transport down, with its actors, and start new ones.

        In Ray 2.60 the loops of such a graph do not end, and its teardown waits for them forever.
        """
        for actor in self.actors:
            ray.kill(actor)
        # A thread of the graph reports that the actors are gone, at any time.
        logging.getLogger("ray.dag.compiled_dag_node").disabled = True
        ended.close()
        self.start_actors()


class RayCall(WithActors):
    """Calls through Ray Core: one task per node, with object refs as values between actors."""

    name = RAY_CALL

    def __init__(self, seats: Seats = ANYWHERE) -> None:
        super().__init__(ray.remote(Worker), seats)

    def open(self, row: Row, payload: Arguments, loop: asyncio.AbstractEventLoop) -> RowSession:
        """Return a session. There is nothing to compile."""
        get = ray.get
        submit = core_submit(row, self.methods(row), payload)

        async def call_async() -> Any:
            return await submit()

        return session(
            row,
            loop,
            call=lambda: get(submit()),
            call_async=call_async,
            submit=submit,
            fetch=get,
            close=lambda: None,
        )


def core_submit(row: Row, methods: Sequence[Any], payload: Arguments) -> Callable[[], Any]:
    """Return a function that submits a row's tasks to Ray Core and returns refs for `get`."""
    first, rest = methods[0], methods[1:]

    def chain() -> Any:
        ref = first.remote(*payload)
        for method in rest:
            ref = method.remote(ref)
        return ref

    match row.shape:
        case "scatter":
            return lambda: [method.remote(*payload) for method in methods]
        case "chain" | "arguments":
            return chain


def start_all(seats: Seats = ANYWHERE) -> tuple[list[Contestant], dict[str, str]]:
    """Return the contestants, and why others are missing, by name."""
    contestants: list[Contestant] = [
        RcgGraph(RCG, "auto", seats),
        RcgGraph(RCG_FUTEX, "futex", seats),
        RayCall(seats),
    ]
    absent = {}
    try:
        contestants.append(RayGraph(seats))
    except ImportError as error:
        absent[RAY_GRAPH] = str(error)
    return contestants, absent


class ActorPauser:
    """Stops the actor processes of all other contestants during a turn.

    Between turns all of them run. A stopped process keeps its messages until it continues.
    """

    def __init__(self, contestants: Iterable[Contestant]) -> None:
        self._pids: dict[str, list[int]] = {
            contestant.name: contestant.pids() for contestant in contestants
        }

    def turn_of(self, name: str, turn: Turn) -> Turn:
        """Return a turn during which the actors of all contestants except `name` are stopped."""
        others = [pid for other, pids in self._pids.items() if other != name for pid in pids]

        def alone(pace: Pace) -> array[int]:
            try:
                for pid in others:
                    os.kill(pid, signal.SIGSTOP)
                return turn(pace)
            finally:
                for pid in others:
                    os.kill(pid, signal.SIGCONT)

        return alone
