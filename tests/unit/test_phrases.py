# SPDX-License-Identifier: Apache-2.0
"""What people say for the ops of plans: the values are followed to the methods that made them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.ir.ops import Collective
from rcg.ir.phrases import name_of, phrase_of
from rcg.ir.plan import Plan
from tests.unit import tensors_by_hand
from tests.unit.random_graphs import cases, placements

LANES = Plan.from_text("""
plan positional=2 keywords=[] returns=list
actor a0 'First' ''
actor a1 'Second' ''
lane a0.comm of a0
group g0 gloo a0.comm a1
channel c0 driver -> a0 ring node=0, 1 slots=10
channel c1 a0 -> a0.comm local node=2, 3, 4 slots=1
channel c2 a0.comm -> a1 tensor @g0 node=2, 3, 4 slots=10
channel c3 a1 -> driver ring node=6 slots=10
program driver
  Input 0 -> s0
  Input 'mask' -> s1
  Write s0, s1 -> c0
  Read c3 -> s2
  Output s2
program a0
  Read c0 -> s0, s1
  Build k0(s0, s1) -> s2
  Call a0.left(s2) -> s3 #2
  Call a0.right(s1) -> s4 #3
  Call a0.third(s0) -> s5 #4
  Write s3, s4, s5 -> c1
program a0.comm
  Read c1 -> s0, s1, s2
  Write s0, s1, s2 -> c2
program a1
  Read c2 -> s0, s1, s2
  Call a1.join(s0, s1, s2) -> s3 #5
  Copy s3 -> s4
  Call a1.rcg_keep(s4, k1, k2) -> s5 #6
  Free s3
  Write s5 -> c3
""")

RESULTS = "the result of a0.left and the result of a0.right and 1 more"


def phrases(plan: Plan, process: str) -> list[str]:
    return [phrase_of(plan, process, at) for at in range(len(plan.program(process).ops))]


@given(st.data())
def test_every_op_of_any_program_has_a_whole_phrase(data: st.DataObject) -> None:
    """Also on several nodes, whose gates pass on statuses, which are no values."""
    case = data.draw(cases(has_tensors=True))
    nodes, driver = data.draw(placements(case.graph, most=3))
    plan = compile_graph(case.graph, nodes, driver, 4).plan
    for program in plan.programs:
        for phrase in phrases(plan, program.process):
            assert phrase == phrase.strip() and "  " not in phrase


def test_values_are_followed_through_lanes_copies_and_what_keeps_them() -> None:
    assert phrases(LANES, "driver") == [
        *("taking the input", "taking the input", "sending the input 0 and the input mask"),
        *("reading the result of a1.join", "returning the results"),
    ]
    assert phrases(LANES, "a0") == [
        *("reading the input 0 and the input mask", "building an argument"),
        *("in left", "in right", "in third", f"sending {RESULTS}"),
    ]
    assert phrases(LANES, "a0.comm") == [f"reading {RESULTS}", f"sending {RESULTS}"]
    assert phrases(LANES, "a1") == [
        *(f"reading {RESULTS}", "in join", "copying the result of a1.join"),
        *("keeping a result", "dropping values", "sending the result of a1.join"),
    ]


def test_every_op_of_a_plan_with_collectives_has_a_phrase() -> None:
    plan = Plan.from_text(tensors_by_hand.PLAN)
    found = [each for program in plan.programs for each in phrases(plan, program.process)]
    assert "in allreduce" in found
    ops = [op for program in plan.programs for op in program.ops]
    assert {name_of(plan, op) for op in ops if isinstance(op, Collective)} == {"allreduce"}
    assert not [each for each in found if "->" in each or each.endswith(" ")]
