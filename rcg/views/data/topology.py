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
from dataclasses import dataclass, field, replace
from typing import Literal

from rcg.ir.channels import STATUS, TENSOR, ActorSpec, ChannelSpec, Group
from rcg.ir.ids import DRIVER, Slot
from rcg.ir.index import Origins, Place, rank_of, reads_of, rendezvous_of, writes_of
from rcg.ir.ops import Call, Collective, Input, Output
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.trace.model import Mark
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
        ops: The op that it is; of a collective that of each rank, in their order. None of a part.
    """

    id: int
    kind: NodeKind
    process: str
    name: str
    owner: int | None = None
    group: str | None = None
    ops: tuple[Place, ...] = ()

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
        ops: The Write of the channel, and the Reads of the target; none inside a process.
    """

    source: int
    target: int
    kind: str
    channel: str | None
    arguments: tuple[str, ...]
    ops: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph as people draw it.

    Attributes:
        nodes: The nodes, in Ray's order: from the input, breadth first.
        edges: The edges, sorted by source and target. At most one between two nodes.
        actors: The actors of the plan, with their ids in Ray.
        channels: The channels that carry values, in the order of the plan. Their kinds are those
            of edges: ``tcp`` if all readers are on other nodes than the writer.
        groups: The groups of the plan.
        frames: The nodes of the cluster, in the order of the plan; empty if there is only one.
        marks: What is wrong with actors, by their ids.
    """

    nodes: tuple[TopologyNode, ...]
    edges: tuple[TopologyEdge, ...]
    actors: tuple[ActorSpec, ...]
    channels: tuple[ChannelSpec, ...]
    groups: tuple[Group, ...] = ()
    frames: tuple[NodeFrame, ...] = ()
    marks: Mapping[str, Mark] = field(default_factory=dict)

    def frame_of(self, node: TopologyNode) -> str | None:
        """Return the id of the frame that a node is in.

        Returns:
            None without frames, and for a collective whose ranks are in several of them.
        """
        at = [process.partition(".")[0] for process, _ in node.ops] or [node.process]
        found = [frame.id for frame in self.frames if not set(at).isdisjoint(frame.processes)]
        return found[0] if len(found) == 1 else None

    def actor(self, process: str) -> ActorSpec | None:
        """Return the actor of a process; None for the driver."""
        return next((actor for actor in self.actors if actor.id == process), None)


def topology_of(
    plan: Plan,
    actor_ids: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> Topology:
    """Return the topology of a plan.

    Args:
        plan: The plan, from any pass of the compiler.
        actor_ids: The id in Ray, in hex, of each actor; None uses the ids in the plan.
        addresses: The address of each node of the cluster, by its id in the plan, where known.
        marks: What is wrong with actors, by their ids in the plan.
    """
    found = _Search(plan)
    numbers = found.number()
    nodes = []
    for node in found.nodes:
        owner = None if node.owner is None else numbers[node.owner]
        nodes.append(replace(node, id=numbers[node.id], owner=owner))
    nodes.sort(key=lambda node: node.id)
    edges = []
    for (source, target), (channel, arguments) in found.edges.items():
        kind, ends = found.kind_of(source, target, channel), (numbers[source], numbers[target])
        ops = () if channel is None else found.ops_of(channel, nodes[ends[1]])
        edges.append(TopologyEdge(*ends, kind, channel, tuple(arguments), ops))
    ids = actor_ids or {}
    return Topology(
        nodes=tuple(nodes),
        edges=tuple(sorted(edges, key=lambda edge: (edge.source, edge.target))),
        actors=tuple(replace(actor, key=ids.get(actor.id, actor.key)) for actor in plan.actors),
        channels=tuple(
            replace(channel, kind=found.kinds[channel.id])
            for channel in plan.channels
            if channel.kind not in (STATUS, LOCAL)
        ),
        groups=plan.groups,
        frames=tuple(
            NodeFrame(node.id, node.key, (addresses or {}).get(node.id, ""), node.processes)
            for node in plan.nodes
        ),
        marks=marks or {},
    )


class _Search:
    """Finds, in two passes over the programs, which node makes and which nodes take each value."""

    def __init__(self, plan: Plan) -> None:
        self.nodes: list[TopologyNode] = []
        self.edges: dict[tuple[int, int], tuple[str | None, list[str]]] = {}
        self._plan = plan
        self._clusters = plan.nodes_by_process()
        self._writes = writes_of(plan)
        self._reads: dict[tuple[str, str], list[Place]] = {}  # by the actor, which reads in a lane
        for (channel, process), place in reads_of(plan).items():
            self._reads.setdefault((channel, plan.host_of(process)), []).append(place)
        self._far: set[tuple[int, int]] = set()  # edges between nodes of the cluster
        self.kinds = self._kinds_of_channels()
        # The node that makes the value in a slot, and which part of its value that is. A part gets
        # a node when another node takes it. Parts that no node takes are not drawn.
        self._made: dict[tuple[str, int], tuple[int, int | None]] = {}
        self._origins = Origins(plan)
        self._parts: dict[tuple[int, int], int] = {}
        self._node_at: dict[Place, int] = {}
        self._make_inputs()
        self._make_calls()
        driver = plan.program(DRIVER).ops
        at = next(at for at, op in enumerate(driver) if isinstance(op, Output))
        self._output = self._add("output", DRIVER, "", ops=((DRIVER, at),))
        for program in plan.programs:
            self._take(program)

    def _add(
        self,
        kind: NodeKind,
        process: str,
        name: str,
        owner: int | None = None,
        group: str | None = None,
        ops: tuple[Place, ...] = (),
    ) -> int:
        number = len(self.nodes)
        self.nodes.append(TopologyNode(number, kind, process, name, owner, group, ops))
        self._node_at.update(dict.fromkeys(ops, number))
        return number

    def _make_inputs(self) -> None:
        whole = self._add("input", DRIVER, "")
        for at, op in enumerate(self._plan.program(DRIVER).ops):
            if not isinstance(op, Input):
                continue
            node = whole
            if op.key is None:
                self.nodes[whole] = replace(self.nodes[whole], ops=((DRIVER, at),))
            else:
                node = self._add("attribute", DRIVER, str(op.key), whole, ops=((DRIVER, at),))
                self.edges[whole, node] = (None, [])
            self._made[DRIVER, op.out] = (node, None)

    def _make_calls(self) -> None:
        """Add calls, and collectives with all their ranks, in the order in which they were bound.

        That is independent of the schedule.
        """
        plan = self._plan
        meetings = [each.ends for each in rendezvous_of(plan) if each.is_collective]
        ranks = {place: ends for ends in meetings for place in ends}
        calls = [
            (op.node, (program.process, at), op)
            for program in plan.programs
            for at, op in enumerate(program.ops)
            if isinstance(op, Call | Collective)
        ]
        for _, place, op in sorted(calls, key=lambda each: each[0]):
            if isinstance(op, Call):
                self._add("call", place[0], op.method, ops=(place,))
            elif place not in self._node_at:
                self._add("collective", "", op.word, group=op.group, ops=ranks[place])
            has_parts = isinstance(op, Call) and len(op.outs) > 1
            for index, out in enumerate(op.outs):
                part = index if has_parts else None
                self._made[place[0], out] = (self._node_at[place], part)

    def ops_of(self, channel: str, target: TopologyNode) -> tuple[Place, ...]:
        """Return the Write of a channel, and its Reads by the processes of a node."""
        readers = dict.fromkeys(process.partition(".")[0] for process, _ in target.ops)
        reads = [self._reads.get((channel, reader), ()) for reader in readers]
        return (self._writes[channel], *[read for found in reads for read in found])

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
            if all(self._is_far(spec.writer, reader) for reader in spec.readers):
                kind = _between_nodes(kind)
            elif is_of_driver and kind == SHM and not over_groups.isdisjoint(spec.nodes):
                kind = FALLBACK
            kinds[spec.id] = kind
        return kinds

    def _is_far(self, writer: str, reader: str) -> bool:
        return self._clusters[writer] != self._clusters[reader]

    def _take(self, program: Program) -> None:
        process = program.process
        for at, op in enumerate(program.ops):
            match op:
                case Call():
                    taken = list(_arguments(op))
                case Collective():
                    rank = f"rank {rank_of(self._plan, process, op.group)}"
                    taken = [(rank, slot) for slot in op.slots]
                case Output(slots=slots):
                    taken = [(str(position), slot) for position, slot in enumerate(slots)]
                case _:
                    continue
            for argument, slot in taken:
                self._connect(process, slot, self._node_at[process, at], argument)

    def _connect(self, process: str, slot: int, target: int, argument: str) -> None:
        """Add an edge to a node from each value that is in a slot."""
        for origin in self._origins.of(process, slot):
            source = self._node_of(self._made[origin.process, origin.slot])
            channel, arguments = self.edges.setdefault((source, target), (origin.channel, []))
            if channel is not None and self._is_far(self._writes[channel][0], process):
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
