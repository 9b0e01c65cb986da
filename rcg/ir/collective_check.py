# SPDX-License-Identifier: Apache-2.0
"""The checks of a graph's collectives and communicators: all ranks are there, and agree.

What users can do wrong is refused where they bind a collective (``rcg.dag.collective``); here a
graph is checked as data, whatever made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

from rcg.ir.edges import remote_readers
from rcg.ir.nodes import CollectiveCall, GraphData
from rcg.ir.ops import COLLECTIVES


def check_collectives(graph: GraphData) -> None:
    """Check the collectives of a graph whose nodes are known to refer to each other rightly.

    Raises:
        GraphError: One cannot be run as it is.
    """
    _Checker(graph).run()


class _Checker:
    """The checks, in an order in which each may rely on those before it."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph

    def run(self) -> None:
        self._check_collectives()
        self._check_communicators()

    def _fail(self, text: str, node_id: int | None = None) -> NoReturn:
        raise self._graph.error(text, node_id)

    def _check_collectives(self) -> None:
        groups: dict[int, list[CollectiveCall]] = {}
        for node in self._graph.nodes:
            if isinstance(node, CollectiveCall):
                groups.setdefault(node.collective, []).append(node)
        if list(groups) != list(range(len(groups))):
            self._fail(f"collectives are numbered from 0 in creation order, found {list(groups)}")
        for ranks in groups.values():
            self._check_ranks(ranks)
            for rank in ranks:
                self._check_rank(rank, len(ranks))

    def _check_ranks(self, ranks: list[CollectiveCall]) -> None:
        """Check that these are all ranks of one collective, and agree about what it is."""
        graph, first = self._graph, ranks[0]
        if [node.rank for node in ranks] != list(range(len(ranks))):
            self._fail(
                f"the ranks of {graph.describe(first.id)} must be 0 to {len(ranks) - 1} in the "
                f"order of their nodes, found {[node.rank for node in ranks]}",
                first.id,
            )
        if len({node.actor for node in ranks}) != len(ranks):
            self._fail(
                f"Expected unique actor handles, but {graph.describe(first.id)} has an actor twice",
                first.id,
            )
        for node in ranks:
            for name in ("kind", "num_returns", "reduction", "root", "communicates"):
                if getattr(node, name) != getattr(first, name):
                    self._fail(
                        f"the ranks of {graph.describe(node.id)} do not agree on its {name}: "
                        f"{getattr(first, name)!r} and {getattr(node, name)!r}",
                        node.id,
                    )

    def _check_rank(self, node: CollectiveCall, size: int) -> None:
        graph = self._graph
        name = graph.describe(node.id)
        kind = COLLECTIVES.get(node.kind)
        if kind is None:
            self._fail(f"{name}: there is no collective {node.kind!r}", node.id)
        if (node.reduction is not None) is not kind.is_reducing:
            self._fail(f"{name} has the reduction {node.reduction!r}", node.id)
        is_root_right = node.root is None
        if kind.has_root:
            is_root_right = node.root is not None and 0 <= node.root < size
        if not is_root_right:
            self._fail(f"{name} has {size} ranks and the root {node.root!r}", node.id)
        if node.num_returns < 1 or (node.num_returns > 1 and node.kind != "allreduce"):
            self._fail(f"{name} gives {node.num_returns} tensors", node.id)
        # Where another rank sends, a rank may come without a tensor.
        is_only_receiving = node.kind == "broadcast" and node.rank != node.root
        if len(node.args) != node.num_returns and not (is_only_receiving and not node.args):
            self._fail(
                f"{name} gives {node.num_returns} tensors and takes {len(node.args)}", node.id
            )
        for value in node.args:
            if graph.actor_of(value) != node.actor:
                self._fail(
                    f"{name} takes {graph.describe(value)}, which is not made by its actor",
                    node.id,
                )

    def _check_communicators(self) -> None:
        graph = self._graph
        members: dict[str, tuple[str, ...]] = {}
        sizes = Counter(node.collective for node in graph.nodes if isinstance(node, CollectiveCall))
        known = {actor.id for actor in graph.actors}
        for spec in graph.communicators:
            if spec.const in members:
                self._fail(f"the communicator {spec.const} is listed twice")
            if len(set(spec.members)) != len(spec.members) or not known.issuperset(spec.members):
                self._fail(
                    f"the communicator {spec.const} ({spec.backend}) must have each of its actors "
                    f"once, found {', '.join(spec.members)}"
                )
            members[spec.const] = spec.members
        for node, readers in zip(graph.nodes, remote_readers(graph), strict=True):
            if node.hint is not None and node.hint.communicator is not None:
                self._check_known(node.hint.communicator, members, node.id)
                self._check_ends(node.id, readers, members[node.hint.communicator])
            if isinstance(node, CollectiveCall) and node.communicates.communicator is not None:
                const = node.communicates.communicator
                self._check_known(const, members, node.id)
                if len(members[const]) != sizes[node.collective]:
                    self._fail(
                        "Expected actor handles to match the custom communicator group: "
                        f"{graph.describe(node.id)} has {sizes[node.collective]} ranks, {const} "
                        f"has {self._labels_text(members[const])}",
                        node.id,
                    )
                if members[const][node.rank : node.rank + 1] != (node.actor,):
                    self._fail(
                        f"{graph.describe(node.id)} is not rank {node.rank} of the communicator "
                        f"{const}",
                        node.id,
                    )

    def _check_known(self, const: str, members: Mapping[str, object], node_id: int) -> None:
        if const not in members:
            self._fail(
                f"{self._graph.describe(node_id)} uses the communicator {const}, which the graph "
                "does not list",
                node_id,
            )

    def _check_ends(self, node_id: int, readers: tuple[str, ...], members: tuple[str, ...]) -> None:
        """Check that a communicator has the actors between which it carries a value."""
        graph = self._graph
        writer = graph.actor_of(node_id)
        if writer is None or not readers or {writer, *readers} <= set(members):
            return
        self._fail(
            "The passed-in communicator must include all of the actors used in the P2P operation. "
            f"The passed-in communicator has actors {self._labels_text(members)} while "
            f"{graph.describe(node_id)} is used between actors "
            f"{self._labels_text((writer, *readers))}.",
            node_id,
        )

    def _labels_text(self, actors: tuple[str, ...]) -> str:
        labels = {actor.id: actor.label for actor in self._graph.actors}
        return ", ".join(f"{actor} ({labels[actor]})" for actor in actors)
