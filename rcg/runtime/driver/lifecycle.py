# SPDX-License-Identifier: Apache-2.0
"""Starting a plan: asking the actors where they are, and starting their loops.

Both steps are ordinary actor calls, so a busy actor answers when its method has returned. After
half a minute a notice names the actors that have not answered; at the deadline an error does.

On several nodes their hosts start first. The host of a node makes its shared memory and its gate,
listens for other nodes, and connects to this process. Then the members start, as on one node.
"""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from rcg import cluster
from rcg.comm.rays import RaysClass, RaysOpener
from rcg.comm.registry import find_communicator
from rcg.errors import ChannelTimeout, CompileError, PlacementError, UnsupportedNodeError
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import Site
from rcg.ir.plan import Bindings, Plan
from rcg.ir.programs import FIRST_NODE
from rcg.options import Deadline, Options
from rcg.runtime.actor.groups import GroupStart, Opener
from rcg.runtime.actor.spec import HostStart, Start
from rcg.runtime.actor.start import inspect_actor, open_node, refusal, senders_to, start
from rcg.runtime.codec import make_codec
from rcg.runtime.control import registry
from rcg.runtime.control.joining import connect_gates, patience_s
from rcg.runtime.driver.answers import Methods, Named, answer_of, gather
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.engine import Engine
from rcg.runtime.driver.group_checks import Owned, check_gpus, check_queues
from rcg.runtime.driver.session import UNNAMED, GraphName, Session
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.node import ABI_VERSION
from rcg.serialization import array_types
from rcg.version import __version__

# Between two checks for loops that have connected.
_CONNECTED_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Located:
    """The nodes of the actors and of the driver.

    Attributes:
        actors: The Ray node of each actor, by its id in the plan.
        driver: The Ray node of this process.
        costs: The seconds that the class of each actor declares for the methods of the graph.
        owned: What each actor has of devices.
        cores: How many processors the actors of a node may use, by the Ray node.
    """

    actors: dict[str, str]
    driver: str
    costs: dict[str, dict[str, float]]
    owned: dict[str, Owned]
    cores: dict[str, int]

    @property
    def gpus(self) -> dict[str, tuple[str, ...]]:
        """The GPUs of each actor that can send tensors from there."""
        return {
            actor: () if owned.lacks_torch or owned.lacks_cupy else owned.gpus
            for actor, owned in self.owned.items()
        }


def locate(
    bindings: Bindings,
    deadline: Deadline,
    methods: Methods,
    tensor_nodes: Mapping[str, tuple[str, Site]],
) -> Located:
    """Ask every actor for its node, and check that it can run its part of the graph.

    Args:
        bindings: The actors' handles.
        deadline: When waiting for answers ends.
        methods: The methods called on each actor, and where the user bound them.
        tensor_nodes: The actors that need torch, each with a node that does and its place.

    Raises:
        ActorDiedError: An actor is dead.
        CompileError: An actor lacks a method, or torch.
        PlacementError: An actor's process has no rcg, or another version.
        UnsupportedNodeError: A method is an asynchronous generator.
        ChannelTimeout: Some did not answer in time; the text names them.
    """
    _refuse_taken(bindings, methods)
    own = cluster.current_actor_id()
    calls: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for actor, handle in bindings.actors.items():
        names = tuple(methods[actor])
        if own is not None and cluster.actor_id(handle) == own:
            found[actor] = inspect_actor(_own_instance(), names, actor in tensor_nodes)
        else:
            calls[actor] = cluster.ask(handle, inspect_actor, names, actor in tensor_nodes)
    found.update(gather(calls, Named(bindings, methods), deadline, "answered"))
    for actor, description in found.items():
        _check(cluster.actor_label(bindings.actors[actor]), description, methods[actor])
        if description["lacks_torch"] and actor in tensor_nodes:
            node, site = tensor_nodes[actor]
            name = Named(bindings).name(actor)
            raise CompileError(
                f"{name} takes part in {node}, which moves tensors, but its "
                "process has no torch: `pip install 'rcg[torch]'` on its node, or give it in the "
                "actor's runtime_env",
                actor=name,
                node=node,
                site=site,
            )
    return Located(
        {actor: found[actor]["node"] for actor in bindings.actors},
        cluster.node_id(),
        {actor: found[actor]["costs"] for actor in bindings.actors},
        {actor: _own(found[actor]) for actor in bindings.actors},
        {each["node"]: each["cores"] for each in found.values()},
    )


def _own(description: Mapping[str, Any]) -> Owned:
    return Owned(
        tuple(f"{description['node']}/{gpu}" for gpu in description["gpus"]),
        description["may_have_other_gpus"],
        description["shares_gpus"],
        tuple(description["queued"]),
        description["lacks_torch"],
        description["lacks_cupy"],
    )


