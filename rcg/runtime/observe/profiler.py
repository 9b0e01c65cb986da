# SPDX-License-Identifier: Apache-2.0
"""Recording profiles: draining the recorders of running graphs into a trace.

A profile needs no help of the actors: a thread of the driver, which never waits for Python's lock,
copies events from shared memory. So a profile also covers processes that hang or died.
"""

from __future__ import annotations

import os
import platform
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol

import numpy as np

from rcg.callers import at_users_line
from rcg.errors import ActorDiedError, ChannelClosed, OutOfSharedMemory, TraceError
from rcg.frames import warn_user
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan
from rcg.options import Deadline, Options
from rcg.profiling import Profile
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.control.registry import follow
from rcg.runtime.node.host import NodeHost, Recorded, Recording, newest_events
from rcg.runtime.node.layout import Layout, takers_of
from rcg.runtime.node.node import Node
from rcg.runtime.observe.activity import STUCK_AFTER_S, marks_of, trouble_of
from rcg.runtime.observe.report import Report
from rcg.runtime.observe.transfers import transfers_between
from rcg.trace.clocks import now_ns
from rcg.trace.model import (
    EVENT,
    NO_PEER,
    SPAN_BASE,
    Clock,
    Events,
    GraphTrace,
    LaneTrace,
    OpenOp,
    stream_name,
)
from rcg.trace.recorder import State
from rcg.trace.trace import Trace
from rcg.version import __version__

MAX_EVENTS: Final = 5_000_000
"""How many events of one graph a profile keeps at most: 280 MB. Later ones are counted as lost."""

# How long writes that are under way are waited for at the end, and how often they are checked.
_SETTLE_TIMEOUT_S: Final = 0.02
_SETTLE_POLL_S: Final = 0.0002
_PROCESSOR_TIMEOUT_S: Final = 0.2  # for members to say how much processor time they have used
_CLOCKS_TIMEOUT_S: Final = 0.4  # for members whose clocks are not ours
_EVENTS_TIMEOUT_S: Final = 5.0  # how long another node may be silent while it sends its events
_LOOK_TIMEOUT_S: Final = 0.5  # for other nodes to say which ops their processes are in
# How long torch's profiler may take to start in an actor, where it loads a library, or to stop.
_TORCH_TIMEOUT_S: Final = 30.0


class RecordedGraph(Protocol):
    """A running graph of this process, as a profile sees it."""

    graph_id: str
    name: str
    plan: Plan
    options: Options
    host: NodeHost
    node: Node
    control: GraphControl
    pid: int
    is_over: bool

    @property
    def title(self) -> str:
        """What messages call it."""

    def report(self, inquiry: None) -> Report:
        """Return what each process does, without asking any."""

    def check_running(self) -> None:
        """Raise ``ChannelClosed`` or ``ActorDiedError`` if it has ended."""


