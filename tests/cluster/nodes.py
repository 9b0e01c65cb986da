# SPDX-License-Identifier: Apache-2.0
"""Clusters of several Ray nodes on this machine, for tests of what crosses between nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray

__all__ = ["cluster_of", "is_spread", "on_node", "session_of"]


@contextlib.contextmanager
def cluster_of(nodes: int, *, cpus: int = 8) -> Iterator[Any]:
    """Run so many nodes with ``ray.cluster_utils``; the first is the driver's.

    Node number i has the resource ``node{i}``, by which a test places its actors.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cpus,
            "include_dashboard": False,
            "resources": {"node0": 1000},
        },
    )
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
            ray.init(num_cpus=16, include_dashboard=False, **quiet)
        else:
            ray.init(stack.enter_context(cluster_of(nodes, cpus=16 // nodes)).address, **quiet)
        stack.callback(ray.shutdown)
        yield


def on_node(cls: Any, number: int) -> Any:
    """Return an actor class whose actors are made on node number ``number``."""
    return cls.options(num_cpus=0, resources={f"node{number}": 0.001})


def is_spread() -> bool:
    """Return whether this Ray session has several nodes, so that actors may be on any of them."""
    return sum(node["Alive"] for node in ray.nodes()) > 1
