# SPDX-License-Identifier: Apache-2.0
"""The transports that a user can choose: their names, and communicators that users made.

A user's communicator is an object written to the signature of Ray's ``Communicator``: it lists its
actors and their ranks, and is sent to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rcg import cluster


def actors_by_rank(communicator: Any) -> Sequence[Any]:
    """Return the handles of a user's communicator in the order of their ranks.

    Raises:
        ValueError: Its ranks are not 0, 1, ...
    """
    handles = list(communicator.get_actor_handles())
    ranks = [communicator.get_rank(handle) for handle in handles]
    if sorted(ranks) != list(range(len(handles))):
        raise ValueError(
            f"get_rank() of {type(communicator).__name__} must give its {len(handles)} actors the "
            f"ranks from 0 to {len(handles) - 1}, found {ranks}"
        )
    if len({cluster.actor_key(handle) for handle in handles}) != len(handles):
        raise ValueError(
            f"get_actor_handles() of {type(communicator).__name__} lists an actor twice: {handles}"
        )
    by_rank = dict(zip(ranks, handles, strict=True))
    return [by_rank[rank] for rank in range(len(handles))]


def positions_by_rank(communicator: Any | None, handles: Sequence[Any]) -> list[int]:
    """Return the positions of a collective's actors in the order of their ranks.

    A user's communicator has ranks of its own; without one, ranks are positions.

    Args:
        communicator: It has exactly these actors; or None.
        handles: The handles of the actors.
    """
    if communicator is None:
        return list(range(len(handles)))
    keys = [cluster.actor_key(handle) for handle in handles]
    return [keys.index(cluster.actor_key(each)) for each in actors_by_rank(communicator)]
