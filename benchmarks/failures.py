# SPDX-License-Identifier: Apache-2.0
"""The time until a death is reported: from killing an actor to the error in a waiting get.

In a chain of three, the middle actor is killed while it is in a method. Each kill uses a fresh
actor. The other two stay the same and must answer ordinary calls after each death. The contestants
are measured in turns.

In a transfer, one of two actors is killed while a tensor travels between them over Gloo: the sender
and the receiver in turns.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, Literal

import ray.exceptions

import rcg
import rcg.dag
from benchmarks.transfers import Peer
from rcg.bench.contestants import ACTOR_OPTIONS, READY_TIMEOUT_S, GraphContestant, RcgGraph
from rcg.bench.record import RCG, Figure

KILLS = 10
MAX_MS = 2_000.0
HOLD_S = 600.0
# These transfers take much longer than SETTLE_S, also on a busy machine.
TRANSFERS = 4
TRANSFER_BYTES = 512_000_000
TRANSFER_KILLS = 6
# After this time a get on another thread is waiting.
SETTLE_S = 0.05

Way = Literal["kill -9", "ray.kill"]
WAYS: tuple[Way, ...] = ("kill -9", "ray.kill")


class DeathNotReported(Exception):
    """A get did not raise the death of the actor, or a survivor does not answer."""


def measure_failures(
    graphs: Mapping[str, GraphContestant], kills: int = KILLS
) -> tuple[Figure, ...]:
    """Kill actors of each contestant in each way; return median and longest times."""
    with _quiet():
        found = tuple(_measure(way, graphs, kills) for way in WAYS)
        time.sleep(SETTLE_S)  # until Ray has printed its messages
    return found


def _measure(way: Way, graphs: Mapping[str, GraphContestant], kills: int) -> Figure:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(kills):
        victims = {name: graph.start_one() for name, graph in graphs.items()}
        pids = rcg.get([victim.pid.remote() for victim in victims.values()])
        for (name, victim), pid in zip(victims.items(), pids, strict=True):
            times[name].append(_time_death(graphs[name], victim, pid, way))
    title = f"{way} until a waiting get raises, chain of 3, {kills} kills"
    return _figure(way.replace(" ", ""), title, times)


def _figure(name: str, title: str, times: Mapping[str, list[float]]) -> Figure:
    values: dict[str, float] = {}
    for each, found in times.items():
        values |= {each: median(found), f"{each}, longest": max(found)}
    return Figure(name, title, "ms", values, most=MAX_MS, bound=(f"{RCG}, longest",))


def _time_death(graph: GraphContestant, victim: Any, pid: int, way: Way) -> float:
    """Return the milliseconds from the kill to the error."""
    first, last, *_ = graph.actors
    with graph.input_node() as inp:
        dag = last.echo.bind(victim.hold.bind(first.echo.bind(inp)))
    compiled = graph.compile_dag(dag)
    try:
        if graph.get(compiled.execute(0.0)) != 0.0:
            raise DeathNotReported("the chain does not work before the kill")

        def kill() -> None:
            if way == "kill -9":
                os.kill(pid, signal.SIGKILL)
            else:
                rcg.kill(victim)

        taken_ms = _time_until_reported(graph, compiled.execute(HOLD_S), kill)
    finally:
        compiled.teardown()
    answers = rcg.get([each.echo.remote(1) for each in (first, last)], timeout=READY_TIMEOUT_S)
    if answers != [1, 1]:
        raise DeathNotReported(f"{graph.name}: the survivors answer {answers!r}")
    return taken_ms


def _time_until_reported(graph: GraphContestant, ref: Any, kill: Callable[[], None]) -> float:
    """Return the milliseconds from a kill to the error of a get that waits."""
    outcome: list[tuple[float, BaseException | None]] = []

    def wait() -> None:
        try:
            graph.get(ref, timeout=READY_TIMEOUT_S)
            outcome.append((time.perf_counter(), None))
        except BaseException as error:  # noqa: BLE001 - judged below
            outcome.append((time.perf_counter(), error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    kill()
    thread.join()
    [(end, error)] = outcome
    if not isinstance(error, ray.exceptions.ActorDiedError):
        raise DeathNotReported(f"{graph.name}: {error!r}")
    return (end - start) * 1e3


def measure_transfer_deaths(graph: RcgGraph, kills: int = TRANSFER_KILLS) -> Figure:
    """Kill actors in transfers over Gloo; return median and longest time."""
    remote = rcg.remote(Peer).options(**ACTOR_OPTIONS)
    survivor, times = remote.remote(), []
    rcg.get(survivor.hold.remote(TRANSFER_BYTES))
    with _quiet():
        for number in range(kills):
            victim = remote.remote()
            pid, _ = rcg.get([victim.pid.remote(), victim.hold.remote(TRANSFER_BYTES)])
            writer, reader = (victim, survivor) if number % 2 else (survivor, victim)
            with rcg.dag.InputNode() as inp:
                tensor = writer.held.bind(inp).with_tensor_transport("gloo")
                compiled = rcg.compile(reader.take.bind(tensor))
            try:
                rcg.get(compiled.execute(0))
                *_, ref = [compiled.execute(0) for _ in range(TRANSFERS)]
                kill = functools.partial(os.kill, pid, signal.SIGKILL)
                times.append(_time_until_reported(graph, ref, kill))
            finally:
                compiled.teardown()
            rcg.get(survivor.pid.remote(), timeout=READY_TIMEOUT_S)  # it answers
    rcg.kill(survivor)
    title = f"kill -9 in a transfer over Gloo until a waiting get raises, {kills} kills"
    return _figure("kill-9-transfer", title, {RCG: times})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Ray's messages about the deaths, which are intended."""
    logger = logging.getLogger("ray.dag.compiled_dag_node")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
