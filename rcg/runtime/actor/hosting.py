# SPDX-License-Identifier: Apache-2.0
"""How an actor becomes the host of its node: it makes the node's shared memory and its gate.

``open_node`` is called in the actor through ``__ray_call__``, before any loop starts. The host is
an ordinary member beside that, and joins like the others.
"""

from __future__ import annotations

from typing import Any

from rcg import cluster
from rcg.channels.base import NoMemory
from rcg.descriptors import telling_exhaustion
from rcg.errors import InternalError
from rcg.ir.plan import Plan
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.spec import HostStart
from rcg.runtime.actor.start import check_version
from rcg.runtime.codec import make_codec
from rcg.runtime.control.joining import patience_s
from rcg.runtime.control.node_control import NodeControl
from rcg.runtime.failure import capture_own
from rcg.runtime.node.host import NodeHost


def open_node(instance: Any, spec: HostStart) -> str:
    """Host this node for a graph, until the connection to the driver ends.

    Args:
        instance: The actor.
        spec: What to host.

    Returns:
        The address of this process's endpoint, where the members of this node join.

    Raises:
        PlacementError: This process has another rcg than the driver, cannot reach it, or has no
            port to listen at.
        OutOfSharedMemory: There is no room for the channels.
        OutOfDescriptors: There is none left.
    """
    check_version(spec)
    failpoints.reach(failpoints.Failpoint("host", spec.node))
    plan, node = spec.plan, spec.node
    with telling_exhaustion("to host a node of a compiled graph", spec.label):
        host = NodeHost(plan, spec.options, make_codec(), node=node)
        try:
            control = NodeControl(
                spec.graph_id,
                spec.secret,
                host,
                [process for process in plan.processes_of(node) if process != node],
                senders_to(plan, node),
            )
        except BaseException:
            host.close()
            raise
        try:
            gate = host.open_gate(plan, control.link_lost, refusal)
            if gate is None:
                raise InternalError(f"nothing arrives at node {node}")
            timeout_s = patience_s(spec.options.compile_timeout_s)
            control.open(gate, cluster.node_ip(), spec.driver, timeout_s)
        except BaseException:
            control.close()
            raise
    return control.address


def senders_to(plan: Plan, node: str) -> list[str]:
    """Return the processes of other nodes that send frames to a node."""
    crossings = plan.crossings()
    found = [channel.writer for channel in plan.channels if node in crossings.get(channel.id, ())]
    return list(dict.fromkeys(found))


def refusal(channel: str, signal: NoMemory) -> bytes:
    """Return what a failure carries in place of a frame for which a node has no memory."""
    return capture_own(signal.public(channel=channel)).data
