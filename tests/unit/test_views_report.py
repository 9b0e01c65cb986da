# SPDX-License-Identifier: Apache-2.0
"""The report as a table: what holds up the rest is marked, and nothing breaks out of a cell."""

from __future__ import annotations

import linecache
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.observe.activity import Activity, trouble_of
from rcg.runtime.observe.report import Backlog, Report, SocketQueue
from rcg.views.html.report import report_of
from tests.unit.live_reports import phrase
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


def test_there_is_a_row_per_process_and_the_one_that_holds_up_the_rest_is_marked() -> None:
    html = report_of(REPORT)
    assert [row[0].text for row in rows(html)] == ["driver", "embed", "decode", "loss"]
    assert marked(html) == ["decode"]
    (state,) = [row[1].text for row in rows(html) if row[0].text == "decode"]
    assert state is not None and state.endswith("stuck")
    assert (
        html.count(LINE) == 1
        and html.count("loss.py:41 in fwd") == 2
        and "10 / 10" in html
        and "2 / 10" in html
    )
    assert "9.8 s" in html and "32.5 MB" in html and "12 ms" in html


def test_a_process_that_does_not_answer_says_so() -> None:
    silent = replace(STUCK, stack=None)
    assert "does not answer" in report_of(replace(REPORT, processes=(silent,)))
    not_asked = replace(REPORT, processes=(silent,), asked=False)
    assert "does not answer" not in report_of(not_asked)


def test_connections_to_other_nodes_are_shown() -> None:
    queue = SocketQueue("driver", "n1", 3 << 20, 2)
    refused = {"n0": str(Refusals()), "n1": str(Refusals(garbage=2, wrong_secret=1))}
    found = replace(REPORT, sockets=(queue,), refused=refused)
    for text in (report_of(found), str(found)):
        assert "sent by driver to node n1: 3.15 MB, 2 values waiting" in text
        assert "refused: node n0: none; node n1: 1 wrong secret, 2 garbage" in text
    assert not REPORT.network


def test_names_cannot_break_out() -> None:
    wicked = replace(
        STUCK, label=WICKED, op=WICKED, where=WICKED, stack=(WICKED,), waiting_for=WICKED
    )
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


# --- the verdict


def actor(
    number: int, state: str, op: str, for_s: float, waiting_for: str = "", lane: str = ""
) -> Activity:
    process = f"a{number}{lane}"
    label = f"{process} (Shard)"
    return replace(activity(label, state, op, for_s, waiting_for), process=process)


DRIVER = activity("driver", "idle", "Write s0 -> c0", 2.0)


def verdict(*processes: Activity, **changes: object) -> str:
    """The first line of the text, which is the first line of the HTML too."""
    report = replace(REPORT, processes=processes, backlogs=(), **changes)  # type: ignore[arg-type]
    first = str(report).splitlines()[0]
    assert first == str(report.verdict)
    html = report_of(report)
    title = html[html.index("<h2>") + len("<h2>") : html.index("</h2>")]
    assert ElementTree.fromstring(f"<p>{title}</p>").text == first
    return first


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
    assert "loss.py:41 in fwd" in report_of(replace(REPORT, processes=(driver, embed, stuck, loss)))
    only = replace(stuck, stack=(library,))
    assert verdict(driver, embed, only, loss).endswith("at nowhere.py:629")


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([DRIVER, actor(0, "waiting", "Read c0 -> s0", 60.0, "driver")], "is ready: no execution"),
        (
            [
                replace(DRIVER, state="waiting", op="Read c2 -> s1", waiting_for="a0 (Shard)"),
                actor(0, "running", "Call a0.work(s0) -> s1 #1", 0.012),
            ],
            "1 other waits for a0 (Shard): in work for 12 ms, execution 117",
        ),
        (  # after a get that timed out the driver waits no more, and its actor is the cause still
            [
                replace(DRIVER, state="gave up", op="Read c2 -> s1", waiting_for="a0 (Shard)"),
                actor(0, "running", "Call a0.work(s0) -> s1 #1", 3.0),
            ],
            "a0 (Shard) holds up 1 other: in work for 3 s, execution 117",
        ),
        (
            [DRIVER, actor(0, "dead", "Call a0.work(s0) -> s1 #1", 3.0)],
            "a0 (Shard) died in work, execution 117",
        ),
        (
            [DRIVER, replace(actor(0, "dead", "Call a0.work(s0)", 3.0), site="In [2] line 10")],
            "a0 (Shard) died in work, execution 117, bound at In [2] line 10",
        ),
        (
            [DRIVER, actor(0, "dead", "Read c0 -> s0", 3.0)],
            "a0 (Shard) died reading the result of a7.work, execution 117",
        ),
        (
            [
                DRIVER,
                actor(0, "waiting", "Read c2 -> s0", 3.0, "a1 (Shard)"),
                actor(1, "waiting", "Read c1 -> s0", 3.0, "a0 (Shard)"),
            ],
            "a0 (Shard), a1 (Shard) wait for each other",
        ),
        (
            [
                DRIVER,
                replace(actor(0, "running", "Call a0.work(s0) -> s1 #1", 3.0), stack=None),
                actor(1, "waiting", "Read c1 -> s0", 3.0, "a0 (Shard)"),
            ],
            "a0 (Shard) holds up 1 other: in work for 3 s, execution 117; it does not answer: it "
            "is stopped, or native code that it runs holds Python's lock",
        ),
        (
            [
                DRIVER,
                actor(0, "running", "Call a0.work(s0) -> s1 #1", 2.0),
                actor(1, "running", "Call a1.work(s0) -> s1 #2", 3.0),
                actor(2, "waiting", "Read c1, c2 -> s0", 3.0, "a0 (Shard), a1 (Shard)"),
            ],
            "a1 (Shard) and 1 more hold up 1 other: in work for 3 s, execution 117",
        ),
    ],
)
def test_what_the_verdict_is(processes: list[Activity], expected: str) -> None:
    in_flight = 0 if "ready" in expected else 3
    assert expected in verdict(*processes, in_flight=in_flight)


