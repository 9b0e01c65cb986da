# SPDX-License-Identifier: Apache-2.0
"""Actors, nodes, lanes, gates, channels and groups of a plan, as data.

A *lane* is a second program of an actor, and channels name it like any other process. A *node* is
a machine of the cluster, with the processes of the plan that are there. A channel may have readers
on other nodes than its writer's. Its frames cross to each of these nodes once, where the node's
*gate*, a lane in one of its processes, publishes them for the readers there:

>>> print(ChannelSpec("c7", "a0", ("a1", "a2", "a3"), "ring", (3, 4), 10))
channel c7 a0 -> a1 a2 a3 ring node=3, 4 slots=10
>>> print(ClusterNode("n0", "5f2c", ("driver", "a0", "a1")))
node n0 '5f2c' driver a0 a1
>>> print(ClusterNode("n1", "83d0", ("a2", "a3")))
node n1 '83d0' a2 a3
>>> print(Gate("n1", "a2"))
gate n1 in a2
>>> print(Lane("a0.comm", "a0"))
lane a0.comm of a0
>>> print(Group("g0", "gloo", ("a0", "a2.comm")))
group g0 gloo a0 a2.comm
>>> print(ChannelSpec("c4", "a0", ("a1",), "tensor", (3,), 10, "g0", is_static_shape=True))
channel c4 a0 -> a1 tensor @g0 node=3 slots=10 static

This room must know neither how a plan is made nor how channels work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rcg.ir.fields import (
    ActorId,
    Backend,
    ChannelId,
    ChannelKind,
    CommunicatorId,
    Device,
    GateId,
    GroupId,
    IsDirect,
    IsStatic,
    LaneId,
    NodeId,
    NodeNumbers,
    OptionalGroup,
    ProcessId,
    ProcessIds,
    Quoted,
    SlotCount,
)
from rcg.ir.record import Record

RING: Final = "ring"
"""A ring in shared memory on each node where it has an end: one writer, any number of readers."""

TENSOR: Final = "tensor"
"""Tensors over a communicator. The rest of the value goes through a ring, and its frame says
whether tensors follow: it is the status of the value."""

STATUS: Final = "status"
"""A ring by which a rank of a collective tells the others whether it has its tensors, and their
shapes."""

LOCAL: Final = "local"
"""Between two lanes of one process."""

CHANNEL_KINDS: Final = (RING, TENSOR, STATUS, LOCAL)

MOST_SLOTS: Final = 4096
"""The most frames that a channel holds."""


@dataclass(frozen=True, slots=True)
class ActorSpec(Record):
    """An actor of the graph: its id, its name for people, its id in Ray (hex, or empty)."""

    keyword: ClassVar[str] = "actor"
    form: ClassVar[str] = "{id} {label} {key}"

    id: ActorId
    label: Quoted
    key: Quoted


@dataclass(frozen=True, slots=True)
class ClusterNode(Record):
    """A machine of the cluster, in a plan whose processes are on several.

    Attributes:
        id: ``n0`` is the driver's.
        key: Its id in Ray.
        processes: The driver and the actors there, in this order; their lanes are there, too. The
            first is the node's host, which makes its shared memory.
    """

    keyword: ClassVar[str] = "node"
    form: ClassVar[str] = "{id} {key} {processes}"

    id: NodeId
    key: Quoted
    processes: ProcessIds


@dataclass(frozen=True, slots=True)
class Lane(Record):
    """A second program of an actor, run by a thread of its own beside the first."""

    keyword: ClassVar[str] = "lane"
    form: ClassVar[str] = "{id} of {actor}"

    id: LaneId
    actor: ActorId


@dataclass(frozen=True, slots=True)
class Gate(Record):
    """The lane that receives frames from other nodes and publishes them on its own node.

    Its id is that of the node; it runs in the node's host process.
    """

    keyword: ClassVar[str] = "gate"
    form: ClassVar[str] = "{id} in {host}"

    id: GateId
    host: ProcessId


@dataclass(frozen=True, slots=True)
class Group(Record):
    """Processes that exchange tensors through one communicator.

    Attributes:
        id: ``g0``, ...
        backend: The library that sends the tensors: ``gloo``, ``nccl``, or a user's own.
        members: Actors or lanes of actors; a member's rank is its position.
        communicator: The user's own communicator in the bindings, if it is one.
    """

    keyword: ClassVar[str] = "group"
    form: ClassVar[str] = "{id} {backend} {members}{communicator}"

    id: GroupId
    backend: Backend
    members: ProcessIds
    communicator: CommunicatorId = None


@dataclass(frozen=True, slots=True)
class ChannelSpec(Record):
    """The way of one value, or of several, from the process that makes them to all that use them.

    Values that one process makes at the same point for the same readers share a channel: they are
    the *parts* of each of its frames. On the node of its writer a channel is one ring, and on each
    other node where it has readers another one, whose writer is the gate there.

    Attributes:
        id: ``c0``, ...
        writer: The process that writes it, once per execution.
        readers: The processes that read it, each once per execution; the driver first, then
            actors by number.
        kind: How it is carried, one of ``CHANNEL_KINDS``.
        nodes: The graph node of each part of a frame.
        slots: How many frames it holds before a write waits.
        group: The group whose communicator carries the tensors, for a tensor channel that has one.
            With several readers it has exactly the writer and them: tensors are broadcast.
        device: Where tensors arrive; ``default`` is a device of the type that they were on.
        is_static_shape: Whether tensors have the shapes and dtypes of the first execution.
        is_direct_return: Whether the value is exactly one tensor.
    """

    keyword: ClassVar[str] = "channel"
    form: ClassVar[str] = (
        "{id} {writer} -> {readers} {kind}{group} node={nodes} slots={slots}"
        "{device}{is_static_shape}{is_direct_return}"
    )

    id: ChannelId
    writer: ProcessId
    readers: ProcessIds
    kind: ChannelKind
    nodes: NodeNumbers
    slots: SlotCount
    group: OptionalGroup = None
    device: Device = "default"
    is_static_shape: IsStatic = False
    is_direct_return: IsDirect = False


def slots_for(executions: int) -> int:
    """Return how many frames a channel holds if so many executions may be in flight.

    One for each, so that a write never waits inside an execution, up to ``MOST_SLOTS``. The window
    and the rings follow the channels of the plan.
    """
    return min(executions, MOST_SLOTS)


def memory_sources(
    processes: Sequence[str],
    channels: Iterable[ChannelSpec],
    node_of: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return, for each process, the processes whose shared memory may arrive there.

    The transitive closure over the channels, because a process may send on a buffer that it was
    given, in this execution or a later one; a process is among its own sources where values can
    come back to it. No memory leaves its node: what crosses arrives in memory of the gate of the
    reader's node, whose id is the node's. Warshall's algorithm on bit sets.

    Args:
        processes: All processes.
        channels: All channels.
        node_of: The node of each process; None if all are on one.

    >>> there = ChannelSpec("c0", "driver", ("a0",), "ring", (0,), 1)
    >>> back = ChannelSpec("c1", "a0", ("driver",), "ring", (1,), 1)
    >>> memory_sources(["driver", "a0"], [there])
    {'driver': (), 'a0': ('driver',)}
    >>> memory_sources(["driver", "a0"], [there, back])
    {'driver': ('driver', 'a0'), 'a0': ('driver', 'a0')}
    >>> nodes = {"driver": "n0", "n0": "n0", "a0": "n1", "n1": "n1"}
    >>> memory_sources(list(nodes), [there, back], nodes)
    {'driver': ('n0',), 'n0': (), 'a0': ('n1',), 'n1': ()}
    """
    node_of = node_of or dict.fromkeys(processes, "")
    number = {process: position for position, process in enumerate(processes)}
    sources = [0] * len(processes)
    for channel in channels:
        for reader in channel.readers:
            is_near = node_of[reader] == node_of[channel.writer]
            source = channel.writer if is_near else node_of[reader]
            sources[number[reader]] |= 1 << number[source]
    for middle in range(len(processes)):
        for target in range(len(processes)):
            if sources[target] >> middle & 1:
                sources[target] |= sources[middle]
    return {
        process: tuple([each for each in processes if sources[number[process]] >> number[each] & 1])
        for process in processes
    }
