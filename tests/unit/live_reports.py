"""Made-up reports of a chain of actors, as a running graph gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import Backlog, Report

GRAPH_ID = "87752519" + "0" * 24


def phrase(op: str) -> str:
    """What people say for an op in the notation of plans, in a graph of one chain of ``work``."""
    call = re.match(r"Call \w+\.(.+?)\(", op)
    verb = {"Read": "reading", "Write": "sending"}.get(op.partition(" ")[0])
    return f"in {call[1]}" if call else f"{verb} the result of a7.work" if verb else op


def does(process: str, state: str, waiting_for: str = "", **changes: Any) -> Activity:
    """What a process does: a0 to a9 are called ``a0 (Stage)``."""
    label = f"{process} (Stage)" if process[0] == "a" else process
    method = f"Call {process.partition('.')[0]}.work(s0) -> s1 #2"
    usual = {"op": method if state == "running" else "Read c2 -> s0", "execution": 8, "for_s": 0.0}
    usual = {"where": phrase(str(changes.get("op", usual["op"]))), **usual}
    known = {"pid": 7, "shared_bytes": 1024, "waits": 0, "waited_s": 0.0}
    return Activity(
        process=process, label=label, state=state, waiting_for=waiting_for,
        **{**known, **usual, **changes},
    )  # fmt: skip


def report_of(*actors: Activity, driver: str = "waiting", **changes: Any) -> Report:
    """A report with three of ten executions in flight."""
    last = actors[-1].label if actors and driver == "waiting" else ""
    facts: dict[str, Any] = {"in_flight": 3, "limit": 10, "completed": 0, "backlogs": ()}
    facts |= {"name": "pipeline", "state": "running", "used_bytes": 4096, "cap_bytes": 1 << 20}
    processes = (does("driver", driver, last), *actors)
    return Report(graph_id=GRAPH_ID, processes=processes, **{**facts, **changes})


def chain_that_hangs(count: int, stuck: int, for_s: float, **changes: Any) -> Report:
    """Each actor waits for its neighbour on the side of the one that hangs; queues before it fill.

    The first waits for room, the actors after the stuck one for input.
    """
    actors = [
        does(f"a{i}", "waiting", f"a{i + 1 if i < stuck else i - 1} (Stage)", for_s=for_s)
        if i != stuck
        else does(f"a{i}", "running", for_s=for_s)
        for i in range(count)
    ]
    queues = [backlog(i, 10) for i in range(1, stuck + 1)]
    return report_of(*actors, **{"backlogs": tuple(queues), **changes})


def idle_chain(count: int, **changes: Any) -> Report:
    """Nothing is in flight: the first waits for the driver, the others for the one before."""
    before = ["driver", *(f"a{i} (Stage)" for i in range(count - 1))]
    actors = [does(f"a{i}", "waiting", before[i]) for i in range(count)]
    return report_of(*actors, driver="idle", **{"in_flight": 0, **changes})


def backlog(reader: int, length: int) -> Backlog:
    """Frames of ten that wait for an actor."""
    return Backlog(f"c{reader}", f"a{reader - 1} (Stage)", f"a{reader} (Stage)", length, 10)


def later(report: Report, waited_s: Mapping[str, float], **changes: Any) -> Report:
    """The same report after processes have waited so long."""
    processes = tuple(
        replace(each, waited_s=waited_s.get(each.process, each.waited_s))
        for each in report.processes
    )
    return replace(report, processes=processes, **changes)
