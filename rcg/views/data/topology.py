# SPDX-License-Identifier: Apache-2.0
"""The topology of a plan: what is computed where, and how values travel. Plain data.

A plan has programs. A topology leaves out the order of their ops and keeps which node takes the
value of which other node, through which channel. All pictures of a graph are made from it.

>>> from rcg.ir.plan import Plan
>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'Stage' 'f00d'
... channel c0 driver -> a0 ring node=0 slots=10
... channel c1 a0 -> driver ring node=1 slots=10
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Read c1 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Call a0.fwd(s0) -> s1 #1
...   Write s1 -> c1
... ''')
>>> topology = topology_of(plan)
>>> [str(node) for node in topology.nodes]
['input', 'a0.fwd', 'output']
>>> [(edge.source, edge.target, edge.kind, edge.channel) for edge in topology.edges]
[(0, 1, 'shm', 'c0'), (1, 2, 'shm', 'c1')]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rcg.ir.channels import STATUS, TENSOR, ActorSpec, Group
from rcg.ir.ids import DRIVER, Slot
from rcg.ir.index import rank_of, rendezvous_of
from rcg.ir.ops import Call, Collective, Copy, Input, Op, Output
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.views.data.edge_styles import COLLECTIVE, FALLBACK, LOCAL, SHM, TCP, kind_of_channel

NodeKind = Literal["input", "attribute", "call", "part", "collective", "output"]


@dataclass(frozen=True, slots=True)
class NodeFrame:
    """A node of the cluster, drawn as a frame around the driver and the actors there.

    ``key`` is its id in Ray (hex); it and the address are "" where they are not known.
    """

    id: str
    key: str
    address: str
    processes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """An input, a call, a collective, an output, or a part of an input or a call.

    Attributes:
        id: Its position in ``Topology.nodes``.
        kind: ``input``; ``attribute``, one argument of it; ``call`` of a method; ``part``, one of
            the values of a call that returns several; ``collective`` of several actors; ``output``.
        process: Its process: ``driver`` or an actor's id; empty for a collective.
        name: The method, the argument's key, the part's index or the kind of collective.
        owner: The input of an attribute, the call of a part.
        group: The group of a collective.
        ranks: The op of each rank of a collective, in the order of the ranks: its process or lane,
            and its index in the program.
    """

    id: int
    kind: NodeKind
    process: str
    name: str
    owner: int | None = None
    group: str | None = None
    ranks: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "call":
                return f"{self.process}.{self.name}"
            case "attribute" | "part":
                return f"{self.kind}[{self.name}]"
            case "collective":
                return f"{self.name} @{self.group}"
            case _:
                return self.kind


@dataclass(frozen=True, slots=True)
class TopologyEdge:
    """The value of one node that another node takes.

    Attributes:
        source: The node that makes the value.
        target: The node that takes it.
        kind: How it travels: ``local`` inside a process, ``shm`` in shared memory, ``tcp`` to
            another node, ``gloo`` over a communicator, ``collective`` from or to a collective in
            the same process, ...
        channel: The channel that carries it, which other edges may use as well; None inside a
            process.
        arguments: The arguments of the target that it is: positions and names of arguments, ranks
            of a collective, or positions in the list of results.
    """

    source: int
    target: int
    kind: str
    channel: str | None
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel.

    Attributes:
        id: Its id in the plan.
        kind: How it carries values, as of edges; ``tcp`` if all its readers are on other nodes than
            its writer.
        slots: How many frames it holds.
        values: How many values travel in one frame.
        group: The group that carries its tensors; None without one.
        device: Where its tensors arrive; ``default`` is a device of the type that they were on.
        is_static_shape: Whether its tensors have the shapes and dtypes of the first execution.
        is_direct_return: Whether its value is exactly one tensor.
    """

    id: str
    kind: str
    slots: int
    values: int = 1
    group: str | None = None
    device: str = "default"
    is_static_shape: bool = False
    is_direct_return: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph as people draw it.

    Attributes:
        nodes: The nodes, in Ray's order: from the input, breadth first.
        edges: The edges, sorted by source and target. At most one between two nodes.
        actors: The actors of the plan, with their ids in Ray.
        channels: The channels that carry values, in the order of the plan.
        groups: The groups of the plan.
        frames: The nodes of the cluster, in the order of the plan; empty if there is only one.
    """

    nodes: tuple[TopologyNode, ...]
    edges: tuple[TopologyEdge, ...]
    actors: tuple[ActorSpec, ...]
    channels: tuple[Channel, ...]
    groups: tuple[Group, ...] = ()
    frames: tuple[NodeFrame, ...] = ()

    def frame_of(self, node: TopologyNode) -> str | None:
        """Return the id of the frame that a node is in.

        Returns:
            None without frames, and for a collective whose ranks are in several of them.
        """
        at = [process.partition(".")[0] for process, _ in node.ranks] or [node.process]
        found = [frame.id for frame in self.frames if not set(at).isdisjoint(frame.processes)]
        return found[0] if len(found) == 1 else None

    def actor(self, process: str) -> ActorSpec | None:
        """Return the actor of a process; None for the driver."""
        return next((actor for actor in self.actors if actor.id == process), None)


def topology_of(
    plan: Plan,
    actor_ids: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Topology:
    """Return the topology of a plan.

    Args:
        plan: The plan, from any pass of the compiler.
        actor_ids: The id in Ray, in hex, of each actor; None uses the ids in the plan.
        addresses: The address of each node of the cluster, by its id in the plan, where known.
    """
    found = _Search(plan)
    numbers = found.number()
    nodes = []
    for node in found.nodes:
        owner = None if node.owner is None else numbers[node.owner]
        nodes.append(replace(node, id=numbers[node.id], owner=owner))
    edges = []
    for (source, target), (channel, arguments) in found.edges.items():
        kind, ends = found.kind_of(source, target, channel), (numbers[source], numbers[target])
        edges.append(TopologyEdge(*ends, kind, channel, tuple(arguments)))
    ids = actor_ids or {}
    return Topology(
        nodes=tuple(sorted(nodes, key=lambda node: node.id)),
        edges=tuple(sorted(edges, key=lambda edge: (edge.source, edge.target))),
        actors=tuple(replace(actor, key=ids.get(actor.id, actor.key)) for actor in plan.actors),
        channels=tuple(
            Channel(
                channel.id,
                found.kinds[channel.id],
                channel.slots,
                len(channel.nodes),
                channel.group,
                channel.device,
                channel.is_static_shape,
                channel.is_direct_return,
            )
            for channel in plan.channels
            if channel.kind not in (STATUS, LOCAL)
        ),
        groups=plan.groups,
        frames=tuple(
            NodeFrame(node.id, node.key, (addresses or {}).get(node.id, ""), node.processes)
            for node in plan.nodes
        ),
    )


def nodes_of_calls(plan: Plan) -> dict[int, int]:
    """Return the node in the topology of each call of a plan, by the ``node`` of the call.

    All ranks of a collective are one node.
    """
    found = _Search(plan)
    numbers = found.number()
    return {call: numbers[node] for call, node in found.calls.items()}


class _Search:
    """Finds, in two passes over the programs, which node makes and which nodes take each value."""

    def __init__(self, plan: Plan) -> None:
        self.nodes: list[TopologyNode] = []
        self.edges: dict[tuple[int, int], tuple[str | None, list[str]]] = {}
        self._plan = plan
        self._nodes = plan.nodes_by_process()
        self._writers = {channel.id: channel.writer for channel in plan.channels}
        self._far: set[tuple[int, int]] = set()  # edges between nodes of the cluster
        self.kinds = self._kinds_of_channels()
        # A slot holds the value of a node, or a container with the values of several. A part of a
        # value gets a node when another node takes it. Parts that no node takes are not drawn.
        self._made: dict[tuple[str, int], tuple[int, int | None]] = {}
        self._origins = Origins(plan)
        self._parts: dict[tuple[int, int], int] = {}
        calls = [
            (op, program.process)
            for program in plan.programs
            for op in program.ops
            if isinstance(op, Call | Collective)
        ]
        self._make_inputs(plan.program(DRIVER))
        self.calls: dict[int, int] = {}
        # In the order in which they were bound, independent of the schedule.
        for op, process in sorted(calls, key=lambda each: each[0].node):
            if isinstance(op, Collective):
                if op.node not in self.calls:
                    self._add_collective(process, op)
            else:
                self.calls[op.node] = self._add("call", process, op.method)
            has_parts = isinstance(op, Call) and len(op.outs) > 1
            for index, out in enumerate(op.outs):
                self._made[process, out] = (self.calls[op.node], index if has_parts else None)
        self._output = self._add("output", DRIVER, "")
        for program in plan.programs:
            self._take(program)

    def _add(self, kind: NodeKind, process: str, name: str, owner: int | None = None) -> int:
        self.nodes.append(TopologyNode(len(self.nodes), kind, process, name, owner))
        return len(self.nodes) - 1

    def _add_collective(self, process: str, op: Collective) -> None:
        """Add the node of a collective, which is the node of all its ranks."""
        plan = self._plan
        at = plan.program(process).ops.index(op)
        meetings = [each.ends for each in rendezvous_of(plan) if each.is_collective]
        ranks = next(ends for ends in meetings if (process, at) in ends)
        node = self._add("collective", "", op.word)
        self.nodes[node] = replace(self.nodes[node], group=op.group, ranks=ranks)
        for where, rank in ranks:
            each = plan.program(where).ops[rank]
            if isinstance(each, Collective):
                self.calls[each.node] = node

    def _kinds_of_channels(self) -> dict[str, str]:
        """Return the kind of the edges of each channel."""
        backends = {group.id: group.backend for group in self._plan.groups}
        over_groups = {
            node for spec in self._plan.channels if spec.kind == TENSOR for node in spec.nodes
        }
        kinds = {}
        for spec in self._plan.channels:
            kind = kind_of_channel(spec.kind, backends.get(spec.group or ""))
            is_of_driver = DRIVER in (spec.writer, *spec.readers)
            if all(self._is_far(spec.id, reader) for reader in spec.readers):
                kind = _between_nodes(kind)
            elif is_of_driver and kind == SHM and not over_groups.isdisjoint(spec.nodes):
                kind = FALLBACK
            kinds[spec.id] = kind
        return kinds

    def _is_far(self, channel: str, reader: str) -> bool:
        """Return whether a channel crosses on its way to a reader."""
        return self._nodes[self._writers[channel]] != self._nodes[reader]

    def _make_inputs(self, driver: Program) -> None:
        whole = self._add("input", DRIVER, "")
        for op in driver.ops:
            if isinstance(op, Input):
                node = whole
                if op.key is not None:
                    node = self._add("attribute", DRIVER, str(op.key), whole)
                    self.edges[whole, node] = (None, [])
                self._made[DRIVER, op.out] = (node, None)

    def _take(self, program: Program) -> None:
        process = program.process
        for op in program.ops:
            match op:
                case Call():
                    for name, slot in _arguments(op):
                        self._connect(process, slot, self.calls[op.node], name)
                case Collective():
                    rank = f"rank {rank_of(self._plan, process, op.group)}"
                    for slot in op.slots:
                        self._connect(process, slot, self.calls[op.node], rank)
                case Output(slots=slots):
                    for position, slot in enumerate(slots):
                        self._connect(process, slot, self._output, str(position))
                case _:
                    pass

    def _connect(self, process: str, slot: int, target: int, argument: str) -> None:
        """Add an edge to a node from each value that is in a slot."""
        for origin in self._origins.of(process, slot):
            source = self._node_of(self._made[origin.process, origin.slot])
            channel, arguments = self.edges.setdefault((source, target), (origin.channel, []))
            if channel is not None and self._is_far(channel, process):
                self._far.add((source, target))
            if argument not in arguments:
                arguments.append(argument)

    def _node_of(self, value: tuple[int, int | None]) -> int:
        call, part = value
        if part is None:
            return call
        if (call, part) not in self._parts:
            node = self._add("part", self.nodes[call].process, str(part), call)
            self._parts[call, part] = node
            self.edges[call, node] = (None, [])
        return self._parts[call, part]

    def kind_of(self, source: int, target: int, channel: str | None) -> str:
        if channel is not None:
            kind = self.kinds[channel]
            return _between_nodes(kind) if (source, target) in self._far else kind
        is_collective = "collective" in (self.nodes[source].kind, self.nodes[target].kind)
        return COLLECTIVE if is_collective else LOCAL

    def number(self) -> dict[int, int]:
        """Return the number of each node, as in Ray.

        The order is breadth first from the input. The targets of a node come before its sources.
        """
        down: dict[int, list[int]] = {node.id: [] for node in self.nodes}
        up: dict[int, list[int]] = {node.id: [] for node in self.nodes}
        for source, target in sorted(self.edges, key=self._bind_key):
            down[source].append(target)
            up[target].append(source)
        numbers: dict[int, int] = {}
        # Nodes that are not connected to the input follow in their order.
        for first in range(len(self.nodes)):
            queue = deque([first])
            while queue:
                node = queue.popleft()
                if node not in numbers:
                    numbers[node] = len(numbers)
                    queue.extend(down[node])
                    queue.extend(up[node])
        return numbers

    def _bind_key(self, edge: tuple[int, int]) -> tuple[int, ...]:
        """Return a sort key for edges: as they were bound, parts by index, the output last."""
        order = []
        for end in edge:
            node = self.nodes[end]
            is_part = node.kind == "part"
            call = node.owner if is_part and node.owner is not None else end
            order += [end == self._output, call, int(node.name) + 1 if is_part else 0]
        return tuple(order)


def _between_nodes(kind: str) -> str:
    """Return the kind of an edge between nodes; communicators are the same everywhere."""
    return TCP if kind in (SHM, FALLBACK) else kind


def _arguments(call: Call) -> Iterator[tuple[str, int]]:
    """Yield the name and the slot of each argument that is in a slot."""
    positional = ((str(position), argument) for position, argument in enumerate(call.args))
    for name, argument in (*positional, *call.kwargs):
        if isinstance(argument, Slot):
            yield name, argument.index


class Origin(NamedTuple):
    """The program and slot where a value was made, and the channel by which it came, if any."""

    process: str
    slot: int
    channel: str | None


class Origins:
    """Finds the origins of values in a plan.

    Channels between lanes of one process, and copies, are passed over: to people, a value that a
    lane receives and hands to a method comes by the channel of the lane.
    """

    def __init__(self, plan: Plan) -> None:
        self._local = {channel.id for channel in plan.channels if channel.kind == LOCAL}
        self._maker: dict[tuple[str, int], Op] = {}
        self._sent: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._found: dict[tuple[str, int], tuple[Origin, ...]] = {}
        for program in plan.programs:
            for op in program.ops:
                for slot in op.made():
                    self._maker[program.process, slot] = op
                for channel in op.values_out:
                    self._sent[channel] = (program.process, op.used())

    def of(self, process: str, slot: int) -> tuple[Origin, ...]:
        """Return the origins of the value in a slot: several if it is a container of values."""
        key = (process, slot)
        if key not in self._found:
            self._found[key] = self._find(process, slot, self._maker[key])
        return self._found[key]

    def _find(self, process: str, slot: int, maker: Op) -> tuple[Origin, ...]:
        if isinstance(maker, Copy):
            return self.of(process, maker.slot)
        if maker.is_holding:
            return tuple([each for used in maker.used() for each in self.of(process, used)])
        if not maker.values_in:
            return (Origin(process, slot, None),)
        (channel,) = maker.values_in
        writer, slots = self._sent[channel]
        found = self.of(writer, slots[maker.made().index(slot)])
        if channel in self._local:
            return found
        return tuple([each._replace(channel=channel) for each in found])
