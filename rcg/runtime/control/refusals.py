# SPDX-License-Identifier: Apache-2.0
"""How many connections from other nodes were refused, and why.

Anybody who reaches the port may connect: a port scan, a program that got a wrong address, a process
of a graph that has ended, somebody who has no business there. None of them disturbs a graph, but
whoever looks for a connection that does not come about wants to know of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

__all__ = ["Reason", "Refusals", "Tally"]

Reason = Literal["wrong_secret", "unknown_graph", "garbage", "silent", "flood"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The connections over TCP that an endpoint has refused so far, by reason.

    Attributes:
        wrong_secret: They did not prove to know the secret of the graph that they named.
        unknown_graph: They named a graph that this process does not have, or not any more.
        garbage: They sent something else than messages of rcg, or not those that begin a
            connection.
        silent: They said nothing, or not all of a message, in time, or hung up before.
        flood: They made room for others, because too many were silent at once.
    """

    wrong_secret: int = 0
    unknown_graph: int = 0
    garbage: int = 0
    silent: int = 0
    flood: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.wrong_secret + self.unknown_graph + self.garbage + self.silent + self.flood

    def __str__(self) -> str:
        found = [
            f"{count} {reason.replace('_', ' ')}" for reason, count in asdict(self).items() if count
        ]
        return ", ".join(found) or "none"


class Tally:
    """Counts refusals; one thread counts, any thread reads.

    Attributes:
        so_far: What was counted.
    """

    __slots__ = ("so_far",)

    def __init__(self) -> None:
        self.so_far = Refusals()

    def count(self, reason: Reason) -> None:
        """Count one more."""
        self.so_far = replace(self.so_far, **{reason: getattr(self.so_far, reason) + 1})
