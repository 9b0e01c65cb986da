# SPDX-License-Identifier: Apache-2.0
"""Records whose figures are worked out by hand; ``test_measured_by_hand`` has all their figures.

The first one is two executions of a pipeline, which many tests are about:

```
ns      0         10   14    20        30        40        50        60   65           80
driver            |W0W1|user |R0 waits to 47 . . . . . . .|R1 waits to 64 |user
a0      |R0 waits to 13|R|C0       |W0 |R|C1       |W1 |R2 waits . . . . . . . . . . . .
a1      |R0 waits to 29. . . . . . . |R|C0         |W0 |R|C1         |W1 |R2 waits . . .
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rcg.compiler import compile_graph
from rcg.trace.model import NO_PEER, Clock, GraphTrace, OpenOp
from tests.unit.graphs_by_hand import call, graph, input_value, stages
from tests.unit.tensors_by_hand import ROWS as TENSORS_ROWS
from tests.unit.tensors_by_hand import tensors_by_hand
from tests.unit.traces import PIPELINE, changed, event, graph_trace

SECOND = 1_000_000_000

DRIVER_ROWS = [
    event(1, 0, 10, 12, bytes=100),
    event(1, 1, 12, 14, bytes=100),
    event(3, 0, 20, 48, waited=27, bytes=100, peer=2),
    event(3, 1, 48, 65, waited=16, bytes=100, peer=2),
]
A0_ROWS = [
    event(0, 0, 0, 15, waited=13, coded=1, bytes=100, peer=0),
    event(1, 0, 15, 25),
    event(3, 0, 25, 28, coded=1, bytes=100),
    event(0, 1, 28, 30, coded=1, bytes=100),
    event(1, 1, 30, 40),
    event(3, 1, 40, 43, coded=1, bytes=100),
]
A1_ROWS = [
    event(0, 0, 0, 31, waited=29, coded=1, bytes=100, peer=1),
    event(1, 0, 31, 43),
    event(3, 0, 43, 46, coded=1, bytes=100),
    event(0, 1, 46, 48, coded=1, bytes=100),
    event(1, 1, 48, 60),
    event(3, 1, 60, 63, coded=1, bytes=100),
]
ROWS = {"driver": DRIVER_ROWS, "a0": A0_ROWS, "a1": A1_ROWS}
OPENS = {"a0": OpenOp(0, 2, 43, 43, 0), "a1": OpenOp(0, 2, 63, 63, 1)}
END = 80


def by_hand(**changes):
    """The trace above, with the rows of some processes changed."""
    return graph_trace(ROWS | changes, opens=OPENS)


# The same, as a driver does it that encodes before there is room, waits in vain, for any of several
# results, and decodes later on. The frames move when they did above.
DRIVER_APART = [
    event(1, 0, 2, 5, coded=3),
    event(1, 1, 5, 9, coded=4),
    *DRIVER_ROWS[:2],
    event(3, 0, 14, 19, waited=4, peer=2),
    event(3, 0, 20, 47, waited=26, peer=2),
    event(3, 0, 47, 48, bytes=100),
    event(3, 1, 48, 65, waited=16, bytes=100, peer=2),
    event(3, 0, 66, 71, coded=5),
    event(3, 1, 72, 79, coded=7),
]


@dataclass(frozen=True)
class Record:
    """The record of a graph in a trace of these times.

    Attributes:
        of: The record whose figures these are but for what is approved; "" for a record of its own.
    """

    graph: GraphTrace
    end: int | None = None
    of: str = ""
    start: int = 0


# --- a pipeline, and what becomes of its figures --------------------------------------------------

# In flight is 10 to 63, and the shares of each process are
#
#          compute   moving    coding  waiting                         idle
# driver   -         2+2+1+1   -       27 (R0) + 15 (R1 to 63)         10 + 6 + 1 + 15
# a0       10+10     1+2+1+2   4       3 (R0 from 10) + 20 (R2 to 63)  10 + 17
# a1       12+12     1+2+1+2   4       19 (R0 from 10)                 10 + 17
#
# Methods of 20 and 24, and moving of 6 and 6 beside none of them, of the 53 ns from 10 to 63: that
# a1 computes during a0's last 2 ns hides nothing of a0's. Execution 0 is queued from 12 to 13 and
# from 28 to 29; execution 1 is worked for 34 of its 51.
PIPELINES: dict[str, GraphTrace] = {
    # --- what a trace does not hold
    "began-later": by_hand(driver=DRIVER_ROWS[2:3], a0=A0_ROWS[1:], a1=A1_ROWS[:5]),
    "lost-submission": by_hand(driver=[DRIVER_ROWS[0], *DRIVER_ROWS[2:]]),
    # The next completion ends the flight of execution 0; that of the last one lasts to the end.
    "lost-completion": by_hand(driver=DRIVER_ROWS[:2], a1=A1_ROWS[3:]),
    "lost-last": by_hand(driver=DRIVER_ROWS[:3], a1=A1_ROWS[:5]),
    "lost-driver": changed(by_hand(driver=()), "driver", lost=4),
    "lost-a1": by_hand(a1=()),
    # The driver has execution 1 before the trace holds a1's Write of it.
    "lost-write": by_hand(a1=A1_ROWS[:5]),
    # The Write that a1 waited for is missing: the path ends there, with a note.
    "lost-cause": by_hand(a0=A0_ROWS[:2]),
    "lost-gap": changed(by_hand(a1=[*A1_ROWS[:2], *A1_ROWS[4:]]), "a1", lost=2),
    # --- what is under way, or comes later
    "under-way": by_hand(driver=[*DRIVER_ROWS, event(1, 2, 66, 67)]),
    "began-before": by_hand(driver=DRIVER_ROWS[1:]),
    "not-fetched": by_hand(driver=DRIVER_ROWS[:2]),
    # A method that runs beyond the last result is cut there.
    "called-later": by_hand(a0=[*A0_ROWS, event(1, 2, 63, 75)]),
    # After 63 nothing is in flight, so no Read waits; calls and writes wait all the same.
    "waits-later": graph_trace(
        {**ROWS, "a0": [*A0_ROWS, event(1, 1, 64, 70, waited=5), event(3, 1, 70, 80, waited=7)]}
    ),
    # a0 is in its third Read since 43 and looked up at 79: nothing differs.
    "looked-up": changed(by_hand(), "a0", open=OpenOp(0, 2, 43, 79, 0)),
    # --- clocks
    # A completion is not before its submission.
    "clocks-early": by_hand(a1=[event(3, 0, 1, 2), event(3, 1, 3, 4)]),
    # a1 noted the end of its Write late, or its clock is ahead: the driver had it at 47.
    "noted-late": by_hand(a1=[*A1_ROWS[:2], event(3, 0, 43, 55, coded=1, bytes=100), *A1_ROWS[3:]]),
    # a0's clock is ahead: a1 goes on at 29 with what was written until 40. Waking takes no less
    # than nothing.
    "clocks-ahead": by_hand(a0=[*A0_ROWS[:2], event(3, 0, 25, 40, coded=1, bytes=100)]),
    # The frame is there before the Write's event is closed: the path is cut at the wake-up, 13.
    "woken-early": by_hand(
        driver=[event(1, 0, 10, 14, bytes=100), event(1, 1, 14, 15, bytes=100), *DRIVER_ROWS[2:]]
    ),
    # --- a call of a method that is busy for another graph
    "other-graph": by_hand(a1=[A1_ROWS[0], event(1, 0, 31, 43, waited=5), *A1_ROWS[2:]]),
    # --- a driver's op in several events
    # What was encoded before there was room counts, from 7 and from 8, and queueing does not.
    "apart": by_hand(driver=DRIVER_APART),
    "apart-noted-late": by_hand(
        driver=DRIVER_APART,
        a1=[*A1_ROWS[:2], event(3, 0, 43, 55, coded=1, bytes=100), *A1_ROWS[3:]],
    ),
    # Its end and the beginning of the Write are from different clocks: no second thread.
    "apart-overlaps": by_hand(driver=[event(1, 0, 2, 11, coded=9), *DRIVER_APART[1:]]),
    # A wait in vain fetches nothing.
    "in-vain": by_hand(driver=[*DRIVER_ROWS[:3], event(3, 1, 48, 60, waited=12, peer=2)]),
    "in-vain-before": by_hand(
        driver=[*DRIVER_ROWS[:2], event(3, 0, 14, 19, waited=5, peer=2), *DRIVER_APART[-2:]]
    ),
    # Of another thread, for what never came: no loss.
    "in-vain-other": by_hand(
        driver=[event(1, 0, 0, 2), event(3, 5, 2, 8, waited=5, peer=2), event(1, 1, 9, 10)]
    ),
    # --- what is said of what is not known
    "many-lost": changed(by_hand(), "driver", lost=1_234),
    "clock-of-a1": changed(by_hand(), "a1", clock=Clock(5, 12_000)),
}


def one_by_one(took: Sequence[int]) -> GraphTrace:
    """Executions one after another: a0 takes so long in each, a1 30 ns."""
    rows: dict[str, list[Any]] = {"driver": [], "a0": [], "a1": []}
    at, idle = 0, 0
    for n, called in enumerate(took):
        done = at + 2 + called
        rows["driver"].append(event(1, n, at, at + 1))
        rows["a0"] += [
            event(0, n, idle, at + 2, waited=at + 1 - idle, peer=0),
            event(1, n, at + 2, done),
            event(3, n, done, done + 1),
        ]
        rows["a1"] += [
            event(0, n, idle, done + 2, waited=done + 1 - idle, peer=1),
            event(1, n, done + 2, done + 32),
            event(3, n, done + 32, done + 33),
        ]
        rows["driver"].append(event(3, n, at + 1, done + 34, waited=done + 32 - at, peer=2))
        idle, at = done + 33, done + 34
    return graph_trace(rows)


# Nobody is named by the events: who is waited for is what the plan says.
NAMELESS = {
    "driver": [event(1, 0, 0, 9, waited=4)],
    "a0": [
        event(0, 0, 0, 10, waited=5),
        event(1, 0, 10, 20, waited=3),
        event(3, 0, 20, 30, waited=2),
        event(9, 0, 30, 40, waited=1),
    ],
    "a1": [event(0, 0, 0, 8, waited=8, peer=77)],
}

# --- parts of ops ---------------------------------------------------------------------------------

# One turn of an actor, 100 ns:
#
#   0        40     50    60  62            82   85      95   100
#   | wait   | move | dec |w  | compute     | enc | room  | move|
#   `------- Read 0 ------'`--- Call 1 ----'`---- Write 3 -----'
TURN = [
    event(0, 0, 0, 60, waited=40, coded=10, bytes=8),
    event(1, 0, 60, 82, waited=2),
    event(3, 0, 82, 100, waited=10, coded=3, bytes=8),
]
# What a0 is in at the end, 120, counts: a Read looks up from waiting now and then.
NOW = {
    "read-waits": OpenOp(0, 1, 100, 104),
    "read-looked-up": OpenOp(0, 1, 100, 119),
    "read-moves": OpenOp(0, 1, 100),
    "call": OpenOp(1, 1, 100),
    "write-waits": OpenOp(3, 1, 100, 104),
    "write-moves": OpenOp(3, 1, 100),
    "not-yet": OpenOp(1, 1, 130),
}
# Times that contradict each other are cut to fit.
WRONG = [
    event(0, 0, 0, 10, waited=99, coded=99),
    event(0, 1, 10, 20, waited=4, coded=99),
    event(3, 1, 20, 30, waited=-5, coded=-5),
    event(1, 1, 40, 33, waited=2),
]
# Of 40 ns, 20 are waiting and 5 coding: 15 for 3000 bytes, which are looked at where they lie.
OWN = [
    event(0, 0, 0, 40, waited=20, coded=5, bytes=3_000),
    event(1, 0, 40, 50),
    event(0, 1, 50, 60, bytes=3_000),
    event(1, 1, 60, 90, waited=10),
    event(1, 2, 90, 190),
]
# A trace from 1,000 to 1,100. The rate of a Write is that of all of it: 400 bytes in 8 ns.
CUT = {
    "a0": [
        event(0, 0, 0, 1_010, waited=1_005, bytes=100),  # waited long before the trace began
        event(1, 0, 1_010, 1_040),
        event(3, 0, 1_040, 1_050, coded=2, bytes=400),
        event(0, 1, 1_050, 1_130, waited=70),
        event(1, 1, 1_130, 1_150),
    ],
    "a1": [event(0, 0, 0, 900, waited=890), event(1, 0, 900, 990)],
}

# --- lanes, several readers, nodes ----------------------------------------------------------------

WITH_LANES = """
plan positional=1 keywords=[] returns=one
actor a0 'First' ''
actor a1 'Second' ''
lane a0.comm of a0
lane a1.comm of a1
group g0 gloo a0.comm a1.comm
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0.comm -> a1.comm tensor @g0 node=1 slots=10
channel c2 a1 -> driver ring node=2 slots=10
channel c3 a0 -> a0.comm local node=1 slots=1
channel c4 a1.comm -> a1 local node=1 slots=1
program driver
  Input * -> s0
  Write s0 -> c0
  Read c2 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.f(s0) -> s1 #1
  Write s1 -> c3
