# SPDX-License-Identifier: Apache-2.0
"""Names of events, for every form in which a trace is exported: files, tables, other tools.

An op names itself (``Op.word``, ``Op.title``). This room must know nothing of those forms.

>>> from rcg.ir.ops import Call, Read
>>> Read("c1", (0,)).title(), Call("a0", "fwd", (), (), (1,), 2).title({"a0": "Stage"})
('read c1', 'Stage.fwd')
"""

from __future__ import annotations

from rcg.ir.plan import Plan

__all__ = ["SPAN", "UNKNOWN", "actor_labels"]

SPAN = "span"
"""The kind of a user's span; the other kinds are those of ops."""

UNKNOWN = "unknown"
"""The kind and the name of an op that its program does not have."""


def actor_labels(plan: Plan) -> dict[str, str]:
    """Return the class names of a plan's actors by their ids."""
    return {actor.id: actor.label for actor in plan.actors}
