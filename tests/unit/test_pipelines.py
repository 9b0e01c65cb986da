# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules of papers, out of plain graphs: their tables and their bubbles.

A call is a letter and a microbatch: forward (F), backward (B), or the gradients of the weights (W);
a dash marks the second chunk of an actor. The bubble is the time in which a stage does nothing. All
edges between stages are rendezvous, so a bad order of these would show as more bubbles.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from rcg.compiler.simulate import SimulatedOp, simulate
from rcg.ir.channels import TENSOR
from rcg.ir.graph import Graph
from rcg.ir.ops import Call, Op
from rcg.ir.plan import Plan
from tests.unit import graphs_by_hand as by_hand
from tests.unit.pipelines import gpipe, interleaved, one_forward_one_backward, zero_bubble


def planned(graph: Graph) -> Plan:
    plan = by_hand.planned(graph, 4)
    between = [each for each in plan.channels if "driver" not in (each.writer, *each.readers)]
    assert between
    assert all(channel.kind == TENSOR for channel in between)
    return plan


def table(plan: Plan) -> list[str]:
    """The calls of each actor, in order."""
    return [
        " ".join(op.method for op in program.ops if isinstance(op, Call))
        for program in plan.programs[1:]
    ]


def duration(plan: Plan, **costs: int) -> int:
    """How long one execution takes until the last call ends, if moving tensors takes no time."""

    def cost_of(op: Op) -> float:
        return costs[op.method[0]] if isinstance(op, Call) else 0.0

    spans = simulate(plan, cost_of, executions=1).timeline

    def is_of_stage(span: SimulatedOp) -> bool:
        return span.process != "driver"

    return round(max(span.end for span in filter(is_of_stage, spans)))


def test_gpipe_runs_all_forward_calls_first():
    """Figure 2 of Huang et al., "GPipe" (NeurIPS 2019, arXiv 1811.06965)."""
    assert table(planned(gpipe(stages=4, microbatches=4))) == ["F1 F2 F3 F4 B4 B3 B2 B1"] * 4


def test_1f1b_alternates_after_warming_up():
    """Figure 4 (top) of Narayanan et al. 2021 (arXiv 2104.04473), for four stages.

    "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
    """
    assert table(planned(one_forward_one_backward(stages=4, microbatches=8))) == [
        "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8",
        "F1 F2 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 B7 B8",
        "F1 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 B8",
        "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8",
    ]


def test_interleaved_1f1b_visits_each_actor_once_per_chunk():
    """Figure 4 (bottom) of Narayanan et al. 2021, for two actors with two chunks each."""
    assert table(planned(interleaved(actors=2, chunks=2, microbatches=4))) == [
        "F1 F2 F1' F2' F3 B1' F4 B2' F3' B1 F4' B2 B3' B4' B3 B4",
        "F1 F2 F1' B1' F2' B2' F3 B1 F4 B2 F3' B3' F4' B4' B3 B4",
    ]


def test_zb_h1_fills_the_end_with_gradients_of_weights():
    """Figure 3 (top) of Qi et al., "Zero bubble pipeline parallelism" (2023, arXiv 2401.10241).

    Each stage has four microbatches in flight, as the first one has in 1F1B.
    """
    assert table(planned(zero_bubble(stages=4, microbatches=8))) == [
        "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8",
        "F1 F2 F3 B1 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 F8 B6 W5 B7 W6 B8 W7 W8",
        "F1 F2 B1 F3 B2 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 F8 B7 W5 B8 W6 W7 W8",
        "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8",
    ]


SIZES = [(stages, stages * times) for stages in (2, 3, 4, 8) for times in (1, 2, 4)]


@pytest.mark.parametrize("make", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("backward", [1, 2])
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_the_bubble_of_gpipe_and_1f1b(make, backward: int, stages: int, microbatches: int):
    """Narayanan et al. 2021, section 2.2.1: the bubble is (p - 1)/m of the ideal time.

    As a fraction of the whole time, that is (p - 1)/(m + p - 1) (Huang et al. 2019, section 2.3).
    """
    ideal = microbatches * (1 + backward)
    took = duration(planned(make(stages, microbatches)), F=1, B=backward)
    assert Fraction(took - ideal, ideal) == Fraction(stages - 1, microbatches)
    assert Fraction(took - ideal, took) == Fraction(stages - 1, microbatches + stages - 1)


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(("actors", "microbatches"), SIZES)
def test_the_bubble_of_interleaved_1f1b(chunks: int, actors: int, microbatches: int):
    """Narayanan et al. 2021, section 2.2.2: with v chunks the bubble is (p - 1)/(v m)."""
    ideal = 2 * microbatches * chunks
    took = duration(planned(interleaved(actors, chunks, microbatches)), F=1, B=1)
    assert Fraction(took - ideal, ideal) == Fraction(actors - 1, chunks * microbatches)


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_the_bubble_of_zb_h1(stages: int, microbatches: int):
    """Qi et al. 2023, section 2: the bubble is (p - 1)(T_F + T_B - T_W)."""
    ideal = 3 * microbatches
    took = duration(planned(zero_bubble(stages, microbatches)), F=1, B=1, W=1)
    assert took - ideal == (stages - 1) * (1 + 1 - 1)
