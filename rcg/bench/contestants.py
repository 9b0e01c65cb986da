# SPDX-License-Identifier: Apache-2.0
"""Who takes part, and how each runs a row.

A contestant makes its actors once and gets ready for one row after the other: it *opens* a row,
which gives a `Session`, and closes it. Ray's own compiled graph takes part where the installed Ray
still has one; this module and `rcg.interop` are the only ones that may look at it.
"""

from __future__ import annotations

import os
import signal
import warnings
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray

import rcg
import rcg.dag
from rcg.bench.measure import Pace, Turn
from rcg.bench.record import RAY_CALL, RAY_GRAPH, RCG, RCG_FUTEX
from rcg.bench.rows import Payload, Row
from rcg.bench.workers import Worker
from rcg.options import WaitPolicy

MOST_ACTORS = 4
READY_TIMEOUT_S = 120
ACTOR_OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}


@dataclass(frozen=True, slots=True)
class Session:
    """A contestant that is ready to run one row.

    Attributes:
        call: Runs one execution and returns its value.
        call_async: The same from the event loop that was running when the row was opened.
        submit: Starts one execution and returns something for `fetch`.
        fetch: Waits for what `submit` returned.
        close: Ends the session; the actors stay.
    """

    call: Callable[[], Any]
    call_async: Callable[[], Awaitable[Any]]
    submit: Callable[[], Any]
    fetch: Callable[[Any], Any]
    close: Callable[[], None]


class Contestant(Protocol):
    """One way to have actors work for a row.

    Attributes:
        name: What the table calls it.
        actors: Its actors, nobody else's.
    """

    name: str
    actors: list[Any]

    def open(self, row: Row, payload: Payload) -> Session:
        """Gets ready for a row. An async row is opened inside the event loop it will run in."""
        ...


class RcgGraph:
    """A graph compiled by rcg, waiting by one policy.

    Args:
        name: What the table calls it.
        wait: The wait policy.
    """

    def __init__(self, name: str, wait: WaitPolicy) -> None:
        self.name = name
        self.input_node, self.get = rcg.dag.InputNode, rcg.get
        self.actors = start_actors(rcg.remote(Worker))
        self._wait = wait

    def compile(self, row: Row, payload: Payload) -> Any:
        """Returns the row's graph, compiled."""
        dag = build(row, self.actors, len(payload), rcg.dag.InputNode, rcg.dag.MultiOutputNode)
        return self.compile_dag(dag)

    def compile_dag(self, dag: Any) -> Any:
        """Returns any DAG, compiled."""
        return rcg.compile(dag, wait=self._wait)

    def start_one(self) -> Any:
        """Starts an actor beside the usual ones."""
        return rcg.remote(Worker).options(**ACTOR_OPTIONS).remote()

    def open(self, row: Row, payload: Payload) -> Session:
        """Compiles the row's graph."""
        graph = self.compile(row, payload)
        execute, execute_async, get = graph.execute, graph.execute_async, rcg.get

        async def call_async() -> Any:
            return await (await execute_async(*payload))

        return Session(
            call=lambda: get(execute(*payload)),
            call_async=call_async,
            submit=lambda: execute(*payload),
            fetch=get,
            close=graph.teardown,
        )


class RayCall:
    """Calls through Ray Core: one task for each node, values by object ref from actor to actor."""

    name = RAY_CALL

    def __init__(self) -> None:
        self.actors = start_actors(ray.remote(Worker))

    def open(self, row: Row, payload: Payload) -> Session:
        """There is nothing to prepare."""
        get = ray.get
        submit = core_submit(row, self.actors, payload)

        async def call_async() -> Any:
            return await submit()

        return Session(
            call=lambda: get(submit()),
            call_async=call_async,
            submit=submit,
            fetch=get,
            close=lambda: None,
        )


