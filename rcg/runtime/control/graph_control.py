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
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from rcg.descriptors import out_of_descriptors
from rcg.error_text import shielding
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime.control import endpoint
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.questions import Questions
from rcg.runtime.control.reception import refusal_of
from rcg.runtime.control.refusals import Refusals
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.control.stores import Stores
from rcg.runtime.sleepers import Sleepers, emptied
from rcg.trace.clocks import now_ns
from rcg.trace.model import Clock
from rcg.wire import liveness
from rcg.wire.addresses import TcpAddress
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import (
    AddValue,
    AskReport,
    Broken,
    CloseGroups,
    Done,
    Failed,
    GetValue,
    HasValues,
    Hello,
    Here,
    Message,
    Opening,
    Prepared,
    ProfileTorch,
    SetValue,
    Stop,
    Stopped,
    TorchProfiled,
    Use,
    UseStore,
    Welcome,
)
from rcg.wire.sockets import Connection

__all__ = ["GraphControl"]

_log = Log()

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

    Raises:
        OutOfDescriptors: No descriptor is left for the endpoint of this process.
    """

    def __init__(
        self,
        graph_id: str,
        processes: Sequence[str],
        descriptors_for: Callable[[str], tuple[int, list[int]]],
        on_gone: Callable[[str, Ending], None],
        on_client: Callable[[Connection, Opening], None],
    ) -> None:
        self.service_id = graph_id
        self.secret = secrets.token_hex(16)
        self.processes = processes
        self.pids: dict[str, int] = {}
        self.prepared: set[str] = set()  # those that have opened their communicator groups
        self.gone: set[str] = set()  # ended without a request to stop
        self.gone_ns: dict[str, int] = {}  # and when that was detected
        self._descriptors_for = descriptors_for
        self._on_gone = on_gone
        self._on_client = on_client
        self._sleepers = Sleepers()
        self._questions = Questions(self._sleepers)
        self._torch_numbers = itertools.count(1)
        self._torch_asked: deque[ProfileTorch] = deque()  # requests that are to be sent
        self._torch_told: dict[str, tuple[int, str]] = {}  # the last answer of each member
        self._members: dict[str, Peer] = {}  # those whose loops run; of the endpoint's thread
        self._stores = Stores()
        self._done: dict[str, Peer] = {}  # those that wait for others to close their groups
        self._may_all_be_done = False  # since somebody looked
        self._over: set[str] = set()
        self._has_told_stop = False
        self._is_stopping = False
        self._is_closed = False
        self.tcp_address: TcpAddress | None = None  # where other nodes reach the endpoint
        self._endpoint: Endpoint = endpoint.serve(self)

    @property
    def address(self) -> str:
        """Where the endpoint listens."""
        return self._endpoint.address

    # --- any thread

    def listen_tcp(self, host: str) -> TcpAddress:
        """Be reached from other nodes, too; see ``Endpoint.listen_tcp``."""
        self.tcp_address = self._endpoint.listen_tcp(host)
        return self.tcp_address

    def refusals(self) -> Refusals:
        """Return how many connections of other nodes this process has refused, by reason."""
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
        return self._endpoint.serves_here

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
        self._endpoint.close(self)

    def _notify(self) -> None:
        self._endpoint.notify(self)

    # --- called by the endpoint's thread

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to hear. Any thread."""
        return self._is_closed or (self._is_stopping and self._over >= set(self.processes))

    def look(self) -> None:
        """Send the requests of other threads."""
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
        """A member's connection or process has ended, or its loop."""
        if self._stores.lost(peer) or self._members.pop(peer.name, None) is None:
            return
        self._stores.end()
        try:
            if not self._was_told():
                self.gone_ns[peer.name] = now_ns()
                self.gone.add(peer.name)
                self._on_gone(peer.name, ending)
                self._tell_members(Broken())
        finally:
            self._mark_over(peer.name)

    def fail(self, why: str) -> None:
        """Count all members as gone."""
        for peer in list(self._members.values()):
            with shielding():
                self.lost(peer, Ending(How.FAILED, why))
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
        board, arenas = self._descriptors_for(process)
        present = [fd for fd in arenas if fd >= 0]
        welcome = Welcome(arenas=tuple(fd >= 0 for fd in arenas))
        try:
            peer.pidfd = liveness.pidfd_of(peer.pid)
            peer.send(welcome, [board, *present])
            if self._has_told_stop:
                peer.send(Stop())
        except OSError as error:
            _refuse(peer, error, "to accept a process of its graph")
            return False
        peer.name = process
        self._members[process] = peer
        self._questions.know_clock(process, hello.clock)
        self.pids[process] = peer.pid
        return True

    def _pass_on(self, peer: Peer, opening: Opening) -> bool:
        if self._is_stopping:
            return False
        try:
            self._on_client(peer.hand_over_messages(), opening)
        except Exception as problem:  # noqa: BLE001 - the trouble of one client is no other's
            peer.take_back()
            _refuse(peer, problem, "to serve another user of its graph")
            _log.warning(
                "rcg: a client of graph %s could not be served: %r", self.service_id, problem
            )
        return False

    def _hear(self, peer: Peer, answer: Here) -> bool:
        self._questions.hear(peer.name, answer)
        return True

    def _torch_profiled(self, peer: Peer, answer: TorchProfiled) -> bool:
        self._torch_told[peer.name] = answer.number, answer.trouble
        self._sleepers.wake()
        return True

    def _prepared(self, peer: Peer, _: Prepared) -> bool:
        self.prepared.add(peer.name)
        return True

    def _on_done(self, peer: Peer, _: Done) -> bool:
        self._done[peer.name] = peer
        self._may_all_be_done = True
        return True

    def _stopped(self, peer: Peer, _: Stopped) -> bool:
        # Unasked only the poison that follows the first failure may end a loop.
        if not self._was_told() and not self.gone:
            self.lost(peer, _UNASKED)
        self._members.pop(peer.name, None)
        self._mark_over(peer.name)
        return False

    def _failed(self, peer: Peer, message: Failed) -> bool:
        self.lost(peer, Ending(How.FAILED, message.text))
        return False

    def _open_store(self, peer: Peer, opening: UseStore) -> bool:
        return self._stores.open(peer, opening)

    def _use_store(self, peer: Peer, message: Message) -> bool:
        return self._stores.handle(peer, message)

    handlers: ClassVar[Mapping[type[Message], Handler]] = {
        Hello: _welcome,
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

    def _tell(self, peers: Iterable[Peer], message: Message) -> None:
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


def _refuse(peer: Peer, error: BaseException, purpose: str) -> None:
    """Send the reason, if it is that there are no descriptors left."""
    told = out_of_descriptors(error, purpose)
    if told is not None:
        with contextlib.suppress(OSError):
            peer.send(refusal_of(told))
