# SPDX-License-Identifier: Apache-2.0
"""How many connections were refused, and why.

Anybody who reaches the port or the address may connect: a port scan, a program that got a wrong
address, a process of a graph that has ended, somebody who has no business there. None of them
disturbs a graph, but whoever looks for a connection that does not come about wants to know of them.
So they are counted, and those that cannot be a mistake of rcg's own are logged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from rcg.log import Log

__all__ = ["Reason", "Refusals", "Tally"]

_log = Log()

Reason = Literal["wrong_secret", "unknown_graph", "garbage", "silent", "flood", "other_user"]

_LOGGED: Final[dict[Reason, str]] = {
    "wrong_secret": "it did not prove to know the secret",
    "garbage": "it sent something else than messages of rcg",
    "other_user": "only this user's processes may connect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The connections that an endpoint has refused so far, by reason.

    Attributes:
        wrong_secret: They did not prove to know the secret of the graph that they named.
        unknown_graph: They named a graph that this process does not have, or not any more.
        garbage: They sent something else than messages of rcg, or not those that begin a
            connection.
        silent: They said nothing, or not all of a message, in time, or hung up before.
        flood: They made room for others, because too many were silent at once.
        other_user: They came from a process of another user, on this node.
    """

    wrong_secret: int = 0
    unknown_graph: int = 0
    garbage: int = 0
    silent: int = 0
    flood: int = 0
    other_user: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(asdict(self).values())

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

    def count(self, reason: Reason, peer: str = "a process") -> None:
        """Count one more, and log it; the log gets fewer of them the more there were.

        Args:
            reason: Why it was refused.
            peer: Where it came from.
        """
        count = getattr(self.so_far, reason) + 1
        self.so_far = replace(self.so_far, **{reason: count})
        why = _LOGGED.get(reason)
        if why is not None and count & (count - 1) == 0:  # a power of two
            text = "rcg: refused a connection from %s: %s (%d such connections so far)"
            _log.warning(text, peer, why, count)
