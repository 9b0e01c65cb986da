# SPDX-License-Identifier: Apache-2.0
"""The members of a graph: taking them in, at the host of any node, and what became of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence

from rcg.channels.crossing import Gate
from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.control.far_nodes import FarMember
from rcg.runtime.control.services import Peer
from rcg.runtime.sleepers import Sleepers
from rcg.trace.clocks import now_ns
from rcg.wire import liveness
from rcg.wire.keepalive import lift_limit
from rcg.wire.liveness import Ending
from rcg.wire.messages import CloseGroups, Message, OpenLink, Ready, Welcome

Member = Peer | FarMember


class Members:
    """The members of one graph, as its driver knows them.

    A member *joins*, its loop runs, it is *prepared* when its communicator groups are open, *done*
    when its loop has ended and it waits to close them, and *over* at last. One whose process ends,
    or whose loop fails, before it was asked to stop is *gone*.

    The endpoint's thread changes this; any thread may look.

    Args:
        processes: All that will join.
        sleepers: Woken when one is over.

    Attributes:
        processes: All that will join.
        running: Those whose loops run; of the endpoint's thread.
        pids: The processes of those that have joined.
        prepared: Those that are prepared.
        gone: How those ended that are gone.
        gone_ns: When that was detected.
    """

    def __init__(self, processes: Sequence[str], sleepers: Sleepers) -> None:
        self.processes = processes
        self.running: dict[str, Member] = {}
        self.pids: dict[str, int] = {}
        self.prepared: set[str] = set()
        self.gone: dict[str, Ending] = {}
        self.gone_ns: dict[str, int] = {}
        self._done: dict[str, Member] = {}
        self._over: set[str] = set()
        self._may_all_be_done = False  # since `close_groups` looked
        self._sleepers = sleepers

    # --- any thread

    @property
    def over(self) -> frozenset[str]:
        """Those whose loops have ended, however."""
        return frozenset(self._over)

    @property
    def are_all_over(self) -> bool:
        """Whether all loops have ended."""
        return self._over >= set(self.processes)

    def late(self) -> list[str]:
        """Return those whose loops have not ended.

        Those that only wait for others to close their groups are named if there are no others.
        """
        late = set(self.processes) - self._over
        return sorted(late - set(self._done)) or sorted(late)

    def forget(self, processes: Iterable[str]) -> None:
        """Do not wait for these: they never connected, or were killed."""
        self._over.update(processes)
        self._sleepers.wake()

    # --- the endpoint's thread

    def may_join(self, process: str) -> bool:
        """Whether a process is a member that has not joined."""
        return process in self.processes and process not in self.pids

    def join(self, member: Member) -> None:
        """Take in a member."""
        self.running[member.name] = member
        self.pids[member.name] = member.pid

    def note_gone(self, process: str, ending: Ending) -> None:
        """Note that a member is gone."""
        self.gone_ns[process] = now_ns()
        self.gone[process] = ending

    def note_done(self, member: Member) -> None:
        """Note that the loop of a member has ended."""
        self._done[member.name] = member
        self._may_all_be_done = True

    def note_over(self, process: str) -> None:
        """Note that nothing is to be expected of a member any more."""
        self._over.add(process)
        self._done.pop(process, None)
        self._may_all_be_done = True
        self._sleepers.wake()

    def close_groups(self) -> None:
        """Have those that are done close their groups, once all that are prepared are done."""
        if self._may_all_be_done and self.prepared <= self._over | self._done.keys():
            self._may_all_be_done = False
            send_all(self._done.values(), CloseGroups())

    def send(self, message: Message) -> None:
        """Send a message to all whose loops run."""
        send_all(self.running.values(), message)

    def clear(self) -> None:
        """Nothing more will be heard of them."""
        self.running.clear()
        self._done.clear()


def send_all(members: Iterable[Member], message: Message) -> None:
    """Send a message to members; one that is stopped, and does not read, is left out."""
    for member in members:
        with contextlib.suppress(OSError):
            member.send(message)


def welcome(peer: Peer, descriptors: tuple[int, Sequence[int]]) -> bool:
    """Give a member the shared memory of its node; returns whether it is there to be watched.

    Args:
        peer: The member.
        descriptors: The board's, and one for each arena (-1 for none).
    """
    board, arenas = descriptors
    present = [fd for fd in arenas if fd >= 0]
    try:
        peer.pidfd = liveness.pidfd_of(peer.pid)
        peer.send(Welcome(arenas=tuple(fd >= 0 for fd in arenas)), [board, *present])
    except OSError as error:
        refuse(peer, error, "to accept a process of its graph")
        return False
    return True


def refuse(peer: Peer, error: BaseException, purpose: str) -> None:
    """Send the reason, if it is that there are no descriptors or threads left."""
    lack = out_of_descriptors(error, purpose)
    if lack is not None:
        with contextlib.suppress(OSError):
            peer.send(refusal_of(lack))


def accept_link(
    peer: Peer,
    opening: OpenLink,
    node: str,
    gate: Gate,
    senders: Collection[str],
    lost: Callable[[str, str], object],
) -> bool:
    """Pass a connection on to the gate, which listens to it from now on.

    Args:
        peer: The connection.
        opening: Which process of another node it says to be, and which node it means.
        node: This node.
        gate: Publishes what arrives.
        senders: The processes that may send here.
        lost: Called with the process and a text if that fails after the process was answered: it
            counts on the connection, and may never send enough to notice.

    Raises:
        OSError: The connection is over.
    """
    if opening.process not in senders or opening.node != node:
        return False
    peer.send(Ready())
    try:
        connection = peer.hand_over()
        try:
            lift_limit(connection)  # as at its other end
            gate.accept(opening.process, connection)
        finally:
            connection.close()  # where the gate has not taken it
    except OSError as error:
        lost(opening.process, f"the connection could not be taken over: {describe_error(error)}")
        raise
    return False
