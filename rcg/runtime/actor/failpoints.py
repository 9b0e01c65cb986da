# SPDX-License-Identifier: Apache-2.0
"""Failpoints: named points in an actor's loop at which a test can intervene.

A test sets ``on_failpoint`` in the actor's process before it compiles. A loop that was made while
it is None contains nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from rcg.ir.ops import Op


class Failpoint(NamedTuple):
    """A named point that a loop has reached.

    Attributes:
        kind: "inspect" (the driver asks for the facts of this actor), "start" (before the loop
            connects to the driver), "groups" (before it opens its communicator groups), "op"
            (before an op of the program), "status" (in a collective: the other ranks know the
            status of this one), "transfer" (before an operation of a communicator), "stop" (after
            the last op, before the driver gets to know).
        process: Its name in the plan; "" while it is being described.
        execution: Index of the execution.
        op: The op that comes next, for "op".
        has_tensors: Whether that op uses a communicator.
    """

    kind: Literal["inspect", "host", "start", "groups", "op", "status", "transfer", "stop"]
    process: str = ""
    execution: int = 0
    op: Op | None = None
    has_tensors: bool = False


on_failpoint: Callable[[Failpoint], None] | None = None


def reach(failpoint: Failpoint) -> None:
    """Call ``on_failpoint``, if a test has set it; not for the hot path."""
    if on_failpoint is not None:
        on_failpoint(failpoint)
