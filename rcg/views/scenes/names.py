# SPDX-License-Identifier: Apache-2.0
"""The names of ops in all scenes: what a bar is of, and which call of its method it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rcg.ir.index import groups_of
from rcg.ir.ops import Op, Pass
from rcg.ir.plan import Plan
from rcg.text import visible
from rcg.views.scene import Name


@dataclass(frozen=True)
class OpNames:
    """The names of the ops of a plan.

    Attributes:
        names: The name of each op, by process.
        is_other: Which ops are calls of another method than the first one of their actor.
        repeats: How often an actor calls one method in an execution, at most.
    """

    names: dict[str, tuple[Name, ...]]
    is_other: dict[str, tuple[bool, ...]]
    repeats: int

    @property
    def colour_words(self) -> str:
        """What a colour of a schedule means."""
        return "execution" if self.repeats == 1 else "execution and call, number = call"


def names_of(plan: Plan) -> OpNames:
    """Return the names of all ops of a plan."""
    calls = [
        (program.process, name_of(op).text)
        for program in plan.programs
        for op in program.ops
        if op.is_call
    ]
    repeats = max(Counter(calls).values(), default=1)
    initials = initials_of(text for _, text in calls)
    names, others = {}, {}
    for program in plan.programs:
        groups = groups_of(plan, program.process)
        seen: Counter[str] = Counter()
        found, is_other = [], []
        for op, group in zip(program.ops, groups, strict=True):
            name = name_of(op, group or "")
            if op.is_call:
                call = seen[name.text] if repeats > 1 else None
                seen[name.text] += 1
                name = Name(name.text, name.role, call=call, initial=initials.get(name.text, ""))
            is_other.append(op.is_call and name.text != next(iter(seen)))
            found.append(name)
        names[program.process], others[program.process] = tuple(found), tuple(is_other)
    return OpNames(names, others, repeats)


def name_of(op: Op, group: str = "") -> Name:
    """Return the name of an op."""
    passed = (op.channel,) if isinstance(op, Pass) else ()
    channels = (*op.values_in, *op.values_out, *passed)
    return Name(visible(op.title()), op.word, channels[0] if channels else "", group)


def initials_of(methods: Iterable[str]) -> dict[str, str]:
    """Return the initial of each method if these differ, and there are a few; else nothing."""
    initials = {method: method[:1].upper() for method in dict.fromkeys(methods)}
    return initials if 1 < len(initials) == len(set(initials.values())) <= 4 else {}
