# SPDX-License-Identifier: Apache-2.0
"""Plans with groups, tensor channels and collectives: data that prints, parses and is checked."""

from __future__ import annotations

import pytest

from rcg.errors import InternalError
from rcg.ir.ops import AllReduce
from rcg.ir.plan import Plan

TEXT = """
plan positional=1 keywords=[] returns=list
actor a0 'Worker' ''
actor a1 'Worker' ''
actor a2 'Sink' ''
group g0 gloo a0 a1
group g1 gloo a1 a0 a2
group g2 Mine a0 a2 by k3
channel c0 driver -> a0 a1 ring node=0 slots=4
channel c1 a0 -> a1 status node=3 slots=4
channel c2 a1 -> a0 status node=4 slots=4
channel c3 a0 -> a1 a2 tensor @g1 node=3 slots=4 device=cpu static direct
channel c4 a0 -> a2 tensor @g2 node=1 slots=4
channel c5 a2 -> driver ring node=5 slots=4
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c5 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.grad(s0) -> s1 #1
  Write s1 -> c4
  AllReduce s1 (sum) @g0 tells c1 hears c2 -> s2 #3
  Write s2 -> c3
  Free s0, s1, s2
program a1
  Read c0 -> s0
  Call a1.grad(s0) -> s1 #2
  AllReduce s1 (sum) @g0 tells c2 hears c1 -> s2 #4
  Read c3 -> s3
  Free s0, s1, s2, s3
program a2
  Read c4 -> s0
  Read c3 -> s1
  Call a2.join(s0, s1) -> s2 #5
  Write s2 -> c5
  Free s0, s1, s2
"""


def test_it_reads_as_text_and_as_json() -> None:
    plan = Plan.from_text(TEXT)
    plan.check()
    assert str(plan) == TEXT.strip()
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.groups[2].communicator == "k3"
    spec = plan.channels[3]
    assert (spec.device, spec.is_static_shape, spec.is_direct_return) == ("cpu", True, True)
    op = plan.program("a1").ops[2]
    assert isinstance(op, AllReduce)
    assert (op.channels_out, op.channels_in) == (("c2",), ("c1",))


def test_a_program_says_where_a_slot_is_used_last() -> None:
    plan = Plan.from_text(TEXT)
    found = [sorted(plan.program("a0").last_used(position)) for position in range(5)]
    assert found == [[], [0], [], [1], [2]]
    assert plan.program("a2").last_used(2) == {0, 1}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("channel c3 a0 -> a1 a2 tensor @g1", "channel c3 a0 -> a1 a2 tensor @g0", "not in g0"),
        ("group g1 gloo a1 a0 a2", "group g1 gloo a1 a0 a2 a2", "ranks of g1 are in a2"),
        ("@g0 tells c1", "@g2 tells c1", "a0 must tell all other members of g2"),
        ("@g0 tells c1", "@g9 tells c1", "a0 is no member of g9"),
        ("@g0 tells c1 hears c2", "@g0 hears c2", "a0 must tell all other members of g0"),
        ("@g0 tells c1 hears c2", "@g0 tells c1", "a0 must hear the other members of g0"),
        ("@g0 tells c2 hears c1 -> s2", "@g0 tells c2 hears c1 -> s2, s9", "a slot for each"),
        ("s1 (sum) @g0 tells c2", "s1 (max) @g0 tells c2", "have no part in the collective of g0"),
        ("s1 (sum) @g0 tells c2", "s1 (sum) root 2 @g0 tells c2", "g0 has no rank 2"),
        ("channel c1 a0 -> a1 status", "channel c1 a0 -> a1 ring", "not for allreduce"),
        (
            "channel c3 a0 -> a1 a2 tensor @g1 node=3",
            "channel c3 a0 -> a1 a2 tensor @g1 node=3, 1",
            "c3 is a tensor channel: it carries one value",
        ),
        (
            "channel c2 a1 -> a0 status",
            "channel c2 a1 -> driver status",
            "c2 is a status channel: its ends must be actors",
        ),
    ],
)
def test_one_that_breaks_a_rule_is_refused(old: str, new: str, why: str) -> None:
    assert old in TEXT
    with pytest.raises((InternalError, ValueError), match=why):
        Plan.from_text(TEXT.replace(old, new)).check()


def test_a_broadcast_needs_a_group_of_its_ends() -> None:
    text = TEXT.replace("group g1 gloo a1 a0 a2", "group g1 gloo a1 a0 a2 a3")
    text = text.replace("actor a2 'Sink' ''", "actor a2 'Sink' ''\nactor a3 'Idle' ''")
    text += "program a3\n  Read c6 -> s0\n  Call a3.f(s0) -> s1 #9\n  Write s1 -> c7\n"
    text = text.replace(
        "program driver", "channel c6 driver -> a3 ring node=9 slots=4\nprogram driver"
    )
    with pytest.raises(
        InternalError, match="c3 is a broadcast: its ends must be all members of g1"
    ):
        Plan.from_text(text).check()
