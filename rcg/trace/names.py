# SPDX-License-Identifier: Apache-2.0
"""Names of events, for all forms in which a trace is exported.

The names of ops come from ``Op.word`` and ``Op.title``. This file must not know those forms.

>>> from rcg.ir.ops import Call, Read
>>> Read("c1", (0,)).title(), Call("a0", "fwd", (), (), (1,), 2).title({"a0": "Stage"})
('read c1', 'Stage.fwd')
"""

from __future__ import annotations

from rcg.ir.plan import Plan

SPAN = "span"
"""The word for a user's span. The words for ops are ``Op.word``."""

UNKNOWN = "unknown"
"""The word and the name of an op that its program does not have."""


def actor_labels(plan: Plan) -> dict[str, str]:
    """Return the class names of a plan's actors by their ids."""
    return {actor.id: actor.label for actor in plan.actors}
