# SPDX-License-Identifier: Apache-2.0
"""The report as a table: what holds up the rest is marked, and nothing breaks out of a cell."""

from __future__ import annotations

import linecache
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import Backlog, Report, SocketQueue
from rcg.views.html.report import report_of
from tests.unit.approved import check_approved
from tests.unit.views_traces import WICKED


def activity(label: str, state: str, op: str, for_s: float, waiting_for: str = "") -> Activity:
    return Activity(label, label, 4711, state, op, 117, for_s, waiting_for, 31 << 20, 5, 1.0, ())


LINE = "/home/me/loss.py:41 in fwd"
STUCK = replace(activity("decode", "running", "Call a1.fwd(s0) -> s1 #2", 9.8), stack=("a", LINE))
REPORT = Report(
    "5f1c" * 8,
    "running",
    (
        activity("driver", "waiting", "Read c3 -> s1", 9.9, "loss"),
        activity("embed", "running", "Call a0.fwd(s0) -> s1 #1", 0.012),
        STUCK,
        activity("loss", "waiting", "Read c2 -> s0", 9.8, "decode"),
    ),
    (Backlog("c1", "embed", "decode", 10, 10), Backlog("c0", "driver", "embed", 2, 10)),
    62 << 20,
    1 << 30,
    10,
    10,
    asked=True,
)


def rows(html: str) -> list[ElementTree.Element]:
    table = html[html.index("<tbody>") : html.index("</tbody>") + len("</tbody>")]
    return list(ElementTree.fromstring(table.replace("class=rcg-marked", 'class="rcg-marked"')))


def marked(html: str) -> list[str]:
    return [row[0].text or "" for row in rows(html) if row.get("class") == "rcg-marked"]


def test_names_cannot_break_out() -> None:
    wicked = replace(STUCK, label=WICKED, op=WICKED, stack=(WICKED,), waiting_for=WICKED)
    html = report_of(replace(REPORT, processes=(wicked,), last_dropped=WICKED, failures_dropped=1))
    assert "<script" not in html and "<b>" not in html
    html.encode()
    rows(html)


def test_the_text_moves_no_cursor_and_has_no_line_of_the_users() -> None:
    wicked = activity("a\x1b[2J\n\r\x07b\u202ec", "running", "Call\tx", 1.0)
    stack = ("/home/\x1b]0;title\x07/x.py:1 in f",)
    report = replace(
        REPORT,
        processes=(*REPORT.processes, replace(wicked, stack=stack)),
        failures_dropped=1,
        last_dropped="first line\nsecond\x00 line",
    )
    text = str(report)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.split("\n")) == len(str(REPORT).split("\n")) + 4
    assert r"a\x1b[2J\n\r\x07b\u202ec" in text


def actor(
    number: int, state: str, op: str, for_s: float, waiting_for: str = "", lane: str = ""
) -> Activity:
    process = f"a{number}{lane}"
    label = f"{process} (Shard)"
    return replace(activity(label, state, op, for_s, waiting_for), process=process)


DRIVER = activity("driver", "idle", "Write s0 -> c0", 2.0)


def chain(count: int, stuck: int) -> Report:
    """A chain whose actor ``stuck`` hangs: all behind it wait, those before it have sent it all."""
    processes = [activity("driver", "waiting", "Read c99 -> s1", 9.9, f"a{count - 1} (Shard)")]
    for number in range(count):
        if number < stuck:
            to = f"a{number + 1} (Shard)"
            each = actor(number, "waiting", f"Write s1 -> c{number + 1}", 9.0, to)
        elif number == stuck:
            each = replace(
                actor(number, "running", f"Call a{number}.work(s0) -> s1 #9", 9.8), stack=(LINE,)
            )
        else:
            waiting_for = f"a{number - 1} (Shard)"
            each = actor(number, "waiting", f"Read c{number} -> s0", 9.8, waiting_for)
        processes.append(replace(each, execution=3 + (number < stuck)))
    return replace(REPORT, processes=tuple(processes), backlogs=())


def report(*processes: Activity, **changes: Any) -> Report:
    return replace(REPORT, processes=processes, backlogs=(), **changes)


def ready() -> list[Activity]:
    """Nothing is executed: all wait for an input, directly or through others."""
    found = [actor(0, "waiting", "Read c0 -> s0", 60.0, "driver")]
    return found + [
        actor(number, "waiting", f"Read c{number} -> s0", 60.0, f"a{number - 1} (Shard)")
        for number in range(1, 12)
    ]


