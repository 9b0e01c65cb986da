# SPDX-License-Identifier: Apache-2.0
"""Where a process is in its program, as a user says it, who knows methods and not slots.

Errors and reports say this; a plan that is printed has the notation of its ops.

>>> from rcg.ir.plan import Plan
>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'Stage' ''
... channel c0 driver -> a0 ring node=0 slots=10
... channel c1 a0 -> driver ring node=1 slots=10
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Read c1 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Call a0.work(s0) -> s1 #1
...   Write s1 -> c1
... ''')
>>> [phrase_of(plan, "a0", at) for at in range(3)]
['reading the input', 'in work', 'sending the result of a0.work']
>>> phrase_of(plan, "driver", 2), name_of(plan, plan.program("a0").ops[1])
('reading the result of a0.work', 'Stage.work')

This room must know neither the user's source nor what the process does there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rcg.ir.ids import Slot
from rcg.ir.nodes import KEEP
from rcg.ir.ops import (
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

IN: Final = "in "
"""What the phrase of a method and of a collective begins with."""

_MOST_VALUES: Final = 2  # that a phrase names


def phrase_of(plan: Plan, process: str, at: int) -> str:
    """Return where a process is that has reached an op of its program.

    It is ``in work`` or ``in allreduce``, and begins with a participle at all other ops.
    """
    op = plan.program(process).ops[at]
    match op:
        case Call(method=method):
            return "keeping a result" if method == KEEP else f"{IN}{method}"
        case Collective():
            return f"{IN}{op.word}"
        case Read(channel=channel):
            return f"reading {_joined(_carried(plan, channel))}"
        case Write(slots=slots):
            return f"sending {_joined(_values(plan, process, at, slots))}"
        case Pass(channel=channel):
            return f"passing on {_joined(_carried(plan, channel))}"
        case Copy(slot=slot):
            return f"copying {_joined(_values(plan, process, at, (slot,)))}"
        case Input():
            return "taking the input"
        case Build():
            return "building an argument"
        case Output():
            return "returning the results"
        case Free():
            return "dropping values"
    return op.title()


def name_of(plan: Plan, op: Op) -> str:
    """Return what errors call the node of a call or a collective: ``Stage.work``, ``allreduce``."""
    if isinstance(op, Collective):
        return op.word
    return op.title({actor.id: actor.label for actor in plan.actors})


def _joined(names: Iterator[str]) -> str:
    found = list(dict.fromkeys(names))
    more = len(found) - _MOST_VALUES
    return " and ".join([*found[:_MOST_VALUES], *([f"{more} more"] if more > 0 else [])])


def _carried(plan: Plan, channel: str) -> Iterator[str]:
    """Yield the names of the values that a channel carries."""
    writer = plan.channels_by_id()[channel].writer
    for at, op in enumerate(plan.program(writer).ops):
        if channel in op.values_out:
            yield from _values(plan, writer, at, op.used())


def _values(plan: Plan, process: str, at: int, slots: tuple[int, ...]) -> Iterator[str]:
    """Yield the names of the values that are in slots when a process is at an op."""
    ops = plan.program(process).ops
    for slot in slots:
        made = next((each for each in range(at - 1, -1, -1) if slot in ops[each].made()), None)
        if made is None:
            continue
        match op := ops[made]:
            case Call(method=method, args=(Slot(index=kept), *_)) if method == KEEP:
                yield from _values(plan, process, made, (kept,))
            case Call(actor=actor, method=method):
                yield f"the result of {actor}.{method}"
            case Collective():
                yield f"the result of {op.word}"
            case Input(key=None):
                yield "the input"
            case Input(key=key):
                yield f"the input {key}"
            case Read(channel=channel, outs=outs):
                carried = list(_carried(plan, channel))
                yield from carried if len(carried) != len(outs) else [carried[outs.index(slot)]]
            case Copy(slot=copied):
                yield from _values(plan, process, made, (copied,))
            case _:
                yield "a container"
