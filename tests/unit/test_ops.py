# SPDX-License-Identifier: Apache-2.0
"""An op is defined in its class and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.errors import InternalError
from rcg.ir.fields import ChannelRead, ChannelWritten, SlotMade, SlotsUsed, TemplateId
from rcg.ir.ids import Const, Slot
from rcg.ir.line import Line
from rcg.ir.ops import (
    COLLECTIVES,
    AllReduce,
    Broadcast,
    Build,
    Call,
    Collective,
    Copy,
    Free,
    Input,
    Op,
    Output,
    Pass,
    Read,
    Write,
)
from rcg.ir.plan import Plan
from rcg.trace.analysis.events import READ, WRITE, shapes_of
from rcg.views.data.topology import topology_of

CALL = Call("a0", "fwd", (Slot(1), Const("k2")), (("x", Slot(3)), ("y", Const("k4"))), (5, 6), 7)
RANKS = [
    kind((1, 2), "sum", 1, "g0", ("c3",), ("c4", "c5"), (6, 7), 8) for kind in COLLECTIVES.values()
]
OPS = [
    *RANKS,
    Input(None, 0),
    Input(2, 0),
    Input("x", 0),
    Read("c3", (1,)),
    Build("k1", (2, 3), 4),
    CALL,
    Copy(1, 2),
    Write((1,), "c3"),
    Pass("c3"),
    Output((1, 2)),
    Free((1, 2)),
]


@pytest.mark.parametrize(
    ("op", "used", "made", "read", "written", "freed", "constants"),
    [
        (Input("x", 4), (), (4,), (), (), (), ()),
        (Read("c3", (1,)), (), (1,), ("c3",), (), (), ()),
        (Build("k1", (2, 3, 2), 4), (2, 3, 2), (4,), (), (), (), ("k1",)),
        (CALL, (1, 3), (5, 6), (), (), (), ("k2", "k4")),
        (Copy(1, 2), (1,), (2,), (), (), (), ()),
        (Write((1,), "c3"), (1,), (), (), ("c3",), (), ()),
        (Pass("c3"), (), (), (), (), (), ()),
        (RANKS[0], (1, 2), (6, 7), ("c4", "c5"), ("c3",), (), ()),
        (Broadcast((), None, 0, "g0", (), (), (3,), 7), (), (3,), (), (), (), ()),
        (Output((1, 2)), (1, 2), (), (), (), (), ()),
        (Free((1, 2)), (1, 2), (), (), (), (1, 2), ()),
    ],
)
def test_what_an_op_uses_follows_from_its_fields(op, used, made, read, written, freed, constants):
    assert (op.used(), op.made()) == (used, made)
    assert (op.channels_in, op.channels_out) == (read, written)
    assert (op.freed(), op.constants()) == (freed, constants)


@pytest.mark.parametrize(
    ("op", "title", "word"),
    [
        (Input(None, 0), "input", "input"),
        (Input(2, 0), "input 2", "input"),
        (Input("x", 0), "input x", "input"),
        (Read("c3", (1,)), "read c3", "read"),
        (Build("k1", (2, 3), 4), "build k1", "build"),
        (CALL, "fwd", "call"),
        (Copy(1, 2), "copy", "copy"),
        (Write((1,), "c3"), "write c3", "write"),
        (Pass("c3"), "pass c3", "pass"),
        (RANKS[0], "allreduce g0", "allreduce"),
        (Output((1, 2)), "output", "output"),
        (Free((1, 2)), "free", "free"),
    ],
)
def test_an_op_names_itself(op: Op, title: str, word: str):
    assert (op.title(), op.word) == (title, word)
    assert op.title({"a0": "Stage"}) == ("Stage.fwd" if op is CALL else title)
    assert op.title({}) == ("a0.fwd" if op is CALL else title)


def test_what_moves_values_may_wait_for_another_process():
    assert {op.word for op in OPS if op.is_rendezvous} == {"read", "write", "pass", *COLLECTIVES}
    assert {op.word for op in OPS if op.is_call} == {"call"}
    assert {op.word for op in OPS if op.is_holding} == {"build"}


def test_every_op_is_in_these_tests():
    assert {type(op) for op in OPS} == {*Op._classes.values()} - {Collective}


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (RANKS[0], "AllReduce s1, s2 (sum) root 1 @g0 tells c3 hears c4 c5 -> s6, s7 #8"),
        (AllReduce((1,), "max", None, "g0", (), (), (2,), 3), "AllReduce s1 (max) @g0 -> s2 #3"),
        (
            Broadcast((), None, 0, "g0", ("c1",), ("c2",), (3,), 7),
            "Broadcast root 0 @g0 tells c1 hears c2 -> s3 #7",
        ),
    ],
)
def test_a_collective_prints_and_parses(op: Collective, text: str):
    assert str(op) == text
    line = Line(text)
    assert Op.named(line.take("word")).parse(line) == op
    assert Op.named(op.keyword).from_data(json.loads(json.dumps(op.to_data()))) == op


# --- one class more -----------------------------------------------------------------------------

TEXT = """
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
channel c0 driver -> a0 ring node=0 slots=2
channel c1 a0 -> driver ring node=1 slots=2
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c1 -> s1
  Output s1
