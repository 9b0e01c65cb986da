# SPDX-License-Identifier: Apache-2.0
"""Which transport ``auto`` is, for each value and collective, from the GPUs that the actors have.

| the writer and all readers, or all ranks | a value | a collective |
|---|---|---|
| are actors with one GPU each, the same one | ``cuda_ipc`` | ``cuda_ipc`` |
| are actors with one GPU each, all different | ``nccl`` | ``nccl`` |
| anything else, or the driver is among them | shared memory | ``gloo`` |

It is about values for which the user gave a hint: without one nothing says that there are tensors.
Actors on different nodes never have the same GPU, because its name begins with the node's. Shared
memory is TCP for the readers on other nodes.
Two ranks of NCCL cannot be on one GPU, so where only some actors share one, tensors take the way
through the host's memory. So do those that arrive there anyway, or on a device of another maker
(``device="cpu"``), and those of an actor with several GPUs: nothing says which one it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, Node, TensorHint, remote_readers

Gpus = Mapping[str, Sequence[str]]
"""The GPUs that each actor has, by its id; each is named by its node and its number there."""

_AUTO: Final = "auto"
_ON_GPUS: Final = ("default", "cuda")
"""What a hint says of the device where tensors of GPUs arrive on one."""


def with_transports(graph: Graph, gpus: Gpus) -> Graph:
    """Return the graph with a transport in place of each ``auto`` that is not shared memory.

    Args:
        graph: The checked graph.
        gpus: What the actors have; an actor that is not named has none.
    """
    members = {
        number: [rank.actor for rank in ranks] for number, ranks in graph.collectives().items()
    }
    readers = remote_readers(graph)
    nodes = [_resolve(graph, node, readers[node.id], members, gpus) for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return replace(graph, nodes=tuple(nodes))


def _resolve(
    graph: Graph,
    node: Node,
    readers: Sequence[str],
    members: Mapping[int, Sequence[str]],
    gpus: Gpus,
) -> Node:
    hint, writer = node.hint, graph.actor_of(node.id)
    if hint is not None and _is_open(hint) and writer is not None and readers:
        stays = hint.device in _ON_GPUS and node.id not in graph.outputs  # on GPUs
        found = _transport_between((writer, *readers), gpus) if stays else None
        if found is not None:
            node = replace(node, hint=replace(hint, transport=found))
    if isinstance(node, CollectiveCall) and _is_open(node.communicates):
        found = _transport_between(members[node.collective], gpus) or "gloo"
        node = replace(node, communicates=replace(node.communicates, transport=found))
    return node


def _is_open(hint: TensorHint) -> bool:
    return hint.transport == _AUTO and hint.communicator is None


def _transport_between(actors: Sequence[str], gpus: Gpus) -> str | None:
    """Return the transport between the GPUs of actors; None if there is none."""
    owned = [gpus.get(actor, ()) for actor in actors]
    if any(len(each) != 1 for each in owned):
        return None
    different = {each[0] for each in owned}
    if len(different) == 1:
        return "cuda_ipc"
    return "nccl" if len(different) == len(actors) else None
