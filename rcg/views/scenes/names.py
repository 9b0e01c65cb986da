# SPDX-License-Identifier: Apache-2.0
"""The names of ops in all scenes: what a bar is of, and which call of its method it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rcg.ir.index import groups_of
from rcg.ir.ops import Op, Pass
from rcg.ir.plan import Plan
from rcg.text import visible
from rcg.views.scene import Name


@dataclass(frozen=True)
class OpNames:
    """The names of the ops of a plan, by process, and how often an actor calls one method at most.

    That is in an execution.
    """

    names: Mapping[str, tuple[Name, ...]]
    repeats: int


def names_of(plan: Plan) -> OpNames:
    """Return the names of all ops of a plan."""
    own = {program.process: [name_of(op) for op in program.ops] for program in plan.programs}
    calls = [(process, x.text) for process, found in own.items() for x in found if x.role == "call"]
    repeats = max(Counter(calls).values(), default=1)
    initials = initials_of(text for _, text in calls)
    for program in plan.programs:
        found = own[program.process]
        groups = groups_of(plan, program.process)
        seen: Counter[str] = Counter()
        for at, (name, group) in enumerate(zip(found, groups, strict=True)):
            if name.role == "call":
                call = seen[name.text] if repeats > 1 else None
                seen[name.text] += 1
                initial, is_other = initials.get(name.text, ""), name.text != next(iter(seen))
                found[at] = replace(name, call=call, initial=initial, is_other=is_other)
            elif group:
                found[at] = replace(name, group=group)
    return OpNames({process: tuple(found) for process, found in own.items()}, repeats)


def name_of(op: Op) -> Name:
    """Return the name of an op."""
    passed = (op.channel,) if isinstance(op, Pass) else ()
    channels = (*op.values_in, *op.values_out, *passed)
    return Name(visible(op.title()), op.word, *channels[:1])


def initials_of(methods: Iterable[str]) -> dict[str, str]:
    """Return the initial of each method if these differ, and there are a few; else nothing."""
    initials = {method: method[:1].upper() for method in dict.fromkeys(methods)}
    return initials if 1 < len(initials) == len(set(initials.values())) <= 4 else {}
