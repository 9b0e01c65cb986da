# SPDX-License-Identifier: Apache-2.0
"""Communicators that users made, and the default one of a graph: where the user chose none.

A user's communicator is an object written to the signature of Ray's ``Communicator``: it lists its
actors and their ranks, and is sent to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rcg import cluster
from rcg.comm import rays
from rcg.dag.hints import Hint
from rcg.dag.records import CollectiveRecord, label_of
from rcg.errors import GraphError
from rcg.ir.nodes import GraphData, is_communicator, remote_readers

_INSTEAD: Final = (
    "or specify a communicator or 'create' for _default_communicator when calling "
    "experimental_compile()."
)


def actors_by_rank(communicator: Any) -> list[Any]:
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

    A user's communicator, which has exactly these actors, gives the ranks; without one (None),
    ranks are positions.
    """
    if communicator is None:
        return list(range(len(handles)))
    keys = [cluster.actor_key(handle) for handle in handles]
    return [keys.index(cluster.actor_key(each)) for each in actors_by_rank(communicator)]


@dataclass(frozen=True, slots=True, eq=False)
class DefaultCommunicator:
    """What the user gave as ``_default_communicator``.

    Attributes:
        is_created: Whether communicators are created where the user chose none.
        communicator: The user's own, which serves collectives for which the user chose none.
    """

    is_created: bool
    communicator: Any = None

    @classmethod
    def of(cls, given: object) -> DefaultCommunicator:
        """Return the default for a user's value; raises ValueError if it is none."""
        if given is None:
            return cls(is_created=False)
        if isinstance(given, str):
            if given == "create":
                return CREATE
            raise ValueError(
                "The only allowed string for default_communicator is 'create', got "
                f"{given!r} for _default_communicator"
            )
        if not rays.is_communicator(given):
            missing = rays.missing_methods(given)
            lacks = f", which lacks {', '.join(missing)}" if missing else ""
            raise ValueError(
                "The default_communicator must be None, a string, or a Communicator, got "
                f"{type(given)}{lacks}, for _default_communicator"
            )
        actors_by_rank(given)
        return cls(is_created=False, communicator=given)

    def for_collective(self, record: CollectiveRecord) -> Hint:
        """Return the transport of a collective, with the default in place of no choice.

        Raises:
            GraphError: There is none, or the default has other actors than the collective.
        """
        hint = record.transport
        if hint.communicator is not None:
            return hint
        if self.communicator is not None and hint.transport == "auto":
            self._check_actors(record)
            name = type(self.communicator).__name__
            return replace(hint, transport=name, communicator=self.communicator)
        if not self.is_created and self.communicator is None:
            raise GraphError(
                f"DAGNode {label_of(record)} has no custom communicator specified. Please specify "
                f"a custom communicator for the DAGNode using its `transport`, {_INSTEAD}",
                node=record.name,
                site=record.site,
            )
        return hint  # the compiler resolves "auto", when it knows who has which GPU

    def _check_actors(self, record: CollectiveRecord) -> None:
        own = [member.handle for member in record.members]
        others = actors_by_rank(self.communicator)
        if set(map(cluster.actor_key, own)) != set(map(cluster.actor_key, others)):
            raise GraphError(
                "The passed-in communicator must have the same set of actors as the collective "
                f"operation. The passed-in communicator has actors {others} while the collective "
                f"operation {label_of(record)} has actors {own}.",
                node=record.name,
                site=record.site,
            )

    def check_hints(self, graph: GraphData) -> None:
        """Raise GraphError if a hint needs a communicator that may not be created."""
        if self.is_created or self.communicator is not None:
            return
        for node, readers in zip(graph.nodes, remote_readers(graph), strict=True):
            hint = node.hint
            if hint is None or hint.communicator is not None or not readers:
                continue
            if is_communicator(hint):
                raise GraphError(
                    f"DAGNode {graph.describe(node.id)} has no custom communicator specified, but "
                    f"with_tensor_transport({hint.transport!r}) at {hint.site} needs one, which "
                    "_default_communicator=None does not let rcg create. Please specify a custom "
                    "communicator for the DAGNode using `with_tensor_transport()`: an object, not "
                    f"a name; {_INSTEAD}",
                    node=graph.name(node.id),
                    site=hint.site,
                )

    def check_auto(self, graph: GraphData, resolved: GraphData) -> None:
        """Raise GraphError if an ``auto`` became a communicator that may not be created.

        Args:
            graph: The graph with what the user chose.
            resolved: The same with what ``auto`` is between these actors.
        """
        if self.is_created or self.communicator is not None:
            return
        for node, found in zip(graph.nodes, resolved.nodes, strict=True):
            if node.hint is not None and found.hint is not None and node.hint != found.hint:
                raise GraphError(
                    f"with_tensor_transport('auto') at {node.hint.site} is used for DAGNode "
                    f"{graph.describe(node.id)}, and between the GPUs of these actors it is "
                    f"{found.hint.transport}. This requires specifying a default communicator or "
                    "'create' for _default_communicator when calling experimental_compile(); "
                    "with_tensor_transport('shm') needs none.",
                    node=graph.name(node.id),
                    site=node.hint.site,
                )


CREATE: Final = DefaultCommunicator(is_created=True)