program a0.comm
  Read c3 -> s1
  Write s1 -> c1
program a1
  Read c4 -> s0
  Call a1.g(s0) -> s1 #2
  Write s1 -> c2
program a1.comm
  Read c1 -> s0
  Write s0 -> c4
"""
# Communication is hidden behind methods of the same actor; what others compute hides none of it.
#
# ns       0    5    10        20        30        40        50        60        70
# driver       | W |                                                                 4 to 8
# a0              |R||f . . . . . . . . .|W        |f . . . . . . . . .|          2 + 1
# a0.comm  |R waits . . . . . . . . . . . |R  |W c1 . . . . . . .|                1 + 20
# a1                                                         |g . . . . . . . . . |
# a1.comm                                   |R|R c1 receives . . .| W             20 + 2
#
# Of what a0.comm sends, from 40 on; of what a1.comm receives, from 50 on, and its Write: 15 and 7.
LANES_ROWS = {
    "driver": [event(1, 0, 4, 8)],
    "a0": [event(0, 0, 7, 9), event(1, 0, 10, 30), event(2, 0, 30, 31), event(1, 1, 40, 60)],
    "a0.comm": [event(0, 0, 0, 32, waited=31), event(1, 0, 35, 55, peer=4)],
    "a1": [event(1, 0, 50, 70), event(2, 0, 70, 71)],
    "a1.comm": [event(0, 0, 33, 55, waited=2, peer=2), event(1, 0, 56, 58)],
}

# A value with two readers, in a channel of one slot: a0 waits until both have read it.
_FORKED = PIPELINE.replace("a0 -> a1 ring node=1 slots=10", "a0 -> driver a1 ring node=1 slots=1")
FORKED = _FORKED.replace("Read c2 -> s1", "Read c1 -> s2\n  Read c2 -> s1")


def forked(peer: int) -> GraphTrace:
    """The slowest reader made room for a0, the driver, or the one that its Write names."""
    rows = {
        "driver": [
            event(1, 0, 0, 1),
            event(1, 1, 1, 2),
            event(3, 0, 2, 19, waited=11),
            event(4, 0, 19, 21),
            event(3, 1, 21, 23, waited=1),  # before a1 is done with it
        ],
        "a0": [
            event(0, 0, 0, 2, waited=1),
            event(1, 0, 2, 10),
            event(3, 0, 10, 12),
            event(0, 1, 12, 13),
            event(1, 1, 13, 14),
            event(3, 1, 14, 22, waited=6, peer=peer),
        ],
        "a1": [
            event(0, 0, 0, 15, waited=12),
            event(1, 0, 15, 16),
            event(3, 0, 16, 18),
            event(0, 1, 18, 23, waited=4),
            event(1, 1, 23, 24),
            event(3, 1, 24, 25),
        ],
    }
    return graph_trace(rows, plan=FORKED)


NODES_PLAN = compile_graph(
    graph(
        input_value(0),
        call(1, "a0", 0, method="make"),
        call(2, "a2", 1, method="work"),
        call(3, "a1", 1, 2, method="join"),
        actors=stages("Stage", "Beside", "Far"),
    ),
    {"a0": "cafe", "a1": "cafe", "a2": "beef"},
    "cafe",
    4,
).plan
NODES = re.sub("  Free s0, .*\n", "", str(NODES_PLAN))  # what actors free is not looked at here
NODES_ROWS = {
    "driver": [event(1, 0, 0, 10), event(3, 0, 10, 300, waited=280)],
    "a0": [event(0, 0, 0, 20, waited=10), event(1, 0, 20, 90), event(2, 0, 90, 100)],
    "a1": [
        event(0, 0, 0, 105, waited=90),
        event(1, 0, 105, 220, waited=100),
        event(2, 0, 220, 280),
        event(3, 0, 280, 290),
    ],
    "a2": [event(0, 0, 0, 140, waited=125), event(1, 0, 140, 180), event(2, 0, 180, 190)],
    "n0": [event(0, 0, 0, 210, waited=195, bytes=64)],
    "n1": [event(0, 0, 0, 130, waited=120, bytes=64), event(0, 1, 130, 260, waited=110, bytes=64)],
}


def nodes() -> GraphTrace:
    """Frames from a0 to a2 are on the wire for 30 ns, those back for 20."""
    waiting = OpenOp(0, 1, 210, 210, NO_PEER)
    return graph_trace(NODES_ROWS, plan=NODES, limit=4, opens={"n0": waiting})


# --- graphs that hang -----------------------------------------------------------------------------


def hanging(**changes: OpenOp) -> GraphTrace:
    """Two executions of the pipeline; the third is in a1's method since 90, for two seconds.

    The driver waits for its result. a0 waits for an input that was not submitted: it is idle.
    """
    rows = {
        "driver": [*DRIVER_ROWS, event(1, 2, 65, 66, bytes=100)],
        "a0": [
            *A0_ROWS,
            event(0, 2, 43, 70, waited=25, bytes=100, peer=0),
            event(1, 2, 70, 80),
            event(3, 2, 80, 83),
        ],
        "a1": [*A1_ROWS, event(0, 2, 63, 90, waited=20, peer=1)],
    }
    opens = {
        "driver": OpenOp(3, 2, 66, 66, 2),
        "a0": OpenOp(0, 3, 83, 83, 0),
        "a1": OpenOp(1, 2, 90),
    }
    return graph_trace(rows, opens=opens | changes)


def first_call(**waiting: OpenOp) -> GraphTrace:
    """The first call of all has not ended."""
    rows = {"driver": [DRIVER_ROWS[0]], "a0": [A0_ROWS[0]]}
    return graph_trace(rows, opens={"a0": OpenOp(1, 0, 15)} | waiting)


_DRIVER_WAITS = OpenOp(3, 0, 12, 12, 2)
HANGS = {
    # For a method that another graph has.
    "for-another": hanging(a1=OpenOp(1, 2, 90, 90)),
    # a0 cannot write to a1, and the driver has no room.
    "along-waits": hanging(a0=OpenOp(3, 5, 95, 95, 2), driver=OpenOp(1, 12, 99, 99, 1)),
    # All wait for the driver, which is in the user's code: nothing hangs.
    "not-for-the-user": hanging(a1=OpenOp(0, 3, 90, 90, 1)),
}


# --- all of them ----------------------------------------------------------------------------------


def _far_clock() -> GraphTrace:
    record = nodes()
    far = replace(record.lane("n1"), clock=Clock(7, 5), node="10.0.0.2")
    return replace(record, lanes=tuple(far if x.process == "n1" else x for x in record.lanes))


def _silent_gate() -> GraphTrace:
    """A gate that does not say that it waits is no stall."""
    return changed(nodes(), "n1", open=OpenOp(0, 1, 300, 0, NO_PEER))


def _stalled_tensors(**opens: OpenOp) -> GraphTrace:
    rows: Any = {process: rows[:2] for process, rows in TENSORS_ROWS.items()}
    return tensors_by_hand(opens, **rows)


_LATE_WRITE = event(2, 0, 30, 200, coded=5, waited=150, bytes=2400, peer=3)
_SECOND_CALL = [event(0, 1, 80, 140, waited=60, peer=0), event(1, 1, 140, 200)]
_COMPUTES = OpenOp(3, 0, 86)

RECORDS: dict[str, Record] = {
    "nothing": Record(graph_trace({}), 80),
    "pipeline": Record(by_hand(), END),
    **{f"pipeline-{name}": Record(of, END, "pipeline") for name, of in PIPELINES.items()},
    "pipeline-cut": Record(by_hand(), 50, "pipeline", start=20),
    "nameless": Record(graph_trace(NAMELESS), 40),
    # Execution 7 takes 105, of which a0 takes 70 and usually 10: once, and not more than a1.
    "one-is-slow": Record(one_by_one([10] * 7 + [70] + [10] * 2)),
    # From the first to the last completion: 11 executions of 46 ns, and 490 more in one.
    "one-stalls": Record(one_by_one([10] * 5 + [500] + [10] * 6)),
    "turn": Record(graph_trace({"a0": TURN}), 120),
    **{
        f"turn-{name}": Record(graph_trace({"a0": TURN}, opens={"a0": now}), 120, "turn")
        for name, now in NOW.items()
    },
    "wrong-times": Record(graph_trace({"a0": WRONG})),
    "own-times": Record(graph_trace({"a0": OWN})),
    "cut": Record(graph_trace(CUT), 1_100, start=1_000),
    "cut-later": Record(graph_trace(CUT), 1_100, "cut", start=1_046),
    "lanes": Record(graph_trace(LANES_ROWS, plan=WITH_LANES), 80),
    "forked": Record(forked(NO_PEER)),
    "forked-driver": Record(forked(0), of="forked"),
    "forked-named": Record(forked(2), of="forked"),
    "nodes": Record(nodes(), 300),
    "nodes-clock": Record(_far_clock(), 300, "nodes"),
    "nodes-silent-gate": Record(_silent_gate(), 10 * SECOND, "nodes"),
    "tensors": Record(tensors_by_hand(), 200),
    # A Read never waits longer than it lasts.
    "tensors-late": Record(
        tensors_by_hand(a0=[*TENSORS_ROWS["a0"][:2], _LATE_WRITE]), 200, "tensors"
    ),
    # Exchanges lack executions of which an end is missing.
    "tensors-lost": Record(tensors_by_hand(a2=TENSORS_ROWS["a2"][:2]), 200, "tensors"),
    # A method of another actor hides nothing of a collective.
    "tensors-beside": Record(
        tensors_by_hand(a0=[*TENSORS_ROWS["a0"], *_SECOND_CALL]), 200, "tensors"
    ),
    # A rank waits for the one that it names, or else for all others.
    "tensors-hang": Record(
        _stalled_tensors(a0=OpenOp(2, 0, 30, 35), a1=OpenOp(2, 0, 100, 100, 3), a2=_COMPUTES),
        10_000,
    ),
    "tensors-hang-nameless": Record(
        _stalled_tensors(a1=OpenOp(2, 0, 100, 100), a2=_COMPUTES), 10_000, "tensors-hang"
    ),
    # Two completions, at 46 and 63, and none since.
    "hangs": Record(hanging(), 2 * SECOND, start=5),
    **{f"hangs-{name}": Record(of, 2 * SECOND, "hangs", start=5) for name, of in HANGS.items()},
    # In the middle of a call, as most traces end.
    "hangs-not-yet": Record(hanging(), 140, "hangs", start=5),
    # Five times as long as any, but no longer than an execution takes.
    "hangs-not-usually": Record(
        graph_trace(ROWS, opens={"a1": OpenOp(3, 2, 90), "driver": OpenOp(3, 2, 90, 90, 2)}),
        120,
        "pipeline",
        start=5,
    ),
    # All is fetched: an actor lost its processor after its last Write, or before it began to wait.
    "hangs-not-after": Record(
        graph_trace(ROWS, opens={"a1": OpenOp(3, 1, 63)}), 2 * SECOND, "pipeline"
    ),
    "hangs-not-before": Record(
        graph_trace(ROWS, opens={"a1": OpenOp(0, 2, 63)}), 2 * SECOND, "pipeline"
    ),
    "first-call": Record(first_call(driver=_DRIVER_WAITS, a1=OpenOp(0, 0, 1, 1, 1)), 2 * SECOND),
    # Nobody waits for it.
    "first-call-alone": Record(first_call(), 2 * SECOND, "first-call"),
}
