# SPDX-License-Identifier: Apache-2.0
"""One graph at the endpoint of its driver: its members join, answer, stop and die here.

Each member connects once; ``rcg.wire.messages`` draws its messages. The driver sends it the
descriptors of shared memory, asks for its stack, and stops it. The session of the graph learns when
a member dies or its loop fails. Handles of other processes connect here, too; their connections are
passed to the server for handles. The ranks of a group of communicators find their store here
(``stores``), which ends when the graph does.

There is no lock: state changes in single steps, and a waiting thread checks again (``sleepers``).
So a signal handler or ``__del__`` may use the graph at any point.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from rcg.channels.crossing import Gate
from rcg.error_text import shielding
from rcg.errors import OutOfThreads
from rcg.ir.ids import DRIVER
from rcg.ir.programs import FIRST_NODE
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime.control import endpoint
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.far_nodes import FarMember, FarNode, FarNodes
from rcg.runtime.control.listeners import Refusals
from rcg.runtime.control.members import accept_link, refuse, welcome
from rcg.runtime.control.questions import Questions
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.control.stores import Stores
from rcg.runtime.node.recordings import Recorded
from rcg.runtime.node.snapshot import Snapshot
from rcg.runtime.sleepers import Sleepers, emptied
from rcg.threads import start_thread
from rcg.trace.clocks import now_ns
from rcg.trace.model import Clock
from rcg.wire import codec
from rcg.wire.addresses import TcpAddress
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import (
    AddValue,
    AskReport,
    Broken,
    CloseGroups,
    Done,
    EventsHere,
    Failed,
    FromMember,
    GetValue,
    HasValues,
    Hello,
    Here,
    JoinNode,
    LinkLost,
    MemberLost,
    Message,
    NodeHere,
    Opening,
    OpenLink,
    Prepared,
    ProfileTorch,
    SetValue,
    Stop,
    Stopped,
    TorchProfiled,
    Use,
    UseStore,
)
from rcg.wire.packets import UNREACHABLE
from rcg.wire.sockets import Connection

__all__ = ["GraphControl"]

_log = Log()

Member = Peer | FarMember

# How the connection to a host ends that cannot be reached any more. If its process ends, the kernel
# of its node closes or resets the connection.
_CUTS: Final = frozenset(
    [UNREACHABLE, *map(os.strerror, (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN))]
)
# After this long without the news of a death, a lost connection between nodes is the cause itself.
_DOUBT_S: Final = 2.0
# The ending of a loop that ended without a request to stop and without an error.
_UNASKED: Final = Ending(How.FAILED, "it ended without a request to stop")


class GraphControl:
    """The control of one graph, in the process that compiled it.

    Args:
        graph_id: The id that first messages name.
        processes: The members that will connect.
        descriptors_for: Process -> the board's descriptor and one per member (-1 for none).
        on_gone: Called with (process, ending) on the endpoint's thread when a member's process ends
            or its loop fails before a request to stop. It must not block.
        on_client: Called with the connection of a handle and its first message; it owns the
            connection from then on, unless it raises. On the endpoint's thread: must not block.
        far_nodes: The other nodes of the graph.
    """

    def __init__(
        self,
        graph_id: str,
        processes: Sequence[str],
        descriptors_for: Callable[[str], tuple[int, list[int]]],
        on_gone: Callable[[str, Ending], None],
        on_client: Callable[[Connection, Opening], None],
        far_nodes: Sequence[FarNode] = (),
    ) -> None:
        self.service_id = graph_id
        self.secret = secrets.token_hex(16)
        self.processes = processes
        self.pids: dict[str, int] = {}
        self.prepared: set[str] = set()  # those that have opened their communicator groups
        self.gone: dict[str, Ending] = {}  # ended without a request to stop
        self.gone_ns: dict[str, int] = {}  # and when that was detected
        self._descriptors_for = descriptors_for
        self._on_gone = on_gone
        self._on_client = on_client
        self._sleepers = Sleepers()
        self.nodes = FarNodes(far_nodes, self._sleepers)
        self._gate: tuple[Gate, Sequence[str]] | None = None
        self._doubts: dict[str, str] = {}  # connections between nodes that ended, by their sender
        self._questions = Questions(self._sleepers)
        self._torch_numbers = itertools.count(1)
        self._torch_asked: deque[ProfileTorch] = deque()  # requests that are to be sent
        self._torch_told: dict[str, tuple[int, str]] = {}  # the last answer of each member
        self._members: dict[str, Member] = {}  # whose loops run; of the endpoint's thread
        self._stores = Stores()
        self._done: dict[str, Member] = {}  # those that wait for others to close their groups
        self._may_all_be_done = False  # since somebody looked
        self._over: set[str] = set()
        self._has_told_stop = False
        self._is_stopping = False
        self._is_closed = False
        self.tcp_address: TcpAddress | None = None  # where other nodes reach the endpoint
        self._served_by: Endpoint | None = None

    def open(self) -> None:
        """Be reached by members, until ``close``.

        Raises:
            OutOfDescriptors: No descriptor is left for the endpoint of this process.
        """
        try:
            self._served_by = endpoint.serve(self)
        except BaseException:
            endpoint.abandon(self)  # Ctrl-C came after ``serve`` and before the endpoint was stored
            raise

    @property
    def _endpoint(self) -> Endpoint:
        if self._served_by is None:
            raise ConnectionAbortedError(f"graph {self.service_id} is not open")
        return self._served_by

    @property
    def address(self) -> str:
        """Where the endpoint listens."""
        return self._endpoint.address

    # --- other nodes, any thread

    def open_gate(self, gate: Gate, senders: Sequence[str]) -> None:
        """Accept connections for frames from these processes of other nodes."""
        self._gate = gate, senders

    def wait_nodes(self, deadline: Deadline) -> list[str]:
        """Wait until the hosts of all other nodes have joined; returns those that have not."""
        self._sleepers.wait(
            lambda: not self.nodes.missing() or self._is_closed, deadline.remaining_s()
        )
        return self.nodes.missing()

    def snapshots(self, timeout_s: float) -> list[Snapshot]:
        """Return what the processes of other nodes do, or did when they were last seen."""
        if self.serves_here:
            timeout_s = 0.0
        return self.nodes.snapshots(self._notify, timeout_s, lambda: self._is_closed)

    def end_nodes(self, *, is_closed: bool, culprit: str = "") -> None:
        """End every wait on the other nodes; returns at once."""
        self.nodes.end(self._notify, is_closed=is_closed, culprit=culprit)

    def record_nodes(self, recording: int, most: int, timeout_s: float) -> None:
        """Keep all events of other nodes from now on.

        Args:
            recording: The number of the recording, from ``nodes.new_recording``.
            most: How many are kept of each node.
            timeout_s: How long to wait until they have begun.
        """
        if self.serves_here:
            timeout_s = 0.0
        self.nodes.record(recording, self._notify, most, timeout_s, lambda: self._is_closed)

    def drop_recording(self, recording: int) -> None:
        """End a recording of other nodes, if it goes on."""
        self.nodes.drop(recording, self._notify)

    def events_of_nodes(self, recording: int, timeout_s: float) -> list[Recorded]:
        """Return the events that other nodes have recorded, or with 0 their newest.

        Args:
            recording: Its number; it ends.
            timeout_s: How long to wait for a node that sends nothing.
        """
        if self.serves_here:
            return []
        return self.nodes.events(self._notify, recording, timeout_s, lambda: self._is_closed)

    def link_lost(self, process: str, node: str, text: str) -> None:
        """Note that a connection over which frames of a process go to a node has ended.

        Mostly a process of the graph has died, which is told at the same time in other ways. If
        nothing of the kind is heard for a while, the connection itself is the cause.
        """
        if self._was_told() or self.gone:
            return
        told = f"{text}: {process} -> {node}"
        if process == DRIVER:  # the driver has not left its graph, so it is the other end
            process = self.nodes.host_of(node)
        timer = threading.Timer(_DOUBT_S, self._doubt, (process, told))
        timer.daemon = True
        try:
            start_thread(timer, "to wait for the news of a death")
        except OutOfThreads:
            self._doubt(process, told)

    def _doubt(self, process: str, text: str) -> None:
        self._doubts[process] = text
        self._notify()

    # --- any thread

    def listen_tcp(self, host: str) -> TcpAddress:
        """Be reached from other nodes, too; see ``Endpoint.listen_tcp``."""
        self.tcp_address = self._endpoint.listen_tcp(host)
        return self.tcp_address

    def addresses(self) -> dict[str, str]:
        """Return the address of each node of the graph, without ports; nothing on one node."""
        here = self.tcp_address
        far = {node: TcpAddress.parse(text) for node, text in self.nodes.addresses.copy().items()}
        found = {FIRST_NODE: here, **far}
        return {node: address.host for node, address in found.items() if address is not None}

    def refusals(self) -> Refusals:
        """Return how many connections this process has refused, by reason."""
        return self._endpoint.refusals()

    def stop(self) -> None:
        """Tell every member to stop; returns at once."""
        self._is_stopping = True
        self._notify()

    @property
    def serves_here(self) -> bool:
        """Whether this is the endpoint's thread, which must not wait for messages of members.

        The garbage collector may run a ``__del__`` here that tears a graph down.
        """
        return self._served_by is not None and self._served_by.serves_here

    @property
    def over(self) -> frozenset[str]:
        """The members whose loops have ended, however."""
        return frozenset(self._over)

    def wait_stopped(self, deadline: Deadline) -> list[str]:
        """Wait until every member's loop has ended; returns those that have not by then.

        Those that only wait for others to close their groups are not named. Once the control is
        closed it hears of no end, and waits for none.
        """
        expected = set(self.processes)
        self._sleepers.wait(
            lambda: self._over >= expected or self._is_closed, deadline.remaining_s()
        )
        late = expected - self._over
        return [] if self._is_closed else sorted(late - set(self._done)) or sorted(late)

    def ask_where(self, timeout_s: float) -> dict[str, list[str]]:
        """Return the stack of the user's method that each live member is in, [] for none.

        Members that do not answer within ``timeout_s`` are missing: they are stopped, or code that
        they run does not let Python go on.
        """
        if self._is_closed or not timeout_s or self.serves_here:
            return {}

        def is_missing(answers: dict[str, list[str]]) -> bool:
            return not self._is_closed and not set(self.pids) - self._over <= answers.keys()

        return self._questions.ask(self._notify, is_missing, timeout_s)

    def profile_torch(self, is_on: bool, timeout_s: float) -> dict[str, str]:
        """Have each live member run torch's profiler, or stop it and record its events.

        Args:
            is_on: Whether it is to run.
            timeout_s: How long to wait for the members.

        Returns:
            What is in the way, by member; those that have not answered are among them.
        """
        if self._is_closed or self.serves_here:
            return {}
        number = next(self._torch_numbers)
        self._torch_asked.append(ProfileTorch(number=number, is_on=is_on))
        self._notify()

        def late() -> set[str]:
            done = {each for each, (told, _) in self._torch_told.copy().items() if told >= number}
            return set() if self._is_closed else set(self.pids) - self._over - done

        self._sleepers.wait(lambda: not late(), timeout_s)
        found = dict.fromkeys(late(), f"it has not answered after {timeout_s:g} s")
        for process, (told, trouble) in self._torch_told.copy().items():
            if told >= number and trouble:
                found[process] = trouble
        return found

    def clocks(self, timeout_s: float) -> dict[str, Clock]:
        """Return how each member's clock relates to ours; those that do not tell are missing.

        Members that read the same clock as we do are not asked.

        Args:
            timeout_s: How long the others may take to answer.
        """
        return self._questions.clocks(self.ask_where, timeout_s)

    def forget(self, processes: Sequence[str]) -> None:
        """Do not wait for these: they never connected, or were killed."""
        self._over.update(processes)
        self._sleepers.wake()
        self._notify()

    def close(self) -> None:
        """Close all connections. Idempotent; returns when the endpoint has removed the graph."""
        self._is_closed = True
        self._sleepers.wake()
        if self._served_by is not None:
            self._served_by.close(self)

    def _notify(self) -> None:
        if self._served_by is not None:
            self._served_by.notify(self)

    # --- called by the endpoint's thread

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to hear. Any thread."""
        return self._is_closed or (self._is_stopping and self._over >= set(self.processes))

    def look(self) -> None:
        """Send the requests of other threads."""
        self.nodes.look()
        while self._doubts and not self._was_told() and not self.gone:
            process, text = self._doubts.popitem()
            self._leave(process, Ending(How.UNREACHABLE, text))
        question = self._questions.take_question()
        if question is not None:
            self._tell_members(question)
        for request in emptied(self._torch_asked):
            self._tell_members(request)
        if self._is_stopping:
            self._stores.end()
        if self._is_stopping and not self._has_told_stop:
            self._has_told_stop = True
            self._tell_members(Stop())
        if self._may_all_be_done and self.prepared <= self._over | self._done.keys():
            self._may_all_be_done = False
            self._tell(self._done.values(), CloseGroups())

    def lost(self, peer: Peer, ending: Ending) -> None:
        """A member's connection or process has ended, or its loop; or the link of a node."""
        if self._stores.lost(peer):
            return
        node = self.nodes.left(peer)
        if node is None:
            self._leave(peer.name, ending)
            return
        # A connection that its host has closed tells of the end of the host; it comes first.
        how = How.UNREACHABLE if ending.why in _CUTS else How.LEFT
        where = f"node {node.name} at {self.nodes.addresses[node.name]}"
        why = f"{ending.why}, {where}" if ending.why else where
        for process in node.members:
            if process in self._members:
                self._leave(process, Ending(how, why))
            self._mark_over(process)
            how = How.UNREACHABLE  # nothing is known of those whom the host served

    def _leave(self, process: str, ending: Ending) -> None:
        """A member is gone, or its loop has failed."""
        if self._members.pop(process, None) is None:
            return
        self._stores.end()
        try:
            if not self._was_told():
                self.gone_ns[process] = now_ns()
                self.gone[process] = ending
                self._on_gone(process, ending)
                self._tell_members(Broken())
        finally:
            self._mark_over(process)

    def fail(self, why: str) -> None:
        """Count all members as gone."""
        for peer in list(self._members.values()):
            with shielding():
                self._leave(peer.name, Ending(How.FAILED, why))
        self.released()

    def released(self) -> None:
        """Nothing will be heard any more."""
        self._is_closed = True
        self._stores.end()
        self._members.clear()
        self._done.clear()
        self._sleepers.wake()

    # --- the endpoint's thread: handlers of messages

    def _welcome(self, peer: Peer, hello: Hello) -> bool:
        process = hello.process
        if process not in self.processes or process in self.pids:
            return False
        if peer.is_remote:  # its node has shared memory of its own
            return False
        if not welcome(peer, self._descriptors_for(process)):
            return False
        if self._has_told_stop:
            with contextlib.suppress(OSError):
                peer.send(Stop())
        peer.name = process
        self._take_in(peer, hello)
        return True

    def _take_in(self, member: Member, hello: Hello) -> None:
        self._members[member.name] = member
        self._questions.know_clock(member.name, hello.clock)
        self.pids[member.name] = member.pid

    def _join_node(self, peer: Peer, opening: JoinNode) -> bool:
        return not self._is_stopping and self.nodes.join(peer, opening)

    def _from_member(self, peer: Peer, told: FromMember) -> bool:
        """Handle what a member of another node says."""
        if not self.nodes.is_home(peer, told.process):
            raise ValueError(f"{told.process} is not on its node")
        message = codec.decode(told.text.encode())
        if isinstance(message, Hello):
            if told.process in self.pids or told.process not in self.processes:
                raise ValueError(f"{told.process} has joined already")
            member = FarMember(told.process, told.pid, peer)
            self._take_in(member, message)
            if self._has_told_stop:
                self._tell([member], Stop())
            return True
        handler = self._FROM_FAR.get(type(message))
        if handler is None:
            raise ValueError("it is not expected of a member")
        member = FarMember(told.process, told.pid, peer)
        handler(self, member, message)
        return True

    def _member_lost(self, peer: Peer, told: MemberLost) -> bool:
        if not self.nodes.is_home(peer, told.process) or told.how not in How.__members__:
            raise ValueError(f"{told.process} is not on its node")
        self._leave(told.process, Ending(How[told.how], told.why))
        self._mark_over(told.process)
        return True

    def _link_lost(self, peer: Peer, told: LinkLost) -> bool:
        is_own = self._members.get(told.process) is peer  # of a member on this node
        if not is_own and told.node != peer.name and not self.nodes.is_home(peer, told.process):
            raise ValueError(f"{told.process} is not on its node")
        self.link_lost(told.process, told.node, told.text)
        return True

    def _node_here(self, peer: Peer, told: NodeHere) -> bool:
        self.nodes.hear(peer, told)
        return True

    def _events_here(self, peer: Peer, told: EventsHere) -> bool:
        self.nodes.take_events(peer, told, bytes(peer.body))
        return True

    def _open_link(self, peer: Peer, opening: OpenLink) -> bool:
        if self._gate is None or self._is_stopping:
            return False
        gate, senders = self._gate

        def lost(process: str, text: str) -> None:
            self.link_lost(process, FIRST_NODE, text)

        return accept_link(peer, opening, FIRST_NODE, gate, senders, lost)

    def _pass_on(self, peer: Peer, opening: Opening) -> bool:
        if self._is_stopping:
            return False
        try:
            self._on_client(peer.hand_over_messages(), opening)
        except Exception as problem:  # noqa: BLE001 - the trouble of one client is no other's
            peer.take_back()
            refuse(peer, problem, "to serve another user of its graph")
            _log.warning(
                "rcg: a client of graph %s could not be served: %r", self.service_id, problem
            )
        return False

    def _hear(self, peer: Member, answer: Here) -> bool:
        self._questions.hear(peer.name, answer)
        return True

    def _torch_profiled(self, peer: Member, answer: TorchProfiled) -> bool:
        self._torch_told[peer.name] = answer.number, answer.trouble
        self._sleepers.wake()
        return True

    def _prepared(self, peer: Member, _: Prepared) -> bool:
        self.prepared.add(peer.name)
        return True

    def _on_done(self, peer: Member, _: Done) -> bool:
        self._done[peer.name] = peer
        self._may_all_be_done = True
        return True

    def _stopped(self, peer: Member, _: Stopped) -> bool:
        # Unasked only the poison that follows the first failure may end a loop.
        if not self._was_told() and not self.gone:
            self._leave(peer.name, _UNASKED)
        self._members.pop(peer.name, None)
        self._mark_over(peer.name)
        return False

    def _failed(self, peer: Member, message: Failed) -> bool:
        self._leave(peer.name, Ending(How.FAILED, message.text))
        return False

    def _open_store(self, peer: Peer, opening: UseStore) -> bool:
        return self._stores.open(peer, opening)

    def _use_store(self, peer: Peer, message: Message) -> bool:
        return self._stores.handle(peer, message)

    # What members of other nodes may say.
    _FROM_FAR: ClassVar[Mapping[type[Message], Callable[[Any, FarMember, Any], bool]]] = {
        Here: _hear,
        TorchProfiled: _torch_profiled,
        Prepared: _prepared,
        Done: _on_done,
        Stopped: _stopped,
        Failed: _failed,
    }
    handlers: ClassVar[Mapping[type[Message], Handler]] = {
        Hello: _welcome,
        JoinNode: _join_node,
        FromMember: _from_member,
        MemberLost: _member_lost,
        LinkLost: _link_lost,
        NodeHere: _node_here,
        EventsHere: _events_here,
        OpenLink: _open_link,
        Use: _pass_on,
        AskReport: _pass_on,
        Here: _hear,
        TorchProfiled: _torch_profiled,
        Prepared: _prepared,
        Done: _on_done,
        Stopped: _stopped,
        Failed: _failed,
        UseStore: _open_store,
        **dict.fromkeys((SetValue, GetValue, HasValues, AddValue), _use_store),
    }

    # --- the endpoint's thread: the rest

    def _tell_members(self, message: Message) -> None:
        self._tell(self._members.values(), message)

    def _tell(self, peers: Iterable[Member], message: Message) -> None:
        for peer in peers:
            with contextlib.suppress(OSError):  # also one that is stopped and does not read
                peer.send(message)

    def _was_told(self) -> bool:
        """Return whether members have been asked to stop."""
        return self._is_stopping or self._is_closed

    def _mark_over(self, process: str) -> None:
        self._over.add(process)
        self._done.pop(process, None)
        self._may_all_be_done = True
        self._sleepers.wake()
