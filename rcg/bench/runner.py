# SPDX-License-Identifier: Apache-2.0
"""A run: starts Ray and the contestants, and measures the rows and then experiments, if there are.

The experiments of rcg's repository are in its folder ``benchmarks``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import ray

import rcg
from rcg.bench import limits
from rcg.bench.beside import start_both
from rcg.bench.contestants import (
    ANYWHERE,
    ON_TWO_NODES,
    ActorPauser,
    Contestant,
    RowSession,
    WrongResult,
    resource,
    start_all,
)
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import LIMIT, BenchReport, Figure, Header, RowResult, SampleSummary
from rcg.bench.rows import ACROSS, ROWS, Arguments, Row
from rcg.progress import Progress

# Turns are short, so that the machine is in the same state for all contestants, and long enough
# that switching between contestants takes a small part of the time.
SMALL = Pace(calls=1000, time_ns=50_000_000, warm_up=20)
BULK = Pace(calls=200, time_ns=40_000_000, warm_up=2)
DEFAULT_ROUNDS = 12
FIRST_CALLS = 30  # before the first round, so that all buffers have been used
# Ray's graph keeps ten buffers of the largest array on each edge.
OBJECT_STORE_BYTES = 3_000_000_000
START_TIMEOUT_S = "180"  # of two Ray nodes: on a busy machine Ray's own 30 s are short
CPUS_OF_NODE = 4  # for the scheduler; the actors take none


@dataclass(frozen=True, slots=True)
class Setup:
    """What rows and experiments are measured with; see ``Settings`` for rounds and seed.

    Attributes:
        contestants: The contestants.
        absent: Why other contestants are missing, by name.
        progress: Shows the progress: one step for each round of what is measured in rounds.
    """

    contestants: Sequence[Contestant]
    absent: Mapping[str, str]
    rounds: int
    seed: int
    progress: Progress[int]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is measured in another way than a row: it has a function of its own.

    If it is in rounds, as rows are, its function advances the progress after each. Without the
    modules that it needs it has no results. ``nodes`` is on how many Ray nodes it is measured.
    """

    name: str
    title: str
    measure: Callable[[Setup], Sequence[RowResult | Figure]]
    is_in_rounds: bool = False
    is_on_ray: bool = True
    needs: tuple[str, ...] = ()
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run.

    Attributes:
        rows: Names of rows and experiments.
        rounds: Number of turns of each contestant per row.
        seed: The seed of payloads and of the orders of turns.
        beside: The folder of another version of rcg to compare with.
        nodes: Number of Ray nodes, 1 or 2. With 2 the rows are `ACROSS`.
    """

    rows: tuple[str, ...]
    rounds: int = DEFAULT_ROUNDS
    seed: int = 0
    beside: Path | None = None
    nodes: int = 1
    experiments: tuple[Experiment, ...] = ()


def titles(nodes: int = 1, experiments: Sequence[Experiment] = ()) -> dict[str, str]:
    """Return the titles of the rows, then of the experiments, by name."""
    chosen = [each for each in experiments if each.nodes == nodes]
    offered: tuple[Row | Experiment, ...] = (*_rows_on(nodes), *chosen)
    return {each.name: each.title for each in offered}


def _rows_on(nodes: int) -> tuple[Row, ...]:
    return ACROSS if nodes == 2 else ROWS


def run(settings: Settings, progress: Progress[int]) -> BenchReport:
    """Measure rows and experiments with a Ray cluster that is started for this run.

    The progress has `count_steps` steps.
    """
    started, began = datetime.now(UTC), time.perf_counter()
    load = os.getloadavg()[0]
    rows = [row for row in _rows_on(settings.nodes) if row.name in settings.rows]
    experiments = _experiments_of(settings)
    found: list[RowResult | Figure] = []
    contestants: list[Contestant] = []
    absent: dict[str, str] = {}
    with contextlib.ExitStack() as to_end:
        to_end.callback(progress.close)
        if rows or any(each.is_on_ray for each in experiments):
            progress.start("starting Ray and the actors")
            to_end.enter_context(running_ray(settings.nodes))
            contestants, absent = start_all(ON_TWO_NODES if settings.nodes == 2 else ANYWHERE)
        if settings.beside is not None and rows:
            visitors, missing = start_both(settings.beside)
            for visitor in visitors:
                to_end.callback(visitor.end)
            contestants.extend(visitors)
            absent |= missing
        setup = Setup(contestants, absent, settings.rounds, settings.seed, progress)
        if rows:
            with contextlib.closing(limits.PingPong()) as ping_pong:
                found += [run_row(row, setup, ping_pong) for row in rows]
        for experiment in experiments:
            progress.start(experiment.title)
            if all(find_spec(name) for name in experiment.needs):
                found += experiment.measure(setup)
            if not experiment.is_in_rounds:
                progress.advance()
    header = Header(
        rcg=rcg.__version__,
        ray=ray.__version__,
        python=platform.python_version(),
        machine=machine(),
        cores=len(os.sched_getaffinity(0)),
        seed=settings.seed,
        started=started.isoformat(timespec="seconds"),
        rounds=settings.rounds,
        seconds=time.perf_counter() - began,
        load=load,
        nodes=settings.nodes,
        end_load=os.getloadavg()[0],
    )
    return BenchReport(
        header,
        tuple(each for each in found if isinstance(each, RowResult)),
        tuple(each for each in found if isinstance(each, Figure)),
    )


def count_steps(settings: Settings) -> int:
    """Return the number of steps in `run`."""
    at_once = sum(not each.is_in_rounds for each in _experiments_of(settings))
    return (len(settings.rows) - at_once) * settings.rounds + at_once


def _experiments_of(settings: Settings) -> list[Experiment]:
    return [
        each
        for each in settings.experiments
        if each.name in settings.rows and each.nodes == settings.nodes
    ]


@contextlib.contextmanager
def running_ray(nodes: int) -> Iterator[None]:
    """Run Ray without messages, and with memory for the values of all contestants.

    Two nodes are on this machine, with this process on the first. They share its cores, and their
    sockets its loopback, for all contestants alike.
    """
    memory: dict[str, Any] = {
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    with contextlib.ExitStack() as to_end:
        if nodes == 1:
            ray.init("local", num_cpus=len(os.sched_getaffinity(0)), **memory, **quiet)
            to_end.callback(ray.shutdown)
        else:
            from ray.cluster_utils import Cluster

            os.environ.setdefault("RAY_raylet_start_wait_time_s", START_TIMEOUT_S)
            cluster = Cluster()
            to_end.callback(cluster.shutdown)
            to_end.callback(ray.shutdown)
            for number in range(nodes):
                own = {resource(number): 1}
                cluster.add_node(num_cpus=CPUS_OF_NODE, resources=own, **memory)
            ray.init(cluster.address, **quiet)
        yield


def run_row(row: Row, setup: Setup, ping_pong: limits.PingPong) -> RowResult:
    """Measure one row. A contestant that fails is absent from the result, with the reason."""
    setup.progress.start(row.title)
    absent = dict(setup.absent)
    result = RowResult(row.name, row.title, row.target, {}, absent)
    missing = [name for name in row.needs if find_spec(name) is None]
    if missing:
        reason = f"needs {', '.join(missing)}"
        absent |= dict.fromkeys((contestant.name for contestant in setup.contestants), reason)
        return skip(result, absent, setup)

    payload = row.payload(random.Random(f"{setup.seed} {row.name}"))
    pace = BULK if row.is_bulk else SMALL
    loop = asyncio.new_event_loop()
    # A torn-down graph of Ray leaves a cancelled future that is never awaited.
    loop.set_exception_handler(lambda _loop, _context: None)
    sessions: dict[str, RowSession] = {}
    to_end = contextlib.ExitStack()
    try:
        turns: dict[str, Turn] = {LIMIT: _limit_turn(row, ping_pong, to_end)}
        for contestant in setup.contestants:
            try:
                session = contestant.open(row, payload, loop)
                sessions[contestant.name] = session
                _check(row, payload, session.check())
                session.turn(Pace(FIRST_CALLS, time_ns=2_000_000_000, warm_up=0))
                turns[contestant.name] = session.turn
            except Exception as error:  # noqa: BLE001 - the other contestants are still measured
                absent[contestant.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        pauser = ActorPauser(setup.contestants)
        turns = {name: pauser.turn_of(name, turn) for name, turn in turns.items()}
        return race(result, turns, pace, setup)
    finally:
        for session in sessions.values():
            session.close()
        to_end.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def race(result: RowResult, turns: Mapping[str, Turn], pace: Pace, setup: Setup) -> RowResult:
    """Take all rounds of a row, and return its result with the samples of the turns."""
    rng = random.Random(f"{setup.seed} {result.name} order")
    samples = take_rounds(turns, pace, setup.rounds, rng, setup.progress.advance)
    # Samples are nanoseconds, tables microseconds.
    summaries = {
        name: SampleSummary.of(times).scaled(1e-3) for name, times in samples.items() if times
    }
    return replace(result, summaries=summaries)


def skip(result: RowResult, absent: Mapping[str, str], setup: Setup) -> RowResult:
    """Show the progress of all rounds of a row that is left out, and return its result."""
    for _ in range(setup.rounds):
        setup.progress.advance()
    return replace(result, absent=absent)


def machine() -> str:
    """Return the model of the CPU and the release of the kernel."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, platform.machine())}, Linux {platform.release().partition('-')[0]}"


