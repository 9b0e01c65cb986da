# SPDX-License-Identifier: Apache-2.0
"""The report as a table: what holds up the rest is marked, and nothing breaks out of a cell."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.observe.report import Activity, Backlog, Report, SocketQueue
from rcg.views.html.report import report_of
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
    assert "9.8 s" in html and "31 MiB" in html and "12 ms" in html


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (replace(STUCK, for_s=0.2), []),  # at work, not stuck
        (replace(STUCK, state="dead"), ["decode"]),
        (replace(STUCK, state="waiting", waiting_for="loss"), []),  # in a circle
        (replace(STUCK, state="idle"), []),
    ],
)
def test_what_is_marked(changed: Activity, expected: list[str]) -> None:
    driver, embed, _, loss = REPORT.processes
    assert marked(report_of(replace(REPORT, processes=(driver, embed, changed, loss)))) == expected


def test_a_process_that_does_not_answer_says_so() -> None:
    silent = replace(STUCK, stack=None)
    assert "does not answer" in report_of(replace(REPORT, processes=(silent,)))
    not_asked = replace(REPORT, processes=(silent,), asked=False)
    assert "does not answer" not in report_of(not_asked)


def test_unfetched_failures_are_shown() -> None:
    html = report_of(replace(REPORT, failures_dropped=3, last_dropped="ValueError: <x>"))
    assert "dropped unread: 3, the last: ValueError: &lt;x&gt;" in html


def test_connections_to_other_nodes_are_shown() -> None:
    queue = SocketQueue("driver", "n1", 3 << 20, 2)
    refused = {"n0": str(Refusals()), "n1": str(Refusals(garbage=2, wrong_secret=1))}
    found = replace(REPORT, sockets=(queue,), refused=refused)
    for text in (report_of(found), str(found)):
        assert "sent by driver to node n1: 3 MiB, 2 frames waiting" in text
        assert "refused: node n0: none; node n1: 1 wrong secret, 2 garbage" in text
    assert not REPORT.network


def test_names_cannot_break_out() -> None:
    wicked = replace(STUCK, label=WICKED, op=WICKED, stack=(WICKED,), waiting_for=WICKED)
    html = report_of(replace(REPORT, processes=(wicked,), last_dropped=WICKED, failures_dropped=1))
    assert "<script" not in html and "<b>" not in html
    html.encode()
    rows(html)


def test_light_dark_and_both() -> None:
    light, dark, both = (report_of(REPORT, dark=dark) for dark in (False, True, None))
    assert "rcg-is-light" in light and 'rcg-is-dark"' in dark and 'rcg-is-auto"' in both


def test_the_notebooks_theme_comes_before_the_browsers() -> None:
    html = report_of(REPORT)
    browsers = html.index("@media (prefers-color-scheme:dark)")
    for theme in ("true", "false"):
        assert html.index(f'body[data-jp-theme-light="{theme}"] .rcg.rcg-is-auto') > browsers
    assert html.index("body.vscode-dark .rcg.rcg-is-auto") > browsers
    # Neither its stripes nor its hover get into the table; the marked row stays marked.
    assert ":is(thead,tbody,tr,th,td){background:none!important}" in html
    assert "tr.rcg-marked td{background:var(--rcg-mark)!important}" in html


def test_widgets_have_their_classes_to_themselves() -> None:
    assert "rcg-card" not in report_of(REPORT) and "rcg-static" in report_of(REPORT)


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
