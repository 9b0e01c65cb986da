# SPDX-License-Identifier: Apache-2.0
"""The page of a trace: whole, alone and small."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rcg.profiling import Profile
from rcg.text import share_text
from rcg.trace.measured import Measured, summarize
from rcg.trace.trace import Trace
from rcg.views.html.page import MAX_BYTES, page_of
from rcg.views.scenes.prediction import prediction_of
from rcg.views.scenes.timeline import timeline_scene
from tests.unit.packed import unpack
from tests.unit.traces import event, graph_trace, measure, trace
from tests.unit.views_traces import (
    WICKED,
    check_page,
    microbatches,
    pipeline,
    simulated,
    static_part,
)


@pytest.mark.parametrize("plan", [pipeline(2), pipeline(4, is_training=True), microbatches(3, 4)])
def test_it_has_everything_and_is_alone(plan: object) -> None:
    record = simulated(plan, 30, spans=True)  # type: ignore[arg-type]
    page = page_of(record, "A page")
    assert len(check_page(page)) == 7 + ("Pipeline: bubble" in page)
    for words in ("A page", "Profile", "Schedule", "Timeline", "Whole trace", "Operations", "box"):
        assert words in page
    assert "prefers-color-scheme" in page and "predicted from measured costs" in page
    # A second table of operations says what it has; there is none that is the same.
    has_more = len(record.graphs[0].plan.actors) > 2
    assert page.count("operations, each place in a program</summary>") == has_more
    assert page_of(record, "A page") == page


@pytest.mark.parametrize(
    "record", [Trace((), 0, 10), trace(graph_trace({}), end=10), trace(graph_trace({}), end=0)]
)
def test_pages_of_nothing(record: Trace) -> None:
    check_page(page_of(record, ""))


def test_the_critical_path_is_a_table_with_the_shares_of_the_summary() -> None:
    record = simulated(pipeline(3), 30)
    path = summarize(record).graphs[0].critical
    assert path is not None and path.bottleneck is not None
    card = re.search(r"<h2>Critical path</h2>(.*?)</section>", page_of(record, ""), re.DOTALL)
    assert card is not None
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", card[1])[1:]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    shares = {(text, kind): share for text, kind, share in cells}
    for each in path.shares[:3]:
        assert shares[each.text, each.kind.name.lower()] == share_text(each.share)
    (marked,) = re.findall(r"<tr class=rcg-marked><td[^>]*>(.*?)</td>", card[1])
    assert marked == path.bottleneck.text
    nothing = page_of(trace(graph_trace({}), end=10), "")
    assert "Critical path" not in static_part(nothing)


def test_what_a_phone_could_not_show_whole_has_a_narrow_form() -> None:
    page = static_part(page_of(simulated(pipeline(20), 6), ""))
    found = re.findall(
        r'<div class="rcg-figure[^"]*rcg-(wide|narrow)" ?><svg[^>]* width="(\d+)"', page
    )
    assert [kind for kind, _ in found] == ["wide", "narrow"] * 4, "topology, profile, shares, heat"
    assert all((int(width) <= 480) == (kind == "narrow") for kind, width in found), found


def test_names_cannot_break_out() -> None:
    record = simulated(pipeline(3, label=WICKED), 12)
    lanes = tuple(
        replace(lane, spans=(WICKED, WICKED), node=WICKED) for lane in record.graphs[0].lanes
    )
    info = {"host": WICKED, "versions": {WICKED: WICKED}, "cores": WICKED}
    page = page_of(
        replace(record, graphs=(replace(record.graphs[0], lanes=lanes),), info=info), WICKED
    )
    check_page(page)
    assert "<b>" not in static_part(page) and page.count("<script") == page.count("</script") == 4


def test_without_enough_of_a_trace_there_is_no_prediction() -> None:
    assert prediction_of(measure(graph_trace({})), 8) is None
    assert prediction_of(measure(simulated(pipeline(2), 12).graphs[0]), 8) is not None


def payload_in(page: str, view: str, graph: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    found = re.findall(
        f'data-view="{view}" data-graph="{graph}" data-window="[^"]*" data-title="[^"]*">([^<]+)<',
        page,
    )
    return unpack(b64decode(found[0]))


def test_a_page_stays_within_its_bytes_and_says_what_it_left_out() -> None:
    record = simulated(pipeline(6), 500, jitter=0.3)
    whole = page_of(record, "")
    limits = [len(whole.encode()) - less for less in (15_000, 30_000)]
    large, small, none = (page_of(record, "", max_bytes=most) for most in (*limits, 100_000))
    everything = len(timeline_scene(Measured.of(record, record.graphs[0])).bars)
    assert payload_in(whole, "timeline")[0]["sums"] is None
    assert len(payload_in(whole, "timeline")[1]["start"]) == everything
    bars = []
    for page, most in zip((large, small), limits, strict=True):
        assert most - 15_000 < len(page.encode()) <= most
        head, columns = payload_in(page, "timeline")
        bars.append(int((columns["execution"] >= 0).sum()))
        assert head["sums"]["bars"] + bars[-1] == everything
    assert everything > bars[0] > bars[1] > 500
    assert len({"".join(static_part(page).split()) for page in (whole, large, small)}) == 1
    assert "<script" not in none and len(none.encode()) <= 100_000


def test_a_page_of_many_large_graphs_leaves_out_pictures_and_says_so() -> None:
    record = simulated(pipeline(62), 4, jitter=0.3)
    page = page_of(replace(record, graphs=record.graphs * 20), "")
    assert len(page.encode()) <= MAX_BYTES
    assert 0 < page.count("of this graph are left out") < 20
    assert page.count(">Operations<") == 20
    small = page_of(replace(record, graphs=record.graphs * 20), "", max_bytes=600_000)
    assert len(small.encode()) <= 600_000 and small.count("of this graph are left out") == 20


def test_without_the_widgets_the_page_has_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    record = simulated(pipeline(3), 30)
    with_them = page_of(record, "A page")
    monkeypatch.setitem(sys.modules, "rcg_widgets", None)
    without = page_of(record, "A page")
    assert "<script" not in without
    assert static_part(without).split() == static_part(with_them).split()


def test_every_view_of_a_graph_that_has_not_ended_has_a_place() -> None:
    """There is no picture of executions without one that is complete, but there are views."""
    partial = graph_trace({"a0": [event(0, 0, 0, 10), event(1, 0, 10, 20)]})
    whole = simulated(pipeline(2), 20).graphs[0]
    page = page_of(trace(partial, whole, end=6 * 10**9), "")
    views = re.findall(r'<script type="text/plain" (data-view="\w+" data-graph="\d")', page)
    assert len(views) == 6
    for view in views:
        assert len(re.findall(f"<div [^>]*{view}", page)) == 1


def test_a_page_for_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*/nowhere' for"):
        Profile(simulated(pipeline(2), 20)).save_html(tmp_path / "nowhere" / "run.html")
