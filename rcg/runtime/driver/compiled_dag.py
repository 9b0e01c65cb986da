# SPDX-License-Identifier: Apache-2.0
"""``CompiledDAG``: a compiled graph as users see it, and all of them in this process.

The ``Engine`` of each does the work.
"""

from __future__ import annotations

import importlib
import math
import weakref
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal

from rcg.callers import at_users_line, end_at_caller
from rcg.display import Displayed, Mimebundle, Views, views
from rcg.errors import ChannelTimeout
from rcg.ir.plan import Plan
from rcg.log import Log
from rcg.options import timeout_from_user
from rcg.runtime.control import registry
from rcg.runtime.driver.engine import UNSET, Engine
from rcg.runtime.driver.session import Session
from rcg.runtime.mapping import MapResults, map_over
from rcg.runtime.observe.report import STACKS_TIMEOUT_S, Report, Reports, Statistics
from rcg.runtime.remote.handle import handle_from

if TYPE_CHECKING:
    from rcg.runtime.observe.profiler import Profiler
    from rcg.trace.trace import Trace

_log = Log()

_SEEN_TIMEOUT_S: Final = 0.2  # for actors to answer before a picture is drawn


class CompiledDAG(Displayed):
    """A DAG of actor methods that runs on its actors' own loops until it is torn down.

    ``compile`` returns it. Any thread of the process that compiled it may use it, from sync and
    asyncio code alike. It is torn down by ``teardown()``, at the end of a ``with`` block, when the
    last reference to it and to its results is dropped, and at interpreter exit.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Bound once, over the method of this class, so that an execution makes one call less. A
        # subclass keeps its own.
        if type(self).execute is CompiledDAG.execute:
            self.__dict__["execute"] = engine.execute

    # --- running

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return the ref of its result, or a list of refs.

        It returns at once while the window has room. If the window is full, it waits for an earlier
        execution to complete, or raises if the user set the limit. Any thread may call it.

        An argument that is a ``TensorRef`` is got by the actors that read it. It waits until the
        value was made, and holds the reference until the execution is complete.

        Args:
            *args: The positional arguments of the DAG's input.
            **kwargs: The keyword arguments of the DAG's input; others are ignored, as in Ray.

        Raises:
            ValueError: Wrong number or names of arguments; nothing was submitted.
            UnpicklableError: An argument cannot be sent; nothing was submitted.
            MessageTooLarge: An argument is larger than shared memory; nothing was submitted.
            CapacityExceededError: The limit is reached; nothing was submitted. Fetch results first.
            ChannelTimeout: There was no room within ``submit_timeout``, or the value of a
                ``TensorRef`` was not made; nothing was submitted.
            ActorDiedError, ChannelClosed: The graph has ended.
        """
        return self._engine.execute(*args, **kwargs)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution without blocking the event loop; return a ref to await, or a list.

        It may be mixed with ``execute`` on the same graph. See ``execute`` for arguments and
        errors.
        """
        try:
            return await self._engine.execute_async(*args, **kwargs)
        except GeneratorExit:  # the coroutine is closed
            raise
        except BaseException as error:
            end_at_caller(error)
            raise

    @at_users_line
    def map(self, *inputs: Any, in_flight: int | None = None, **keywords: Any) -> MapResults:
        """Execute for each input; return an iterator over the results, in the order of the inputs.

        It keeps ``in_flight`` executions in flight, so the actors work at the same time::

            for result in graph.map(inputs, in_flight=3): ...
            async for result in graph.map(requests, in_flight=3): ...

        An execution is in flight from its start until its result is yielded. The inputs may be
        endless: one is taken when there is room for it, first when the first result is asked for.
        A result waits for one input at most, so that the actors have work while the caller has the
        result. With ``in_flight=1``, an input may depend on the result before it.

        What a method raises is raised in place of its result. Then the iteration can go on: the
        next result is that of the next input. So it is with an input that cannot be sent. An
        exception of ``inputs`` is raised after the results of those before it, and is the end.
        After a ``ChannelTimeout``, Ctrl-C or a cancellation nothing is lost: ask again to go on
        waiting. When the graph has ended, the error is raised once, after the results that came.

        ``close()``, or dropping the iterator, takes no more inputs and waits for nothing:
        executions that were started run to their end, and their results are discarded.

        Args:
            *inputs: An iterable for each positional argument of ``execute``; the shortest ends all,
                as in Python's ``map``. In ``async for`` they may be asynchronous, and are then
                waited for while results are.
            in_flight: How many executions may be in flight. None: as many as the graph allows.
            **keywords: An iterable for each keyword argument of ``execute``.

        Raises:
            ValueError: ``in_flight`` is not a positive integer, or is more than the graph's
                ``max_inflight_executions``.
            TypeError: There are no inputs, or they cannot be iterated.
        """
        limit = self._engine.session.options.max_inflight_executions
        return map_over(self, inputs, keywords, in_flight, limit)

    def has_ended(self) -> bool:
        """Return whether it was torn down, or lost an actor; asks nobody."""
        return self._engine.has_ended()

    @at_users_line
    def empty(self, shape: Any, dtype: Any = float) -> Any:
        """Return a new array in the graph's shared memory, which ``execute`` sends without a copy.

        Fill it, then execute with it, with a view of it, or with a value that has either inside::

            batch = cdag.empty((64, 1024), np.float32)
            source.readinto(batch)
            ref = cdag.execute(batch)

        From then on it is read-only. It is an ordinary array, which is copied when it is sent,
        where it has no use or there is no memory for it. ``rcg.empty``, which is the same for the
        methods of the graph, says more.

        Args:
            shape: An integer or a sequence of them, as for ``numpy.empty``.
            dtype: Whatever NumPy takes as a dtype; a ``torch.dtype`` makes a tensor.

        Returns:
            An array, or a tensor, with arbitrary contents.

        Raises:
            TypeError, ValueError, MemoryError: As ``numpy.empty``.
            ActorDiedError, ChannelClosed: The graph has ended.
        """
        return self._engine.empty(shape, dtype)

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self._engine.get_id()

    @property
    def plan(self) -> Plan:
        """The plan: the programs and channels of the graph; prints as text."""
        return self._engine.plan

    @property
    def is_teardown(self) -> bool:
        """Whether it was torn down."""
        return self._engine.session.is_closed

    @at_users_line
    def check_health(self) -> None:
        """Raise if the graph has ended.

        No actor is asked. The first call after a death asks Ray for the cause, for at most a second
        or two.

        Raises:
            ActorDiedError: An actor died.
            ChannelBroken: A process cannot be reached, or failed.
            ChannelClosed: The graph was torn down.
        """
        self._engine.session.check_running()

    @at_users_line
    def on_broken(self, call: Callable[[], object]) -> None:
        """Have ``call`` called once if an actor dies, also while nothing is executed.

        Another thread calls it, or this one if an actor has died already, and it must not block. It
        is not called for a graph that was torn down.
        """
        reference = weakref.ref(self._engine.session)

        def ended() -> None:
            session = reference()
            if session is not None and session.is_broken and not session.is_closed:
                call()

        self._engine.session.on_end(ended)

    @at_users_line
    def report(self, timeout: float = STACKS_TIMEOUT_S) -> Report:
        """Return who does what, since when, and who waits for whom; prints as text.

        It also works while actors are stuck in users' code, and after actors died.

        Args:
            timeout: For how many seconds live actors are asked where they are. With 0 they are not
                asked, and the report only reads shared memory.

        Raises:
            TypeError: ``timeout`` is not a number.
            ValueError: It is negative, or None: an actor that is stopped never answers.
        """
        limit_s = timeout_from_user(timeout, "timeout")
        if timeout is None or timeout == -1:
            raise ValueError("`timeout` of report() must be a number of seconds: it needs a limit")
        return self._engine.report(math.inf if limit_s is None else limit_s)

    @at_users_line
    def statistics(self) -> Statistics:
        """Return how much the graph has done so far and the memory it uses; prints as text.

        It reads shared memory, in microseconds. Other nodes are asked; one that does not answer
        within half a second is counted as it was last seen.
        """
        return self._engine.statistics()

    @at_users_line
    def profile(
        self, *, name: str = "", max_events: int | None = None, torch: bool = False
    ) -> Profiler:
        """Return a profiler of this graph: ``with cdag.profile() as p: ...; print(p)``.

        It can be started at any time, without compiling again. ``rcg.profile`` records all graphs.

        Args:
            name: What the profile is called, as in ``rcg.profiles()``; by default the time.
            max_events: How many events are kept; later ones are counted as lost. None for five
                million.
            torch: Whether torch's profiler runs in the actors meanwhile, on the threads that run
                methods and transfers. Its events are shown inside these, as spans are, and kernels
                of GPUs in a row per stream. Torch's profiler slows small operations down.

        Raises:
            ValueError: ``max_events`` is not a positive integer.
        """
        reference = weakref.ref(self._engine.session)

        def sessions() -> list[Session]:
            session = reference()
            return [] if session is None else [session]

        found: Profiler = _profiler().Profiler(
            sessions, name=name, max_events=max_events, torch=torch
        )
        return found

    @at_users_line
    def trace(self) -> Trace:
        """Return the content of the flight recorder: the newest 4096 events of each process.

        It needs no profile, and works while actors hang and after they died.
        """
        found: Trace = _profiler().newest(self._engine.session)
        return found

    @at_users_line
    def visualize(
        self,
        filename: str | PathLike[str] | None = None,
        format: str | None = None,
        view: bool = False,
        channel_details: bool = False,
        *,
        legend: bool = True,
        dark: bool | None = None,
        layout: Literal["phases", "actors", "dot"] | None = None,
    ) -> str:
        """Draw the graph: actors as boxes, their methods, and the values between them.

        As the last line of a notebook's cell, the picture is shown. A file is written if there is a
        ``filename`` or a ``format``, or it is to be opened.

        Args:
            filename: Where to write, with the format as suffix or without; by default
                "compiled_graph". Not used for "ascii".
            format: "ascii" (text; writes no file), "dot" or "gv" (Graphviz source), "svg", or one
                that Graphviz draws ("png", "pdf", ...). If its package or its ``dot`` is missing,
                an SVG is written instead, with a warning. The default is the suffix, else "png" if
                there is a ``dot``, else "svg".
            view: Open the file on a desktop; for "ascii", print.
            channel_details: Show which channel carries each value. An SVG then has a box for each
                call instead of one for the calls of each method.
            legend: Explain the lines.
            dark: Whether an SVG is dark; None leaves it to the reader's browser.
            layout: "phases": an actor has a box for what it does before a collective, and one for
                what it does after; "actors": one box; "dot": that of Graphviz, with a shape for
                each call. The default is "phases" for an SVG; other pictures have "dot".

        Returns:
            The text, for "ascii"; Graphviz source for all others. A notebook shows it as a picture.

        Raises:
            ValueError: The format or the layout is unknown, they do not go together, or the format
                is "ascii" with ``channel_details``.
            FileNotFoundError: There is no such folder.
            ImportError: The layout "dot" needs Graphviz, which is not installed.
        """
        seen = self.seen()
        return views().visualize(
            self._engine.plan,
            self._engine.actor_ids(),
            addresses=self.addresses(),
            marks=seen.marks,
            filename=filename,
            format=format,
            view=view,
            channel_details=channel_details,
            legend=legend,
            title=seen.stated_title,
            dark=dark,
            layout=layout,
        )

    def __repr__(self) -> str:
        return self._engine.session.title

    def _mimebundle(self, views: Views) -> Mimebundle:
        seen = self.seen()
        return views.plan(
            self.plan,
            text=seen.stated_title,
            title=seen.stated_title,
            actor_ids=self._engine.actor_ids(),
            addresses=self.addresses(),
            marks=seen.marks,
        )

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the nodes of the cluster, by their ids in the plan."""
        return self._engine.addresses()

    @property
    def name(self) -> str:
        """What views call it: ``compile(name=)``, or the variable, or its last method."""
        return self._engine.session.name

    @property
    def title(self) -> str:
        """Its name and the beginning of its id, and what is wrong with it, if anything is."""
        return self._engine.report(0).stated_title

    @property
    def state(self) -> str:
        """What is wrong with it in a few words, as pictures say it; "" if nothing is.

        An actor that died, one that is stuck as ``report()`` says, and "torn down".
        """
        return self._engine.report(0).trouble

    def seen(self) -> Report:
        """Return the report that a picture shows, after 0.2 s at most.

        Whether an actor is stopped that seems to wait is found by asking, and asked only while an
        execution is in flight and nothing else is wrong.
        """
        found = self._engine.report(0)
        if found.in_flight and not found.trouble:
            return self._engine.report(_SEEN_TIMEOUT_S)
        return found

    def weak(self) -> Callable[[], CompiledDAG | None]:
        """Return a function that returns this graph, and None once nobody uses it any more.

        It does not keep the graph. A ``weakref`` of a ``CompiledDAG`` is not the same: the graph
        runs on while somebody holds a ref of a result and not the ``CompiledDAG``.
        """
        engine = weakref.ref(self._engine)

        def find() -> CompiledDAG | None:
            found = engine()
            return None if found is None else found.face()

        return find

    # --- elsewhere

    def __reduce__(self) -> Any:
        """Pickle as a ``CompiledDAGHandle``, for other processes on the node."""
        return handle_from, (self._engine.facts(),)

    # --- the end

    def teardown(self, kill_actors: bool = False, *, timeout: float | None = UNSET) -> None:
        """Stop the loops on the actors, which stay usable. Idempotent, from any thread.

        It waits until the loops have ended: a running method continues until it returns, a running
        coroutine is cancelled. Ctrl-C ends the wait at once; the rest is done by another thread. In
        a forked child it does nothing.

        Args:
            kill_actors: Kill the actors as well.
            timeout: Seconds to wait, None for no limit. Without it, the graph's
                ``teardown_timeout``.

        Raises:
            ChannelTimeout: A loop did not end in time. The graph is torn down all the same, and the
                loop ends when its method returns. Call again to continue waiting.
            TypeError, ValueError: ``timeout`` is not a number of seconds; nothing was done.
        """
        try:
            self._engine.teardown(kill_actors, timeout=timeout)
        except BaseException as error:
            end_at_caller(error)
            raise

    def __enter__(self) -> CompiledDAG:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.teardown()
        except BaseException as error:
            if kind is None or not isinstance(error, ChannelTimeout):
                end_at_caller(error)
                raise
            _log.warning("rcg: %s", error)  # what happened in the block matters more


