# SPDX-License-Identifier: Apache-2.0
"""How every value of a graph travels: the channels, and the groups that carry tensors.

A value that only its own process uses stays in a slot. Every other reader gets it from a channel,
and which one follows from the hint of the value (``with_tensor_transport``):

| reader | no hint, ``auto``, ``shm`` | a communicator: ``gloo``, or the user's own |
|---|---|---|
| the driver, or anyone if the driver writes | a ring | a ring (``driver_edges`` lists these) |
| an actor | a ring | a tensor channel |

Where the readers are makes no difference here: frames of rings cross to other nodes over TCP.

All readers of a value share a ring. All readers of a tensor channel share it as well: it is a
broadcast over a group of exactly its ends. A user's communicator that has more members cannot
broadcast to some of them, so there each reader has a channel.

Values that are ready at the same point for the same readers share a ring: the inputs of an
execution, and the values of a call that returns several. They travel in one frame, which costs one
wake-up and not one for each. Values whose tensors arrive on different devices travel apart.

Groups, in this order:

* a collective uses the group of its actors in the order of their ranks;
* a broadcast uses the first group that has exactly its ends as members;
* an edge with one reader uses the first group that includes both ends. One more group serves all
  edges, of one backend, that are left; or several, where GPUs forbid one.

This room must know neither programs nor how channels and communicators work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rcg.compiler.transports import Gpus
from rcg.ir.channels import RING, STATUS, TENSOR, ChannelSpec, Group
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import (
    CollectiveCall,
    InputValue,
    MethodCall,
    Node,
    Part,
    Site,
    TensorHint,
    is_communicator,
    upstream_of,
)


@dataclass(frozen=True, slots=True)
class Routes:
    """The channels and groups of a graph.

    Attributes:
        channels: All channels.
        groups: All groups.
        arriving: The channel by which a reader gets a value, by node and reader.
        leaving: The channels by which a value leaves its process, by node.
        status: The channel by which a rank of a collective tells its status, by the node of the
            rank; none in a group of one.
        group_of: The group of each collective.
    """

    channels: tuple[ChannelSpec, ...]
    groups: tuple[Group, ...]
    arriving: Mapping[tuple[int, str], ChannelSpec]
    leaving: Mapping[int, Sequence[ChannelSpec]]
    status: Mapping[int, ChannelSpec]
    group_of: Mapping[int, Group]


def find_routes(graph: Graph, channel_slots: int, gpus: Gpus) -> Routes:
    """Decide how every value travels.

    Args:
        graph: The checked graph, with a transport in place of each ``auto``.
        channel_slots: How many frames each channel holds.
        gpus: The GPUs of the actors.
    """
    return _Search(graph, channel_slots, gpus).routes()


class _Carrier(NamedTuple):
    """Values that travel in one channel, and what makes it one; ``value`` is None for rings."""

    kind: str
    writer: str
    readers: tuple[str, ...]
    made_at: int | None = None
    value: int | None = None
    group: str | None = None
    device: str = "default"
    is_static_shape: bool = False
    is_direct_return: bool = False


class _Search:
    """The tables of one search. Everything is visited in creation order."""

    def __init__(self, graph: Graph, channel_slots: int, gpus: Gpus) -> None:
        self._graph = graph
        self._slots = channel_slots
        self._home = [graph.actor_of(node.id) or DRIVER for node in graph.nodes]
        self._readers = self._find_readers()
        self._groups = _Groups(graph, gpus)
        self._group_of = {
            number: self._groups.of_collective(ranks)
            for number, ranks in graph.collectives().items()
        }
        self._over_groups = self._find_tensor_edges()

    def _find_readers(self) -> list[tuple[str, ...]]:
        """The other processes that use each node's value: the driver, then actors by number."""
        graph = self._graph
        found: list[set[str]] = [set() for _ in graph.nodes]
        for node in graph.nodes:
            if isinstance(node, MethodCall | CollectiveCall):
                for value in upstream_of(node):
                    found[value].add(node.actor)
        for output in graph.outputs:
            found[output].add(DRIVER)
        processes = [DRIVER, *(actor.id for actor in graph.actors)]
        rank = {process: position for position, process in enumerate(processes)}
        return [
            tuple(sorted(each - {home}, key=rank.__getitem__))
            for each, home in zip(found, self._home, strict=True)
        ]

    def _find_tensor_edges(self) -> dict[int, list[tuple[tuple[str, ...], Group]]]:
        """The readers and the group of each tensor channel of a value, by its node."""
        found: dict[int, list[tuple[tuple[str, ...], Group]]] = {}
        # Edges with one reader, by backend.
        left: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for node in self._graph.nodes:
            hint = node.hint
            readers = () if hint is None else self._actor_readers(node.id, hint)
            if hint is None or not readers:
                continue
            ends = {self._home[node.id], *readers}
            if hint.communicator is not None:
                group = self._groups.of_user(hint.communicator)
                is_one = len(readers) == 1 or ends == set(group.members)
                each = [readers] if is_one else [(reader,) for reader in readers]
                found[node.id] = [(some, group) for some in each]
            elif len(readers) > 1:
                found[node.id] = [(readers, self._groups.of_exactly(hint.transport, ends))]
            else:
                left.setdefault(hint.transport, []).append((node.id, readers))
        for backend, nodes in left.items():
            edges = [{self._home[node], *readers} for node, readers in nodes]
            self._groups.cover(backend, edges)
            for (node_id, readers), ends in zip(nodes, edges, strict=True):
                found[node_id] = [(readers, self._groups.group_with(backend, ends))]
        return found

    def _actor_readers(self, node_id: int, hint: TensorHint) -> tuple[str, ...]:
        """The readers of a value that get it over a communicator."""
        is_over_communicator = hint.communicator is not None or is_communicator(hint)
        if not is_over_communicator or self._home[node_id] == DRIVER:
            return ()
        return tuple([reader for reader in self._readers[node_id] if reader != DRIVER])

    def routes(self) -> Routes:
        status: dict[int, _Carrier] = {}
        together: dict[_Carrier, list[int]] = {}
        for node in self._graph.nodes:
            if isinstance(node, CollectiveCall):
                others = self._others(node)
                if others:
                    status[node.id] = _Carrier(STATUS, node.actor, others, value=node.id)
                    together[status[node.id]] = [node.id]
            for carrier in self._carriers(node):
                together.setdefault(carrier, []).append(node.id)
        channels = {
            carrier: ChannelSpec(
                f"c{number}",
                carrier.writer,
                carrier.readers,
                carrier.kind,
                tuple(nodes),
                self._slots,
                carrier.group,
                carrier.device,
                carrier.is_static_shape,
                carrier.is_direct_return,
            )
            for number, (carrier, nodes) in enumerate(together.items())
        }
        leaving: dict[int, list[ChannelSpec]] = {}
        arriving: dict[tuple[int, str], ChannelSpec] = {}
        for channel in channels.values():
            if channel.kind != STATUS:
                for value in channel.nodes:
                    leaving.setdefault(value, []).append(channel)
                    arriving.update(((value, reader), channel) for reader in channel.readers)
        return Routes(
            channels=tuple(channels.values()),
            groups=tuple(self._groups.all),
            arriving=arriving,
            leaving=leaving,
            status={node: channels[carrier] for node, carrier in status.items()},
            group_of=self._group_of,
        )

    def _others(self, call: CollectiveCall) -> tuple[str, ...]:
        members = set(self._group_of[call.collective].members) - {call.actor}
        return tuple([actor.id for actor in self._graph.actors if actor.id in members])

    def _carriers(self, node: Node) -> list[_Carrier]:
        """What carries a node's value: a ring, then tensor channels."""
        hint, writer = node.hint or _NO_HINT, self._home[node.id]
        tensor = self._over_groups.get(node.id, [])
        over_groups = {reader for readers, _ in tensor for reader in readers}
        over_ring = [each for each in self._readers[node.id] if each not in over_groups]
        found: list[_Carrier] = []
        if over_ring:
            made_at = _made_at(node)
            found.append(_Carrier(RING, writer, tuple(over_ring), made_at, device=hint.device))
        found += [
            _Carrier(
                TENSOR,
                writer,
                readers,
                value=node.id,
                group=group.id,
                device=hint.device,
                is_static_shape=hint.is_static_shape,
                is_direct_return=hint.is_direct_return,
            )
            for readers, group in tensor
        ]
        return found