def test_the_verdict_of_a_graph_that_has_ended() -> None:
    idle, busy = actor(0, "ended", "Call a0.work(s0) -> s1 #1", 3.0), actor(1, "running", "-", 3.0)
    assert verdict(DRIVER, idle, state="closed") == "The graph is torn down"
    late = "The graph is torn down, and a1 (Shard) still runs: before its first execution for 3 s"
    assert verdict(DRIVER, idle, busy, state="closed") == late
    dead = replace(idle, state="dead")
    died = "a0 (Shard) died in work, execution 117. The graph is torn down"
    assert verdict(DRIVER, dead, state="closed") == died
    assert trouble_of("broken", [DRIVER, dead]) == "a0 (Shard) died"
    assert trouble_of("closed", [DRIVER, dead]) == "a0 (Shard) died; torn down"
    assert verdict(DRIVER, idle, state="broken") == "The graph is broken: a process has left it"


# --- processes that are alike


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


def test_those_behind_and_before_a_stuck_actor_are_a_row_each() -> None:
    count = 40
    report = chain(count, 4)
    found = [(row.label, row.first.state, row.where, row.waiting_text) for row in report.rows]
    last = f"a5 to a{count - 1} (Shard)"
    assert found == [
        ("driver", "waiting", "reading the result of a7.work", f"a{count - 1} (Shard)"),
        ("a0 to a3 (Shard)", "waiting", "sending", "a4 (Shard)"),
        ("a4 (Shard)", "running", "in work", ""),
        (last, "waiting", "reading", "a4 (Shard)"),
    ]
    folded = report.rows[-1]
    assert (folded.execution, folded.since, folded.pid) == ("3", "9.8 s", "-")
    assert folded.shared_bytes == (count - 5) * (31 << 20)
    assert len(str(report).splitlines()) == 2 + 1 + 4 + 2  # verdict, graph, head, rows, stack
    lines = str(report).splitlines()[2:]
    assert lines[4].startswith(f"  {last}  waiting  reading ")
    (marked_line,) = [line for line in lines if line.startswith(">")]
    assert marked_line.split()[:4] == [">", "a4", "(Shard)", "stuck"]
    html = report_of(report)
    assert [row[0].text for row in rows(html)] == [label for label, *_ in found]
    assert marked(html) == ["a4 (Shard)"]
    assert f"all {count + 1} processes" in html and "a7 (Shard): a6 (Shard)" in html


def test_what_differs_is_not_one_row() -> None:
    common = [actor(number, "waiting", "Read c1 -> s0", 1.0, "driver") for number in range(12)]
    common[2] = replace(common[2], state="idle")
    common[5] = replace(common[5], stack=("(another stack)",))
    common[7] = replace(common[7], op="Write s0 -> c9", where="sending the input")
    common[9] = replace(common[9], label="a9 (Other)")
    labels = [row.label for row in replace(REPORT, processes=tuple(common)).rows]
    assert labels == [
        "8 of a0 to a11 (Shard)",
        *("a2 (Shard)", "a5 (Shard)", "a7 (Shard)", "a9 (Other)"),
    ]


def test_actors_that_nothing_is_executed_for_are_ready_and_not_waiting() -> None:
    common = [actor(0, "waiting", "Read c0 -> s0", 60.0, "driver")]
    common += [
        actor(number, "waiting", f"Read c{number} -> s0", 60.0, f"a{number - 1} (Shard)")
        for number in range(1, 12)
    ]
    report = replace(REPORT, processes=(DRIVER, *common), backlogs=())
    assert [(row.label, row.state, row.waiting_text) for row in report.rows] == [
        ("driver", "idle", ""),
        ("a0 to a11 (Shard)", "ready", "driver"),
    ]
    assert "  ready  reading" in str(report) and "waiting </td>" not in report_of(report)
    driver = replace(DRIVER, state="running")
    assert replace(report, processes=(driver, *common)).rows[1].state == "waiting"
