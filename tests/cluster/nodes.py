# SPDX-License-Identifier: Apache-2.0
"""Clusters of several Ray nodes on this machine, for tests of what crosses between nodes."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rcg.actors import ActorClass

__all__ = [
    "but_gates",
    "cluster_of",
    "is_spread",
    "is_together",
    "local_writer",
    "near_driver",
    "on_node",
    "session_of",
    "spread_actors",
    "tells_last_op",
]


@contextlib.contextmanager
def cluster_of(nodes: int, *, cpus: int = 8) -> Iterator[Any]:
    """Run so many nodes with ``ray.cluster_utils``; the first is the driver's.

    Node number i has the resource ``node{i}``, by which a test places its actors.
    """
    from ray._common.utils import reset_ray_address
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cpus,
            "include_dashboard": False,
            "resources": {"node0": 1000},
        },
    )
    # `ray.init()` of any program on this machine would join the cluster that is named there.
    reset_ray_address()
    try:
        for number in range(1, nodes):
            cluster.add_node(num_cpus=cpus, resources={f"node{number}": 1000})
        yield cluster
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def session_of(nodes: int) -> Iterator[None]:
    """Join a Ray of so many nodes, with room for 16 actors, whatever the machine has."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    with contextlib.ExitStack() as stack:
        if nodes == 1:
            # "local": not one that another program has started on this machine
            ray.init("local", num_cpus=16, include_dashboard=False, **quiet)
        else:
            ray.init(stack.enter_context(cluster_of(nodes, cpus=16 // nodes)).address, **quiet)
        stack.callback(ray.shutdown)
        yield


def on_node(cls: Any, number: int) -> Any:
    """Return an actor class whose actors are made on node number ``number``."""
    return cls.options(num_cpus=0, resources={f"node{number}": 0.001})


def spread_actors(patch: pytest.MonkeyPatch, first: int = 0) -> None:
    """Have the actors that this process makes go to the nodes in turn.

    Ray itself puts actors that need no CPU on any node at random: neighbours in a graph are then
    often on one node, and no two runs of a test are alike. Actors that a test places stay there.

    Args:
        patch: How long that is so.
        first: Where the first actor goes; 0 is the driver's node.
    """
    places = {"scheduling_strategy", "placement_group", "resources", "num_gpus"}
    options = ActorClass.options

    def turns() -> Iterator[str]:
        home = ray.get_runtime_context().get_node_id()
        nodes = sorted([node["NodeID"] for node in ray.nodes()], key=lambda node: node != home)
        yield from itertools.islice(itertools.cycle(nodes), first, None)

    turn = turns()  # looks at the nodes when the first actor is made: Ray may not run yet

    def placed(cls: ActorClass, **chosen: Any) -> Any:
        if not places & chosen.keys():
            node = NodeAffinitySchedulingStrategy(next(turn), soft=True)
            chosen["scheduling_strategy"] = node
        return options(cls, **chosen)

    def made(cls: ActorClass, *args: Any, **kwargs: Any) -> Any:
        return placed(cls).remote(*args, **kwargs)

    patch.setattr(ActorClass, "options", placed)
    patch.setattr(ActorClass, "remote", made)


def near_driver(cls: Any) -> Any:
    """Return an actor class whose actors are made on the node of this process."""
    home = ray.get_runtime_context().get_node_id()
    return cls.options(scheduling_strategy=NodeAffinitySchedulingStrategy(home, soft=False))


def is_spread() -> bool:
    """Return whether this Ray session has several nodes, so that actors may be on any of them."""
    return sum(node["Alive"] for node in ray.nodes()) > 1


def is_together(graph: Any, *processes: str) -> bool:
    """Return whether processes of a graph (by default all of them) are on one node."""
    chosen = processes or graph.plan.processes()
    return len({graph.plan.node_of(process) for process in chosen}) == 1


def but_gates(graph: Any, found: Iterable[Any]) -> list[Any]:
    """Return what reports and statistics say of the processes that are no gates, in plan order."""
    gates = {gate.id for gate in graph.plan.gates}
    order = graph.plan.processes()
    kept = [each for each in found if each.process not in gates]
    return sorted(kept, key=lambda each: order.index(each.process))


def local_writer(graph: Any, channel: str, reader: str) -> str:
    """Return the label of the process that writes a channel on the node of one of its readers."""
    plan = graph.plan
    writer, here = plan.channels_by_id()[channel].writer, plan.node_of(reader)
    # A gate has the name of its node.
    return str(plan.label(writer if plan.node_of(writer) == here else here))


def tells_last_op(error: BaseException | str, pattern: str) -> bool:
    """Return whether the error of a death says what the process did last.

    Of a process on another node it also says how long before its death that was. If the host of
    the node dies, what it did since the driver heard of it last is lost, and is not checked.

    Args:
        error: The error, or its text.
        pattern: The op, and the execution if nothing comes after it, as a regular expression.
    """
    text = str(error)
    if re.search(r"node n\d+ at tcp://", text):
        return re.search(r"last seen (.+ before that|nowhere, as its node)", text) is not None
    return re.search(pattern, re.sub(r", [^,]+ before that(?=[.;])", "", text)) is not None
