# SPDX-License-Identifier: Apache-2.0
"""The report as a table: what holds up the rest is marked, and nothing breaks out of a cell."""

from __future__ import annotations

import linecache
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import Backlog, Report, SocketQueue
from rcg.views.html.report import report_of as html_of
from tests.unit.approved import check_approved
from tests.unit.live_reports import chain_that_hangs, does, idle_chain, phrase, report_of
from tests.unit.views_traces import WICKED


def activity(label: str, state: str, op: str, for_s: float, waiting_for: str = "") -> Activity:
    told = state, op, phrase(op), 117, for_s, waiting_for
    return Activity(label, label, 4711, *told, 31 << 20, 5, 1.0, ())


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
    wicked = replace(
        STUCK, label=WICKED, op=WICKED, where=WICKED, stack=(WICKED,), waiting_for=WICKED
    )
    html = html_of(replace(REPORT, processes=(wicked,), last_dropped=WICKED, failures_dropped=1))
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


# --- reports ----------------------------------------------------------------------------------


def differing() -> list[Activity]:
    """Of twelve alike one idles, one is elsewhere, one writes, and one is of another class."""
    found = [does(f"a{number}", "waiting", "driver", for_s=1.0) for number in range(12)]
    found[2] = replace(found[2], state="idle")
    found[5] = replace(found[5], stack=("(another stack)",))
    found[7] = replace(found[7], op="Write s0 -> c9", where="sending the input")
    found[9] = replace(found[9], label="a9 (Other)")
    return found


def chain() -> Report:
    """The fifth of forty hangs."""
    found = chain_that_hangs(40, 4, 9.8, asked=True)
    driver, *actors = found.processes
    sends = {"op": "Write s1 -> c3", "where": "sending the result of a0.work"}
    actors[:4] = [replace(each, **sends) for each in actors[:4]]
    return replace(found, processes=(driver, *actors))


def called(process: str, for_s: float = 3.0, *, state: str = "running", **changes: Any) -> Activity:
    return replace(does(process, "running", for_s=for_s, **changes), state=state)


IDLE = idle_chain(12)
FOR_A0 = does("a1", "waiting", "a0 (Stage)", for_s=3.0)
SENT = SocketQueue("driver", "n1", 3 << 20, 2)
REFUSED = {"n0": str(Refusals()), "n1": str(Refusals(garbage=2, wrong_secret=1))}
REPORTS = {
    "holds-up": REPORT,
    "not-asked": replace(REPORT, processes=(replace(STUCK, stack=None),), asked=False),
    "between-nodes": replace(REPORT, sockets=(SENT,), refused=REFUSED),
    "ready": IDLE,
    "not-ready": replace(IDLE, processes=(called("driver"), *IDLE.processes[1:])),
    "waits": report_of(called("a0", 0.012)),
    # After a get that timed out the driver waits no more, and its actor is the cause still.
    "gave-up": replace(
        report_of(), processes=(does("driver", "gave up", "a0 (Stage)"), called("a0"))
    ),
    "died": report_of(does("a0", "dead", for_s=3.0), driver="idle"),
    "died-in-a-method": report_of(called("a0", state="dead", site="In [2] line 10"), driver="idle"),
    "died-and-torn-down": report_of(called("a0", state="dead"), driver="idle", state="closed"),
    "wait-for-each-other": report_of(
        does("a0", "waiting", "a1 (Stage)", for_s=3.0), FOR_A0, driver="idle"
    ),
    "does-not-answer": report_of(called("a0", stack=None), FOR_A0, driver="idle", asked=True),
    # What it waits for has come, but it is stopped.
    "waits-and-is-stopped": report_of(
        replace(does("a0", "waiting", "a1 (Stage)", for_s=3.0), stack=None),
        replace(FOR_A0, stack=()),
        driver="idle",
        asked=True,
    ),
    "two-hold-up": report_of(
        called("a0", 2.0),
        called("a1"),
        does("a2", "waiting", "a0 (Stage), a1 (Stage)", for_s=3.0),
        driver="idle",
    ),
    "torn-down": report_of(does("a0", "ended"), driver="idle", state="closed"),
    "torn-down-late": report_of(
        does("a0", "ended"), called("a1", op="-"), driver="idle", state="closed"
    ),
    "broken": report_of(does("a0", "ended"), driver="idle", state="broken"),
    # All behind the one that hangs wait, and those before it have sent it all.
    "chain": chain(),
    "differing": report_of(*differing(), driver="idle"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_as_approved(name: str) -> None:
    """As a text, and the words of its HTML."""
    found = REPORTS[name]
    html, text = html_of(found), str(found)
    title = html[html.index("<h2>") + len("<h2>") : html.index("</h2>")]
    assert ElementTree.fromstring(f"<p>{title}</p>").text == str(found.verdict)
    assert text.splitlines()[0] == str(found.verdict)
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    words = [" ".join(each.split()) for each in re.findall(r">([^<>]+)<", body)]
    shown = [word for word in words if word]
    check_approved(f"reports/{name}", "\n".join([text, "", *shown, f"marked: {marked(html)}"]))


def verdict(*processes: Activity) -> str:
    return str(replace(REPORT, processes=processes)).splitlines()[0]


def test_the_first_line_says_who_holds_up_whom_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    blamed = "decode holds up 2 others: in fwd for 9.8 s, execution 117, at loss.py:41"
    assert verdict(*REPORT.processes) == blamed
    source = ["\n"] * 40 + ["    self.ready.wait()\n"]
    monkeypatch.setitem(linecache.cache, "/home/me/loss.py", (1, None, source, "/home/me/loss.py"))
    assert verdict(*REPORT.processes) == f"{blamed}: self.ready.wait()"


def test_where_a_method_was_bound_is_said_where_its_own_line_is_not_known() -> None:
    driver, embed, stuck, loss = REPORT.processes
    stuck = replace(stuck, site="In [2] line 10")
    assert verdict(driver, embed, stuck, loss).endswith("execution 117, at loss.py:41")
    bound = verdict(driver, embed, replace(stuck, stack=None), loss)
    assert "in fwd for 9.8 s, execution 117, bound at In [2] line 10; it does not answer" in bound


def test_the_line_is_the_users_and_not_one_of_a_library() -> None:
    library = "/usr/lib/python3.11/nowhere.py:629 in wait"
    driver, embed, stuck, loss = REPORT.processes
    stuck = replace(stuck, stack=(LINE, library))
    assert verdict(driver, embed, stuck, loss).endswith("at loss.py:41")
    assert "loss.py:41 in fwd" in html_of(replace(REPORT, processes=(driver, embed, stuck, loss)))
    only = replace(stuck, stack=(library,))
    assert verdict(driver, embed, only, loss).endswith("at nowhere.py:629")
