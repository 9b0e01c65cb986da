# SPDX-License-Identifier: Apache-2.0
"""Whether the groups of a plan can be, before anything is started: who has which GPU.

This room must know neither how groups are opened nor what travels in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rcg.errors import CompileError, PlacementError
from rcg.ir.channels import Group
from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, Site
from rcg.ir.ops import Collective
from rcg.ir.plan import Plan
from rcg.runtime.actor.groups import Opener

_CUDA: Final = frozenset({"cuda"})


@dataclass(frozen=True, slots=True)
class Owned:
    """What an actor has of a device.

    Attributes:
        gpus: The GPUs that Ray has given to it, each named by its node and its number there.
        may_have_others: Whether its process may see a GPU although Ray has given it none.
        shares_gpus: Whether its process lets NCCL have several ranks on one GPU.
        queued: The ids of the graphs that queue transfers on its devices already.
        lacks_torch: Whether its process has no torch, which every transport of tensors needs.
        lacks_cupy: Whether its process has no CuPy, which transports between GPUs need.
    """

    gpus: tuple[str, ...] = ()
    may_have_others: bool = False
    shares_gpus: bool = False
    queued: tuple[str, ...] = ()
    lacks_torch: bool = False
    lacks_cupy: bool = False


def check_gpus(
    plan: Plan,
    graph: Graph,
    openers: Mapping[str, Opener],
    owned: Mapping[str, Owned],
    names: Mapping[str, str],
) -> None:
    """Check that the members of groups of GPUs have some, and the right ones.

    Args:
        plan: The plan.
        graph: What it is the plan of.
        openers: What opens each group.
        owned: What each actor has.
        names: What errors call each actor.

    Raises:
        PlacementError: An actor has no GPU or no CuPy, or two have the same GPU, or different
            ones, or are on different nodes. Its site is the line that chose the transport.
    """
    for group in plan.groups:
        if group.communicator is not None or openers[group.id].devices != _CUDA:
            continue
        actors = [plan.host_of(member) for member in group.members]
        if group.backend == "cuda_ipc":
            _check_node(plan, graph, group, actors, names)
        for actor in actors:
            name, site = _reason(plan, graph, group, actor)
            if not owned[actor].gpus and not owned[actor].may_have_others:
                raise PlacementError(
                    f"{names[actor]} takes part in {name}, whose tensors travel by "
                    f"{group.backend}, but it has no GPU: create it with "
                    f"{'num_gpus=0.5' if group.backend == 'cuda_ipc' else 'num_gpus=1'}, or choose "
                    'transport="auto", which uses GPUs where all ends have them',
                    actor=names[actor],
                    node=name,
                    site=site,
                )
            if owned[actor].lacks_cupy:
                raise PlacementError(
                    f"{names[actor]} takes part in {name}, whose tensors travel by "
                    f"{group.backend}, but its process has no CuPy: `pip install rcg[gpu]` on its "
                    "node, or give it in the actor's runtime_env",
                    actor=names[actor],
                    node=name,
                    site=site,
                )
        _check_places(plan, graph, group, actors, owned, names)


def _check_node(
    plan: Plan, graph: Graph, group: Group, actors: list[str], names: Mapping[str, str]
) -> None:
    keys = {node.id: node.key for node in plan.nodes}
    first = actors[0]
    for actor in actors:
        if plan.node_of(actor) != plan.node_of(first):
            name, site = _reason(plan, graph, group, actor)
            raise PlacementError(
                f"{names[first]} is on the node {keys[plan.node_of(first)]} and {names[actor]} on "
                f"the node {keys[plan.node_of(actor)]}, and cuda_ipc serves actors on one GPU of "
                'one node: choose transport="nccl", or "auto", or place them together',
                actor=names[actor],
                node=name,
                site=site,
            )


def _check_places(
    plan: Plan,
    graph: Graph,
    group: Group,
    actors: list[str],
    owned: Mapping[str, Owned],
    names: Mapping[str, str],
) -> None:
    first: dict[str, str] = {}  # the actor that has a GPU, by the GPU
    for actor in actors:
        if len(owned[actor].gpus) != 1:
            continue  # which of several it will use, nobody knows
        (gpu,) = owned[actor].gpus
        other = first.setdefault(gpu, actor)
        if group.backend == "nccl" and other != actor and not owned[actor].shares_gpus:
            text = (
                f"{names[other]} and {names[actor]} are on one GPU ({gpu}), and NCCL takes one "
                'rank a GPU: choose transport="cuda_ipc" between them, or "auto", or give each '
                "actor a GPU of its own (num_gpus=1)"
            )
        elif group.backend == "cuda_ipc" and len(first) > 1:
            text = (
                f"{names[actors[0]]} and {names[actor]} are on different GPUs "
                f"({', '.join(first)}), and cuda_ipc serves actors on one: choose "
                'transport="nccl", or "auto"'
            )
        else:
            continue
        name, site = _reason(plan, graph, group, actor)
        raise PlacementError(text, actor=names[actor], node=name, site=site)


def _reason(plan: Plan, graph: Graph, group: Group, actor: str) -> tuple[str, Site]:
    """Return the first node that has an actor in a group, and the line that chose the transport."""
    carried = [
        channel.nodes[0]
        for channel in plan.channels
        if channel.group == group.id
        and actor in map(plan.host_of, (channel.writer, *channel.readers))
    ]
    combined = [
        op.node
        for member in group.members
        if plan.host_of(member) == actor
        for op in plan.program(member).ops
        if isinstance(op, Collective) and op.group == group.id
    ]
    node = graph.nodes[min(carried + combined)]
    hint = node.hint
    if isinstance(node, CollectiveCall) and node.id in combined:
        hint = node.communicates
    return graph.name(node.id), node.site if hint is None else hint.site


def check_queues(
    plan: Plan,
    openers: Mapping[str, Opener],
    owned: Mapping[str, Owned],
    names: Mapping[str, str],
    *,
    is_concurrent: bool,
) -> None:
    """Check that no other graph queues transfers among two or more of the same actors.

    Each graph by itself keeps one order everywhere. Of two graphs, a device may begin that of one
    first and another device that of the other, and then they wait for each other.

    Args:
        plan: The plan.
        openers: What opens each group.
        owned: What each actor has.
        names: What errors call each actor.
        is_concurrent: Whether the user says that the graphs may be there together.

    Raises:
        CompileError: There is such a graph.
    """
    if is_concurrent:
        return
    queuing = {
        plan.host_of(member)
        for group in plan.groups
        if openers[group.id].is_queued
        for member in group.members
    }
    shared: Counter[str] = Counter()
    for actor in queuing:
        shared.update(owned[actor].queued)
    for graph_id, count in sorted(shared.items()):
        if count > 1:
            both = [names[each] for each in sorted(queuing) if graph_id in owned[each].queued]
            raise CompileError(
                f"{' and '.join(both)} take part in CompiledDAG({graph_id}), which is not torn "
                "down, and both graphs queue transfers on their devices: where these run in "
                "different orders on two devices, they wait for each other for ever. Tear that "
                "graph down first, or compile with concurrent=True if executions of the two never "
                "overlap",
                actor=both[0],
            )
