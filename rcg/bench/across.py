# SPDX-License-Identifier: Apache-2.0
"""The rows of graphs that cross Ray nodes, and two Ray nodes on this machine to run them.

The nodes share the machine's cores, and their sockets its loopback, for all contestants alike.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import ray

from rcg.bench.rows import MEGABYTE, Limit, Row, Target, array_of, one_byte

__all__ = ["ACROSS", "SEATS", "resource", "two_nodes"]

SEATS = (0, 0, 1, 1)
START_TIMEOUT_S = "180"  # on a busy machine Ray's own 30 s are short
CPUS = 4  # of each node, for the scheduler; the actors take none
ROUND_TRIP = Limit(wire_bytes=1)
MAX_OF_RAW = 1 / 0.75  # 75 % of the throughput of raw sockets

ACROSS: tuple[Row, ...] = (
    Row(
        name="echo",
        title="echo, an actor on the other node",
        shape="chain",
        actors=1,
        nodes=(1,),
        payload=one_byte,
        limit=ROUND_TRIP,
        target=Target(auto=0.12, limit=2.5),
    ),
    Row(
        name="chain-2",
        title="chain of 2, an actor on each node",
        shape="chain",
        actors=2,
        nodes=(0, 1),
        payload=one_byte,
        limit=ROUND_TRIP,
        target=Target(auto=0.2),
    ),
    Row(
        name="chain-4",
        title="chain of 4, two actors on each node",
        shape="chain",
        actors=4,
        nodes=(0, 0, 1, 1),
        payload=one_byte,
        limit=ROUND_TRIP,
        target=Target(),
    ),
    Row(
        name="pipeline-4",
        title="chain of 4 on two nodes, 8 in flight, per item",
        shape="chain",
        actors=4,
        nodes=(0, 0, 1, 1),
        payload=one_byte,
        in_flight=8,
        limit=Limit(hops=1),
        target=Target(auto=0.2),
    ),
    Row(
        name="numpy-1mb",
        title="numpy echo on the other node, 1 MB",
        shape="chain",
        actors=1,
        nodes=(1,),
        payload=array_of(MEGABYTE),
        is_bulk=True,
        limit=Limit(wire_bytes=MEGABYTE),
        target=Target(auto=0.4),
    ),
    Row(
        name="numpy-64mb",
        title="numpy echo on the other node, 64 MB",
        shape="chain",
        actors=1,
        nodes=(1,),
        payload=array_of(64 * MEGABYTE),
        is_bulk=True,
        limit=Limit(wire_bytes=64 * MEGABYTE),
        target=Target(auto=0.2, limit=MAX_OF_RAW),
    ),
)


def resource(node: int) -> str:
    """Return the name of the resource that only the node with a number has."""
    return f"node{node}"


@contextlib.contextmanager
def two_nodes(object_store_bytes: int) -> Iterator[None]:
    """Run two Ray nodes on this machine, with this process on the first.

    Args:
        object_store_bytes: Size of the object store of each node.
    """
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_raylet_start_wait_time_s", START_TIMEOUT_S)
    cluster = Cluster()
    try:
        for number in range(2):
            cluster.add_node(
                num_cpus=CPUS,
                resources={resource(number): 1},
                object_store_memory=object_store_bytes,
                include_dashboard=False,
            )
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
