# SPDX-License-Identifier: Apache-2.0
"""A model on two actors: a compiled graph, compared with a loop written by hand.

The loop is what one would write on ``torch.distributed`` without rcg, for the same methods and the
same actors, over Gloo, with one thread of torch each. It runs as an ordinary method of the actors,
so it has their priority, and its data lie there already; a graph gets them from the driver and
returns its results to it.

A sample is the mean time of an execution, of several that follow each other: of a graph, from the
first ``execute`` until the driver has the last result; by hand, from the moment when both ranks are
ready until the last of them is done.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import rcg
from rcg.bench.contestants import ACTOR_OPTIONS, WrongResult, ending
from rcg.bench.measure import Pace, Turn, batch_turn
from rcg.bench.record import BY_HAND, RCG, RowResult
from rcg.bench.rows import Target
from rcg.bench.runner import Setup, race, skip

__all__ = ["PARALLELS", "Parallel", "measure_parallel"]

MOST: Final = 1.05
CHECKED: Final = 3  # executions whose results are compared; weights change between them
TOLERANCE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Parallel:
    """One row.

    Attributes:
        name: The name for `--rows`.
        title: The displayed title.
        calls: Number of executions in a sample.
        most: The largest ratio of rcg's median to that of the loop.
    """

    name: str
    title: str
    calls: int
    most: float = MOST


PARALLELS: tuple[Parallel, ...] = (
    Parallel("pipeline", "training step, pipeline of 2, 1F1B, by shared memory", calls=5),
    Parallel("pipeline-gloo", "training step, pipeline of 2, 1F1B, by Gloo and lanes", calls=5),
    Parallel("tensor-parallel", "inference, 2 ranks, 8 allreduces over Gloo", calls=4),
)


def measure_parallel(row: Parallel, setup: Setup) -> tuple[RowResult]:
    """Measure one row on actors of its own, in turns.

    Raises:
        WrongResult: The graph and the loop do not compute the same.
    """
    result = RowResult(row.name, row.title, Target(hand=row.most), {})
    if find_spec("torch") is None:
        return (skip(result, dict.fromkeys((RCG, BY_HAND), "needs torch"), setup),)
    cls, compiled, data = _kind_of(row)
    actors = [rcg.remote(cls).options(**ACTOR_OPTIONS).remote(rank) for rank in range(2)]
    with ending(actors):
        with tempfile.TemporaryDirectory(prefix="rcg-bench-") as folder:
            rcg.get([actor.meet.remote(str(Path(folder, "store"))) for actor in actors])
        with compiled(actors) as graph:
            _check(row, graph, actors, data)
            turns = {
                RCG: batch_turn(lambda: graph.execute(data), rcg.get, row.calls),
                BY_HAND: _turn_by_hand(actors, row.calls, data),
            }
            return (race(result, turns, Pace(1, time_ns=0, warm_up=1), setup),)


def _kind_of(row: Parallel) -> tuple[type, Callable[[Sequence[Any]], Any], Any]:
    """Return the class of the actors, what compiles the graph, and the argument of an execution."""
    from benchmarks import pipeline, shards  # they need torch

    match row.name:
        case "pipeline" | "pipeline-gloo":
            transport = "gloo" if row.name == "pipeline-gloo" else "auto"
            batch = pipeline.tokens(pipeline.MICROBATCHES, pipeline.BATCH, pipeline.LENGTH)
            return pipeline.Stage, partial(pipeline.compiled, transport=transport), batch
        case "tensor-parallel":
            return shards.Shard, shards.compiled, pipeline.tokens(shards.BATCH, pipeline.LENGTH)
        case _:
            raise ValueError(f"there is no row {row.name!r}")


def _check(row: Parallel, graph: Any, actors: Sequence[Any], data: Any) -> None:
    """Compare the results of some executions, from the same state.

    Raises:
        WrongResult: They are not the same.
    """
    import torch

    rcg.get([actor.reset.remote() for actor in actors])
    by_graph = [rcg.get(graph.execute(data)) for _ in range(CHECKED)]
    rcg.get([actor.reset.remote() for actor in actors])
    by_hand = zip(*[found for _, _, found in _run_by_hand(actors, data, CHECKED)], strict=True)
    for one, other in zip(by_graph, by_hand, strict=True):
        for value, expected in zip(one, other, strict=True):
            pair = torch.as_tensor(value), torch.as_tensor(expected)
            if not torch.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE):
                raise WrongResult(f"{row.name}: by hand {expected!r}, by the graph {value!r}")


def _turn_by_hand(actors: Sequence[Any], calls: int, data: Any) -> Turn:
    def turn(pace: Pace) -> array[int]:
        _run_by_hand(actors, data, pace.warm_up)
        starts, ends, _ = zip(*_run_by_hand(actors, data, calls), strict=True)
        return array("q", [(max(ends) - min(starts)) // calls])

    return turn


def _run_by_hand(actors: Sequence[Any], data: Any, times: int) -> list[tuple[int, int, list[Any]]]:
    found: list[tuple[int, int, list[Any]]] = rcg.get(
        [actor.run.remote(data, times) for actor in actors]
    )
    return found
