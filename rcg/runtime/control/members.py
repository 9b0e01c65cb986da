# SPDX-License-Identifier: Apache-2.0
"""The members of a graph: taking them in, at the host of any node, and questions to them.

Any thread may ask members for their stacks and clocks, and to run torch's profiler. The endpoint's
thread sends the question and receives the answers. Each question has a number, which the answers
repeat, so a late answer is not mistaken for a newer one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from typing import Final

from rcg.channels.crossing import Gate
from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.control.far_nodes import FarMember
from rcg.runtime.control.services import Peer
from rcg.runtime.node.memory import Shared
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.trace.clocks import Exchange, clock_identity, clock_of, now_ns
from rcg.trace.model import Clock
from rcg.wire import liveness
from rcg.wire.liveness import lift_limit
from rcg.wire.messages import (
    Here,
    Message,
    OpenLink,
    ProfileTorch,
    Ready,
    TorchProfiled,
    Welcome,
    Where,
)

_EXCHANGES: Final = 8  # about a clock that is not ours

Member = Peer | FarMember


class Questions:
    """The questions to members, and their answers.

    Args:
        sleepers: Woken by each answer.
        notify: Has the endpoint's thread send what ``take_questions`` returns.
        expected: Returns the members that may answer; none if this thread must not wait for them.
    """

    def __init__(
        self, sleepers: Sleepers, notify: Callable[[], None], expected: Callable[[], Set[str]]
    ) -> None:
        self._sleepers = sleepers
        self._notify = notify
        self._expected = expected
        self._torch_numbers = itertools.count(1)
        self._torch_asked: deque[ProfileTorch] = deque()  # requests that are to be sent
        self._torch_answers: dict[str, TorchProfiled] = {}  # the last one of each member
        self._numbers = itertools.count(1)
        self._asked: deque[int] = deque()  # numbers of questions that are to be sent
        # Only the endpoint's thread uses the attributes below.
        self._question = 0  # the number of the last one sent
        self._asked_ns = 0
        self._answers: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._processor: dict[str, tuple[int, int]] = {}
        self._exchanges: dict[str, tuple[Exchange, ...]] = {}
        self._clocks: dict[str, str] = {}

    # --- any thread

    def ask(self) -> int:
        """Ask each live member where it is; returns the number of the question, at once."""
        number = next(self._numbers)
        if self._expected():
            self._asked.append(number)
            self._notify()
        return number

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until all live members have answered a question, or for so long."""
        self._sleepers.wait(lambda: self._expected() <= self.stacks(number).keys(), timeout_s)

    def stacks(self, number: int) -> dict[str, list[str]]:
        """Return the stack of the user's method that each member is in, [] for none.

        Members that have not answered this question are missing: they are stopped, or code that
        they run does not let Python go on.
        """
        known = self._answers.copy()
        return {p: list(stack) for p, (answer, stack) in known.items() if answer >= number}

    def ask_where(self, timeout_s: float) -> dict[str, list[str]]:
        """Ask, wait for so long, and return the answers: see ``stacks``."""
        number = self.ask()
        self.wait(number, timeout_s)
        return self.stacks(number)

    def processor_ns(self, timeout_s: float) -> dict[str, tuple[int, int]]:
        """Return the processor time of each member: of the thread of its methods, and of all.

        Members that do not answer within ``timeout_s``, or do not know, are missing.
        """
        answered = self.ask_where(timeout_s)
        known = self._processor.copy()
        return {process: known[process] for process in answered if known[process][0]}

    def profile_torch(self, is_on: bool, timeout_s: float) -> dict[str, str]:
        """Have each live member run torch's profiler, or stop it and record its events.

        Returns:
            What is in the way, by member; those that have not answered within ``timeout_s`` are
            among them.
        """
        if not self._expected():
            return {}
        number = next(self._torch_numbers)
        self._torch_asked.append(ProfileTorch(number=number, is_on=is_on))
        self._notify()

        def answers() -> dict[str, str]:
            known = self._torch_answers.copy()
            return {p: each.trouble for p, each in known.items() if each.number >= number}

        def late() -> set[str]:
            return {*self._expected()} - answers().keys()

        self._sleepers.wait(lambda: not late(), timeout_s)
        found = dict.fromkeys(late(), f"it has not answered after {timeout_s:g} s")
        return found | {process: trouble for process, trouble in answers().items() if trouble}

    def clocks(self, timeout_s: float) -> dict[str, Clock]:
        """Return how each member's clock relates to ours.

        Members that read the same clock as we do are not asked. Others that do not answer within
        ``timeout_s`` are missing.
        """
        identity = clock_identity()
        known = self._clocks.copy()
        is_same = {p: bool(clock) and clock == identity for p, clock in known.items()}
        if not all(is_same.values()):
            for _ in range(_EXCHANGES):
                self.ask_where(timeout_s / _EXCHANGES)
        clocks = {
            process: clock_of(self._exchanges.get(process, ()), is_same=same)
            for process, same in is_same.items()
        }
        return {process: clock for process, clock in clocks.items() if clock is not None}

    # --- the endpoint's thread

    def take_questions(self) -> list[Message]:
        """Return what is to be sent to all members now."""
        found: list[Message] = list(take_all(self._torch_asked))
        asked = max(take_all(self._asked), default=0)
        if asked > self._question:
            self._question, self._asked_ns = asked, now_ns()
            found.insert(0, Where(number=asked))
        return found

    def know_clock(self, process: str, identity: str) -> None:
        """Note which clock a member reads."""
        self._clocks[process] = identity

    def hear(self, process: str, answer: Here) -> None:
        """Take an answer.

        Raises:
            ValueError: Nobody has asked that question.
        """
        heard_ns = now_ns()
        if answer.number > self._question:
            raise ValueError("it answers a question that was not asked")
        self._processor[process] = answer.thread_ns, answer.process_ns
        self._answers[process] = answer.number, answer.stack
        if answer.number == self._question:  # else it was asked earlier than `_asked_ns`
            exchange = Exchange(self._asked_ns, answer.clock_ns, heard_ns)
            known = self._exchanges.get(process, ())
            self._exchanges[process] = (*known, exchange)[-_EXCHANGES:]
        self._sleepers.wake()

    def hear_torch(self, process: str, answer: TorchProfiled) -> None:
        """Take an answer about torch's profiler."""
        self._torch_answers[process] = answer
        self._sleepers.wake()


def send_all(members: Iterable[Member], message: Message) -> None:
    """Send a message to members; one that is stopped, and does not read, is left out."""
    for member in members:
        with contextlib.suppress(OSError):
            member.send(message)


def welcome(peer: Peer, shared: Shared) -> bool:
    """Give a member the shared memory of its node; returns whether it is there to be watched."""
    answer = Welcome(arenas=tuple(fd >= 0 for fd in shared.arenas), has_bell=shared.bell >= 0)
    present = [fd for fd in (shared.board, *shared.arenas, shared.bell) if fd >= 0]
    try:
        peer.pidfd = liveness.pidfd_of(peer.pid)
        peer.send(answer, present)
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
