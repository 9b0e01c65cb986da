# SPDX-License-Identifier: Apache-2.0
"""A run: starts Ray and the contestants, and measures the rows and then the figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import ray

import rcg
from rcg.bench import figures, limits
from rcg.bench.across import ACROSS, SEATS, two_nodes
from rcg.bench.contestants import (
    ANYWHERE,
    ActorPauser,
    Contestant,
    RayCall,
    RayGraph,
    RcgGraph,
    RowSession,
    WrongResult,
    start_all,
)
from rcg.bench.failures import measure_failures, measure_transfer_deaths
from rcg.bench.fresh import measure_fresh
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.overlap import measure_overlap
from rcg.bench.parallel import PARALLELS, Parallel, measure_parallel
from rcg.bench.record import LIMIT, RCG, RCG_FUTEX, BenchReport, Figure, Header, RowResult
from rcg.bench.references import measure_references
from rcg.bench.rows import ROWS, Arguments, Row
from rcg.bench.statistics import SampleSummary
from rcg.bench.tracing import measure_large_trace, measure_tracing, measure_what_if
from rcg.bench.transfers import TRANSFERS, Transfer, measure_transfer
from rcg.bench.unequal import measure_unequal_pair
from rcg.bench.visitors import Visitor, start_both
from rcg.progress import Progress

# Turns are short, so that the machine is in the same state for all contestants, and long enough
# that switching between contestants takes a small part of the time.
SMALL = Pace(calls=1000, time_ns=50_000_000, warm_up=20)
BULK = Pace(calls=200, time_ns=40_000_000, warm_up=2)
DEFAULT_ROUNDS = 12
FIRST_CALLS = 30  # before the first round, so that all buffers have been used
# Ray's graph keeps ten buffers of the largest array on each edge.
OBJECT_STORE_BYTES = 3_000_000_000
NANO = 1e-3  # samples are nanoseconds, tables microseconds


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run.

    Attributes:
        rows: Names of rows and figures.
        rounds: Number of turns of each contestant per row.
        seed: The seed of payloads and of the orders of turns.
        beside: The folder of another version of rcg to compare with.
        nodes: Number of Ray nodes, 1 or 2. With 2 the rows are those of `across`.
    """

    rows: tuple[str, ...]
    rounds: int = DEFAULT_ROUNDS
    seed: int = 0
    beside: Path | None = None
    nodes: int = 1


def titles(nodes: int = 1) -> dict[str, str]:
    """Return the titles of the rows, then of the figures, by name."""
    if nodes == 2:
        return {row.name: row.title for row in ACROSS}
    rows: tuple[Row | Transfer | Parallel, ...] = (*ROWS, *TRANSFERS, *PARALLELS)
    return {row.name: row.title for row in rows} | figures.TITLES


def run(settings: Settings, progress: Progress[int]) -> BenchReport:
    """Measure rows and figures with a Ray cluster that is started for this run.

    Args:
        settings: The settings of the run.
        progress: Shows the progress. `count_steps` returns the number of steps.
    """
    started, began = datetime.now(UTC), time.perf_counter()
    load = os.getloadavg()[0]
    offered = ACROSS if settings.nodes == 2 else ROWS
    rows = [row for row in offered if row.name in settings.rows]
    transfers = [transfer for transfer in TRANSFERS if transfer.name in settings.rows]
    parallels = [parallel for parallel in PARALLELS if parallel.name in settings.rows]
    wanted = [name for name in figures.TITLES if name in settings.rows]
    needs_ray = bool(rows or transfers or parallels) or bool(
        {
            "idle",
            "lifecycle",
            "fresh",
            "failures",
            "tracing",
            "what_if",
            "overlap",
            "unequal-pair",
            "rdt",
        }
        & set(wanted)
    )
    results: list[RowResult] = []
    found: list[Figure] = []
    contestants: list[Contestant] = []
    absent: dict[str, str] = {}
    visitors: list[Visitor] = []
    with contextlib.ExitStack() as to_end:
        to_end.callback(progress.close)
        if needs_ray:
            progress.start("starting Ray and the actors")
            to_end.enter_context(running_ray(settings.nodes))
            contestants, absent = start_all(SEATS if settings.nodes == 2 else ANYWHERE)
        if settings.beside is not None and rows:
            visitors, missing = start_both(settings.beside)
            for visitor in visitors:
                to_end.callback(visitor.end)
            contestants.extend(visitors)
            absent |= missing
        with limits.PingPong() as ping_pong:
            setup = RowSetup(contestants, absent, ping_pong)
            for row in rows:
                results.append(run_row(row, settings, setup, progress))
        for transfer in transfers:
            progress.start(transfer.title)
            results.append(
                measure_transfer(transfer, settings.rounds, settings.seed, progress.advance)
            )
        for parallel in parallels:
            progress.start(parallel.title)
            results.append(
                measure_parallel(parallel, settings.rounds, settings.seed, progress.advance)
            )
        for name in wanted:
            progress.start(figures.TITLES[name])
            found += run_figure(name, contestants)
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
    )
    return BenchReport(header, tuple(results), tuple(found))


