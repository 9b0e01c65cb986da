# SPDX-License-Identifier: Apache-2.0
"""Where to divide a network between two actors of which one is slower: predicted, and tried.

Each layer is a call, so every way to divide the layers is a graph of its own on the same two
actors. One graph, divided in the middle, is run and profiled. `rcg.plan(dag, costs=profile)` then
predicts the time of every division without running it. After that all divisions run, in turns, and
the division with the shortest predicted time is compared with the fastest one.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import rcg
import rcg.dag
from rcg.bench.contestants import ACTOR_OPTIONS, ending
from rcg.bench.measure import Pace, batch_turn, take_rounds
from rcg.bench.record import Figure, medians

__all__ = ["measure_unequal_pair", "regret"]

_LAYERS: Final = 12
_SLOWNESS: Final = 3
_EXECUTIONS: Final = 10  # in one sample
_PROFILED: Final = 4  # samples in the profile: means of a second vary with what else runs
_ROUNDS: Final = 8
_MOST: Final = 1.05


class Device:
    """Runs layers of a network.

    A slow one waits after each layer, so that it takes no time from the core of the other one: both
    stand for devices of their own. It waits in proportion to the time for which the layer had a
    core, so that what else runs is not taken three times.

    Args:
        slowness: How many times as long a layer takes.
    """

    def __init__(self, slowness: int) -> None:
        import torch

        from benchmarks import pipeline

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._torch = torch
        self._layers = [pipeline.layer().eval() for _ in range(_LAYERS)]
        self._slowness = slowness
        self._input = torch.randn(pipeline.BATCH, pipeline.LENGTH, pipeline.WIDTH)

    def first(self, _: object) -> Any:
        """Return activations [batch, length, width]."""
        return self._input.clone()

    def layer(self, x: Any, number: int) -> Any:
        """Return what a layer makes of activations [batch, length, width]."""
        started_s = time.thread_time()
        with self._torch.no_grad():
            found = self._layers[number](x)
        time.sleep((self._slowness - 1) * (time.thread_time() - started_s))
        return found

    def last(self, x: Any) -> float:
        """Return the sum of activations [batch, length, width]."""
        return float(x.sum())


def measure_unequal_pair() -> tuple[Figure, ...]:
    """Measure all divisions in turns, on actors of their own, and predict them before."""
    cls = rcg.remote(Device).options(**ACTOR_OPTIONS)
    pair = [cls.remote(slowness) for slowness in (1, _SLOWNESS)]
    divisions = {fast: _divided(pair, fast) for fast in range(1, _LAYERS)}
    with _compiled(divisions[_LAYERS // 2]) as graph:
        _run(graph)
        with graph.profile() as profile:
            for _ in range(_PROFILED):
                _run(graph)
    predicted_ns = {
        fast: rcg.plan(dag, overlap=True, costs=profile).predicted[0].period_ns
        for fast, dag in divisions.items()
    }
    with ending(pair), contextlib.ExitStack() as stack:
        graphs = {
            _name(fast): stack.enter_context(_compiled(dag)) for fast, dag in divisions.items()
        }
        turns = {
            name: batch_turn(partial(graph.execute, 0), rcg.get, _EXECUTIONS)
            for name, graph in graphs.items()
        }
        pace = Pace(1, time_ns=0, warm_up=1)
        samples = take_rounds(turns, pace, _ROUNDS, random.Random("unequal-pair"))
    measured = medians(samples, 1e-6)  # from nanoseconds
    predicted = {_name(fast): ns * 1e-6 for fast, ns in predicted_ns.items()}
    return (
        Figure(
            "unequal-pair",
            f"{_LAYERS} layers on a pair, one {_SLOWNESS} times slower: division by costs",
            "of the shortest time",
            {f"divided {min(predicted, key=predicted.__getitem__)}": regret(predicted, measured)},
            most=_MOST,
        ),
        Figure("unequal-pair-measured", "time of each division", "ms", measured),
        Figure("unequal-pair-predicted", "predicted time of each division", "ms", predicted),
    )


def regret(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Return the time of what was predicted to be shortest, divided by the shortest time.

    >>> regret({"a": 1, "b": 2, "c": 3}, {"a": 12.0, "b": 10.0, "c": 30.0})
    1.2
    """
    chosen = min(predicted, key=predicted.__getitem__)
    return measured[chosen] / min(measured.values())


def _name(fast: int) -> str:
    return f"{fast}+{_LAYERS - fast}"


def _divided(pair: list[Any], num_fast: int) -> Any:
    """Bind the layers, so many of them to the fast actor."""
    fast, slow = pair
    with rcg.dag.InputNode() as inp:
        x = fast.first.bind(inp)
        for number in range(num_fast):
            x = fast.layer.bind(x, number)
        x = x.with_tensor_transport("gloo")
        for number in range(num_fast, _LAYERS):
            x = slow.layer.bind(x, number)
        return slow.last.bind(x)


def _compiled(dag: Any) -> Any:
    return rcg.compile(dag, overlap=True)


def _run(graph: Any) -> None:
    for ref in [graph.execute(0) for _ in range(_EXECUTIONS)]:
        rcg.get(ref)