class Profiler:
    """Records some graphs; what ``rcg.profile()`` and ``CompiledDAG.profile()`` return.

    ``with`` starts it, gives the ``Profile``, and stops it at the end of the block: from then on
    the profile is complete. ``start()`` and ``stop()`` do the same by hand, as often as one likes,
    for another profile each time. From any thread, and without a lock: what ``stop()`` does may be
    done twice.

    Args:
        sessions: Returns the graphs, when it starts. They are not kept alive.
        is_following: Whether graphs that are compiled meanwhile are recorded, too, and those that
            have ended are left out.
        max_events: How many events of each graph are kept; None for ``MAX_EVENTS``.
        torch: Whether torch's profiler runs in the actors meanwhile, and its events are spans.
        name: What the profiles are called; "" for when they were recorded.

    Raises:
        ValueError: ``max_events`` is no positive integer.
    """

    def __init__(
        self,
        sessions: Callable[[], Iterable[RecordedGraph]],
        *,
        is_following: bool = False,
        max_events: int | None = None,
        torch: bool = False,
        name: str = "",
    ) -> None:
        if max_events is None:
            max_events = MAX_EVENTS
        if isinstance(max_events, bool) or not isinstance(max_events, int) or max_events < 1:
            raise ValueError(f"`max_events` must be a positive integer, found {max_events!r}")
        self._sessions = sessions
        self._is_following = is_following
        self._max_events = max_events
        self._has_torch = torch
        self._name = name
        self._run = _Run(name)
        self._run.is_over = True

    def _latest(self) -> _Run:
        """Return the run that was begun last."""
        run = self._run
        while run.next:
            run = run.next[0]
        self._run = run
        return run

    def graph_started(self, graph: Any) -> None:
        """Record a new graph, if this profiler records graphs that are compiled later."""
        run = self._latest()
        if not run.is_over:
            try:
                self._record(run, graph.session)
            except OutOfSharedMemory as error:
                warn_user(f"the running profile leaves out this graph: {error}", RuntimeWarning)

    @at_users_line
    def start(self) -> Profile:
        """Start recording and return the profile, which is complete after ``stop``.

        Raises:
            TraceError: It is recording already, or a graph has no recorder.
            OutOfSharedMemory: There is no room to record in.
            ChannelClosed, ActorDiedError: A graph has ended.
        """
        run, last = _Run(self._name), self._latest()
        try:
            if not last.is_over or last.next.setdefault(0, run) is not run:
                raise TraceError("this profile is being recorded already: stop() it first")
            if self._is_following:  # for good: one that does not record takes no note
                follow(self)
            for session in self._sessions():
                if not self._is_following:
                    session.check_running()
                if not session.is_over:
                    self._record(run, session)
            if self._has_torch and run.recordings:  # its profiler may have taken seconds to start
                start_ns = min(each.start_ns for each in run.recordings.values())
                run.began += (start_ns - run.start_ns) / 1e9
                run.start_ns = start_ns
            return run.profile
        except BaseException:
            run.is_over = True
            for recording in run.recordings.values():
                recording.profile_torch(False)
            run.recordings.clear()  # which ends them
            raise

    def _record(self, run: _Run, session: RecordedGraph) -> None:
        if not session.options.record:
            text = (
                f"{session.title} has no flight recorder (compiled with "
                "record=False, or RCG_RECORD=0), so there is nothing to profile: compile it with "
                "record=True"
            )
            if not self._is_following:
                raise TraceError(text)
            warn_user(text, RuntimeWarning)
        elif session.graph_id not in run.recordings:
            try:
                recording = _Recording(session, self._max_events, self._has_torch)
                run.recordings.setdefault(session.graph_id, recording)
            except (ChannelClosed, ActorDiedError):
                if not self._is_following:
                    raise

    @at_users_line
    def stop(self) -> Profile:
        """Stop recording and return the profile, which is complete now. Ctrl-C finishes first.

        Raises:
            TraceError: It is not recording.
        """
        run = self._latest()
        if run.is_over:
            raise TraceError("this profile is not being recorded: start() it first")
        is_interrupted = is_stopped = False
        while not is_stopped:
            try:
                self._stop(run)
                is_stopped = True
            except KeyboardInterrupt:
                is_interrupted = True
        if is_interrupted:
            raise KeyboardInterrupt
        return run.profile

    def _stop(self, run: _Run) -> None:
        """Complete a profile: steps that can be repeated, and the last says that all are done."""
        end_ns = run.end()
        recordings = list(run.recordings.values())
        for recording in recordings:
            recording.end()
        if not run.profile.is_complete:
            graphs = tuple(recording.graph(end_ns) for recording in recordings)
            found = transfers_between(run.start_ns, end_ns) if self._is_following else ()
            run.complete(Trace(graphs, run.start_ns, end_ns, _info(run.began), found))
        run.is_over = True

    __enter__ = start

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class _Run:
    """One recording of all graphs, from ``start`` to ``stop``; what is set is set once."""

    def __init__(self, name: str) -> None:
        self.start_ns, self.began = now_ns(), time.time()
        self.profile = Profile(name=name)
        self.recordings: dict[str, _Recording] = {}  # by the id of the graph
        self.is_over = False  # whether its last step is done
        # The run that was begun after it, under 0: the first that put itself there.
        self.next: dict[int, _Run] = {}
        self._end: dict[int, int] = {}
        self._trace: dict[int, Trace] = {}

    def end(self) -> int:
        """Return when it ended: now, or what this said before."""
        return self._end.setdefault(0, now_ns())

    def complete(self, trace: Trace) -> None:
        """Complete the profile, if no other thread has."""
        self.profile.complete(self._trace.setdefault(0, trace))


