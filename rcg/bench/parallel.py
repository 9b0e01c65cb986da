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

import random
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import rcg
import rcg.dag
from rcg.bench.contestants import ACTOR_OPTIONS, WrongResult
from rcg.bench.measure import Pace, Turn, take_rounds
from rcg.bench.record import BY_HAND, RCG, RowResult
from rcg.bench.rows import Target
from rcg.bench.statistics import SampleSummary
from rcg.collective import allreduce

__rcg_user__ = True  # see rcg.frames

__all__ = ["PARALLELS", "Parallel", "measure_parallel"]

NANO = 1e-3  # samples are nanoseconds, tables microseconds
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


def measure_parallel(
    row: Parallel, rounds: int, seed: int, after_round: Callable[[], None] = lambda: None
) -> RowResult:
    """Measure one row on actors of its own, in turns.

    Raises:
        WrongResult: The graph and the loop do not compute the same.
    """
    target = Target(hand=row.most)
    if find_spec("torch") is None:
        for _ in range(rounds):
            after_round()
        absent = dict.fromkeys((RCG, BY_HAND), "needs torch")
        return RowResult(row.name, row.title, target, {}, absent)
    cls, compiled, data = _kind_of(row)
    actors = [rcg.remote(cls).options(**ACTOR_OPTIONS).remote(rank) for rank in range(2)]
    try:
        with tempfile.TemporaryDirectory(prefix="rcg-bench-") as folder:
            rcg.get([actor.meet.remote(str(Path(folder, "store"))) for actor in actors])
        with compiled(actors) as graph:
            _check(row, graph, actors, data)
            turns = {
                RCG: _turn_of(graph, row.calls, data),
                BY_HAND: _turn_by_hand(actors, row.calls, data),
            }
            pace = Pace(1, time_ns=0, warm_up=1)
            rng = random.Random(f"{seed} {row.name} order")
            samples = take_rounds(turns, pace, rounds, rng, after_round)
    finally:
        for actor in actors:
            rcg.kill(actor)
    summaries = {name: SampleSummary.of(found).scaled(NANO) for name, found in samples.items()}
    return RowResult(row.name, row.title, target, summaries)


def _kind_of(row: Parallel) -> tuple[type, Callable[[Sequence[Any]], Any], Any]:
    """Return the class of the actors, what compiles the graph, and the argument of an execution."""
    from rcg.bench import models  # it needs torch

    match row.name:
        case "pipeline" | "pipeline-gloo":
            from rcg.bench.stages import Stage

            transport = "gloo" if row.name == "pipeline-gloo" else "auto"
            batch = models.tokens(models.MICROBATCHES, models.BATCH, models.LENGTH)
            return Stage, partial(_pipeline, transport=transport), batch
        case "tensor-parallel":
            from rcg.bench.shards import BATCH, Shard

            return Shard, _tensor_parallel, models.tokens(BATCH, models.LENGTH)
        case _:
            raise ValueError(f"there is no row {row.name!r}")


def _pipeline(actors: Sequence[Any], transport: str) -> Any:
    """Compile a training step, bound in the order of 1F1B; see ``rcg.bench.stages``."""
    from rcg.bench.models import AHEAD, MICROBATCHES

    first, last = actors
    with rcg.dag.InputNode() as batch:
        hidden = {}
        losses, done = [], []
        for number in range(MICROBATCHES + AHEAD):
            if number < MICROBATCHES:
                sent = first.forward.bind(batch, number).with_tensor_transport(transport)
                hidden[number] = sent
            if number >= AHEAD:
                at = number - AHEAD
                both = last.forward_and_backward.options(num_returns=2)
                loss, gradient = both.bind(hidden[at], batch, at)
                losses.append(loss)
                done.append(first.backward.bind(gradient.with_tensor_transport(transport), at))
        dag = rcg.dag.MultiOutputNode([first.step.bind(*done), last.step.bind(*losses)])
        return rcg.compile(dag, overlap=True)


def _tensor_parallel(actors: Sequence[Any]) -> Any:
    """Compile an inference: every layer's attention and perceptron end in an allreduce."""
    from rcg.bench.shards import LAYERS

    with rcg.dag.InputNode() as tokens:
        values = [actor.embed.bind(tokens) for actor in actors]
        for layer in range(LAYERS):
            for part in ("attend", "feed"):
                parts = [
                    getattr(actor, part).bind(value, layer)
                    for actor, value in zip(actors, values, strict=True)
                ]
                values = allreduce.bind(parts)
        logits = [actor.predict.bind(value) for actor, value in zip(actors, values, strict=True)]
        return rcg.compile(rcg.dag.MultiOutputNode(logits))


def _check(row: Parallel, graph: Any, actors: Sequence[Any], data: Any) -> None:
    """Compare the results of some executions, from the same state.

    Raises:
        WrongResult: They are not the same.
    """
    import torch

    _reset(actors)
    by_graph = [rcg.get(graph.execute(data)) for _ in range(CHECKED)]
    _reset(actors)
    by_hand = zip(*[found for _, _, found in _run_by_hand(actors, data, CHECKED)], strict=True)
    for one, other in zip(by_graph, by_hand, strict=True):
        for value, expected in zip(one, other, strict=True):
            pair = torch.as_tensor(value), torch.as_tensor(expected)
            if not torch.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE):
                raise WrongResult(f"{row.name}: by hand {expected!r}, by the graph {value!r}")


def _reset(actors: Sequence[Any]) -> None:
    rcg.get([actor.reset.remote() for actor in actors])


def _turn_of(graph: Any, calls: int, data: Any) -> Turn:
    def turn(pace: Pace) -> array[int]:
        for _ in range(pace.warm_up):
            rcg.get(graph.execute(data))
        started_ns = time.monotonic_ns()
        for ref in [graph.execute(data) for _ in range(calls)]:
            rcg.get(ref)
        return array("q", [(time.monotonic_ns() - started_ns) // calls])

    return turn


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