def differing() -> list[Activity]:
    """Of twelve alike one idles, one is elsewhere, one writes, and one is of another class."""
    found = [actor(number, "waiting", "Read c1 -> s0", 1.0, "driver") for number in range(12)]
    found[2] = replace(found[2], state="idle")
    found[5] = replace(found[5], stack=("(another stack)",))
    found[7] = replace(found[7], op="Write s0 -> c9")
    found[9] = replace(found[9], label="a9 (Other)")
    return found


def working(number: int, for_s: float, **changes: Any) -> Activity:
    made = actor(number, "running", f"Call a{number}.work(s0) -> s1 #{number + 1}", for_s)
    return replace(made, **changes)


WAITS = replace(DRIVER, state="waiting", op="Read c2 -> s1", waiting_for="a0 (Shard)")
FOR_A0 = actor(1, "waiting", "Read c1 -> s0", 3.0, "a0 (Shard)")
SENT = SocketQueue("driver", "n1", 3 << 20, 2)
REFUSED = {"n0": str(Refusals()), "n1": str(Refusals(garbage=2, wrong_secret=1))}
REPORTS = {
    "holds-up": REPORT,
    "not-asked": replace(REPORT, processes=(replace(STUCK, stack=None),), asked=False),
    "between-nodes": replace(REPORT, sockets=(SENT,), refused=REFUSED),
    "ready": report(DRIVER, *ready(), in_flight=0),
    "not-ready": report(replace(DRIVER, state="running"), *ready(), in_flight=0),
    "waits": report(WAITS, working(0, 0.012), in_flight=3),
    # After a get that timed out the driver waits no more, and its actor is the cause still.
    "gave-up": report(replace(WAITS, state="gave up"), working(0, 3.0), in_flight=3),
    "died": report(DRIVER, replace(working(0, 3.0), state="dead"), in_flight=3),
    "wait-for-each-other": report(
        DRIVER, actor(0, "waiting", "Read c2 -> s0", 3.0, "a1 (Shard)"), FOR_A0, in_flight=3
    ),
    "does-not-answer": report(DRIVER, working(0, 3.0, stack=None), FOR_A0, in_flight=3),
    "two-hold-up": report(
        DRIVER,
        working(0, 2.0),
        working(1, 3.0),
        actor(2, "waiting", "Read c1, c2 -> s0", 3.0, "a0 (Shard), a1 (Shard)"),
        in_flight=3,
    ),
    "torn-down": report(DRIVER, replace(working(0, 3.0), state="ended"), state="closed"),
    "torn-down-late": report(
        DRIVER, replace(working(0, 3.0), state="ended"), working(1, 3.0, op="-"), state="closed"
    ),
    "broken": report(DRIVER, replace(working(0, 3.0), state="ended"), state="broken"),
    "chain": chain(40, 4),
    "differing": report(*differing()),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_as_approved(name: str) -> None:
    """As a text, and the rows of its table as HTML."""
    found = REPORTS[name]
    html, text = report_of(found), str(found)
    title = html[html.index("<h2>") + len("<h2>") : html.index("</h2>")]
    assert ElementTree.fromstring(f"<p>{title}</p>").text == str(found.verdict)
    assert text.splitlines()[0] == str(found.verdict)
    shown = [" | ".join(cell.text or "" for cell in row) for row in rows(html)]
    check_approved(f"reports/{name}", "\n".join([text, "", *shown, f"marked: {marked(html)}"]))


def verdict(*processes: Activity) -> str:
    return str(report(*processes)).splitlines()[0]


def test_the_first_line_says_who_holds_up_whom_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    blamed = "decode holds up 2 others: in fwd for 9.8 s, execution 117, at loss.py:41"
    assert verdict(*REPORT.processes) == blamed
    source = ["\n"] * 40 + ["    self.ready.wait()\n"]
    monkeypatch.setitem(linecache.cache, "/home/me/loss.py", (1, None, source, "/home/me/loss.py"))
    assert verdict(*REPORT.processes) == f"{blamed}: self.ready.wait()"


def test_the_line_is_the_users_and_not_one_of_a_library() -> None:
    library = "/usr/lib/python3.11/nowhere.py:629 in wait"
    driver, embed, stuck, loss = REPORT.processes
    stuck = replace(stuck, stack=(LINE, library))
    assert verdict(driver, embed, stuck, loss).endswith("at loss.py:41")
    assert "loss.py:41 in fwd" in report_of(replace(REPORT, processes=(driver, embed, stuck, loss)))
    only = replace(stuck, stack=(library,))
    assert verdict(driver, embed, only, loss).endswith("at nowhere.py:629")
