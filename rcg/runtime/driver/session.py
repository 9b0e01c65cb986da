# SPDX-License-Identifier: Apache-2.0
"""A running graph as its driver sees it: shared memory, control socket, state, and its end.

A session is *running*, then *broken* (a member died) or *closed* (torn down), and a broken one can
still be closed. It never calls Ray but to ask for the cause of a death and to kill on request, so
that ending one is safe anywhere: in ``__del__``, in a signal handler, at interpreter exit, without
a cluster. There is no lock: each step of its end may be repeated, by any thread at any moment.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from rcg import cluster
from rcg.channels.base import GraphEnded, Signal
from rcg.channels.crossing import Gate
from rcg.descriptors import Descriptor
from rcg.error_text import describe_error, shielded, shielding
from rcg.errors import ActorDiedError, ChannelBroken, ChannelClosed, RcgError
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import KEEP, Site
from rcg.ir.ops import Call, Collective, Op
from rcg.ir.phrases import name_of, phrase_of
from rcg.ir.plan import Bindings, Plan
from rcg.ir.programs import FIRST_NODE
from rcg.log import Log
from rcg.options import FOR_EVER, Deadline, Options
from rcg.runtime.actor.start import let_exit
from rcg.runtime.control.far_nodes import FarNode
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import Shared
from rcg.runtime.node.node import Node
from rcg.runtime.node.snapshot import NodeView, Snapshot
from rcg.runtime.observe.report import Report, activities, backlogs, socket_queues
from rcg.runtime.watch import Watch
from rcg.text import graph_title, time_text
from rcg.wire import liveness
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import Opening
from rcg.wire.sockets import Connection

_log = Log()

_STATES: Final = {
    How.DIED: "dead",
    How.LEFT: "dead",
    How.FAILED: "failed",
    How.EXITED: "dead",
    How.UNREACHABLE: "unreachable",
}  # of processes that have left
# How long to wait for Ray's explanation of a death that the kernel has already reported.
_CAUSE_PATIENCE_S: Final = 1.0
# How long to wait for actors that were killed to be dead.
_KILL_PATIENCE_S: Final = 2.0
# After this long a teardown warns which actors it waits for.
_PATIENCE_S: Final = 5.0


class GraphName(NamedTuple):
    """What people call a graph.

    Attributes:
        given: By ``compile``, or "".
        fallback: If it is assigned to no variable of the main program.
    """

    given: str = ""
    fallback: str = ""


UNNAMED: Final = GraphName()


class Inquiry(NamedTuple):
    """Questions to all processes of a graph, by their numbers: where are you, and what do you do?

    Attributes:
        members: The number of the question to the members.
        nodes: That of the question to the hosts of other nodes.
    """

    members: int
    nodes: int


class Seen(NamedTuple):
    """Where a process was in its program.

    Attributes:
        text: As people say it: ``in Stage.work (execution 41), bound at pipeline.py:12``.
        node: The node of the graph that it ran, or None.
        site: Where the user bound that node, or None.
    """

    text: str
    node: str | None = None
    site: Site | None = None

    def __str__(self) -> str:
        return self.text


def _is_bound(op: Op) -> TypeGuard[Call | Collective]:
    """Return whether an op is of a node that the user bound."""
    return isinstance(op, Collective) or (isinstance(op, Call) and op.method != KEEP)


class Session:
    """One running graph, as its driver sees it, from ``open`` to ``close``.

    Args:
        graph_id: Hex id.
        plan: What runs.
        bindings: Ray's handles of the actors, by process, and where the nodes were bound.
        options: Of the graph.
        host: The memory on this process's node; closed with the session.
        name: What people call it.

    Attributes:
        node: This process's place on its node.
    """

    def __init__(
        self,
        graph_id: str,
        plan: Plan,
        bindings: Bindings,
        options: Options,
        host: NodeHost,
        name: GraphName = UNNAMED,
    ) -> None:
        self.graph_id = graph_id
        self._name = name
        self.plan = plan
        self.handles: Mapping[str, Any] = dict(bindings.actors)
        self.sites: Mapping[int, Site] = bindings.sites
        self.options = options
        self.host = host
        self.node: Node = host.node
        self.gate: Gate | None = None  # of this node, once it is open
        self.pid = os.getpid()
        self.is_over = False  # closed or broken: one look for `execute`
        self._is_closed = False
        self._cause: RcgError | None = None
        self._on_end: deque[Callable[[], None]] = deque()
        self._on_close: deque[Callable[[], None]] = deque()
        # Set once there is a graph to use: the variable it is assigned to, or "", and what serves
        # handles of other processes.
        self.on_name: Callable[[], str] = lambda: ""
        self.on_client: Callable[[Connection, Opening], None] = lambda peer, _: peer.close()

        # The control holds the session weakly. Otherwise each would hold the other, and the actors
        # of a dropped graph would live until the garbage collector runs.
        reference = weakref.ref(self)

        def descriptors_for(process: str) -> Shared:
            session = reference()
            if session is None:
                raise ConnectionAbortedError(f"graph {graph_id} has ended")
            return session.host.descriptors()

        def member_gone(process: str, ending: Ending) -> None:
            session = reference()
            if session is not None:
                session._member_gone(process, ending)

        def client_came(connection: Connection, opening: Opening) -> None:
            session = reference()
            if session is None:
                connection.close()
            else:
                session.on_client(connection, opening)

        gates = {gate.id for gate in plan.gates}
        processes = [program.process for program in plan.programs]
        self.control = GraphControl(
            graph_id,
            [process for process in processes if process not in {DRIVER, *gates}],
            descriptors_for,
            member_gone,
            client_came,
            far_nodes=[
                FarNode(
                    Layout.of(plan, node.id),
                    tuple([each for each in plan.processes_of(node.id) if each not in gates]),
                )
                for node in plan.nodes[1:]
            ],
        )

    def open(self) -> None:
        """Be reached by the members.

        Raises:
            OutOfDescriptors: No descriptor is left for the endpoint of this process.
        """
        self.control.open()

    def views(self, patience_s: float = 0.0) -> list[NodeView]:
        """Return what the processes of each node do.

        Args:
            patience_s: How long to wait for other nodes, which are else returned as they were last
                seen. With 0 nobody is asked.
        """
        nodes = self.control.nodes
        if patience_s:
            nodes.wait(nodes.ask(), patience_s)
        return [self.node, *nodes.snapshots()]

    # --- state

    @property
    def name(self) -> str:
        """What people call the graph: as given, or as it is assigned now, or its last method."""
        return self._name.given or self.on_name() or self._name.fallback

    @property
    def title(self) -> str:
        """What views and messages call the graph: its name and the beginning of its id."""
        return graph_title(self.name, self.graph_id)

    @property
    def is_closed(self) -> bool:
        """Whether the graph was torn down."""
        return self._is_closed

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that compiled the graph."""
        return os.getpid() != self.pid

    @property
    def is_broken(self) -> bool:
        """Whether a member died."""
        return bool(self.control.lives.gone)

    @property
    def has_cause(self) -> bool:
        """Whether ``end_error`` answers at once, without asking Ray how a member died."""
        return self._is_closed or not self.is_broken or self._cause is not None

    def on_end(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once when the session breaks or closes; it must not block."""
        self._on_end.append(call)
        if self.is_over:
            _call_each(self._on_end)

    def on_close(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once when the graph is torn down; it must not block."""
        self._on_close.append(call)
        if self._is_closed:
            _call_each(self._on_close)

    def forget_close(self, call: Callable[[], None]) -> None:
        """Undo ``on_close``."""
        with contextlib.suppress(ValueError):
            self._on_close.remove(call)

    def _member_gone(self, process: str, ending: Ending) -> None:
        # On the control thread only.
        if self._is_closed:
            return
        self.is_over = True
        self.node.end_broken(process)  # the first death counts
        releases_itself = ending.how in (How.FAILED, How.EXITED)
        if not releases_itself and process in self.node.layout.members:
            self.node.forget(process)
        self.control.nodes.end(is_closed=False, culprit=process)
        if ending.how is How.EXITED:
            with contextlib.suppress(Exception):  # it has ended, or Ray was shut down
                cluster.submit(self.handles[self.plan.host_of(process)], let_exit)
        _call_each(self._on_end)

    # --- errors

    def check_running(self) -> None:
        """Raise if the graph has ended.

        Raises:
            ChannelClosed: It was torn down.
            ActorDiedError: A member died.
        """
        if self._is_closed or self.is_broken:
            raise self.end_error()

    def end_error(self, deadline: Deadline = FOR_EVER) -> RcgError:
        """Return the error of a graph that was torn down, or lost a member.

        It waits until the cause is known, and for what Ray says of it, but not beyond the deadline.
        """
        if self._is_closed:
            return ChannelClosed("Channel closed. The compiled graph was torn down.")
        known = self._cause or self._find_cause(deadline)
        # A new one each time, because a raised exception keeps the frames of its callers.
        return type(known)(known.message, **known.facts)

    def _find_cause(self, deadline: Deadline) -> RcgError:
        cause = self.control.wait_cause(deadline)
        if cause is None:
            return ChannelBroken("a process of the graph is gone")
        found = self._error_of(*cause, deadline)
        if not deadline.expired:  # else it may lack something that the next one finds
            self._cause = found
        return found

    def _error_of(self, process: str, ending: Ending, deadline: Deadline) -> RcgError:
        lanes: list[str] = []
        if ending.how is not How.FAILED:
            process = self.plan.host_of(process)
            lanes = [lane.id for lane in self.plan.lanes if lane.actor == process]
        label = self.plan.label(process)
        last, *of_lanes = (self.last_seen(each) for each in (process, *lanes))
        pairs = zip(lanes, of_lanes, strict=True)
        seen = "".join([str(last), *[f"; {lane} {each}" for lane, each in pairs]])
        ran = next((each for each in (last, *of_lanes) if each.node), last)
        if ending.how is How.FAILED:
            return ChannelBroken(f"{label} left the compiled graph: {ending}", peer=label)
        if ending.how is How.EXITED:
            return ActorDiedError(
                f"The actor {label} has exited: {ending.why}. It was last seen {seen}. The "
                "other actors are usable: tear this graph down and compile a new one.",
                actor=label,
                node=ran.node,
                site=ran.site,
                actor_id=cluster.actor_id(self.handles[process]),
            )
        is_alive, why = self._ask_ray(process, deadline)
        if ending.how is How.UNREACHABLE and is_alive:
            return ChannelBroken(
                f"{label} cannot be reached any more, although Ray still runs it: {ending.why}. It "
                f"was last seen {seen}. Look at the network between the nodes, tear this graph "
                "down and compile a new one.",
                peer=label,
            )
        how = ending.why if ending.how is How.UNREACHABLE else ending
        return ActorDiedError(
            f"The actor {label} died unexpectedly: {how}. It was last seen {seen}. The "
            f"other actors are usable: tear this graph down and compile a new one. {why}",
            actor=label,
            node=ran.node,
            site=ran.site,
            actor_id=cluster.actor_id(self.handles[process]),
        )

    def death(self) -> RcgError | None:
        """Return the error of a member's death; None if none is reported in a moment."""
        cause = self.control.wait_cause(FOR_EVER)
        return None if cause is None or cause[1].how is How.FAILED else self.end_error()

    def _ask_ray(self, process: str, deadline: Deadline) -> tuple[bool, str]:
        """Return whether an actor may be alive, and what Ray says of its death."""
        if not cluster.is_connected():
            return False, "Ray was shut down."
        try:
            left_s = deadline.remaining_s()
            patience_s = _CAUSE_PATIENCE_S if left_s is None else min(left_s, _CAUSE_PATIENCE_S)
            cluster.get(cluster.probe(self.handles[process]), timeout_s=patience_s)
        except TimeoutError:
            return True, "Ray has not reported the cause yet."
        except Exception as error:  # noqa: BLE001 - whatever Ray says is the cause
            said = shielded(str, error, otherwise="").strip() or describe_error(error)
            return False, f"Ray says: {cluster.why_dead(said)}."
        return True, "Ray runs the actor again, but the graph has lost it."

    def last_seen(self, process: str) -> Seen:
        """Return where a process was last in its program, from the flight recorder."""
        for view in self.views():
            if process not in view.layout.members:
                continue
            if view.age_s is None:
                return Seen("nowhere, as its node had reported nothing yet")
            now, ops = view.now(process), self.plan.program(process).ops
            node, site = None, None
            if not now.since_ns or now.op >= len(ops):
                text = "before its first execution"
            elif _is_bound(op := ops[now.op]):
                node, site = name_of(self.plan, op), self.sites.get(op.node)
                bound = f", bound at {site}" if site else ""
                text = f"in {node} (execution {now.execution}){bound}"
            else:
                text = f"{phrase_of(self.plan, process, now.op)} (execution {now.execution})"
            gone_ns = self.control.lives.gone_ns.get(process)
            if gone_ns is not None and isinstance(view, Snapshot):
                text += f", {time_text(max(0, gone_ns - view.taken_ns))} before that"
            return Seen(text, node, site)
        return Seen("nowhere")

    def inquire(self) -> Inquiry:
        """Ask all live processes for what a report says of them; returns at once."""
        return Inquiry(self.control.questions.ask(), self.control.nodes.ask())

    def await_answers(self, inquiry: Inquiry, timeout_s: float) -> None:
        """Wait until all live processes have answered, or for so long."""
        deadline = Deadline(timeout_s)
        self.control.questions.wait(inquiry.members, timeout_s)
        self.control.nodes.wait(inquiry.nodes, deadline.remaining_s() or 0.0)

    def report(self, inquiry: Inquiry | None) -> Report:
        """Return what each process does and waits for, including those that hang or died.

        Args:
            inquiry: With the stacks of those that have answered it by now; None: nobody was asked.
        """
        stacks = {} if inquiry is None else self.control.questions.stacks(inquiry.members)
        nodes = self.views()
        memory = [node.memory() for node in nodes]
        gone = self.control.lives.gone.copy()
        left = dict.fromkeys(self.control.lives.over, "ended")
        left |= {each: _STATES[ending.how] for each, ending in gone.items()}
        return Report(
            graph_id=self.graph_id,
            name=self.name,
            state="closed" if self._is_closed else "broken" if gone else "running",
            processes=tuple(
                activities(nodes, self.plan, stacks=stacks, left=left, sites=self.sites)
            ),
            backlogs=tuple(backlogs(nodes, self.plan)),
            used_bytes=sum(each.used_bytes for each in memory),
            cap_bytes=sum(each.cap_bytes for each in memory),
            asked=inquiry is not None,
            sockets=socket_queues(nodes, self.plan),
            refused=self._refusals(nodes),
        )

    def _refusals(self, nodes: Iterable[NodeView]) -> dict[str, str]:
        """Return the connections that each node's host has refused; on one node, if any were."""
        ours = self.control.refusals()
        if not self.control.tcp_address and not ours.total:
            return {}
        far = (node for node in nodes if isinstance(node, Snapshot) and node.age_s is not None)
        return {FIRST_NODE: str(ours), **{node.layout.node: node.refused for node in far}}

    def public(self, signal: Signal, deadline: Deadline = FOR_EVER) -> RcgError:
        """Return the error that users get for what a channel raised; see ``end_error``."""
        return self.end_error(deadline) if issubclass(type(signal), GraphEnded) else signal.public()

    # --- the end

    def close(
        self,
        deadline: Deadline,
        *,
        kill_actors: bool = False,
        warn: Callable[[str], object] = _log.warning,
        watch: Watch | None = None,
    ) -> list[str]:
        """Stop every loop and release shared memory. Idempotent, any thread.

        It blocks until the loops have ended, or the deadline. A loop that is still in a user's
        method ends when the method returns. It may be called again to continue waiting. On the
        endpoint's thread, for example in a ``__del__``, it does not wait.

        Args:
            deadline: When waiting ends.
            kill_actors: Kill the actors as well.
            warn: Called with a text about each process that takes long to end.
            watch: Over this wait; None if nobody wants to know what it waits for.

        Returns:
            The processes whose loops have not ended.
        """
        if not self.begin_close():
            return []
        if self.control.serves_here:
            if kill_actors:
                self._kill_actors()
            self._let_go()
            return []
        left_s = deadline.remaining_s()
        patience = Deadline(_PATIENCE_S if left_s is None else min(_PATIENCE_S, left_s))
        late = self._wait_stopped(patience, watch)
        if late and (kill_actors or not deadline.expired):
            for process in late:
                warn(self._lateness(process, kill_actors))
        if kill_actors:
            self._kill_actors()
            late = []
        elif late:
            late = self._wait_stopped(deadline, watch)
        if not late:
            self._let_go()
        return late

    def _wait_stopped(self, deadline: Deadline, watch: Watch | None) -> list[str]:
        """Wait until every loop has ended; returns those that have not by the deadline."""
        while True:
            sleeps = (deadline.remaining_s(), None if watch is None else watch.next_s())
            sleep_s = min((each for each in sleeps if each is not None), default=None)
            late = self.control.wait_stopped(Deadline(sleep_s))
            if not late or deadline.expired:
                return late
            if watch is not None:
                watch.look()

    def close_nowait(self) -> None:
        """Stop all loops without waiting: for garbage collection and interpreter exit.

        Ctrl-C finishes first.
        """
        try:
            self._close_nowait()
        except KeyboardInterrupt:
            self._close_nowait()
            raise

    def _close_nowait(self) -> None:
        if self.begin_close():
            self._let_go()

    def _let_go(self) -> None:
        self.node.unlink()
        if self.gate is not None:
            self.gate.close()
        self.control.close()
        self.host.close()

    def begin_close(self) -> bool:
        """Mark as closed and wake all waiters; False in a forked child, which has no graph.

        It does not wait for the loops. Idempotent, any thread.
        """
        self._is_closed = self.is_over = True
        if self.is_forked:
            return False
        self.control.stop()  # first, or a loop that the poison ends would seem to end unasked
        self.node.end_closed()
        self.control.nodes.end(is_closed=True)
        _call_each(self._on_end)
        _call_each(self._on_close)
        return True

    def _lateness(self, process: str, kill_actors: bool) -> str:
        advice = " Call teardown(kill_actors=True) to kill the actors instead."
        return (
            f"rcg: {self.plan.label(process)} is still {self.last_seen(process)}, after "
            f"teardown(); waiting for it.{'' if kill_actors else advice}"
        )

    def _kill_actors(self) -> None:
        if not cluster.is_connected():
            return  # they ended with the cluster
        pids = {
            pid
            for process, pid in self.control.lives.pids.items()
            if process in self.node.layout.members and process not in self.control.lives.gone
        }
        pidfds: list[Descriptor] = []
        with contextlib.suppress(OSError):  # of the others the end is not waited for
            pidfds.extend(map(liveness.pidfd_of, pids))
        for handle in list(self.handles.values()):
            try:
                cluster.kill(handle)
            except Exception:  # noqa: BLE001 - dead already, or no cluster any more
                continue
        # Ray's kill returns early, but callers expect the actors to be dead.
        deadline = Deadline(_KILL_PATIENCE_S)
        for pidfd in pidfds:
            if pidfd.fd >= 0:
                liveness.ends_within(pidfd.fd, deadline.remaining_s())


def _call_each(calls: deque[Callable[[], None]]) -> None:
    """Call everything in the queue, each once, even if several threads do so."""
    while True:
        try:
            call = calls.popleft()
        except IndexError:
            return
        with shielding():  # one that fails keeps no other from being called
            call()
