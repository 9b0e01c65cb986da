# SPDX-License-Identifier: Apache-2.0
"""An execution with a broadcast and a collective, worked out by hand.

```
ns      0         10 14    30   35       50     56       80  84 86  100    130       158 160 165
driver  |W c0      |R c4 waits to 165 . . . . . . . . . . . . . . . . . . . . . . . . . . . |170
a0      |R c0 w 11 |C fwd  |W c1: encodes|waits . |sends    |
a1      |R c1 waits to 36 . . . |. until a0 sends |receives |dec|C grad|allreduce waits |      |W
a2      |R c0 w 11 |C load               |R c1    |receives |dec   |C grad   |allreduce     |
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcg.trace.model import GraphTrace, OpenOp
from rcg.trace.trace import Trace
from tests.unit.traces import event, graph_trace, trace

PLAN = """
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
actor a1 'Stage' ''
actor a2 'Stage' ''
group g0 gloo a0 a1 a2
group g1 gloo a2 a1
channel c0 driver -> a0 a2 ring node=0 slots=10
channel c1 a0 -> a1 a2 tensor @g0 node=1 slots=10
channel c2 a1 -> a2 status node=5 slots=10
channel c3 a2 -> a1 status node=6 slots=10
channel c4 a1 -> driver ring node=5 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c4 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.fwd(s0) -> s1 #1
  Write s1 -> c1
  Free s0, s1
program a1
  Read c1 -> s0
  Call a1.grad(s0) -> s1 #2
  AllReduce s1 (sum) @g1 tells c2 hears c3 -> s2 #5
  Write s2 -> c4
  Free s0, s1, s2
program a2
  Read c0 -> s0
  Call a2.load(s0) -> s1 #3
  Read c1 -> s2
  Call a2.grad(s1, s2) -> s3 #4
  AllReduce s3 (sum) @g1 tells c3 hears c2 -> s4 #6
  Free s0, s1, s2, s3, s4
"""
"""Lanes: driver 0, a0 1, a1 2, a2 3. In g1, a2 has rank 0 and a1 rank 1."""

ROWS = {
    "driver": [event(1, 0, 0, 10, bytes=100), event(3, 0, 10, 170, waited=155, bytes=100, peer=2)],
    "a0": [
        event(0, 0, 0, 14, waited=11, bytes=100, peer=0),
        event(1, 0, 14, 30),
        event(2, 0, 30, 80, coded=5, waited=21, bytes=2400, peer=3),
    ],
    "a1": [
        event(0, 0, 0, 84, waited=36, coded=4, bytes=2400, peer=1),
        event(1, 0, 84, 100),
        event(2, 0, 100, 160, waited=32, coded=2, bytes=1300, peer=3),
        event(3, 0, 160, 165, bytes=100),
    ],
    "a2": [
        event(0, 0, 0, 14, waited=11, bytes=100, peer=0),
        event(1, 0, 14, 50),
        event(2, 0, 50, 86, waited=2, coded=6, bytes=2400),
        event(3, 0, 86, 130),
        event(4, 0, 130, 158, waited=1, coded=1, bytes=1200, peer=2),
    ],
}
END = 200


def tensors_by_hand(opens: Mapping[str, OpenOp] | None = None, **changes: Any) -> GraphTrace:
    """The record above, with the rows of some processes changed."""
    return graph_trace(ROWS | changes, plan=PLAN, opens=opens)


def tensor_trace(**changes: Any) -> Trace:
    """The same as a trace."""
    return trace(tensors_by_hand(**changes), end=END)
