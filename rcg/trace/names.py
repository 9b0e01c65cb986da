# SPDX-License-Identifier: Apache-2.0
"""What events are called, in every form a trace is given away in: files, tables, other tools.

This room must know nothing of those forms.

>>> from rcg.ir.plan import Plan, Read
>>> kind_of(Read("c1", 0)), name_of(Read("c1", 0), {})
('read', 'read c1')
"""

from __future__ import annotations

from collections.abc import Mapping

from rcg.ir.plan import Build, Call, Free, Input, Op, Output, Plan, Read, Write

__all__ = ["SPAN", "UNKNOWN", "actor_labels", "kind_of", "name_of"]

SPAN = "span"
"""The kind of a user's span; the other kinds are those of ops."""

UNKNOWN = "unknown"
"""The kind and the name of an op that its program does not have."""


def kind_of(op: Op) -> str:
    """Return the kind of an op, one lower-case word: ``call``, ``read``, ``write``, ..."""
    return type(op).__name__.lower()


def name_of(op: Op, labels: Mapping[str, str]) -> str:
    """Return a short name: ``Stage.fwd`` for a call, else the kind and what it is about.

    Args:
        op: The op.
        labels: Names of actors by their ids, as ``actor_labels`` returns them.
    """
    match op:
        case Call():
            return f"{labels.get(op.actor, op.actor)}.{op.method}"
        case Read() | Write():
            return f"{kind_of(op)} {op.channel}"
        case Build():
            return f"build {op.template}"
        case Input(key=key):
            return "input" if key is None else f"input {key}"
        case Output() | Free():
            return kind_of(op)


def actor_labels(plan: Plan) -> dict[str, str]:
    """Return the class names of a plan's actors by their ids."""
    return {actor.id: actor.label for actor in plan.actors}