program a0
  Fetch k3 c0 -> s0
  Call a0.fwd(s0) -> s1 #1
  Send s1 over c1
  Free s0, s1
"""


@pytest.fixture
def _more_ops() -> Iterator[None]:
    """Ops that rcg does not have: each is one class."""

    @dataclass(frozen=True, slots=True)
    class Fetch(Op):
        form: ClassVar[str] = "{template} {channel} -> {out}"
        is_rendezvous: ClassVar[bool] = True
        cost: ClassVar[float] = 3.0

        template: TemplateId
        channel: ChannelRead
        out: SlotMade

    @dataclass(frozen=True, slots=True)
    class Send(Op):
        form: ClassVar[str] = "{slots} over {channel}"
        is_rendezvous: ClassVar[bool] = True

        slots: SlotsUsed
        channel: ChannelWritten

    yield
    del Op._classes["Fetch"], Op._classes["Send"]


@pytest.mark.usefixtures("_more_ops")
def test_an_op_more_is_one_class():
    plan = Plan.from_text(TEXT)
    plan.check()
    assert str(plan) == TEXT.strip()
    assert Plan.from_json(plan.to_json()) == plan
    fetch, _, send, _ = plan.program("a0").ops
    assert (fetch.title(), send.title()) == ("fetch k3 c0", "send c1")
    assert (fetch.constants(), fetch.channels_in, send.channels_out) == (("k3",), ("c0",), ("c1",))


@pytest.mark.usefixtures("_more_ops")
def test_an_op_more_is_scheduled_simulated_and_shown():
    plan = Plan.from_text(TEXT)
    fetch, call, send, free = plan.program("a0").ops
    mixed = replace(plan.programs[1], ops=(send, call, fetch))
    driver = plan.programs[0]
    with pytest.raises(InternalError, match="s1 is used before it is filled"):
        schedule(replace(plan, programs=(driver, mixed)))
    late = replace(plan.programs[1], ops=(fetch, call, send))
    assert schedule(replace(plan, programs=(driver, late))).program("a0").ops == (
        fetch,
        call,
        send,
        free,
    )
    # Input and its Write, then Fetch at its own cost.
    took = {span.op: span.end - span.start for span in simulate(plan, executions=1).timeline[-4:]}
    assert took[0] == pytest.approx(3.0)
    assert shapes_of(plan.program("a0")).tolist()[:3:2] == [READ, WRITE]
    assert [edge.channel for edge in topology_of(plan).edges] == ["c0", "c1"]


@pytest.mark.usefixtures("_more_ops")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("  Fetch k3 c1 -> s0", "a0 is not a reader of c1"),
        ("  Fetch k3 c7 -> s0", "there is no channel c7"),
        ("  Fetch k3 c0 -> s1", "s0 is used before it is filled"),
        ("  Fetch k3 c0 -> s0\n  Read c0 -> s4", "c0 is read twice"),
    ],
)
def test_an_op_more_is_checked(line: str, why: str):
    plan = Plan.from_text(TEXT.replace("  Fetch k3 c0 -> s0", line))
    with pytest.raises(InternalError, match=why):
        plan.check()


@pytest.mark.usefixtures("_more_ops")
def test_the_fields_of_an_op_more_are_checked():
    plan = Plan.from_text(TEXT).to_json()
    with pytest.raises(ValueError, match="'7' is no id of a const"):
        Plan.from_json(plan.replace('"k3"', '"7"'))
    with pytest.raises(ValueError, match="expected a const at column 7"):
        Plan.from_text(TEXT.replace("k3", "c3"))
