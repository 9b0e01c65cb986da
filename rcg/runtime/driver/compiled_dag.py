# SPDX-License-Identifier: Apache-2.0
"""``CompiledDAG``: what users hold of a compiled graph. The work is done by its ``Engine``."""

from __future__ import annotations

import importlib
import weakref
from os import PathLike
from typing import TYPE_CHECKING, Any

from rcg.display import Displayed, Mimebundle, Views, views
from rcg.errors import ChannelTimeout
from rcg.ir.plan import Plan
from rcg.log import Log
from rcg.runtime.driver.engine import UNSET, Engine
from rcg.runtime.driver.session import Session
from rcg.runtime.observe.report import STACKS_TIMEOUT_S, Report
from rcg.runtime.observe.statistics import Statistics
from rcg.runtime.remote.handle import handle_from

if TYPE_CHECKING:
    from rcg.runtime.observe.profiler import Profiler
    from rcg.trace.trace import Trace

__all__ = ["CompiledDAG"]

_log = Log()


class CompiledDAG(Displayed):
    """A DAG of actor methods that runs on its actors' own loops until it is torn down.

    Made by ``compile``. Usable from any thread of the process that compiled it, in sync and asyncio
    code alike. Torn down by ``teardown()``, at the end of a ``with`` block, when neither it nor a
    ref of its results is held any more, and at interpreter exit.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Bound once, over the method of the class: the paths on which microseconds count make one
        # call.
        self.__dict__["execute"] = engine.execute

    # --- running

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return the ref of its result, or a list of refs.

        Returns at once while the window has room; then it waits for an earlier execution to
        complete (or raises, if the limit was set by the user). Several threads may call it.

        Args:
            *args: What the DAG's input takes by position.
            **kwargs: What it takes by name; others are ignored, as in Ray.

        Raises:
            ValueError: Wrong number or names of arguments; nothing was submitted.
            UnpicklableError: An argument cannot be sent; nothing was submitted.
            MessageTooLarge: An argument is larger than shared memory; nothing was submitted.
            CapacityExceededError: Fetch results first; nothing was submitted.
            ChannelTimeout: No room within ``submit_timeout``; nothing was submitted.
            ActorDiedError, ChannelClosed: The graph has ended.
        """
        return self._engine.execute(*args, **kwargs)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution without blocking the event loop; returns refs to be awaited.

        It may be mixed with ``execute`` on the same graph. See ``execute`` for arguments and
        errors.
        """
        return await self._engine.execute_async(*args, **kwargs)

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self._engine.get_id()

    @property
    def plan(self) -> Plan:
        """What runs: programs and channels; prints as text."""
        return self._engine.plan

    @property
    def is_teardown(self) -> bool:
        """Whether it was torn down."""
        return self._engine.session.is_closed

    def report(self) -> Report:
        """Return who does what, since when, and who waits for whom; prints as text.

        It works while actors are stuck in users' code and after they died. Live actors are asked
        where they are, for at most half a second.
        """
        return self._engine.report(STACKS_TIMEOUT_S)

    def statistics(self) -> Statistics:
        """Return how much the graph has done so far and what it holds now; prints as text."""
        return self._engine.statistics()

    def profile(self, *, max_events: int | None = None) -> Profiler:
        """Return what records this graph: ``with cdag.profile() as p: ...; print(p)``.

        It can be switched on at any time, without compiling again. See ``rcg.profile`` for all
        graphs at once.

        Args:
            max_events: How many events are kept; later ones are counted as lost. None for five
                million.

        Raises:
            ValueError: ``max_events`` is no positive integer.
        """
        reference = weakref.ref(self._engine.session)

        def sessions() -> list[Session]:
            session = reference()
            return [] if session is None else [session]

        found: Profiler = _profiler().profiler_of(sessions, max_events=max_events)
        return found

    def trace(self) -> Trace:
        """Return what the flight recorder has now: the newest 4096 events of each process.

        It needs no profile, and works while actors are stuck and after they died.
        """
        found: Trace = _profiler().newest(self._engine.session)
        return found

    def visualize(
        self,
        filename: str | PathLike[str] = "compiled_graph",
        format: str | None = None,
        view: bool = False,
        channel_details: bool = False,
        *,
        legend: bool = True,
        dark: bool | None = None,
    ) -> str:
        """Draw the graph: actors as clusters, methods, and the values between them.

        Args:
            filename: Where to write, with the format as suffix or without. Not used for "ascii".
            format: "ascii" (text; writes no file), "dot" or "gv" (Graphviz source), "svg" (drawn by
                rcg), or one that Graphviz draws ("png", "pdf", ...): without its ``dot`` an SVG is
                written instead, and a warning says so. Without, the suffix decides, else "png".
            view: Open the file where there is a desktop; for "ascii", print.
            channel_details: Tell which channel carries each value.
            legend: Explain the lines.
            dark: Whether an SVG is dark; None leaves it to the reader's browser.

        Returns:
            The text, for "ascii"; Graphviz source for all others.

        Raises:
            ValueError: The format is unknown, or "ascii" with ``channel_details``.
            FileNotFoundError: There is no such folder.
        """
        return views().visualize(
            self._engine.plan,
            self._engine.actor_ids(),
            filename=filename,
            format=format,
            view=view,
            channel_details=channel_details,
            legend=legend,
            title=repr(self),
            dark=dark,
        )

    def __repr__(self) -> str:
        return f"CompiledDAG({self.get_id()})"

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.plan(
            self.plan,
            text=repr(self),
            title=f"CompiledDAG({self.get_id()[:8]})",
            actor_ids=self._engine.actor_ids(),
        )

    # --- elsewhere

    def __reduce__(self) -> Any:
        """Pickle as a handle, with which another process on this node can execute and get."""
        return handle_from, (self._engine.facts(),)

    # --- the end

    def teardown(self, kill_actors: bool = False, *, timeout: float | None = UNSET) -> None:
        """Stop the loops on the actors, which stay usable. Idempotent, from any thread.

        Waits until the loops have ended: the method that an actor runs goes on until it returns, a
        coroutine is cancelled. Ctrl-C finishes first.

        Args:
            kill_actors: Kill the actors as well.
            timeout: Seconds to wait, None for no limit. Without it, the graph's
                ``teardown_timeout``.

        Raises:
            ChannelTimeout: A loop had not ended by then. The graph is torn down all the same, and
                its part there ends when the method returns; call again to go on waiting.
        """
        self._engine.teardown(kill_actors, timeout=timeout)

    def __enter__(self) -> CompiledDAG:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.teardown()
        except ChannelTimeout as error:
            if kind is None:
                raise
            _log.warning("rcg: %s", error)  # what happened in the block matters more


def _profiler() -> Any:
    """Return the profiler's module: what analyses traces is loaded when somebody looks."""
    return importlib.import_module("rcg.runtime.observe.profiler")
