# SPDX-License-Identifier: Apache-2.0
"""Moments in the life of an actor's loop, at which tests have something happen.

A test sets ``on_moment`` in the actor's process before it compiles; a loop that was made while it
is None contains nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from rcg.plan import Op

__all__ = ["Moment", "on_moment", "reach"]


class Moment(NamedTuple):
    """Where the loop of one process of a graph stands.

    Attributes:
        kind: "describe" (the driver asks what this actor is), "start" (before the loop connects to
            the driver), "op" (before an op of the program), "stop" (after the last one, before the
            driver is told).
        process: Its name in the plan; "" while it is being described.
        execution: Index of the execution.
        op: The op that comes next, for "op".
    """

    kind: Literal["describe", "start", "op", "stop"]
    process: str = ""
    execution: int = 0
    op: Op | None = None


on_moment: Callable[[Moment], None] | None = None


def reach(moment: Moment) -> None:
    """Call what a test has set, if anything; not for the hot path."""
    if on_moment is not None:
        on_moment(moment)