def count_steps(settings: Settings) -> int:
    """Return the number of steps in `run`."""
    in_rounds = set(titles(settings.nodes)) - set(figures.TITLES)
    rows = sum(name in in_rounds for name in settings.rows)
    return rows * settings.rounds + sum(name in settings.rows for name in figures.TITLES)


@contextlib.contextmanager
def running_ray(nodes: int) -> Iterator[None]:
    """Run Ray without messages, and with memory for the values of all contestants.

    Args:
        nodes: Number of Ray nodes, 1 or 2.
    """
    if nodes == 2:
        with two_nodes(OBJECT_STORE_BYTES):
            yield
        return
    ray.init(
        address="local",
        num_cpus=len(os.sched_getaffinity(0)),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class RowSetup:
    """What a row is measured with.

    Attributes:
        contestants: The contestants.
        absent: Why other contestants are missing, by name.
        ping_pong: The limit of small rows.
    """

    contestants: Sequence[Contestant]
    absent: Mapping[str, str]
    ping_pong: limits.PingPong


def run_row(row: Row, settings: Settings, setup: RowSetup, progress: Progress[int]) -> RowResult:
    """Measure one row. A contestant that fails is absent from the result, with the reason."""
    progress.start(row.title)
    missing = [name for name in row.needs if find_spec(name) is None]
    if missing:
        reason = f"needs {', '.join(missing)}"
        for _ in range(settings.rounds):
            progress.advance()
        all_absent = dict.fromkeys((contestant.name for contestant in setup.contestants), reason)
        return RowResult(row.name, row.title, row.target, {}, {**setup.absent, **all_absent})

    payload = row.payload(random.Random(f"{settings.seed} {row.name}"))
    pace = BULK if row.is_bulk else SMALL
    absent = dict(setup.absent)
    loop = asyncio.new_event_loop()
    # A torn-down graph of Ray leaves a cancelled future that is never awaited.
    loop.set_exception_handler(lambda _loop, _context: None)
    sessions: dict[str, RowSession] = {}
    to_end = contextlib.ExitStack()
    try:
        turns: dict[str, Turn] = {LIMIT: _limit_turn(row, setup.ping_pong, to_end)}
        for contestant in setup.contestants:
            try:
                session = contestant.open(row, payload, loop)
                sessions[contestant.name] = session
                _check(row, payload, session.check())
                session.turn(Pace(FIRST_CALLS, time_ns=2_000_000_000, warm_up=0))
                turns[contestant.name] = session.turn
            except Exception as error:  # noqa: BLE001 - the other contestants are still measured
                absent[contestant.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        rng = random.Random(f"{settings.seed} {row.name} order")
        pauser = ActorPauser(setup.contestants)
        turns = {name: pauser.turn_of(name, turn) for name, turn in turns.items()}
        samples = take_rounds(turns, pace, settings.rounds, rng, progress.advance)
    finally:
        for session in sessions.values():
            session.close()
        to_end.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    summaries = {
        name: SampleSummary.of(times).scaled(NANO) for name, times in samples.items() if times
    }
    return RowResult(row.name, row.title, row.target, summaries, absent)


def run_figure(name: str, contestants: Sequence[Contestant]) -> tuple[Figure, ...]:
    """Measure one of the figures."""
    graphs = {
        contestant.name: contestant
        for contestant in contestants
        if isinstance(contestant, RcgGraph | RayGraph) and contestant.name != RCG_FUTEX
    }
    match name:
        case "idle":
            bare = next(c for c in contestants if isinstance(c, RayCall))
            return figures.measure_idle(graphs, bare)
        case "lifecycle":
            return figures.measure_lifecycle(graphs)
        case "fresh":
            return measure_fresh(graphs)
        case "failures":
            found = measure_failures(graphs)
            graph = graphs.get(RCG)
            if isinstance(graph, RcgGraph) and find_spec("torch") is not None:
                found += (measure_transfer_deaths(graph),)
            return found
        case "overlap":
            return measure_overlap() if find_spec("torch") is not None else ()
        case "unequal-pair":
            return measure_unequal_pair() if find_spec("torch") is not None else ()
        case "rdt":
            return measure_references() if find_spec("torch") is not None else ()
        case "recorder":
            return figures.measure_recorder()
        case "tracing":
            return measure_tracing()
        case "what_if":
            return measure_what_if()
        case "traces":
            return measure_large_trace()
        case "planning":
            return figures.measure_planning()
        case _:
            raise ValueError(f"there is no figure {name!r}")


def machine() -> str:
    """Return the model of the CPU and the release of the kernel."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{cpu}, Linux {platform.release()}"


def _limit_turn(row: Row, ping_pong: limits.PingPong, to_end: contextlib.ExitStack) -> Turn:
    limit = row.limit
    if limit.wire_bytes:
        return call_turn(to_end.enter_context(limits.TcpPingPong(limit.wire_bytes)).round_trip)
    if limits.is_of_copies(limit):
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
