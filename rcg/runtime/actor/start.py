# SPDX-License-Identifier: Apache-2.0
"""How an actor takes part in a graph: it is inspected, hosts its node, and starts its loops.

``inspect_actor``, ``open_node`` and ``start`` are called in the actor through ``__ray_call__``, in
this order, and ``let_exit`` where a method has called ``exit_actor``. They are importable by name,
so they travel as a name. The host of a node is an ordinary member beside that, and joins like the
others.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import platform
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rcg import cluster, streams
from rcg.channels.base import NoMemory
from rcg.descriptors import out_of_descriptors, telling_exhaustion
from rcg.error_text import describe_error
from rcg.errors import InternalError, PlacementError
from rcg.ir.channels import LOCAL
from rcg.ir.plan import Plan
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.groups import OpenGroups, graphs_that_queue
from rcg.runtime.actor.loop import Loop, may_exit
from rcg.runtime.actor.spec import HostStart, Spec, Start
from rcg.runtime.codec import make_codec
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.joining import connect_gates, patience_s
from rcg.runtime.control.node_control import NodeControl, note_sender
from rcg.runtime.control.stores import ControlStore
from rcg.runtime.failure import capture_own
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.node import ABI_VERSION, Node
from rcg.serialization.foreign import import_torch
from rcg.streams import Handover
from rcg.threads import start_thread
from rcg.version import __version__

__rcg_plumbing__ = True  # see rcg.frames


# Ray hides the GPUs of an actor that asked for none; an environment variable turns that off.
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")  # of NVIDIA's on Linux, and on WSL
# With it NCCL, from 2.30, takes several ranks on one GPU.
_MULTI_RANK: Final = "NCCL_MULTI_RANK_GPU_ENABLE"
_EXIT_PATIENCE_S: Final = 5.0


def inspect_actor(
    instance: Any, methods: tuple[str, ...], needs_torch: bool = False
) -> dict[str, Any]:
    """Return what the driver must know before it compiles for this actor.

    Args:
        instance: The actor.
        methods: The methods that the graph calls.
        needs_torch: Whether the actor surely takes part in a group. Otherwise only an actor with
            GPUs looks for torch and CuPy, which it may come to need.
    """
    failpoints.reach(failpoints.Failpoint("inspect"))
    find_spec = importlib.util.find_spec  # importing a package takes seconds
    has_driver = any(map(os.path.exists, _DRIVERS))
    cls = type(instance)
    return {
        "lacks_torch": (needs_torch or has_driver) and find_spec("torch") is None,
        "lacks_cupy": has_driver and find_spec("cupy") is None,
        "version": __version__,
        "abi": ABI_VERSION,
        "machine": platform.machine(),
        "node": cluster.node_id(),
        "cores": len(os.sched_getaffinity(0)),
        # Ray may believe in GPUs that are not there.
        "gpus": cluster.gpu_ids() if has_driver else [],
        "may_have_other_gpus": os.environ.get(_VISIBLE) != "" and has_driver,
        "shares_gpus": os.environ.get(_MULTI_RANK) == "1",
        "queued": graphs_that_queue(),
        "pid": os.getpid(),
        "missing": [name for name in methods if not callable(getattr(instance, name, None))],
        "costs": {
            name: cost_s
            for name in methods
            if (cost_s := getattr(getattr(cls, name, None), "__rcg_cost_s__", None)) is not None
        },
        "generators": [
            name for name in methods if inspect.isasyncgenfunction(getattr(cls, name, None))
        ],
    }


def check_version(spec: Spec) -> None:
    """Raise PlacementError if this process has another rcg than the driver."""
    if (spec.version, spec.abi) != (__version__, ABI_VERSION):
        raise PlacementError(
            f"this process has rcg {__version__} (shared memory layout {ABI_VERSION}), the "
            f"driver has {spec.version} ({spec.abi}): install the same version on every node"
        )


def open_node(instance: Any, spec: HostStart) -> str:
    """Host this node for a graph, until the connection to the driver ends.

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
            members = [process for process in plan.processes_of(node) if process != node]
            senders = senders_to(plan, node)
            control = NodeControl(spec.graph_id, spec.secret, host, members, senders)
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


