# SPDX-License-Identifier: Apache-2.0
"""One graph at the endpoint of its driver: its members join, answer, stop and die here.

Each member connects once; ``rcg.wire.messages`` draws its messages. The driver sends it the
descriptors of shared memory, asks for its stack, and stops it. The session of the graph learns when
a member dies or its loop fails. Connections of handles in other processes are passed to the server
for handles. The ranks of a group of communicators find their store here (``stores``), which ends
when the graph does.

There is no lock: state changes in single steps, and a waiting thread checks again (``sleepers``).
So a signal handler or ``__del__`` may use the graph at any point.
"""

from __future__ import annotations

import errno
import os
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from rcg.channels.crossing import Gate
from rcg.error_text import shielding
from rcg.ir.ids import DRIVER
from rcg.ir.programs import FIRST_NODE
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime.control import endpoint
from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.far_nodes import FarMember, FarNode, FarNodes
from rcg.runtime.control.lives import (
    SETTLE_NS,
    Action,
    CloseGroups,
    Done,
    Event,
    Gone,
    Joined,
    Left,
    LinkLost,
    Lives,
    Over,
    Prepared,
    Stopped,
    Unseen,
)
from rcg.runtime.control.members import (
    Member,
    Questions,
    accept_link,
    refuse,
    send_all,
    welcome,
)
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.control.stores import Stores
from rcg.runtime.node.memory import Shared
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.trace.clocks import now_ns
from rcg.wire import codec, messages
from rcg.wire.addresses import TcpAddress
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import Message
from rcg.wire.packets import UNREACHABLE
from rcg.wire.sockets import Connection

_T = TypeVar("_T")
_log = Log()

# How the connection to a host ends that cannot be reached any more. If its process ends, the kernel
# of its node closes or resets the connection.
_CUTS: Final = frozenset(
    [UNREACHABLE, *map(os.strerror, (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN))]
)
_SETTLED_NS: Final = 1 << 62  # when nothing can be heard any more