def check_groups(
    plan: Plan, graph: Graph, bindings: Bindings, located: Located, options: Options
) -> None:
    """Check that the groups of a plan can be, as far as the GPUs of the actors tell.

    Raises:
        PlacementError: Some actors have not the GPUs that their group needs.
        CompileError: Another graph queues transfers among two of these actors.
    """
    if plan.groups:
        openers = _openers_of(plan, bindings)
        names = {actor: Named(bindings).name(actor) for actor in bindings.actors}
        check_gpus(plan, graph, openers, located.owned, names)
        check_queues(plan, openers, located.owned, names, is_concurrent=options.concurrent)


def _refuse_taken(bindings: Bindings, methods: Methods) -> None:
    """Raise if a graph of this process uses the main thread of an actor, which could not answer."""
    taken = {
        cluster.actor_id(handle): engine.face()
        for engine in registry.live(Engine)
        if engine.session.options.thread == "main" and not engine.session.is_over
        for handle in engine.session.handles.values()
    }
    for actor, handle in bindings.actors.items():
        graph = taken.get(cluster.actor_id(handle))
        if graph is not None:
            named = Named(bindings, methods)
            raise CompileError(
                f'{named.name(actor)} gave its main thread to {graph} (thread="main"), so it can '
                "take part in no other graph: tear that one down first, or compile it with "
                'thread="own"',
                **named.facts(actor),
            )


def _own_instance() -> Any:
    instance = cluster.current_actor_instance()
    if instance is None:
        raise CompileError(
            "this actor takes part in the graph it compiles, but it is not in this process"
        )
    return instance


def _check(label: str, description: Mapping[str, Any], methods: Mapping[str, Site | None]) -> None:
    version, abi = description["version"], description["abi"]
    if (version, abi) != (__version__, ABI_VERSION):
        raise PlacementError(
            f"{label} on node {description['node']} has rcg {version} (shared memory layout {abi}) "
            f"and the driver has {__version__} ({ABI_VERSION}): install the same version "
            "on every node, or give it in the actor's runtime_env",
            actor=label,
            location=description["node"],
        )
    if description["machine"] != platform.machine():
        raise PlacementError(f"{label} runs on another kind of machine", actor=label)
    for name in description["missing"]:
        raise CompileError(
            f"{label} has no method {name!r}",
            actor=label,
            node=f"{label}.{name}",
            site=methods[name],
        )
    for name in description["generators"]:
        raise UnsupportedNodeError(
            f"{label}.{name} is an asynchronous generator, which compiled graphs do not support: "
            "bind a method that returns its values as a list",
            node=f"{label}.{name}",
            site=methods[name],
        )


def launch(
    plan: Plan,
    bindings: Bindings,
    options: Options,
    deadline: Deadline,
    name: GraphName = UNNAMED,
) -> CompiledDAG:
    """Start the loops of a plan on its actors and return the graph, ready to execute.

    Raises:
        OutOfSharedMemory: A node has no room for the channels.
        PlacementError: As in ``locate``; or nodes cannot reach each other.
        ActorDiedError, ChannelTimeout: As in ``locate``; what was started is stopped again.
    """
    # Up to ``open`` all belongs to the session, which goes with its last reference.
    host = NodeHost(plan, options, make_codec())
    session = Session(uuid.uuid4().hex, plan, bindings, options, host, name)
    try:
        session.open()
        hosts = _open_nodes(session, bindings, deadline)
        _start_loops(session, bindings, deadline, hosts)
        session.check_running()
        host.seal()
        engine = Engine(session, CompiledDAG)
        graph: CompiledDAG = engine.face()
        registry.add(engine)
        return graph
    except BaseException as error:
        # No process can join a node whose host has died: its death is the cause.
        death = session.death() if isinstance(error, PlacementError) else None
        session.control.forget(sorted(_not_connected(session)))
        session.close(Deadline(5.0))
        session.close_nowait()  # also if a loop has not ended
        if death is not None:
            raise death from error
        raise


class _Hosts(NamedTuple):
    """The addresses of the hosts of a graph's nodes, by node."""

    members: Mapping[str, str]  # local ones, for the members of the node
    gates: Mapping[str, str]  # of TCP, for processes of other nodes


def _open_nodes(session: Session, bindings: Bindings, deadline: Deadline) -> _Hosts:
    """Start the hosts of the other nodes, and connect this process to their gates; see ``launch``.

    On one node there is nothing to start, and nothing listens.
    """
    plan, control = session.plan, session.control
    local = {FIRST_NODE: control.address}
    if not plan.nodes:
        return _Hosts(local, {})
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
    answers = gather(calls, Named(bindings), deadline, "made memory on their nodes")
    late = control.nodes.wait_joined(deadline)
    if late:
        raise ChannelTimeout(
            f"compile() waited {deadline.timeout_s:g} s for the hosts of {', '.join(late)}",
            timeout_s=deadline.timeout_s,
        )
    local |= {plan.node_of(actor): address for actor, address in answers.items()}
    hosts = _Hosts(local, {FIRST_NODE: listening, **control.nodes.addresses})
    crossings = _crossings_of(plan, DRIVER)
    wanted = {node: hosts.gates[node] for nodes in crossings.values() for node in nodes}
    timeout_s = patience_s(session.options.compile_timeout_s)
    connections = connect_gates(wanted, session.graph_id, control.secret, DRIVER, timeout_s)
    session.node.link(
        connections, crossings, lambda node, text: control.link_lost(DRIVER, node, text)
    )
    return hosts


