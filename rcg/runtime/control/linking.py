# SPDX-License-Identifier: Apache-2.0
"""Connecting a process to the gates of other nodes, over which its frames go."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from typing import Final

from rcg.errors import PlacementError
from rcg.options import Deadline
from rcg.runtime.control.joining import check_user, join
from rcg.wire.forks import closed_in_children
from rcg.wire.keepalive import lift_limit
from rcg.wire.messages import OpenLink, Ready
from rcg.wire.packets import PacketStream

__all__ = ["connect_gates", "patience_s"]

_JOIN_TIMEOUT_S: Final = 30.0


def patience_s(compile_timeout_s: float | None) -> float:
    """Return how long a process tries to reach another node while a graph is compiled.

    That is half of what compiling may take at most: who waits for this process shall still hear
    what was in the way.
    """
    return min(_JOIN_TIMEOUT_S, (compile_timeout_s or math.inf) / 2)


def connect_gates(
    gates: Mapping[str, str], graph_id: str, secret: str, process: str, timeout_s: float
) -> dict[str, socket.socket]:
    """Return a connection to the gate of each node.

    Args:
        gates: The address of the endpoint of each node's host, by the node's name.
        graph_id: The graph.
        secret: The graph's secret.
        process: The process that sends, as the plan names it.
        timeout_s: For all of it.

    Raises:
        PlacementError: A node cannot be reached.
        OutOfDescriptors: There is no descriptor left, in this process or in the host.
    """
    found: dict[str, socket.socket] = {}
    deadline = Deadline(timeout_s)
    try:
        for node, address in gates.items():
            opening = OpenLink(graph=graph_id, secret=secret, process=process, node=node)
            try:
                joined = join(address, opening, deadline.remaining_s() or 0.001, check_user)
            except ConnectionAbortedError as error:
                raise PlacementError(f"the graph has ended on node {node}") from error
            except (OSError, ValueError) as error:
                raise PlacementError(
                    f"{process} cannot reach the gate of node {node}: {error}", location=address
                ) from error
            if not isinstance(joined.message, Ready):
                joined.close()
                raise PlacementError(f"the process that answered at {address} is no host")
            connection = joined.connection
            bare = connection.detach() if isinstance(connection, PacketStream) else connection
            lift_limit(bare)  # its other end may be suspended; the link of the node tells a cut
            found[node] = closed_in_children(bare)
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return found
