# SPDX-License-Identifier: Apache-2.0
"""Who of a graph lives, and why one ended: a state machine without I/O and without a clock.

A member is *expected*, *running* once it has joined, *done* when its loop has ended and it waits to
close its communicator groups, and *over* at last. One that ends before the graph was asked to stop
is *gone*, and breaks the graph.

When one process dies, others follow within moments: their loops fail, their connections end. News
of all that arrives in any order. So the cause is not what was heard first, but the ending of the
highest rank among those that were heard within ``SETTLE_NS`` of the first::

    DIED, EXITED       nothing causes these: they are known at once
    UNREACHABLE        the network, or a machine
    LEFT               the connection of a process ended, and nothing said that it died
    FAILED             a loop ended, mostly because of another process

What is heard later is another story, so everybody is told the same cause, whenever they ask.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rcg.wire.liveness import SETTLE_S, Ending, How

SETTLE_NS: Final = round(SETTLE_S * 1e9)

_RANKS: Final = {How.DIED: 0, How.EXITED: 0, How.UNREACHABLE: 1, How.LEFT: 2, How.FAILED: 3}
_UNSEEN: Final = "the host of its node has ended"
_UNASKED: Final = Ending(How.FAILED, "it ended without a request to stop")


class Life(enum.Enum):
    """How far a member has come."""

    EXPECTED = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()
    OVER = enum.auto()


# --- what happens to a member


@dataclass(frozen=True, slots=True)
class Joined:
    """It has connected."""

    pid: int  # on its own machine


@dataclass(frozen=True, slots=True)
class Prepared:
    """Its communicator groups are open."""


@dataclass(frozen=True, slots=True)
class Done:
    """Its loop has ended, its communicator groups are open."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Its loop has ended, as it should if the graph was asked to stop."""


@dataclass(frozen=True, slots=True)
class Left:
    """It has ended, or cannot be reached, or its loop has failed."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Unseen:
    """The host of its node has ended, which watched it: nothing is known, so it is no cause."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A connection that carries its frames has ended. If nothing ends it, that is the cause."""

    text: str


Event = Joined | Prepared | Done | Stopped | Left | Unseen | LinkLost


# --- what is to be done


