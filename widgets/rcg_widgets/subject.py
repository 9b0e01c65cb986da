# SPDX-License-Identifier: Apache-2.0
"""The subject of a widget: a plan, and a record of its runs if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rcg.ir.plan import Plan
from rcg.profiling import Profile
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace, Mark
from rcg.trace.trace import Trace

__all__ = ["Subject", "recorded", "subject_of"]


@dataclass(frozen=True, eq=False)
class Subject:
    """One graph.

    Attributes:
        plan: Its plan.
        record: Its record; None without one.
        start_ns: Beginning of its record.
        end_ns: End of its record.
        title: What views call it; "" for a plan.
        state: What is wrong with it, or was at the end of its record; "" if nothing.
        addresses: Those of its nodes of the cluster; None for those in the record, if any.
        marks: What is wrong with its actors; None for what was at the end of the record, if any.
        info: What the trace of its record says about itself.
    """

    plan: Plan
    record: GraphTrace | None = None
    start_ns: int = 0
    end_ns: int = 0
    title: str = ""
    state: str = ""
    addresses: Mapping[str, str] | None = None
    marks: Mapping[str, Mark] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """Its record as a trace of its own."""
        graphs = () if self.record is None else (self.record,)
        return Trace(graphs, self.start_ns, self.end_ns, dict(self.info))

    @cached_property
    def measured(self) -> Measured | None:
        """What it did; None without a record."""
        return None if self.record is None else Measured.of(self.trace, self.record)


def subject_of(what: Any, graph: int | str | None = None) -> Subject:
    """Return the plan and the record of an argument of a widget.

    Args:
        what: A plan, a trace or a graph of a trace, a compiled graph, or an object with one of
            these as ``trace`` or ``plan``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.

    Raises:
        TypeError: The argument is none of these.
        TraceError: The trace has no such graph, it has several and none was chosen, or it is still
            being recorded.
    """
    if isinstance(what, Plan):
        return Subject(what)
    if isinstance(what, GraphTrace):
        return _of_record(what)
    trace = what if isinstance(what, Trace) else getattr(what, "trace", None)
    if isinstance(trace, Trace):
        record = Profile(trace).graph(graph)
        return Subject(
            record.plan,
            record,
            trace.start_ns,
            trace.end_ns,
            record.title,
            record.state,
            info=trace.info,
        )
    if isinstance(trace, GraphTrace):
        return _of_record(trace)
    plan = getattr(what, "plan", None)
    if isinstance(what, CompiledDAG):
        seen, addresses = what.seen(), what.addresses()
        return Subject(
            what.plan,
            title=seen.stated_title,
            state=seen.trouble,
            addresses=addresses,
            marks=seen.marks,
        )
    if isinstance(plan, Plan):
        return Subject(plan, title=getattr(what, "title", ""))
    raise TypeError(
        f"give the widget a plan, a compiled graph or a trace, found {type(what).__name__}"
    )


def recorded(what: Any, graph: int | str | None = None) -> tuple[Subject, GraphTrace]:
    """Return the subject and its record, for views that need a record.

    Raises:
        TypeError: The argument has no record.
        TraceError: The trace has no such graph, it has several and none was chosen, or it is still
            being recorded.
    """
    if isinstance(what, Plan):
        raise TypeError("a timeline needs a trace of what ran, found a plan")
    subject = subject_of(what, graph)
    if subject.record is None:
        raise TypeError(
            f"a timeline needs a trace of what ran, found {type(what).__name__} without one"
        )
    return subject, subject.record


def _of_record(record: GraphTrace) -> Subject:
    starts = [int(lane.events["start_ns"].min()) for lane in record.lanes if len(lane.events)]
    ends = [int(lane.events["end_ns"].max()) for lane in record.lanes if len(lane.events)]
    return Subject(
        record.plan,
        record,
        min(starts, default=0),
        max(ends, default=0),
        record.title,
        record.state,
    )
