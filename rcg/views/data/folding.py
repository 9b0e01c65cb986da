# SPDX-License-Identifier: Apache-2.0
"""A topology folded to what fits on a page: cards of actors, with a box for each of their methods.

There are three levels. On ``calls``, each call has a box of its own. On ``actors``, the calls of
one method of one actor have one box. On ``methods``, actors that do the same for the same are one
card as well::

    calls                        actors                 methods

    ┌ a0 ────┐                   ┌ a0 ────────┐         ┌ Shard x26 ─┐
    │ work   │ ... 25 more cards │ work x2    │ ...     │ work x2    │
    │ work   │                   └────────────┘         └────────────┘
    └────────┘

An actor whose methods straddle a collective, an all-to-all, or what it scatters and gathers, has a
card for each phase: one for what it does before the others meet, one for what it does after. So
values flow in one direction through the collective, which then reads as a place where all meet::

    phases                                    one card for each actor

    ┌ a0 ──┐             ┌ a0 ──┐             ┌ a0 ──┐
    │ grad │─┐         ┌─│ step │             │ grad │──┐
    └──────┘ │allreduce│ └──────┘             │ step │<─┤allreduce
    ┌ a1 ──┐ │         │ ┌ a1 ──┐             └──────┘  │
    │ grad │─┘         └─│ step │             ... and the same for a1, across these lines
    └──────┘             └──────┘

The graph of calls has no cycle, but that of cards has: the gradients of a pipeline flow back, two
actors may take turns. So cards have an order, that of their first calls, and a line against it is
drawn backward. The layer of a card is the longest path to it over the other lines.

Actors do the same for the same if neither their class, their methods and their depth nor those of
their neighbours, of the neighbours of these, and so on, tell them apart (the coarsest equitable
partition, found by colour refinement).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rcg.ir.ids import DRIVER
from rcg.views.data.topology import NodeKind, Topology, TopologyEdge, TopologyNode

Level = Literal["methods", "actors", "calls"]

LEVELS: Final[tuple[Level, ...]] = ("methods", "actors", "calls")
"""From the most to the least folded."""

Layout = Literal["phases", "actors"]
"""Whether actors have a card for each phase between collectives, or one for all."""

CardKind = Literal["input", "actor", "collective", "output"]

_MAX_ALIKE: Final = (8, 4, 2)
"""How many alike actors are drawn one by one: the first with few enough cards."""

_MAX_CARDS: Final = 40
_MAX_PHASES: Final = 4  # of an actor; with a collective in each layer, it has one card
_SEVERAL: Final = 2  # actors that exchange values with one, at least
_MAX_ATTRIBUTES: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A box: a method, an input or an output, a collective; ``id`` is its position in ``Folded``.

    Its nodes are in the order of the topology. Those that are parts of others are not among them.
    """

    id: int
    card: int
    kind: NodeKind
    nodes: tuple[TopologyNode, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """An actor or several alike ones, the input, the output, or the collectives of a group.

    Attributes:
        id: Its position in ``Folded.cards``.
        processes: The actors. They may have other cards, for other phases.
        frame: The node of the cluster that it is on; see ``Topology.frame_of``.
        layer: Its column, from 0. Cards that are connected are in different ones.
    """

    id: int
    kind: CardKind
    processes: tuple[str, ...]
    rows: tuple[Row, ...]
    frame: str | None
    layer: int


@dataclass(frozen=True, slots=True)
class Line:
    """The values that one row takes from another, which is in the same card for those inside it.

    ``kind`` is how most of them travel; ``is_back``, whether the target is to the left.
    """

    source: int
    target: int
    kind: str
    edges: tuple[TopologyEdge, ...]
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded topology.

    Cards are in the order of their first calls, the input first and the output last; rows by card
    and from top to bottom. At most one line leads from one box to another.
    """

    topology: Topology
    cards: tuple[Card, ...]
    rows: tuple[Row, ...]
    lines: tuple[Line, ...]

    def card_of(self, row: int) -> Card:
        """Return the card of a row."""
        return self.cards[self.rows[row].card]

    def is_inside(self, line: Line) -> bool:
        """Return whether both ends of a line are in one card."""
        return self.rows[line.source].card == self.rows[line.target].card


def fold(
    topology: Topology,
    level: Level = "methods",
    layout: Layout = "phases",
    odd: Collection[str] = (),
) -> Folded:
    """Return a topology folded to a level; odd actors are cards of their own."""
    layers = layers_of(topology)
    phases = _phases(topology, layers) if layout == "phases" else {}
    boxes, links = _boxes(topology, level, phases)
    by_card: dict[Hashable, list[Box]] = {}
    for box in boxes:
        by_card.setdefault((_card_key(box[0]), phases.get(box[0].id)), []).append(box)
    groups = list(by_card.values())
    if level == "methods":
        groups = _merged(topology, layers, groups, links, odd)
    groups.sort(key=lambda group: _order(layers, group))
    places = {actor.id: place for place, actor in enumerate(topology.actors)}
    cards: list[Card] = []
    rows: list[Row] = []
    row_of: dict[Box, int] = {}
    for number, group in enumerate(groups):
        together: dict[Hashable, list[Box]] = {}
        for box in sorted(group, key=lambda box: (layers[box[0].id], box[0].id)):
            # The boxes of alike actors are one row.
            together.setdefault(box[0].name if level == "methods" else box, []).append(box)
        own = []
        for members in together.values():
            nodes = tuple([node for box in members for node in box])
            row_of.update(dict.fromkeys(members, len(rows)))
            own.append(Row(len(rows), number, nodes[0].kind, nodes))
            rows.append(own[-1])
        first = own[0].nodes[0]
        processes = {node.process for row in own for node in row.nodes} & places.keys()
        ordered = tuple(sorted(processes, key=places.__getitem__))
        kind = _CARD_KINDS[first.kind]
        cards.append(Card(number, kind, ordered, tuple(own), topology.frame_of(first), 0))
    lines = _lines(rows, row_of, links)
    pairs = [(rows[each.source].card, rows[each.target].card) for each in lines]
    depths = _depths(len(cards), pairs)
    depths[-1] = max(depths[-1], _after_collectives(cards, pairs, depths))
    cards = [replace(card, layer=depths[card.id]) for card in cards]
    return Folded(topology, tuple(cards), tuple(rows), tuple(lines))


def _phases(topology: Topology, layers: Sequence[int]) -> dict[int, int]:
    """Return how often actors meet before each call and collective, where they do.

    They meet in a collective, and in a call that takes values of several actors which take values
    of its own, as in an all-to-all, or where an actor gathers what it scattered. Not if that would
    divide an actor into many parts.
    """
    nodes = topology.nodes
    before = [0] * len(nodes)
    gathering = _gathering(topology)
    for edge in sorted(topology.edges, key=lambda edge: (layers[edge.source], edge.source)):
        is_met = nodes[edge.source].kind == "collective" or edge.target in gathering
        before[edge.target] = max(before[edge.target], before[edge.source] + is_met)
    found = {
        node.id: before[node.id]
        for node in nodes
        if node.kind in ("call", "collective") and before[node.id]
    }
    parts: dict[str, set[int]] = {}
    for node in nodes:
        if node.kind == "call":
            parts.setdefault(node.process, set()).add(before[node.id])
    return found if all(len(each) <= _MAX_PHASES for each in parts.values()) else {}


def _gathering(topology: Topology) -> set[int]:
    """Return the calls that take values of several actors, each of which takes one of its own."""
    nodes = topology.nodes
    takes: dict[int, set[str]] = {}  # from whom each call takes values
    gives: dict[str, set[str]] = {}  # to whom each actor does
    for edge in topology.edges:
        maker, taker = nodes[edge.source], nodes[edge.target]
        if taker.kind == "call" and maker.process not in ("", DRIVER, taker.process):
            takes.setdefault(taker.id, set()).add(maker.process)
            gives.setdefault(maker.process, set()).add(taker.process)
    return {
        call
        for call, makers in takes.items()
        if len(makers & gives.get(nodes[call].process, set())) >= _SEVERAL
    }


Box = tuple[TopologyNode, ...]
"""The nodes that one actor has in one box."""

Links = Mapping[tuple[Box, Box], Sequence[TopologyEdge]]

_CARD_KINDS: Final[Mapping[NodeKind, CardKind]] = {
    "input": "input",
    "attribute": "input",
    "call": "actor",
    "collective": "collective",
    "output": "output",
}


def _boxes(topology: Topology, level: Level, phases: Mapping[int, int]) -> tuple[list[Box], Links]:
    """Return the boxes, in the order of their first nodes, and the edges between them."""
    nodes = topology.nodes
    edges = [edge for edge in topology.edges if nodes[edge.target].owner != edge.source]
    attributes = sum(node.kind == "attribute" for node in nodes)
    used = {end for edge in edges for end in (edge.source, edge.target)}
    found: dict[Hashable, list[TopologyNode]] = {}
    for node in nodes:
        if node.kind == "part" or (node.kind == "input" and attributes and node.id not in used):
            continue
        is_alone = level == "calls" or node.kind == "attribute"
        if node.kind == "attribute" and level != "calls" and attributes > _MAX_ATTRIBUTES:
            key: Hashable = node.kind
        else:
            phase = phases.get(node.id)
            key = node.id if is_alone else (node.kind, _card_key(node), node.name, phase)
        found.setdefault(key, []).append(node)
    boxes = [tuple(box) for box in found.values()]
    box_of = {node.id: box for box in boxes for node in box}
    links: dict[tuple[Box, Box], list[TopologyEdge]] = {}
    for edge in edges:
        source = nodes[edge.source]
        maker = source.owner if source.kind == "part" and source.owner is not None else source.id
        links.setdefault((box_of[maker], box_of[edge.target]), []).append(edge)
    return boxes, links


def _card_key(node: TopologyNode) -> Hashable:
    """Return what the nodes of one card have in common."""
    return (
        _CARD_KINDS[node.kind],
        node.process,
        node.group,
        node.kind == "collective" and node.group is None,
    )


def _order(layers: Sequence[int], group: Sequence[Box]) -> tuple[int, ...]:
    """Return a sort key for cards: by their first calls, between the input and the output."""
    kind = group[0][0].kind
    place = {"input": 0, "attribute": 0, "output": 2}.get(kind, 1)
    return (place, *min((layers[box[0].id], box[0].id) for box in group))


def _merged(
    topology: Topology,
    layers: Sequence[int],
    groups: Sequence[list[Box]],
    links: Links,
    odd: Collection[str],
) -> list[list[Box]]:
    """Return the cards, those of many alike actors as one."""
    labels = {actor.id: actor.label for actor in topology.actors}
    owner = {box: number for number, group in enumerate(groups) for box in group}
    colours: list[Hashable] = []
    for number, group in enumerate(groups):
        node = group[0][0]
        what = sorted((layers[box[0].id], box[0].name, len(box)) for box in group)
        own = number if node.kind != "call" else (labels[node.process], topology.frame_of(node))
        colours.append((own, tuple(what)))
    shades = _numbered(colours)
    while True:
        seen: list[Counter[Hashable]] = [Counter() for _ in groups]
        for (source, target), edges in links.items():
            here, there, names = owner[source], owner[target], (source[0].name, target[0].name)
            seen[here]["out", shades[there], *names] += len(edges)
            seen[there]["in", shades[here], *names] += len(edges)
        finer = _numbered(
            [(shade, frozenset(each.items())) for shade, each in zip(shades, seen, strict=True)]
        )
        if max(finer) == max(shades):
            break
        shades = finer
    # Of alike actors, those with which the same is wrong are drawn together.
    kinds = [_kind_of_mark(topology, group[0][0]) for group in groups]
    alike = list(zip(shades, kinds, strict=True))
    sizes = Counter(alike)
    for most in _MAX_ALIKE:
        if sum(1 if size > most else size for size in sizes.values()) <= _MAX_CARDS:
            break
    merged: dict[Hashable, list[Box]] = {}
    for number, (likeness, group) in enumerate(zip(alike, groups, strict=True)):
        is_merged = sizes[likeness] > most and group[0][0].process not in odd
        key = likeness if is_merged else ("alone", number)
        merged.setdefault(key, []).extend(group)
    return list(merged.values())


def _kind_of_mark(topology: Topology, node: TopologyNode) -> str:
    mark = topology.marks.get(node.process)
    return "" if mark is None else mark.kind


def _numbered(values: Sequence[Hashable]) -> list[int]:
    """Return small numbers that are equal where the values are."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _lines(rows: Sequence[Row], row_of: Mapping[Box, int], links: Links) -> list[Line]:
    between: dict[tuple[int, int], list[TopologyEdge]] = {}
    for (source, target), edges in links.items():
        between.setdefault((row_of[source], row_of[target]), []).extend(edges)
    found = []
    for (here, there), edges in sorted(between.items()):
        kind = Counter(edge.kind for edge in edges).most_common(1)[0][0]
        is_back = rows[here].card > rows[there].card
        found.append(Line(here, there, kind, tuple(edges), is_back))
    return found


def _depths(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the longest path to each card over lines that all lead to a later one."""
    depths = [0] * count
    for low, high in sorted((min(pair), max(pair)) for pair in pairs):
        if low != high:
            depths[high] = max(depths[high], depths[low] + 1)
    return depths


def _after_collectives(
    cards: Sequence[Card], pairs: Sequence[tuple[int, int]], depths: Sequence[int]
) -> int:
    """Return the first layer to the right of the collectives of what the output takes values from.

    They come before it in an execution, although no line may say so.
    """
    sources = {here for here, there in pairs if there == len(cards) - 1}
    near = [pair for pair in pairs if not sources.isdisjoint(pair)]
    met = [depths[end] for pair in near for end in pair if cards[end].kind == "collective"]
    return max(met, default=-1) + 1


def layers_of(topology: Topology) -> list[int]:
    """Return the layer of each node: the length of the longest path to it.

    An owned node has the layer of its owner.
    """
    unit = [node.id if node.owner is None else node.owner for node in topology.nodes]
    waits_for = [0] * len(unit)
    takers: list[list[int]] = [[] for _ in unit]
    for edge in topology.edges:
        source, target = unit[edge.source], unit[edge.target]
        if source != target:
            takers[source].append(target)
            waits_for[target] += 1
    layers = [0] * len(unit)
    ready = [node for node in dict.fromkeys(unit) if not waits_for[node]]
    for node in ready:
        for taker in takers[node]:
            layers[taker] = max(layers[taker], layers[node] + 1)
            waits_for[taker] -= 1
            if not waits_for[taker]:
                ready.append(taker)
    return [layers[node] for node in unit]
