# SPDX-License-Identifier: Apache-2.0
"""The monitor of a running graph: a thread takes samples, and ``monitor.js`` draws them."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from dataclasses import asdict
from math import isfinite
from queue import Empty, SimpleQueue
from typing import Any, Final

import anywidget
import numpy as np
import traitlets

from rcg.runtime.observe.live import FIGURES, STUCK_AFTER_S, Sample
from rcg_widgets.base import script, style
from rcg_widgets.sampler import Sampler

__all__ = ["LiveMonitor"]

_MAX_SAMPLES: Final = 240
_MIN_INTERVAL_S: Final = 0.05
_STOP_WITHOUT_VIEW_S: Final = 30.0
_REPLACED: Final = "replaced by a newer monitor"
_NO_VIEW: Final = "stopped: no view is open"
_ENDINGS: Final = {
    "closed": "the graph was torn down",
    "broken": "the graph is broken: one of its actors died",
    "ended": "the source has ended",
    "gone": "the graph is gone",
}

_running: weakref.WeakSet[LiveMonitor] = weakref.WeakSet()


class LiveMonitor(anywidget.AnyWidget):
    """What a running graph and each of its actors do: rates, queues, waiting, memory, hangs.

    A daemon thread takes samples, also while a cell runs. Each costs the graph a few reads of
    shared memory. The monitor stops with its button or ``stop()``, when it is closed, when the
    graph ends, when a newer monitor of the same source starts (because its cell is run again), and
    half a minute after its last view was closed. It does not keep the graph alive. The button works
    while no cell runs.

    Args:
        source: A compiled graph, or a function that returns a dict (see
            ``rcg_widgets.sampler.Sampler``).
        interval_s: Seconds between two samples, at least 0.05.
        start: Whether to start immediately.
        title: The title; without one, the name of the graph.
        stuck_after_s: The graph hangs, and is highlighted, if an op takes longer than this many
            seconds, and five times as long as executions have taken so far.

    Traits:
        running: Whether it takes samples. It can be set, and the button sets it.
        interval_s: Seconds between two samples.
        history: The newest 240 samples, oldest first: time, throughput, in flight, queued, waiting
            and memory as numbers of 8 bytes. NaN is not known.
        samples: Number of samples so far.
        facts: ``limit``, ``cap`` and ``completed``, and in ``most`` the largest value of each
            figure so far.
        actors: The rows of the actors (see ``rcg.runtime.observe.live.Row``).
        status: One line about the state. If the graph hangs: on which op, for how long, and how
            many processes wait for it.
        stuck: Whether the graph hangs.
        ended: Whether the samples have ended.
        title: The title.

    Raises:
        TypeError: The source is neither.
        ValueError: The interval is below 0.05 s.
    """

    _esm = script("common", "monitor")
    _css = style()

    running = traitlets.Bool(False, help="Whether it takes samples.").tag(sync=True)
    interval_s = traitlets.Float(0.5, help="Seconds between two samples.").tag(sync=True)
    history = traitlets.Bytes(b"", help="The newest samples.").tag(sync=True)
    samples = traitlets.Int(0, help="Number of samples so far.").tag(sync=True)
    facts = traitlets.Dict(help="Limits, and the largest values.").tag(sync=True)
    actors: Any = traitlets.List(help="What each actor does.").tag(sync=True)
    status = traitlets.Unicode("stopped", help="The state in a line.").tag(sync=True)
    stuck = traitlets.Bool(False, help="Whether the graph hangs.").tag(sync=True)
    ended = traitlets.Bool(False, help="Whether the samples have ended.").tag(sync=True)
    title = traitlets.Unicode("", help="The title.").tag(sync=True)

    def __init__(
        self,
        source: Any,
        *,
        interval_s: float = 0.5,
        start: bool = True,
        title: str | None = None,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self._sampler = Sampler(source, stuck_after_s=stuck_after_s)
        self._rows: deque[tuple[float, ...]] = deque(maxlen=_MAX_SAMPLES)
        self._thread: threading.Thread | None = None
        # Ends the thread. Not an Event: widgets close in ``__del__``, which may run inside one.
        self._stopping: SimpleQueue[None] = SimpleQueue()
        self._views: set[str] = set()
        self._unviewed_since: float | None = None
        title = title or self._sampler.title or "Live"
        super().__init__(interval_s=interval_s, title=title)
        self.on_msg(_on_message)
        if start:
            self.start()

    @traitlets.validate("interval_s")
    def _check_interval(self, proposal: Any) -> float:
        if not proposal.value >= _MIN_INTERVAL_S:
            raise ValueError(
                f"`interval_s` must be at least {_MIN_INTERVAL_S} seconds, found {proposal.value}"
            )
        return float(proposal.value)

    def start(self) -> None:
        """Start taking samples. This has no effect if it is running, or if the graph has ended."""
        self.running = not self.ended

    def stop(self) -> None:
        """Stop taking samples. The history stays."""
        self._stop("stopped")

    def _stop(self, status: str) -> None:
        with self.hold_sync():
            self.running = False
            if not self.ended:
                self.status = status

    def close(self) -> None:
        """Stop taking samples, and close the widget."""
        self.running = False
        super().close()

    def look(self) -> Sample | None:
        """Take a sample now. If the source fails, set ``status`` and return None."""
        try:
            sample = self._sampler.take()
        except Exception as error:  # noqa: BLE001 - the source is a user's
            # A graph may be torn down while it is sampled.
            is_over = self._sampler.is_over
            said = f"the source failed: {type(error).__name__}: {error}"
            self._end(_ENDINGS["closed"] if is_over else said)
            return None
        values = [float(getattr(sample, name)) for name in FIGURES]
        if any(map(isfinite, values)):  # the last sample of a graph that has ended stays
            self._rows.append((sample.time_s, *values))
            with self.hold_sync():
                names = ("limit", "cap", "completed", "most")
                self.facts = {name: getattr(sample, name) for name in names}
                self.actors = list(map(asdict, sample.rows))
                self.samples += 1
                self.history = np.array(self._rows, "<f8").tobytes()
                self.stuck = bool(sample.verdict)
                if sample.verdict:
                    self.status = sample.verdict
                elif self.running:
                    self.status = self._running_text if sample.in_flight else self._ready_text
        if sample.is_last:
            self._end(_ENDINGS[sample.state])
        return sample

    def _end(self, status: str) -> None:
        with self.hold_sync():
            self.ended = True
            self.stuck = False
            self.status = status
            self.running = False

    def _note_view(self, view: str, is_shown: bool) -> None:
        """Note that a view was opened or closed. Opening one restarts a monitor without views."""
        if is_shown:
            self._views.add(view)
            self._unviewed_since = None
            if self.status == _NO_VIEW:
                self.start()
        else:
            self._views.discard(view)
            if not self._views:
                self._unviewed_since = time.monotonic()

    @property
    def _running_text(self) -> str:
        return f"running, every {self.interval_s:g} s"

    @property
    def _ready_text(self) -> str:
        """The status of a graph without executions in flight: NaN of a source that has none."""
        return f"ready: nothing in flight, looks every {self.interval_s:g} s"

    @property
    def _is_unviewed(self) -> bool:
        since = self._unviewed_since
        return since is not None and time.monotonic() - since >= _STOP_WITHOUT_VIEW_S

    @traitlets.observe("running")
    def _follow(self, change: Any) -> None:
        if not change.new:
            self._stopping.put(None)
            _running.discard(self)
            if not self.ended:
                self.status = "stopped"
            return
        if self.ended:
            self.running = False
            return
        if self._thread is None:  # a new monitor
            for each in list(_running):
                if each._sampler.is_of(self._sampler):
                    each._stop(_REPLACED)
        _running.add(self)
        self._stopping = SimpleQueue()
        self.status = self._running_text
        self._thread = threading.Thread(
            target=_sample_on,
            args=(weakref.ref(self), self._stopping),
            name="rcg-live-monitor",
            daemon=True,
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"LiveMonitor({self.status}, {self.samples} samples)"


def _on_message(monitor: LiveMonitor, said: Any, _: Any) -> None:
    """Handle the message of a view that was opened or closed."""
    if isinstance(said, dict) and isinstance(said.get("view"), str):
        monitor._note_view(said["view"], bool(said.get("shown")))


def _sample_on(monitor: weakref.ref[LiveMonitor], stopping: SimpleQueue[None]) -> None:
    """Take samples until the monitor is stopped or garbage-collected."""
    wait_s = 0.0
    while True:
        with contextlib.suppress(Empty):
            stopping.get(timeout=wait_s)
            return
        found = monitor()
        if found is None:
            return
        wait_s = found.interval_s
        if found._is_unviewed:
            found._stop(_NO_VIEW)
            return
        found.look()
        del found  # no reference to it while waiting
