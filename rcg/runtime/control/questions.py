# SPDX-License-Identifier: Apache-2.0
"""Questions to the members of a graph: for their stacks, their clocks, and torch's profiler.

Any thread may ask; the endpoint's thread sends the question and receives the answers. Each question
has a number, which the answers repeat, so a late answer is not mistaken for a newer one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Set
from typing import Final

from rcg.runtime.sleepers import Sleepers, take_all
from rcg.trace.clocks import Exchange, clock_identity, clock_of, now_ns
from rcg.trace.model import Clock
from rcg.wire.messages import Here, Message, ProfileTorch, TorchProfiled, Where

_EXCHANGES: Final = 8  # about a clock that is not ours


class Questions:
    """The questions and their answers.

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
        self._exchanges: dict[str, tuple[Exchange, ...]] = {}
        self._clocks: dict[str, str] = {}

    # --- any thread

    def ask_where(self, timeout_s: float) -> dict[str, list[str]]:
        """Return the stack of the user's method that each live member is in, [] for none.

        Members that do not answer within ``timeout_s`` are missing: they are stopped, or code that
        they run does not let Python go on.
        """
        if not timeout_s or not self._expected():
            return {}
        number = next(self._numbers)
        self._asked.append(number)
        self._notify()

        def answers() -> dict[str, list[str]]:
            known = self._answers.copy()
            return {p: list(stack) for p, (answer, stack) in known.items() if answer >= number}

        self._sleepers.wait(lambda: self._expected() <= answers().keys(), timeout_s)
        return answers()

    def profile_torch(self, is_on: bool, timeout_s: float) -> dict[str, str]:
        """Have each live member run torch's profiler, or stop it and record its events.

        Args:
            is_on: Whether it is to run.
            timeout_s: How long to wait for the members.

        Returns:
            What is in the way, by member; those that have not answered are among them.
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
        """Return how each member's clock relates to ours; those that do not tell are missing.

        Members that read the same clock as we do are not asked.

        Args:
            timeout_s: How long the others may take to answer.
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
