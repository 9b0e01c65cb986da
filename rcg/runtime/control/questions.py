# SPDX-License-Identifier: Apache-2.0
"""Questions to the members of a graph: for their stacks and for their clocks.

Any thread may ask; the endpoint's thread sends the question and receives the answers. Each question
has a number, which the answers repeat, so a late answer is not mistaken for a newer one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from rcg.runtime.sleepers import Sleepers, emptied
from rcg.trace.clocks import Exchange, clock_identity, clock_of, now_ns
from rcg.trace.model import Clock
from rcg.wire.messages import Here, Where

__all__ = ["Questions"]

_EXCHANGES: Final = 8  # about a clock that is not ours


class Questions:
    """The questions and their answers.

    Args:
        sleepers: Woken by each answer.
    """

    def __init__(self, sleepers: Sleepers) -> None:
        self._sleepers = sleepers
        self._numbers = itertools.count(1)
        self._asked: deque[int] = deque()  # numbers of questions that are to be sent
        # Only the endpoint's thread uses the attributes below.
        self._question = 0  # the number of the last one sent
        self._asked_ns = 0
        self._answers: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._exchanges: dict[str, tuple[Exchange, ...]] = {}
        self._clocks: dict[str, str] = {}

    # --- any thread

    def ask(
        self,
        notify: Callable[[], None],
        missing: Callable[[dict[str, list[str]]], bool],
        timeout_s: float,
    ) -> dict[str, list[str]]:
        """Ask all members where they are, and return the answers by process.

        Args:
            notify: Has the endpoint's thread send the question.
            missing: Whether answers are missing, apart from these.
            timeout_s: How long to wait for those.
        """
        number = next(self._numbers)
        self._asked.append(number)
        notify()

        def answers() -> dict[str, list[str]]:
            known = self._answers.copy()
            return {p: list(stack) for p, (answer, stack) in known.items() if answer >= number}

        self._sleepers.wait(lambda: not missing(answers()), timeout_s)
        return answers()

    def clocks(self, ask: Callable[[float], object], timeout_s: float) -> dict[str, Clock]:
        """Return how each member's clock relates to ours; those that do not tell are missing.

        Args:
            ask: Asks all members, and waits for so long. Not called if all read our clock.
            timeout_s: How long all of it may take.
        """
        identity = clock_identity()
        known = self._clocks.copy()
        is_same = {p: bool(clock) and clock == identity for p, clock in known.items()}
        if not all(is_same.values()):
            for _ in range(_EXCHANGES):
                ask(timeout_s / _EXCHANGES)
        clocks = {
            process: clock_of(self._exchanges.get(process, ()), is_same=same)
            for process, same in is_same.items()
        }
        return {process: clock for process, clock in clocks.items() if clock is not None}

    # --- the endpoint's thread

    def take_question(self) -> Where | None:
        """Return the question that is to be sent now, if there is one."""
        asked = max(emptied(self._asked), default=0)
        if asked <= self._question:
            return None
        self._question, self._asked_ns = asked, now_ns()
        return Where(number=asked)

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