class GraphControl:
    """The control of one graph, in the process that compiled it.

    Args:
        graph_id: The id that first messages name.
        processes: The members that will connect.
        descriptors_for: Process -> the shared memory of its node.
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
        descriptors_for: Callable[[str], Shared],
        on_gone: Callable[[str, Ending], None],
        on_client: Callable[[Connection, messages.Opening], None],
        far_nodes: Sequence[FarNode] = (),
    ) -> None:
        self.service_id = graph_id
        self.secret = secrets.token_hex(16)
        self._descriptors_for = descriptors_for
        self._on_gone = on_gone
        self._on_client = on_client
        self._sleepers = Sleepers()
        self.lives = Lives(processes)
        self._members: dict[str, Member] = {}  # those whose loops run; of the endpoint's thread
        notify = _weak(self._notify, None)
        self.nodes = FarNodes(far_nodes, self._sleepers, notify, _weak(self._must_not_wait, True))
        self.questions = Questions(self._sleepers, notify, _weak(self._answering, set()))
        self._gate: tuple[Gate, Sequence[str]] | None = None
        # Connections between nodes that were lost: the process that sends there, and the text.
        self._lost_links: deque[tuple[str, str]] = deque()
        self._stores = Stores()
        self._has_sent_stop = False
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

    def link_lost(self, process: str, node: str, text: str) -> None:
        """Note that a connection over which frames of a process go to a node has ended. Any thread.

        Mostly a process of the graph has died, which is reported at the same time in other ways. If
        no death is reported for a while, the connection itself is the cause.
        """
        text = f"{text}: {process} -> {node}"
        if process == DRIVER:  # the driver has not left its graph, so it is the other end
            process = self.nodes.host_of(node)
        self._lost_links.append((process, text))
        self._notify()

    # --- any thread

    def listen_tcp(self, host: str) -> TcpAddress:
        """Be reached from other nodes, too; see ``Endpoint.listen_tcp``."""
        self.tcp_address = self._endpoint.listen_tcp(host)
        return self.tcp_address

    def addresses(self) -> dict[str, str]:
        """Return the address of each node of the graph, without ports; nothing on one node."""
        here = {} if self.tcp_address is None else {FIRST_NODE: self.tcp_address.host}
        far = self.nodes.addresses.copy().items()
        return here | {node: TcpAddress.parse(text).host for node, text in far}

    def refusals(self) -> Refusals:
        """Return how many connections this process has refused, by reason."""
        return self._endpoint.refusals()

    def stop(self) -> None:
        """Ask every member to stop; returns at once."""
        self.lives.stop()
        self._is_stopping = True
        self._notify()

    @property
    def serves_here(self) -> bool:
        """See ``Endpoint.serves_here``."""
        return self._served_by is not None and self._served_by.serves_here

    def wait_stopped(self, deadline: Deadline) -> list[str]:
        """Wait until every member's loop has ended; returns those that have not by then.

        Once the control is closed it hears of no end, and waits for none.
        """
        self._sleepers.wait(
            lambda: self.lives.are_all_over or self._is_closed, deadline.remaining_s()
        )
        return [] if self._is_closed else self.lives.late()

    def wait_cause(self, deadline: Deadline) -> tuple[str, Ending] | None:
        """Wait until it is known who caused the end of the graph, and how; None if nobody has.

        At the deadline, and on the endpoint's thread, which hears the news, this is the best that
        is known.
        """
        lives = self.lives
        while (found := lives.cause(now_ns())) is None and not self._must_not_wait():
            left_s, settled_s = deadline.remaining_s(), SETTLE_NS / 1e9
            if left_s == 0 or not self._sleepers.wait(
                lambda: lives.cause(now_ns()) is not None,
                settled_s if left_s is None else min(left_s, settled_s),
            ):
                break
        return found or lives.cause(_SETTLED_NS)

    def forget(self, processes: Sequence[str]) -> None:
        """Do not wait for these: they never connected, or were killed."""
        self.lives.forget(processes)
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

    def _must_not_wait(self) -> bool:
        """Whether no peer will answer, or this thread is the one that hears the answers."""
        return self._is_closed or self.serves_here

    def _answering(self) -> set[str]:
        """Return the members that may answer a question of this thread."""
        return set() if self._must_not_wait() else self.lives.pids.keys() - self.lives.over

    @property
    def _is_ending(self) -> bool:
        """Whether members have been asked to stop."""
        return self._is_stopping or self._is_closed

    # --- called by the endpoint's thread

    @property
    def is_over(self) -> bool:
        """See ``Service``. Any thread."""
        return self._is_closed or (self._is_stopping and self.lives.are_all_over)

    def look(self) -> None:
        """Send the requests of other threads, and note what they have seen."""
        self.nodes.look()
        for process, text in take_all(self._lost_links):
            self._note(process, LinkLost(text))
        for question in self.questions.take_questions():
            send_all(self._members.values(), question)
        if self._is_stopping:
            self._stores.end()
        if self._is_stopping and not self._has_sent_stop:
            self._has_sent_stop = True
            send_all(self._members.values(), messages.Stop())
        self._do(self.lives.on_time(now_ns()))
        due_ns = self.lives.next_ns()
        if due_ns is not None:
            self._endpoint.look_at(self, due_ns)

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        """A member's connection or process has ended, or its loop; or the link of a node."""
        if self._stores.forget(peer):
            return
        node = self.nodes.forget(peer)
        if node is None:
            if self._members.get(peer.name) is peer:
                self._note(peer.name, Left(ending))
            return
        # A connection that its host has closed shows the end of the host, the first of the members.
        how = How.UNREACHABLE if ending.why in _CUTS else How.LEFT
        where = f"node {node.name} at {self.nodes.addresses[node.name]}"
        why = f"{ending.why}, {where}" if ending.why else where
        host, *others = node.members
        self._note(host, Left(Ending(how, why)))
        for process in others:
            self._note(process, Unseen())

    def _note(self, process: str, event: Event) -> None:
        """Note what happens to a member, and do what is to be done."""
        self._do(self.lives.on(process, event, now_ns()))
        self._sleepers.wake()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Gone(process, ending):
                    self._stores.end()
                    self._members.pop(process, None)
                    self._on_gone(process, ending)
                    send_all(self._members.values(), messages.Broken())
                case Over(process):
                    self._members.pop(process, None)
                case CloseGroups(processes):
                    members = [self._members[each] for each in processes if each in self._members]
                    send_all(members, messages.CloseGroups())

    def fail(self, why: str) -> None:
        """Count all members as gone."""
        for process in list(self._members):
            with shielding():
                self._note(process, Left(Ending(How.FAILED, why)))
        self.on_released()

    def on_released(self) -> None:
        """See ``Service``."""
        self._is_closed = True
        self._stores.end()
        self._members.clear()
        self._sleepers.wake()

    # --- the endpoint's thread: handlers of messages

    def _welcome(self, peer: Peer, hello: messages.Hello) -> bool:
        process = hello.process
        # A remote process has shared memory of its own node.
        if peer.is_remote or process not in self.lives.not_joined:
            return False
        if not welcome(peer, self._descriptors_for(process)):
            return False
        peer.name = process
        self._take_in(peer, hello)
        return True

    def _take_in(self, member: Member, hello: messages.Hello) -> None:
        if self._has_sent_stop:
            send_all([member], messages.Stop())
        self.questions.know_clock(member.name, hello.clock)
        self._members[member.name] = member
        self._note(member.name, Joined(member.pid))

    def _join_node(self, peer: Peer, opening: messages.JoinNode) -> bool:
        return not self._is_stopping and self.nodes.join(peer, opening)

    def _from_member(self, peer: Peer, quoted: messages.FromMember) -> bool:
        """Handle what a member of another node says."""
        if not self.nodes.is_home(peer, quoted.process):
            raise ValueError(f"{quoted.process} is not on its node")
        message = codec.decode(quoted.text.encode())
        member = FarMember(quoted.process, quoted.pid, peer)
        if isinstance(message, messages.Hello):
            if quoted.process not in self.lives.not_joined:
                raise ValueError(f"{quoted.process} has joined already")
            self._take_in(member, message)
        elif (handler := self._FROM_MEMBERS.get(type(message))) is not None:
            handler(self, member, message)
        else:
            raise ValueError("it is not expected of a member")
        return True

    def _member_lost(self, peer: Peer, message: messages.MemberLost) -> bool:
        if not self.nodes.is_home(peer, message.process) or message.how not in How.__members__:
            raise ValueError(f"{message.process} is not on its node")
        self._note(message.process, Left(Ending(How[message.how], message.why)))
        return True

    def _link_lost(self, peer: Peer, message: messages.LinkLost) -> bool:
        process = message.process
        is_own = self._members.get(process) is peer  # of a member on this node
        if not is_own and message.node != peer.name and not self.nodes.is_home(peer, process):
            raise ValueError(f"{process} is not on its node")
        self.link_lost(process, message.node, message.text)
        return True

    def _node_here(self, peer: Peer, message: messages.NodeHere) -> bool:
        self.nodes.hear(peer, message)
        return True

    def _events_here(self, peer: Peer, message: messages.EventsHere) -> bool:
        self.nodes.take_events(peer, message, bytes(peer.body))
        return True

    def _open_link(self, peer: Peer, opening: messages.OpenLink) -> bool:
        if self._gate is None or self._is_stopping:
            return False

        def lost(process: str, text: str) -> None:
            self.link_lost(process, FIRST_NODE, text)

        return accept_link(peer, opening, FIRST_NODE, *self._gate, lost)

    def _pass_on(self, peer: Peer, opening: messages.Opening) -> bool:
        if self._is_stopping:
            return False
        try:
            self._on_client(peer.hand_over_messages(), opening)
        except Exception as problem:  # noqa: BLE001 - the trouble of one client is no other's
            peer.take_back()
            refuse(peer, problem, "to serve another user of its graph")
            text = "rcg: a client of graph %s could not be served: %r"
            _log.warning(text, self.service_id, problem)
        return False

    def _hear(self, peer: Member, answer: messages.Here) -> bool:
        self.questions.hear(peer.name, answer)
        return True

    def _torch_profiled(self, peer: Member, answer: messages.TorchProfiled) -> bool:
        self.questions.hear_torch(peer.name, answer)
        return True

    def _on_prepared(self, peer: Member, _: messages.Prepared) -> bool:
        self._note(peer.name, Prepared())
        return True

    def _on_done(self, peer: Member, _: messages.Done) -> bool:
        self._note(peer.name, Done())
        return True

    def _on_stopped(self, peer: Member, _: messages.Stopped) -> bool:
        self._note(peer.name, Stopped())
        return False

    def _on_failed(self, peer: Member, message: messages.Failed) -> bool:
        how = How.EXITED if message.is_exiting else How.FAILED
        self._note(peer.name, Left(Ending(how, message.text)))
        return False

    def _use_store(self, peer: Peer, message: Message) -> bool:
        return self._stores.handle(peer, message)

    # From members of any node; the host of another node quotes its members (``FromMember``).
    _FROM_MEMBERS: ClassVar[Mapping[type[Message], Callable[[Any, Any, Any], bool]]] = {
        messages.Here: _hear,
        messages.TorchProfiled: _torch_profiled,
        messages.Prepared: _on_prepared,
        messages.Done: _on_done,
        messages.Stopped: _on_stopped,
        messages.Failed: _on_failed,
    }
    handlers: ClassVar[Mapping[type[Message], Handler]] = {
        messages.Hello: _welcome,
        messages.JoinNode: _join_node,
        messages.FromMember: _from_member,
        messages.MemberLost: _member_lost,
        messages.LinkLost: _link_lost,
        messages.NodeHere: _node_here,
        messages.EventsHere: _events_here,
        messages.OpenLink: _open_link,
        messages.Use: _pass_on,
        messages.AskReport: _pass_on,
        **_FROM_MEMBERS,
        messages.UseStore: lambda self, peer, opening: self._stores.open(peer, opening),
        **dict.fromkeys(
            (messages.SetValue, messages.GetValue, messages.HasValues, messages.AddValue),
            _use_store,
        ),
    }


def _weak(method: Callable[[], _T], otherwise: _T) -> Callable[[], _T]:
    """Return a call of a method that does not keep its object alive.

    A cycle would keep a graph, with its memory, until garbage is collected.
    """
    reference = weakref.WeakMethod(method)

    def call() -> _T:
        found = reference()
        return otherwise if found is None else found()

    return call