def _crossings_of(plan: Plan, process: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes to which each channel crosses that a process writes."""
    crossings = plan.crossings()
    return {
        channel.id: crossings[channel.id]
        for channel in plan.channels
        if channel.writer == process and channel.id in crossings
    }


def _start_loops(session: Session, bindings: Bindings, deadline: Deadline, hosts: _Hosts) -> None:
    own = cluster.current_actor_id()
    calls: dict[str, Any] = {}
    openers = _openers_of(session.plan, bindings)
    for actor, handle in bindings.actors.items():
        spec, *lanes = [
            _start_for(session, process, handle, bindings, openers, hosts)
            for process in (actor, *[lane.id for lane in session.plan.lanes if lane.actor == actor])
        ]
        if own is not None and cluster.actor_id(handle) == own:
            if session.options.thread == "main":
                raise CompileError(
                    "an actor that compiles a graph it takes part in is busy on its main thread, "
                    'so the graph cannot use that: use thread="own"'
                )
            start(_own_instance(), spec, lanes)
        else:
            calls[actor] = cluster.submit(handle, start, spec, lanes)
    if session.options.thread == "main":
        _wait_connected(session, calls, Named(bindings), deadline)
    else:
        gather(calls, Named(bindings), deadline, "started", session)
    _wait_prepared(session, Named(bindings), deadline)


def _openers_of(plan: Plan, bindings: Bindings) -> dict[str, Opener]:
    """Return what opens the ends of each group."""
    openers: dict[str, Opener] = {}
    for group in plan.groups:
        found: Opener
        if group.communicator is not None:
            found = RaysOpener(bindings.constants[group.communicator])
        else:
            found = find_communicator(group.backend)
            if isinstance(found, RaysClass):
                handles = [bindings.actors[plan.host_of(each)] for each in group.members]
                found = replace(found, handles=tuple(handles))
        openers[group.id] = found
    return openers


def _wait_prepared(session: Session, named: Named, deadline: Deadline) -> None:
    """Wait until the members of all groups have met."""
    expected = {member for group in session.plan.groups for member in group.members}
    while missing := sorted(expected - session.control.lives.prepared):
        session.check_running()
        if deadline.expired:
            actors = dict.fromkeys(map(session.plan.host_of, missing))
            raise ChannelTimeout(
                f"compile() waited {deadline.timeout_s:g} s, and the communicator groups of these "
                f"actors are not complete: {named.names(actors)}. They may still "
                "import torch, or wait for each other; raise `timeout`, or look at them with "
                "`ray stack`.",
                timeout_s=deadline.timeout_s,
            )
        time.sleep(_CONNECTED_POLL_S)


def _wait_connected(
    session: Session, calls: Mapping[str, Any], named: Named, deadline: Deadline
) -> None:
    """Wait for loops whose start call returns only when the graph ends."""
    while missing := calls.keys() & set(map(session.plan.host_of, _not_connected(session))):
        waiting = {actor: calls[actor] for actor in sorted(missing)}
        ready, _ = cluster.wait(list(waiting.values()), timeout_s=_CONNECTED_POLL_S)
        for actor, call in waiting.items():
            if call in ready:
                answer_of(actor, call, named)
        session.check_running()
        if deadline.expired:
            gather(waiting, named, deadline, "started")


def _not_connected(session: Session) -> set[str]:
    return set(session.control.lives.not_joined)


def _start_for(
    session: Session,
    process: str,
    handle: Any,
    bindings: Bindings,
    openers: Mapping[str, Opener],
    hosts: _Hosts,
) -> Start:
    plan = session.plan
    program, node = plan.program(process), plan.node_of(process)
    crossings = _crossings_of(plan, process)
    names = [name for op in program.ops for name in op.constants()]
    groups = [
        GroupStart(
            group,
            tuple(map(plan.label, group.members)),
            openers[group.id],
            len(set(map(plan.node_of, group.members))) > 1,
        )
        for group in plan.groups
        if process in group.members
    ]
    return Start(
        graph_id=session.graph_id,
        program=program,
        channels={
            channel.id: channel
            for channel in plan.channels
            if process == channel.writer or process in channel.readers
        },
        layout=Layout.of(plan, node),
        address=hosts.members[node],
        stores=hosts.members[node] if node == FIRST_NODE else hosts.gates[FIRST_NODE],
        gates={each: hosts.gates[each] for nodes in crossings.values() for each in nodes},
        crossings=crossings,
        secret=session.control.secret,
        groups=tuple(groups),
        constants={name: bindings.constants[name] for name in names},
        options=session.options,
        array_types=array_types(),
        actor=(cluster.actor_label(handle), cluster.actor_id(handle), repr(handle)),
        version=__version__,
        abi=ABI_VERSION,
    )
