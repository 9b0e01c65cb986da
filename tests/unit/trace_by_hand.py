# SPDX-License-Identifier: Apache-2.0
"""Two executions of a pipeline, worked out by hand; what the figures of the analyses are held to.

```
ns      0         10   14    20        30        40        50        60   65           80
driver            |W0W1|user |R0 waits to 47 . . . . . . .|R1 waits to 64 |user
a0      |R0 waits to 13|R|C0       |W0 |R|C1       |W1 |R2 waits . . . . . . . . . . . .
a1      |R0 waits to 29. . . . . . . |R|C0         |W0 |R|C1         |W1 |R2 waits . . .
```
"""

from __future__ import annotations

from rcg.trace.model import OpenOp
from tests.unit.traces import event, graph_trace

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