class _Recording:
    """Of one graph, from now on until it is stopped or dropped."""

    def __init__(self, session: RecordedGraph, most: int, has_torch: bool) -> None:
        self._session = session
        self._has_torch = False
        self._opened: dict[str, OpenOp] | None = None
        try:
            self.profile_torch(has_torch)
            self._begin(most)
        except BaseException:
            self.profile_torch(False)
            raise

    def _begin(self, most: int) -> None:
        session = self._session
        self.start_ns = now_ns()
        try:
            self._recording = Recording(session.host, most)
        except OSError as error:
            session.check_running()  # it ended meanwhile, and its memory is gone
            raise OutOfSharedMemory(
                f"there is no shared memory to record a profile in ({error.strerror}): it takes 4 "
                "MiB for each process of the graph. Drop results that are still held, or make "
                "/dev/shm larger."
            ) from error
        control = session.control
        self._far = control.nodes.new_recording()
        # Ctrl-C may come before anybody has this, or nobody stops it.
        weakref.finalize(self, control.nodes.drop, self._far).atexit = False
        control.nodes.record(self._far, most, _LOOK_TIMEOUT_S)
        self._found: list[Recorded] | None = None
        self._processor_ns = self._used()
        self._used_ns: dict[str, tuple[int, int]] = {}

    def _used(self) -> dict[str, tuple[int, int]]:
        """Return the processor time that each member has used so far."""
        return self._session.control.questions.processor_ns(_PROCESSOR_TIMEOUT_S)

    def profile_torch(self, is_on: bool) -> None:
        """Start torch's profiler in the actors, or stop it; warns where it does not run."""
        if is_on != self._has_torch:
            self._has_torch = is_on
            trouble = self._session.control.questions.profile_torch(is_on, _TORCH_TIMEOUT_S)
            for process, why in sorted(trouble.items()):
                warn_user(
                    f"the profile has no events of torch's in {self._session.plan.label(process)}: "
                    f"{why}",
                    RuntimeWarning,
                )

    def end(self) -> None:
        """Record nothing more."""
        self.profile_torch(False)
        if self._opened is None:
            _settle(self._session)
            # First, so that an op which ends from now on does not count as open.
            opened = _open_ops(self._session)
            self._opened = opened if self._opened is None else self._opened
        self._recording.stop()
        self._used_ns = self._used_ns or self._used()
        if self._found is None:
            self._found = self._session.control.nodes.events(self._far, _EVENTS_TIMEOUT_S)

    def graph(self, end_ns: int) -> GraphTrace:
        """Return the events recorded until a point in time."""
        found = [*self._recording.recorded(), *(self._found or ())]
        used = {
            process: (
                thread - self._processor_ns[process][0],
                all_ - self._processor_ns[process][1],
            )
            for process, (thread, all_) in self._used_ns.items()
            if process in self._processor_ns
        }
        return _graph_trace(self._session, found, self._opened or {}, end_ns, used)


def _settle(session: RecordedGraph) -> None:
    """Wait for loops that have just published a frame to record that event.

    They do so tens of nanoseconds later, or more if the kernel suspends them in between.
    """
    patience = Deadline(_SETTLE_TIMEOUT_S)
    for process in session.node.layout.members:
        ops = session.plan.program(process).ops
        while process != DRIVER and not patience.expired:
            now = session.node.now(process)
            has_op = bool(now.since_ns) and now.op < len(ops)
            is_writing = has_op and bool(ops[now.op].values_out)
            if not is_writing or now.state is State.WAITING:
                break
            time.sleep(_SETTLE_POLL_S)


