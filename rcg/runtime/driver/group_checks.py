# SPDX-License-Identifier: Apache-2.0
"""Checks of the groups of a plan before anything is started: which actor has which GPU.

This room must know neither how groups are opened nor what travels in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rcg.errors import CompileError, PlacementError
from rcg.ir.channels import Group
from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, Site
from rcg.ir.ops import Collective
from rcg.ir.plan import Plan
from rcg.runtime.actor.groups import Opener
from rcg.text import graph_title

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

    Raises:
        PlacementError: An actor has no GPU or no CuPy, or two have the same GPU, or different
            ones, or are on different nodes. Its site is the line that chose the transport.
    """
    for group in plan.groups:
        if group.communicator is None and openers[group.id].devices == _CUDA:
            for actor, why in _obstacles(plan, graph, group, owned, names):
                name, site = _reason(plan, graph, group, actor)
                raise PlacementError(why, actor=names[actor], node=name, site=site)


def _obstacles(
    plan: Plan, graph: Graph, group: Group, owned: Mapping[str, Owned], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each actor that cannot take part in a group of GPUs, and why."""
    backend, actors = group.backend, [plan.host_of(member) for member in group.members]
    first = actors[0]
    if backend == "cuda_ipc":
        keys = {node.id: node.key for node in plan.nodes}
        for actor in actors:
            if plan.node_of(actor) != plan.node_of(first):
                yield (
                    actor,
                    f"{names[first]} is on the node {keys[plan.node_of(first)]} and {names[actor]} "
                    f"on the node {keys[plan.node_of(actor)]}, and cuda_ipc serves actors on one "
                    'GPU of one node: choose transport="nccl", or "auto", or place them together',
                )
    for actor in actors:
        name, _ = _reason(plan, graph, group, actor)
        part = f"{names[actor]} takes part in {name}, whose tensors travel by {backend}, but "
        if not owned[actor].gpus and not owned[actor].may_have_others:
            share = "num_gpus=0.5" if backend == "cuda_ipc" else "num_gpus=1"
            yield (
                actor,
                f'{part}it has no GPU: create it with {share}, or choose transport="auto", which '
                "uses GPUs where all ends have them",
            )
        if owned[actor].lacks_cupy:
            yield (
                actor,
                f"{part}its process has no CuPy: `pip install 'rcg[gpu]'` on its node, or give it "
                "in the actor's runtime_env",
            )
    holders: dict[str, str] = {}  # the first actor that has a GPU, by the GPU
    for actor in actors:
        if len(owned[actor].gpus) != 1:
            continue  # which of several it will use, nobody knows
        (gpu,) = owned[actor].gpus
        other = holders.setdefault(gpu, actor)
        if backend == "nccl" and other != actor and not owned[actor].shares_gpus:
            yield (
                actor,
                f"{names[other]} and {names[actor]} are on one GPU ({gpu}), and NCCL takes one "
                'rank a GPU: choose transport="cuda_ipc" between them, or "auto", or give each '
                "actor a GPU of its own (num_gpus=1)",
            )
        elif backend == "cuda_ipc" and len(holders) > 1:
            yield (
                actor,
                f"{names[first]} and {names[actor]} are on different GPUs ({', '.join(holders)}), "
                'and cuda_ipc serves actors on one: choose transport="nccl", or "auto"',
            )


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
    first and another device that of the other, and then they wait for each other. With
    ``is_concurrent`` the user says that executions of the graphs do not overlap.

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
            other = graph_title("", graph_id)
            both = [names[each] for each in sorted(queuing) if graph_id in owned[each].queued]
            raise CompileError(
                f"{' and '.join(both)} take part in {other}, which is not torn "
                "down, and both graphs queue transfers on their devices: where these run in "
                "different orders on two devices, they wait for each other for ever. Tear that "
                "graph down first, or compile with concurrent=True if executions of the two never "
                "overlap",
                actor=both[0],
            )
