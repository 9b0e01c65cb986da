# SPDX-License-Identifier: Apache-2.0
"""All compiled graphs of this process: finding, ending, reporting and recording them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rcg import cluster
from rcg.errors import ChannelTimeout
from rcg.log import Log
from rcg.runtime.control import registry
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.engine import Engine
from rcg.runtime.driver.session import Session
from rcg.runtime.observe.report import Reports

if TYPE_CHECKING:
    from rcg.runtime.observe.profiler import Profiler

_log = Log()


def live_graphs() -> list[CompiledDAG]:
    """Return the graphs of this process that are not torn down."""
    return [engine.face() for engine in registry.live(Engine)]


def main_threads_taken() -> dict[str, CompiledDAG]:
    """Return the graphs of this process that have actors' main threads, by actor id."""
    return {
        cluster.actor_id(handle): engine.face()
        for engine in registry.live(Engine)
        if engine.session.options.thread == "main" and not engine.session.is_over
        for handle in engine.session.handles.values()
    }


def teardown_all() -> None:
    """Tear down every live graph of this process; log those that do not end in time."""
    for dag in live_graphs():
        try:
            dag.teardown()
        except ChannelTimeout as error:
            _log.warning("rcg: %s", error)


def profile_all(*, max_events: int | None = None, torch: bool = False) -> Profiler:
    """Return a profiler of all live graphs of this process, and of those compiled meanwhile."""

    def sessions() -> list[Session]:
        return [engine.session for engine in registry.live(Engine)]

    profiler = importlib.import_module("rcg.runtime.observe.profiler")  # when somebody looks
    found: Profiler = profiler.profiler_of(
        sessions, is_following=True, max_events=max_events, torch=torch
    )
    return found


def report_all() -> Reports:
    """Return the reports of all live compiled graphs of this process; prints as text."""
    live = sorted(live_graphs(), key=lambda dag: dag.get_id())
    return Reports(dag.report() for dag in live)