def newest(session: RecordedGraph) -> Trace:
    """Return the content of the flight recorder of a graph: the newest 4096 events per process."""
    end_ns, began = now_ns(), time.time()
    opened = _open_ops(session)
    far = session.control.nodes.events(0, _EVENTS_TIMEOUT_S)
    found = [*newest_events(session.node), *far]
    graph = _graph_trace(session, found, opened, end_ns)
    # Begin where the events of all processes begin: the busiest one has no earlier events.
    start_ns = max(
        (int(lane.events["start_ns"][0]) for lane in graph.lanes if len(lane.events)),
        default=end_ns,
    )
    return Trace((graph,), start_ns, end_ns, _info(began - (end_ns - start_ns) / 1e9))


def _open_ops(session: RecordedGraph) -> dict[str, OpenOp]:
    """Return the op that each process is in now; no entry if it is between ops or has ended."""
    node = session.node
    specs = session.plan.channels_by_id()
    numbers = {program.process: at for at, program in enumerate(session.plan.programs)}
    ended = session.control.lives.over - session.control.lives.gone.keys()
    found = {}
    for process in node.layout.members:
        now = node.now(process)
        channel = node.layout.channel(now.ring)
        waiting_ns = node.waiting_since_ns(process) if now.state is State.WAITING else 0
        if not now.since_ns or process in ended or process == node.layout.node:
            continue  # a gate is between frames most of the time
        if process == DRIVER:
            if not waiting_ns or channel is None:
                continue  # the thread that serves asyncio waits for nothing particular
            waiting_ns = now.since_ns  # waits of its main thread are cut into slices
        peer = NO_PEER
        if waiting_ns and channel is not None:
            late = specs[channel].writer
            if node.layout.writer_of(channel) == process:
                # It is only known which readers have not taken the last frame.
                takers = takers_of(node.layout, session.plan, channel)
                unread = zip(takers, node.unread(channel), strict=True)
                late = next((each for each, count in unread if count), takers[0])[0]
            peer = numbers[late]
        found[process] = OpenOp(now.op, now.execution, now.since_ns, waiting_ns, peer)
    # Those of other nodes, as far as their hosts know.
    gates = {gate.id for gate in session.plan.gates}
    nodes = session.control.nodes
    nodes.wait(nodes.ask(), _LOOK_TIMEOUT_S)
    for snapshot in nodes.snapshots():
        for process in snapshot.layout.members:
            now = snapshot.now(process)
            if not now.since_ns or process in ended or process in gates:
                continue
            channel = snapshot.layout.channel(now.ring)
            began_ns = snapshot.began_ns(process)
            waiting_ns, peer = 0, NO_PEER
            if now.state is State.WAITING and channel is not None:
                spec = specs[channel]
                waiting_ns = began_ns
                peer = numbers[spec.readers[0] if spec.writer == process else spec.writer]
            found[process] = OpenOp(now.op, now.execution, began_ns, waiting_ns, peer)
    return found