class RayGraph:
    """A graph compiled by Ray.

    Raises:
        ImportError: The installed Ray has no compiled graphs.
    """

    name = RAY_GRAPH

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.dag import DAGNode, InputNode, MultiOutputNode  # not in every Ray

        if not hasattr(DAGNode, "experimental_compile"):
            raise ImportError("this Ray has a ray.dag that compiles nothing")
        self.input_node, self.get = InputNode, ray.get
        self._multi_output = MultiOutputNode
        self.actors = start_actors(ray.remote(Worker))

    def compile(self, row: Row, payload: Payload) -> Any:
        """Returns the row's graph, compiled."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is on its way out
            dag = build(row, self.actors, len(payload), self.input_node, self._multi_output)
            return dag.experimental_compile(enable_asyncio=row.is_async)

    def compile_dag(self, dag: Any) -> Any:
        """Returns any DAG, compiled."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dag.experimental_compile()

    def start_one(self) -> Any:
        """Starts an actor beside the usual ones."""
        return ray.remote(Worker).options(**ACTOR_OPTIONS).remote()

    def open(self, row: Row, payload: Payload) -> Session:
        """Compiles the row's graph."""
        graph = self.compile(row, payload)
        execute, execute_async, get = graph.execute, graph.execute_async, ray.get

        async def call_async() -> Any:
            return await (await execute_async(*payload))

        return Session(
            call=lambda: get(execute(*payload)),
            call_async=call_async,
            submit=lambda: execute(*payload),
            fetch=get,
            close=graph.teardown,
        )


class Stage:
    """Lets the actor processes of one contestant run at a time; the others are stopped.

    Between turns all of them run. A stopped process keeps its place: what was sent to it is there
    when it goes on.
    """

    def __init__(self, contestants: Iterable[Contestant]) -> None:
        self._pids: dict[str, list[int]] = {
            contestant.name: rcg.get([actor.pid.remote() for actor in contestant.actors])
            for contestant in contestants
        }

    def turn_of(self, name: str, turn: Turn) -> Turn:
        """Returns the turn with everyone but `name` stopped while it lasts."""
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


def start_actors(actor_class: Any) -> list[Any]:
    """Starts a contestant's actors and waits until they answer."""
    actors = [actor_class.options(**ACTOR_OPTIONS).remote() for _ in range(MOST_ACTORS)]
    rcg.get([actor.count.remote() for actor in actors], timeout=READY_TIMEOUT_S)
    return actors


def start_all() -> tuple[list[Contestant], dict[str, str]]:
    """Returns everyone who can take part here, and why the others cannot, by name."""
    contestants: list[Contestant] = [
        RcgGraph(RCG, "auto"),
        RcgGraph(RCG_FUTEX, "futex"),
        RayCall(),
    ]
    absent = {}
    try:
        contestants.append(RayGraph())
    except ImportError as error:
        absent[RAY_GRAPH] = str(error)
    return contestants, absent


def build(
    row: Row, actors: Sequence[Any], arguments: int, input_node: Any, multi_output: Any
) -> Any:
    """Binds the row's DAG, by whichever library the node classes are from.

    Args:
        row: The row.
        actors: At least as many as the row needs.
        arguments: How many arguments an execution takes.
        input_node: The class of the input node.
        multi_output: The class of the node that gathers several outputs.
    """
    methods = [getattr(actor, row.method) for actor in actors[: row.actors]]
    with input_node() as inp:
        match row.shape:
            case "chain":
                node = inp
                for method in methods:
                    node = method.bind(node)
                return node
            case "scatter":
                return multi_output([method.bind(inp) for method in methods])
            case "arguments":
                return methods[0].bind(*(inp[i] for i in range(arguments)))


def core_submit(row: Row, actors: Sequence[Any], payload: Payload) -> Callable[[], Any]:
    """Returns a call that starts the row's tasks through Ray Core and returns what to get."""
    methods = [getattr(actor, row.method) for actor in actors[: row.actors]]
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