def start(instance: Any, spec: Start, lanes: Sequence[Start] = ()) -> None:
    """Start the loop of one graph on this actor, and those of its lanes.

    With ``thread="own"`` it returns once the loops run; with ``thread="main"`` the loop takes the
    calling thread, and it returns when the graph has ended. A lane has a thread of its own.

    Raises:
        PlacementError: This process has another rcg than the driver, or cannot reach it.
        OutOfDescriptors: This process, or the driver's, has none left.
        OutOfThreads: This process can start no more.
    """
    check_version(spec)
    failpoints.reach(failpoints.Failpoint("start", spec.program.process))
    specs = spec, *lanes
    channels = [channel for each in specs for channel in each.channels.values()]
    queues = {each.id: deque[Any]() for each in channels if each.kind == LOCAL}
    openers = [group.opener for each in specs for group in each.groups]
    devices = {device for opener in openers for device in opener.devices} - {"cpu"}
    handover = Handover(devices) if devices and lanes else None
    here = streams.devices_in_use() if devices else {}
    loops: list[Loop] = []
    takes_thread = spec.options.thread == "main"
    try:
        with telling_exhaustion("to take part in a compiled graph", spec.actor[0]):
            for each in specs:
                loops.append(_join(instance, each, queues, handover))
            for loop in loops[takes_thread:]:
                _run_in_thread(loop, here, () if loop is loops[0] else devices)
    except BaseException as error:
        for loop in loops:  # one that runs says so itself, and ends with the graph
            loop.give_up(f"a loop of its actor could not start: {describe_error(error)}")
        raise
    if takes_thread:
        loops[0].run()


def let_exit(_: Any) -> None:
    """Wait until a loop in which a method called ``exit_actor`` has cleaned up.

    Ray looks whether an actor should exit when a call is over. The driver makes this call: with one
    of its own the actor would wait for it before it ends, and it might never begin.
    """
    may_exit.wait(_EXIT_PATIENCE_S)


def _run_in_thread(loop: Loop, here: Mapping[str, int], lane_devices: Collection[str]) -> None:
    """Run a loop in a thread of its own.

    The devices ``here`` are current in this thread, and become so in that one. On those of
    the types ``lane_devices`` it gets streams of its own.
    """

    def prepare() -> None:
        if lane_devices:
            import_torch()  # as its groups do; streams are torch's
        streams.take_devices(here)
        streams.enter_lane(lane_devices)

    name = f"rcg-{loop.name}"
    thread = threading.Thread(target=loop.run, args=(prepare,), name=name, daemon=True)
    start_thread(thread, "to take part in a compiled graph")


def _join(
    instance: Any, spec: Start, queues: Mapping[str, deque[Any]], handover: Handover | None
) -> Loop:
    """Return the loop, ready to run; the control socket's thread listens."""
    process, graph_id, secret = spec.program.process, spec.graph_id, spec.secret
    control = ControlClient(spec.address, graph_id, secret, process)

    def open_store(group: str) -> ControlStore:
        return ControlStore(spec.stores, graph_id, secret, group)

    groups = OpenGroups(process, spec.groups, open_store, graph_id)
    try:
        node = Node(
            control.shared,
            spec.layout,
            process,
            spec.options,
            make_codec(spec.array_types),
            is_looping=True,
            groups=groups,
            queues=queues,
            handover=handover,
        )
        control.close_descriptors()
        timeout_s = patience_s(spec.options.compile_timeout_s)
        connections = connect_gates(spec.gates, graph_id, secret, process, timeout_s)
        node.link(connections, spec.crossings, control.link_lost)
        note_sender(graph_id, node)
        loop = Loop(instance, spec, node, control, groups)
        control.watch(loop, f"rcg-watch-{loop.name}")
    except BaseException as error:
        why = out_of_descriptors(error, "to take part in a compiled graph") or error
        control.finish(f"it could not start: {describe_error(why)}")
        control.close()
        raise
    return loop
