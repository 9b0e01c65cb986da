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

from collections.abc import Iterable
from typing import Final

from rcg.ir.ids import Slot
from rcg.ir.index import Origin, Origins
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
    op, origins = plan.program(process).ops[at], Origins(plan)

    def named(found: Iterable[Origin]) -> str:
        names = list(dict.fromkeys(_name_of_value(origins, each) for each in found))
        more = len(names) - _MOST_VALUES
        return " and ".join([*names[:_MOST_VALUES], *([f"{more} more"] if more > 0 else [])])

    match op:
        case Call(method=method):
            return "keeping a result" if method == KEEP else f"{IN}{method}"
        case Collective():
            return f"{IN}{op.word}"
        case Read(channel=channel):
            return f"reading {named(origins.carried(channel))}"
        case Write(channel=channel):
            return f"sending {named(origins.carried(channel))}"
        case Pass(channel=channel):
            return f"passing on {named(origins.carried(channel)) or 'a status'}"
        case Copy(slot=slot):
            return f"copying {named(origins.of(process, slot))}"
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


def _name_of_value(origins: Origins, origin: Origin) -> str:
    maker = origins.maker(origin)
    match maker:
        case Call(method=method, args=(Slot(index=kept), *_)) if method == KEEP:
            return _name_of_value(origins, origins.of(origin.process, kept)[0])
        case Call(actor=actor, method=method):
            return f"the result of {actor}.{method}"
        case Input(key=None):
            return "the input"
        case Input(key=key):
            return f"the input {key}"
    return f"the result of {maker.word}"
