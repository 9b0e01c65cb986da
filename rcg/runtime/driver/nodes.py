# SPDX-License-Identifier: Apache-2.0
"""Starting the other nodes of a graph: their hosts first, and then everything can be connected.

The host of a node makes its shared memory and its gate, listens for other nodes, and connects to
this process. After that the members of all nodes start, as on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcg import cluster
from rcg.errors import ChannelTimeout
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Bindings, Plan
from rcg.ir.programs import FIRST_NODE
from rcg.options import Deadline
from rcg.runtime.actor.hosting import open_node, refusal, senders_to
from rcg.runtime.actor.spec import HostStart
from rcg.runtime.control.joining import connect_gates, patience_s
from rcg.runtime.driver.answers import Named, gather
from rcg.runtime.driver.session import Session
from rcg.runtime.node.node import ABI_VERSION
from rcg.version import __version__


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where the hosts of a graph's nodes are reached.

    Attributes:
        members: For the members of each node, by its name: a local address.
        gates: For processes of other nodes: an address of TCP.
    """

    members: Mapping[str, str]
    gates: Mapping[str, str]


def crossings_of(plan: Plan, process: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes to which each channel crosses that a process writes."""
    crossings = plan.crossings()
    return {
        channel.id: crossings[channel.id]
        for channel in plan.channels
        if channel.writer == process and channel.id in crossings
    }


def open_nodes(session: Session, bindings: Bindings, deadline: Deadline) -> Hosts:
    """Start the hosts of the other nodes, and connect this process to their gates.

    On one node there is nothing to start, and nothing listens.

    Raises:
        PlacementError: A host has another rcg, or none; or nodes cannot reach each other.
        OutOfSharedMemory: A node has no room for the channels.
        ActorDiedError: A host died.
        ChannelTimeout: Some did not answer in time.
    """
    plan, control = session.plan, session.control
    local = {FIRST_NODE: control.address}
    if not plan.nodes:
        return Hosts(local, {})
    listening = str(control.listen_tcp(cluster.node_ip()))
    session.gate = session.host.open_gate(
        plan, lambda process, text: control.link_lost(process, FIRST_NODE, text), refusal
    )
    if session.gate is not None:
        control.open_gate(session.gate, senders_to(plan, FIRST_NODE))
    calls: dict[str, Any] = {}
    for node in plan.nodes[1:]:
        actor = plan.host_of_node(node.id)
        handle = bindings.actors[actor]
        spec = HostStart(
            graph_id=session.graph_id,
            node=node.id,
            plan=plan,
            secret=control.secret,
            driver=listening,
            options=session.options,
            label=cluster.actor_label(handle),
            version=__version__,
            abi=ABI_VERSION,
        )
        calls[actor] = cluster.submit(handle, open_node, spec)
    answers = gather(calls, Named(bindings), deadline, "host their nodes")
    late = control.nodes.wait_joined(deadline)
    if late:
        raise ChannelTimeout(
            f"compile() waited {deadline.timeout_s:g} s for the hosts of {', '.join(late)}",
            timeout_s=deadline.timeout_s,
        )
    local |= {plan.node_of(actor): address for actor, address in answers.items()}
    hosts = Hosts(local, {FIRST_NODE: listening, **control.nodes.addresses})
    crossings = crossings_of(plan, DRIVER)
    wanted = {node: hosts.gates[node] for nodes in crossings.values() for node in nodes}
    timeout_s = patience_s(session.options.compile_timeout_s)
    connections = connect_gates(wanted, session.graph_id, control.secret, DRIVER, timeout_s)
    session.node.link(
        connections, crossings, lambda node, text: control.link_lost(DRIVER, node, text)
    )
    return hosts
