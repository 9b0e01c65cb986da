# SPDX-License-Identifier: Apache-2.0
"""What each bar of a scene waited for: the bar of the event that its event depends on.

```
a0   | fwd 3 | write c1 |                    write c1 is the cause of the wait and of what follows
a1   | waits for a0    .| read c1 | fwd 3 |  read c1 is the cause of fwd 3
```

``Dependencies`` decides what an event waited for: the Write of its Read, the Read that made room
for its Write, the last to arrive at its rendezvous. Any other bar has the one before it in its row.
So the causes of causes are the critical path up to a bar.
"""

from __future__ import annotations

import numpy as np

from rcg.trace.analysis.events import EventTable, TimeKind
from rcg.trace.measured import Measured
from rcg.views.scene import NONE, Bars, Ints

_MOST_STEPS = 64  # from an event to one that has a bar


def causes_of(measured: Measured, bars: Bars) -> Ints:
    """Return the bar that each bar waited for, or that is before it in its row, or ``NONE``."""
    count = len(bars)
    depends, number = measured.dependencies, np.arange(count)
    if not len(bars.event) or not len(depends.before):  # nothing has ended
        return np.full(count, NONE)
    event = _rows_in(depends.table, measured.table, bars.event)
    is_known = event != NONE
    last = np.full(len(depends.table) + 1, NONE)  # the last bar of each event; of none, none
    np.maximum.at(last, event[is_known], number[is_known])
    on = np.where(is_known, depends.before[event], NONE)
    for _ in range(_MOST_STEPS):  # some have no bar: what took no time, and waits in a schedule
        lacks = (on != NONE) & (last[on] == NONE)
        if not lacks.any():
            break
        on[lacks] = depends.before[on[lacks]]
    on = last[on]
    is_new_row = np.append(True, bars.row[1:] != bars.row[:-1])[:count]
    is_first = is_new_row | np.append(True, event[1:] != event[:-1])[:count]
    entered = depends.entered[event] - measured.start_ns
    started = np.where(is_first, -1, np.append(0, bars.start[:-1])[:count])
    is_over = (bars.kind == TimeKind.WAITING) & (bars.end == entered)
    is_over |= (bars.start >= entered) & (started < entered)
    waits = is_known & depends.follows[event] & is_over
    before = np.where(is_new_row, NONE, number - 1)
    # A bar that is the first of a row, and one after lost events, may have none.
    return np.where(waits | (is_first & is_known & (depends.before[event] == NONE)), on,
                    np.where(bars.event == NONE, NONE, before))  # fmt: skip


def _rows_in(own: EventTable, table: EventTable, rows: Ints) -> Ints:
    """Return the rows of events in another table of the same graph, which may lack some."""
    if own is table:
        return rows
    first, other = np.array(table.first), np.array(own.first)
    lane = table.lane[rows]
    found = rows - first[lane] + other[lane]
    is_there = (rows != NONE) & (found < other[lane + 1])
    is_there[is_there] &= own.row[found[is_there]] == table.row[rows[is_there]]
    return np.where(is_there, found, NONE)
