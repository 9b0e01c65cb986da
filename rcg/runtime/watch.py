# SPDX-License-Identifier: Apache-2.0
"""What a wait for a graph does besides waiting: it says what it waits for, and reports at its end.

A wait ends at its deadline, whatever hangs, and its error has a report of what every process does.
The processes need a moment to say that. So they are asked shortly before the deadline, while the
wait goes on, and the report has what they have answered by then. Nobody is asked for a wait that
only polls, whose report is made if somebody reads it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Final, Protocol

from rcg.error_text import shielded
from rcg.errors import ChannelTimeout, OutOfThreads
from rcg.options import Deadline
from rcg.progress import notice
from rcg.runtime.actor.turns import turns
from rcg.text import time_text
from rcg.threads import start_thread

_MOST_PATIENCE_S: Final = 60.0  # a ``get`` says by then what it waits for, however long others took
POLL_S: Final = 0.02
"""Who waits no longer than this looks again: a report is made if somebody reads it."""
_AHEAD: Final = 0.25  # the part of a wait that is left when the processes are asked
_LEAST_AHEAD_S: Final = 0.05  # if that is at most half of the wait


class Inquiry(Protocol):
    """A question to the processes of a graph, which answer it while the asker does other things."""

    def wait(self, timeout_s: float) -> None:
        """Wait until all have answered, or for so long."""

    def text(self) -> str | None:
        """Return the report, with the answers so far. It does not wait.

        Its first line is the verdict. None: nothing is known.
        """


class Watched(Protocol):
    """A graph that is waited for.

    Attributes:
        report_after_s: How long a ``get`` waits before it says what it waits for; None for ever.
        answers_within_s: How long its processes may take to answer an inquiry.
    """

    @property
    def answers_within_s(self) -> float:
        """See the class."""

    @property
    def report_after_s(self) -> float | None:
        """See the class."""

    @report_after_s.setter
    def report_after_s(self, after_s: float | None) -> None: ...

    def get_id(self) -> str:
        """Return the id of the graph."""

    def inquire(self, within_s: float) -> Inquiry:
        """Ask its processes what they do, and return at once.

        With 0 nobody is asked: the answer is what the recorders in shared memory show.
        """

    def hang(self) -> int:
        """Return what tells one hang of the graph from the next."""

    @property
    def said(self) -> dict[int, object]:
        """The hangs of which it was said what is waited for."""


class Result(Protocol):
    """What a ``get`` waits for."""

    def done(self) -> bool:
        """Return whether it has come."""


class Watch:
    """The watch over one wait, which sleeps for ``next_s`` and then calls ``look``, until its end.

    Args:
        graph: What is waited for.
        deadline: When the wait ends.
        result: What a ``get`` waits for: it says so after a while. Other waits say nothing.
        waited_s: How long it has waited by now.
    """

    __slots__ = ("_ahead_s", "_began_s", "_deadline", "_graph", "_inquiry", "_is_get", "_result")

    def __init__(
        self,
        graph: Watched,
        deadline: Deadline,
        result: Result | None = None,
        waited_s: float = 0.0,
    ) -> None:
        self._graph, self._deadline, self._result = graph, deadline, result
        self._is_get = result is not None
        self._began_s = time.monotonic() - waited_s
        self._ahead_s = ahead_s(graph, deadline.timeout_s)
        self._inquiry: Inquiry | None = None

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self._deadline.expired

    def next_s(self) -> float | None:
        """Return how long to sleep now; None for ever."""
        times = []
        left_s, after_s = self._deadline.remaining_s(), self._graph.report_after_s
        if left_s is not None:
            is_asked = self._inquiry is not None
            times.append(left_s if is_asked else max(0.0, left_s - self._ahead_s))
        if self._result is not None and after_s is not None:
            times.append(max(0.0, after_s - self._waited_s()))
        return min(times, default=None)

    def look(self) -> None:
        """Do what is due after a sleep that ended without the result. It never waits."""
        result, after_s = self._result, self._graph.report_after_s
        if result is not None and after_s is not None and self._waited_s() >= after_s:
            self._result = None  # once
            say_why(self._graph, result, after_s)
        left_s = self._deadline.remaining_s()
        is_to_ask = self._ahead_s > 0 and self._inquiry is None
        if is_to_ask and left_s is not None and left_s <= self._ahead_s:
            self._inquiry = self._graph.inquire(left_s)

    def end(self) -> None:
        """The result has come: what takes as long the next time is no hang."""
        waited_s, after_s = self._waited_s(), self._graph.report_after_s
        if self._is_get and after_s is not None and waited_s > after_s:
            self._graph.report_after_s = max(after_s, min(2 * waited_s, _MOST_PATIENCE_S))

    def report(self) -> str | None:
        """Return what every process does, with what those have said that were asked."""
        return (self._inquiry or self._graph.inquire(0.0)).text()

    def error(self, what: str) -> ChannelTimeout:
        """Return the error of a wait whose time is up, with a report of the graph."""
        timeout_s = self._deadline.timeout_s or 0.0
        if timeout_s <= POLL_S:
            return polled(self._graph, what)
        return ChannelTimeout(
            f"{what} after {timeout_s:g} s. Nothing is lost: call again to go on waiting."
            f"{turns.why_waiting(self._graph.get_id())}",
            timeout_s=timeout_s,
            report=self.report(),
        )

    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s


def polled(graph: Watched, what: str) -> ChannelTimeout:
    """Return the error of a wait that polls: what a report costs is paid by who reads it."""
    reference = weakref.ref(graph)

    def report() -> str | None:
        found = reference()
        if found is None:
            return None
        return shielded(found.inquire(0.0).text, otherwise=None)  # no part of the wait

    return ChannelTimeout.polled(what, report)


def ahead_s(graph: Watched, timeout_s: float | None) -> float:
    """Return how long before its end a wait asks the processes of its graph; 0 if it does not."""
    if timeout_s is None or timeout_s <= POLL_S:
        return 0.0
    least_s = min(timeout_s / 2, _LEAST_AHEAD_S)
    return min(graph.answers_within_s, max(timeout_s * _AHEAD, least_s))


def say_why(graph: Watched, result: Result, waited_s: float) -> None:
    """Say what a ``get`` waits for, once for each hang; on another thread, so nothing waits for it.

    If the result comes meanwhile, nothing is said.
    """
    mark, said, hang = object(), graph.said, graph.hang()
    if said.setdefault(hang, mark) is not mark:
        return

    def say(patience_s: float = graph.answers_within_s) -> None:
        with contextlib.suppress(Exception):  # it is no part of the get: nothing of it ends one
            verdict = ""
            try:
                verdict = verdict_of(graph, patience_s)
            finally:
                if not verdict:
                    said.pop(hang, None)
            if verdict and not result.done():
                notice(f"rcg: get() has waited {time_text(waited_s * 1e9)}. {verdict}")

    try:
        thread = threading.Thread(target=say, name="rcg-watch", daemon=True)
        start_thread(thread, "to say what a graph waits for")
    except OutOfThreads:
        say(0.0)


def verdict_of(graph: Watched, patience_s: float) -> str:
    """Return the verdict of a report, waiting so long for the answers of live processes."""
    inquiry = graph.inquire(patience_s)
    inquiry.wait(patience_s)
    return (inquiry.text() or "").partition("\n")[0]