def live_graphs() -> list[CompiledDAG]:
    """Return the graphs of this process that are not torn down."""
    return [engine.face() for engine in registry.live(Engine)]


def teardown_all() -> None:
    """Tear down every live graph of this process; log those that do not end in time."""
    engines = registry.live(Engine)
    try:
        for engine in engines:
            try:
                engine.teardown()
            except ChannelTimeout as error:
                _log.warning("rcg: %s", error)
    except BaseException:  # Ctrl-C, which ends the waits for all of them
        for engine in engines:
            engine.session.begin_close()
        raise


def profile_all(*, name: str = "", max_events: int | None = None, torch: bool = False) -> Profiler:
    """Return a profiler of all live graphs of this process, and of those compiled meanwhile."""

    def sessions() -> list[Session]:
        return [engine.session for engine in registry.live(Engine)]

    found: Profiler = _profiler().Profiler(
        sessions, is_following=True, name=name, max_events=max_events, torch=torch
    )
    return found


def report_all() -> Reports:
    """Return the reports of all live compiled graphs of this process; prints as text."""
    live = sorted(live_graphs(), key=lambda dag: dag.get_id())
    return Reports(dag.report() for dag in live)


def _profiler() -> Any:
    """Return the profiler's module, which is loaded only when it is needed."""
    return importlib.import_module("rcg.runtime.observe.profiler")