def _made_at(node: Node) -> int | None:
    """Return the call that makes a node's value; None for inputs, which are all there at once."""
    if isinstance(node, InputValue):
        return None
    return node.call if isinstance(node, Part) else node.id


_NO_HINT: Final = TensorHint("auto", Site("", 0))


class _Groups:
    """The groups of a plan, each made when it is first needed."""

    def __init__(self, graph: Graph, gpus: Gpus) -> None:
        self.all: list[Group] = []
        self._gpus = gpus
        self._graph = graph
        self._specs = {spec.const: spec for spec in graph.communicators}

    def of_collective(self, ranks: Sequence[CollectiveCall]) -> Group:
        """The group of a collective; ``ranks`` are in order."""
        hint = ranks[0].communicates
        if hint.communicator is not None:
            return self.of_user(hint.communicator)
        actors = tuple([rank.actor for rank in ranks])
        found = [group for group in self._own_groups(hint.transport) if group.members == actors]
        return found[0] if found else self._add(hint.transport, actors)

    def of_user(self, communicator: str) -> Group:
        """The group of a user's communicator."""
        found = [group for group in self.all if group.communicator == communicator]
        spec = self._specs[communicator]
        return found[0] if found else self._add(spec.backend, spec.members, communicator)

    def of_exactly(self, backend: str, ends: set[str]) -> Group:
        """The first group with exactly these members, in any order."""
        found = [group for group in self._own_groups(backend) if set(group.members) == ends]
        return found[0] if found else self._add(backend, self._in_order(ends))

    def group_with(self, backend: str, ends: set[str]) -> Group:
        """The first group that includes these members; there is one."""
        return next(group for group in self._own_groups(backend) if ends <= set(group.members))

    def cover(self, backend: str, edges: Sequence[set[str]]) -> None:
        """Make one more group if some edges have none that includes their ends.

        They are several where the ends of different edges cannot be in one.
        """
        members = [set(group.members) for group in self._own_groups(backend)]
        made: list[set[str]] = []
        for ends in edges:
            if any(ends <= each for each in members):
                continue
            for each in made:
                if ends <= each or self._go_together(backend, each | ends):
                    each |= ends
                    break
            else:
                made.append(set(ends))
        for each in made:
            self._add(backend, self._in_order(each))

    def _go_together(self, backend: str, members: set[str]) -> bool:
        """Whether one group may have these members: NCCL wants a GPU for each, CUDA IPC one.

        An actor with several GPUs, or with one that Ray did not assign, is not checked: nothing
        says which GPU it uses.
        """
        owned = [tuple(self._gpus.get(each, ())) for each in members]
        known = [gpus for gpus in owned if len(gpus) == 1]
        if backend == "nccl":
            return len(set(known)) == len(known)
        return backend != "cuda_ipc" or len(set(known)) <= 1

    def _own_groups(self, backend: str) -> list[Group]:
        """The groups of a backend, without those of users' communicators."""
        return [each for each in self.all if each.backend == backend and each.communicator is None]

    def _add(
        self, backend: str, members: tuple[str, ...], communicator: str | None = None
    ) -> Group:
        group = Group(f"g{len(self.all)}", backend, members, communicator)
        self.all.append(group)
        return group

    def _in_order(self, members: set[str]) -> tuple[str, ...]:
        return tuple([actor.id for actor in self._graph.actors if actor.id in members])