def _limit_turn(row: Row, ping_pong: limits.PingPong, to_end: contextlib.ExitStack) -> Turn:
    limit = row.limit
    if limit.wire_bytes:
        ping_pong_by_tcp = contextlib.closing(limits.TcpPingPong(limit.wire_bytes))
        return call_turn(to_end.enter_context(ping_pong_by_tcp).round_trip)
    if limit.copied_bytes:
        return call_turn(limits.memcpy(limit.copied_bytes, limit.copies))
    return ping_pong.turn(limit.hops, limit.work_us)


def _check(row: Row, payload: Arguments, value: Any) -> None:
    """Check the value that an execution returned.

    Raises:
        WrongResult: It is not the expected value.
    """
    expected: Any
    match row.shape:
        case "chain":  # its methods return the argument, or its size
            expected = payload[0]
        case "scatter":
            expected = [payload[0]] * row.actors
        case "arguments":
            expected = len(payload)
    if not is_same(value, expected):
        raise WrongResult(f"{row.name}: expected {expected!r}, found {value!r}")


def is_same(value: Any, expected: Any) -> bool:
    """Return whether two values are equal, arrays and tensors element by element."""
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            is_same(value[key], expected[key]) for key in expected
        )
    if hasattr(expected, "__array__"):
        return bool(np.array_equal(np.asarray(value), np.asarray(expected)))
    return bool(value == expected)