@dataclass(frozen=True, slots=True)
class Gone:
    """A member is gone, so the graph is broken."""

    process: str
    ending: Ending


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing is to be said to a member any more."""

    process: str


@dataclass(frozen=True, slots=True)
class CloseGroups:
    """No member uses a communicator group any more: these may close theirs."""

    processes: tuple[str, ...]


Action = Gone | Over | CloseGroups


class Lives:
    """The lives of the members of one graph.

    One thread tells it what happens; any thread may look.

    Args:
        processes: All that will join.

    Attributes:
        pids: Of those that have joined.
        prepared: Those that have opened their communicator groups.
        gone: Those that ended before the graph was asked to stop, in the order of the news.
        gone_ns: When that was heard.
    """

    def __init__(self, processes: Iterable[str]) -> None:
        self._lives = dict.fromkeys(processes, Life.EXPECTED)
        self.pids: dict[str, int] = {}
        self.prepared: set[str] = set()
        self.gone: dict[str, Ending] = {}
        self.gone_ns: dict[str, int] = {}
        self._unseen: set[str] = set()
        self._told: set[str] = set()  # that they may close their groups
        self._links: dict[str, tuple[str, int]] = {}  # that were lost: the text, and when
        self._is_stopping = False

    # --- any thread

    @property
    def processes(self) -> frozenset[str]:
        """All members."""
        return frozenset(self._lives)

    @property
    def over(self) -> frozenset[str]:
        """Those of whom nothing is expected any more."""
        return self._those(Life.OVER)

    @property
    def are_all_over(self) -> bool:
        """Whether nothing is expected of any member."""
        return len(self.over) == len(self._lives)

    @property
    def not_joined(self) -> frozenset[str]:
        """Those that have not connected yet."""
        return self.processes - self.pids.keys()

    def late(self) -> list[str]:
        """Return those whose loops have not ended.

        Those that only wait for others to close their groups are named if there are no others.
        """
        late = self.processes - self.over
        return sorted(late - self._those(Life.DONE)) or sorted(late)

    def life(self, process: str) -> Life:
        """Return how far a member has come."""
        return self._lives[process]

    def cause(self, at_ns: int) -> tuple[str, Ending] | None:
        """Return who caused the end of the graph, and how; None as long as that may change."""
        first_ns = min(self.gone_ns.copy().values(), default=None)
        if first_ns is None:
            return None
        ends_ns = first_ns + SETTLE_NS
        known: Mapping[str, Ending] = self.gone.copy()
        in_time = [process for process in known if self.gone_ns[process] < ends_ns]
        in_time = [process for process in in_time if process not in self._unseen] or in_time
        process = min(in_time, key=lambda each: _RANKS[known[each].how])  # the first of a rank
        if at_ns < ends_ns and _RANKS[known[process].how]:
            return None
        return process, known[process]

    def next_ns(self) -> int | None:
        """Return when ``on_time`` has something to do; None if that depends on others."""
        if self.gone or self._is_stopping:
            return None
        return min((at_ns + SETTLE_NS for _, at_ns in self._links.copy().values()), default=None)

    def stop(self) -> None:
        """Note that the graph is asked to stop: from now on no ending breaks it. Any thread."""
        self._is_stopping = True

    def forget(self, processes: Iterable[str]) -> None:
        """Expect nothing of these: they never connected, or were killed. Any thread."""
        for process in processes:
            self._lives[process] = Life.OVER

    # --- one thread

    def on(self, process: str, event: Event, at_ns: int) -> list[Action]:
        """Note what happens to a member; returns what is to be done.

        Raises:
            ValueError: It is no member, or has joined before.
        """
        if process not in self._lives:
            raise ValueError(f"{process} is no member of the graph")
        life = self._lives[process]
        match event:
            case Joined(pid):
                if life is not Life.EXPECTED:
                    raise ValueError(f"{process} has joined already")
                self._lives[process] = Life.RUNNING
                self.pids[process] = pid
                return []
            case Prepared():
                self.prepared.add(process)
                return []
            case Done():
                if life is Life.RUNNING:
                    self._lives[process] = Life.DONE
                return self._groups()
            case LinkLost(text):
                if life is not Life.OVER:
                    self._links.setdefault(process, (text, at_ns))
                return []
            case _ if life is Life.OVER:
                return []
            case Stopped():
                # Unasked only the end that follows another one may end a loop.
                return self._end(process, None if self.gone else _UNASKED, at_ns)
            case Left(ending):
                return self._end(process, ending, at_ns)
            case Unseen():
                self._unseen.add(process)
                return self._end(process, Ending(How.UNREACHABLE, _UNSEEN), at_ns)

    def on_time(self, at_ns: int) -> list[Action]:
        """Return what is to be done now, though nothing new has happened."""
        due_ns = self.next_ns()
        if due_ns is None or at_ns < due_ns:
            return self._groups()
        process = min(self._links, key=lambda each: self._links[each][1])
        text, _ = self._links[process]
        return self._end(process, Ending(How.UNREACHABLE, text), at_ns)

    def _end(self, process: str, ending: Ending | None, at_ns: int) -> list[Action]:
        actions: list[Action] = []
        if ending is not None and not self._is_stopping:
            self.gone_ns[process] = at_ns  # first: who finds it in the other looks here
            self.gone[process] = ending
            actions.append(Gone(process, ending))
        self._lives[process] = Life.OVER
        return [*actions, Over(process), *self._groups()]

    def _groups(self) -> list[Action]:
        """Have those that are done close their groups, once all that are prepared are done."""
        done = self._those(Life.DONE)
        told = done - self._told
        if not told or not self.prepared <= done | self.over:
            return []
        self._told |= told
        return [CloseGroups(tuple(sorted(told)))]

    def _those(self, life: Life) -> frozenset[str]:
        return frozenset(process for process, each in self._lives.copy().items() if each is life)
