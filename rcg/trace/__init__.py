# SPDX-License-Identifier: Apache-2.0
"""What the processes of a graph did and when: the record, and what follows from it.

```
Recorder ──> Trace ── parts_of, executions_of ──> shares_of, critical_path ──> summarize, compare
                 `────── costs_of ──> what_if, predict
```
"""

from __future__ import annotations

from rcg.trace.compare import Change, Comparison, GraphComparison, compare
from rcg.trace.costs import Cost, Measured, costs_of
from rcg.trace.critical import Paths, PathShare, SteadyPath, Step, critical_path
from rcg.trace.executions import UNSEEN, Executions, executions_of
from rcg.trace.ops import OpTimes, ops_of
from rcg.trace.parts import Kind, Parts, events_of, parts_of
from rcg.trace.recorder import Recorder
from rcg.trace.shares import LaneShares, Shares, shares_of
from rcg.trace.simulated import from_simulation
from rcg.trace.summary import GraphSummary, SlowExecution, Summary, summarize
from rcg.trace.trace import Clock, GraphTrace, Lane, OpenOp, Trace
from rcg.trace.what_if import OpPrediction, Prediction, WhatIf, predict, what_if

__all__ = [
    "UNSEEN",
    "Change",
    "Clock",
    "Comparison",
    "Cost",
    "Executions",
    "GraphComparison",
    "GraphSummary",
    "GraphTrace",
    "Kind",
    "Lane",
    "LaneShares",
    "Measured",
    "OpPrediction",
    "OpTimes",
    "OpenOp",
    "Parts",
    "PathShare",
    "Paths",
    "Prediction",
    "Recorder",
    "Shares",
    "SlowExecution",
    "SteadyPath",
    "Step",
    "Summary",
    "Trace",
    "WhatIf",
    "compare",
    "costs_of",
    "critical_path",
    "events_of",
    "executions_of",
    "from_simulation",
    "ops_of",
    "parts_of",
    "predict",
    "shares_of",
    "summarize",
    "what_if",
]