def _graph_trace(
    session: RecordedGraph,
    found: Iterable[Recorded],
    opened: Mapping[str, OpenOp],
    end_ns: int,
    processor_ns: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> GraphTrace:
    """Return the record of each process until a point in time, on the driver's clock."""
    clocks = {DRIVER: Clock(), **session.control.questions.clocks(_CLOCKS_TIMEOUT_S)}
    pids = {DRIVER: session.pid, **session.control.lives.pids}
    recorded = {each.process: each for each in found}
    machines = session.control.addresses()  # for people: an address, if there are several nodes
    lanes = []
    for process in [program.process for program in session.plan.programs]:
        known = recorded.get(process, Recorded(process, 0, np.empty(0, EVENT), ()))
        events = _with_numbers(session.plan, known)
        clock = clocks.get(session.plan.host_of(process), Clock())
        op = opened.get(process)
        if op is not None and len(events) and (events["start_ns"] == op.since_ns).any():
            op = None  # it ended before we looked at the events
        if clock.offset_ns:
            events = events.copy()
            events["start_ns"] += clock.offset_ns
            events["end_ns"] += clock.offset_ns
            op = None if op is None else op.moved(clock.offset_ns)
        events = events[events["start_ns"] < end_ns]
        if op is not None and op.since_ns >= end_ns:
            op = None
        died_ns = session.control.lives.gone_ns.get(process)
        if op is not None and died_ns is not None:
            events, op = _with_last(events, op, died_ns), None
        events, kernels, streams = _without_kernels(events)
        lanes.append(
            LaneTrace(
                process=process,
                label=session.plan.label(process),
                events=events,
                spans=_names_of(known),
                node=machines.get(session.plan.node_of(process), platform.node()),
                pid=pids.get(session.plan.host_of(process), 0),
                clock=clock,
                lost=known.lost,
                processor_ns=processor_ns.get(process),
                open=op,
                kernels=kernels,
                streams=streams,
            )
        )
    limit = session.options.max_inflight_executions
    report = session.report(None)
    # That a method runs at the end of a recording is usual, and no trouble for a while.
    end = report.state, report.processes
    trouble = trouble_of(*end, least_s=STUCK_AFTER_S)
    marks = marks_of(*end, least_s=STUCK_AFTER_S)
    about = limit, session.name, trouble, marks
    return GraphTrace(session.graph_id, session.plan, tuple(lanes), *about)


def _with_numbers(plan: Plan, recorded: Recorded) -> Events:
    """Return events whose peers are numbers of lanes: recorders have those of their own node.

    Where a process has waited for its gate, it has waited for the one that sends the value.
    """
    events = recorded.events
    if not plan.nodes or not len(events):
        return events
    node = plan.node_of(recorded.process)
    lanes = {program.process: at for at, program in enumerate(plan.programs)}
    members = [lanes[process] for process in Layout.of(plan, node).members]
    channels = plan.channels_by_id()
    ops = plan.program(recorded.process).ops
    writers = [
        lanes[channels[op.channels_in[0]].writer] if op.channels_in else NO_PEER for op in ops
    ]
    events = events.copy()
    has_peer = events["peer"] < len(members)
    peers = np.array([*members, NO_PEER], "u4")[np.where(has_peer, events["peer"], len(members))]
    if node in lanes and ops:
        at = np.where(events["op"] < len(ops), events["op"], 0)
        peers = np.where(peers == lanes[node], np.array(writers, "u4")[at], peers)
    events["peer"] = peers
    return events


def _names_of(recorded: Recorded) -> tuple[str, ...]:
    """Return the names of spans: a recorder keeps so many, and all others have one number."""
    most = int(recorded.events["op"].max(initial=0)) - SPAN_BASE
    return recorded.spans + ("(another name)",) * max(0, most + 1 - len(recorded.spans))


def _without_kernels(events: Events) -> tuple[Events, Events, tuple[str, ...]]:
    """Part what devices did from what a process did: its recorder keeps both.

    Returns:
        The events of the process, those of its devices, and the names of the streams.
    """
    is_kernel = (events["op"] >= SPAN_BASE) & (events["coded_ns"] > 0)
    if not is_kernel.any():
        return events, events[:0], ()
    kernels = events[is_kernel]
    numbers, kernels["peer"] = np.unique(kernels["coded_ns"], return_inverse=True)
    kernels["coded_ns"] = 0
    return events[~is_kernel], kernels, tuple(map(stream_name, numbers.tolist()))


def _with_last(events: Events, op: OpenOp, died_ns: int) -> Events:
    """Return events with the one that death ended."""
    waited_ns = max(0, died_ns - op.waiting_since_ns) if op.waiting_since_ns else 0
    end_ns = max(died_ns, op.since_ns)
    last = np.array([(op.since_ns, end_ns, waited_ns, 0, op.execution, 0, op.op, op.peer)], EVENT)
    return np.concatenate([events, last])


def _info(began: float) -> dict[str, Any]:
    return {
        "host": platform.node(),
        "time": began,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"rcg": __version__, "python": platform.python_version()},
    }
