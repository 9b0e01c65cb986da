# SPDX-License-Identifier: Apache-2.0
"""The experiments, and the command line: that of `rcg.bench`, with its rows and the experiments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

from benchmarks import lifetime, scale, tracing
from benchmarks.failures import measure_failures, measure_transfer_deaths
from benchmarks.overlap import measure_overlap
from benchmarks.parallel import PARALLELS, measure_parallel
from benchmarks.references import (
    measure_references,
    measure_references_across,
    measure_references_by_nixl,
)
from benchmarks.transfers import TRANSFERS, measure_transfer
from benchmarks.unequal import measure_unequal_pair
from benchmarks.weights import measure_weights
from rcg.bench.__main__ import main as bench
from rcg.bench.contestants import GraphContestant, RayCall, RcgGraph
from rcg.bench.record import RCG, RCG_FUTEX, Figure
from rcg.bench.runner import Experiment, Setup


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 for a wrong command line."""
    return bench(arguments, EXPERIMENTS, "benchmarks")


def _graphs(setup: Setup) -> dict[str, GraphContestant]:
    """Return the contestants that compile graphs, each with its default options."""
    return {
        each.name: each
        for each in setup.contestants
        if isinstance(each, GraphContestant) and each.name != RCG_FUTEX
    }


def _idle(setup: Setup) -> tuple[Figure, ...]:
    bare = next(each for each in setup.contestants if isinstance(each, RayCall))
    return lifetime.measure_idle(_graphs(setup), bare)


def _failures(setup: Setup) -> tuple[Figure, ...]:
    graphs = _graphs(setup)
    found = measure_failures(graphs)
    graph = graphs.get(RCG)
    if isinstance(graph, RcgGraph) and find_spec("torch") is not None:
        found += (measure_transfer_deaths(graph),)
    return found


def _with_torch(
    name: str, title: str, measure: Callable[[], tuple[Figure, ...]], nodes: int = 1
) -> Experiment:
    return Experiment(name, title, lambda _: measure(), needs=("torch",), nodes=nodes)


EXPERIMENTS: tuple[Experiment, ...] = (
    *(
        Experiment(row.name, row.title, partial(measure_transfer, row), is_in_rounds=True)
        for row in TRANSFERS
    ),
    *(
        Experiment(row.name, row.title, partial(measure_parallel, row), is_in_rounds=True)
        for row in PARALLELS
    ),
    Experiment("idle", "CPU time of a waiting compiled graph", _idle),
    Experiment(
        "lifecycle",
        "time to compile and to tear down",
        lambda setup: lifetime.measure_lifecycle(_graphs(setup)),
    ),
    Experiment(
        "fresh",
        "echo on fresh actors, start by start",
        lambda setup: lifetime.measure_fresh(_graphs(setup)),
    ),
    Experiment("failures", "time until the death of an actor is reported", _failures),
    _with_torch("overlap", "transfers beside computation", measure_overlap),
    _with_torch("unequal-pair", "layers on a pair of which one is slower", measure_unequal_pair),
    _with_torch("rdt", "tensors by reference in ordinary calls", measure_references),
    Experiment(
        "rdt-nixl",
        "tensors by reference that NIXL reads",
        lambda _: measure_references_by_nixl(),
        needs=("torch", "nixl_cu12"),
    ),
    _with_torch(
        "rdt-across", "tensors by reference between two nodes", measure_references_across, nodes=2
    ),
    _with_torch("weights", "weights by name", measure_weights),
    Experiment(
        "recorder",
        "cost of recording an event",
        lambda _: tracing.measure_recorder(),
        is_on_ray=False,
    ),
    Experiment(
        "tracing", "cost of recording and of a profile", lambda _: tracing.measure_tracing()
    ),
    Experiment(
        "what_if", "prediction compared with a real run", lambda _: tracing.measure_what_if()
    ),
    Experiment(
        "traces",
        "analysis of a million events",
        lambda _: scale.measure_large_trace(),
        is_on_ray=False,
    ),
    Experiment(
        "planning", "time to plan large graphs", lambda _: scale.measure_planning(), is_on_ray=False
    ),
)


if __name__ == "__main__":
    sys.exit(main())
