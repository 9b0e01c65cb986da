# SPDX-License-Identifier: Apache-2.0
"""What overlap gains: three senders, one receiver that computes on each tensor, over Gloo.

It is the program of the seed about overlap, at the size of a CPU: several executions are in flight,
and a computation takes about twice as long as a transfer. The two graphs, without and with overlap,
have the same actors and take turns; a third one has ``overlap="auto"`` and the costs of a profile.

The profiles of both say why executions became shorter. Without overlap the receiver's calls stand
still while it communicates; with overlap, only while they wait for the lane. The difference was
hidden. Where transfers and methods compete for cores and memory, methods take longer meanwhile, and
what is left is the gain. All of it is given in percent of the time without overlap.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import Any, Final

import rcg
import rcg.dag
from rcg.bench.contestants import ACTOR_OPTIONS, ending
from rcg.bench.measure import Pace, batch_turn, take_rounds
from rcg.bench.record import Figure, medians
from rcg.options import Overlap
from rcg.trace.analysis.shares import LaneShares

__all__ = ["measure_overlap"]

_SENDERS: Final = 3
_SIDE: Final = 1500  # of a square tensor of float32: 9 MB
_COMPUTE_PER_TRANSFER: Final = 2.2
_FIRST_WIDTH: Final = 64  # of the matrix that it is multiplied with, until times are known
_EXECUTIONS: Final = 12  # in one sample
_ROUNDS: Final = 12
_PROFILED: Final = 3  # samples in a profile
_LEAST_GAIN: Final = 0.14
_MOST_APART: Final = 5.0
_OFF: Final = "without overlap"
_ON: Final = "with overlap"
_AUTO: Final = "auto"
_MOST_LOST: Final = 0.03


class Worker:
    """Keeps a tensor and sends it, or computes with those that it gets."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._kept = torch.ones(_SIDE, _SIDE)
        self._weights: Any = None

    def kept(self, _: int) -> Any:
        """The tensor [side, side]."""
        return self._kept

    def widen(self, width: int) -> None:
        """Have ``multiplied`` take longer, in proportion to the width."""
        self._weights = self._torch.ones(_SIDE, width)

    def multiplied(self, tensor: Any) -> float:
        """Multiply a tensor [side, side] with the weights [side, width]."""
        return float((tensor @ self._weights)[0, 0])


def measure_overlap() -> tuple[Figure, ...]:
    """Measure executions with and without overlap, in turns, on actors of their own."""
    cls = rcg.remote(Worker).options(**ACTOR_OPTIONS)
    *senders, receiver = [cls.remote() for _ in range(_SENDERS + 1)]
    with ending((*senders, receiver)), contextlib.ExitStack() as stack:
        graphs = {
            name: stack.enter_context(_compiled(senders, receiver, overlap=name == _ON))
            for name in (_OFF, _ON)
        }
        rcg.get(receiver.widen.remote(_FIRST_WIDTH))
        _run(graphs[_OFF])
        _, found, _ = _profiled(graphs[_OFF], receiver)
        factor = _COMPUTE_PER_TRANSFER * found.communication_ns / found.compute_ns
        rcg.get(receiver.widen.remote(max(1, round(_FIRST_WIDTH * factor))))
        _, _, profile = _profiled(graphs[_OFF], receiver)
        auto_graph = _compiled(senders, receiver, overlap="auto", costs=profile)
        graphs[_AUTO] = stack.enter_context(auto_graph)
        turns = {
            name: batch_turn(partial(graph.execute, 0), rcg.get, _EXECUTIONS)
            for name, graph in graphs.items()
        }
        pace = Pace(1, time_ns=0, warm_up=_EXECUTIONS)
        times = medians(take_rounds(turns, pace, _ROUNDS, random.Random("overlap")))
        _, plain, _ = _profiled(graphs[_OFF], receiver)
        lane, calls, _ = _profiled(graphs[_ON], receiver)
    off, on, auto = (times[name] for name in (_OFF, _ON, _AUTO))
    whole_ns = plain.duration_ns
    waited_ns = calls.waiting_for.get(lane.label, 0)
    hidden = 100 * (plain.communication_ns - calls.communication_ns - waited_ns) / whole_ns
    slower = 100 * (calls.compute_ns - plain.compute_ns) / whole_ns
    gain = 100 * (1 - on / off)
    return (
        Figure(
            "overlap",
            "overlap, 3 senders over Gloo, compute 2.2 x transfer",
            "of the time without",
            {_ON: on / off},
            most=1 - _LEAST_GAIN,
        ),
        Figure(
            "overlap-auto",
            "the same, overlap='auto' with the costs of a profile",
            "of the time without",
            {_AUTO: auto / off},
            most=1 + _MOST_LOST,
        ),
        Figure(
            "overlap-hidden",
            "communication hidden in the profile, and the gain",
            "%",
            {
                "hidden": hidden,
                "methods longer": slower,
                "gain": gain,
                "apart": abs(hidden - slower - gain),
            },
            most=_MOST_APART,
            bound=("apart",),
        ),
    )


def _compiled(senders: list[Any], receiver: Any, *, overlap: Overlap, costs: Any = None) -> Any:
    with rcg.dag.InputNode() as inp:
        tensors = [
            sender.kept.bind(inp).with_tensor_transport(
                "gloo", _static_shape=True, _direct_return=True
            )
            for sender in senders
        ]
        dag = rcg.dag.MultiOutputNode([receiver.multiplied.bind(each) for each in tensors])
        return rcg.compile(dag, overlap=overlap, costs=costs)


def _run(graph: Any) -> None:
    for ref in [graph.execute(0) for _ in range(_EXECUTIONS)]:
        rcg.get(ref)


def _profiled(graph: Any, receiver: Any) -> tuple[LaneShares, LaneShares, Any]:
    """Return where the receiver's time went: of the program that receives, and of its calls.

    The profile is returned as well.
    """
    with graph.profile() as profile:
        for _ in range(_PROFILED):
            _run(graph)
    (found,) = profile.summary.graphs
    plan = profile.graph().plan
    (actor,) = [each.id for each in plan.actors if each.key == receiver._actor_id.hex()]
    lanes = {lane.process: lane for lane in found.shares.lanes}
    receives = next((lane.id for lane in plan.lanes if lane.actor == actor), actor)
    return lanes[receives], lanes[actor], profile
