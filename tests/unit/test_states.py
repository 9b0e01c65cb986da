# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a graph stands in the titles of its pictures."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from rcg.profiling import Profile
from rcg.runtime.observe.activity import LONG_S, STUCK_AFTER_S
from rcg.runtime.observe.report import Report
from rcg.trace.measured import Measured, summarize
from rcg.trace.model import Mark, OpenOp
from rcg.trace.trace import Trace
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.html.page import page_of
from rcg.views.svg.pictures import predicted_schedule, schedule_picture, timeline_picture
from tests.unit.live_reports import chain_that_hangs, does, idle_chain, report_of
from tests.unit.packed import unpack
from tests.unit.test_trace_what_if import pipeline
from tests.unit.test_views_report import REPORTS
from tests.unit.trace_by_hand import DRIVER_ROWS, SECOND, hanging
from tests.unit.traces import graph_trace, trace

DIED = Mark("lost", "died")


@pytest.mark.parametrize(
    ("report", "trouble"),
    [
        (idle_chain(3), ""),
        (chain_that_hangs(4, 1, LONG_S - 0.1), ""),
        # The driver and the other three wait for a1, directly or through others.
        (chain_that_hangs(4, 1, 7.0), "a1 (Stage) in work for 7 s, 4 others wait"),
        # Nobody waits for it: to be at work for a while is nothing unusual.
        (report_of(does("a0", "running", for_s=STUCK_AFTER_S - 0.1), driver="idle"), ""),
        (
            report_of(does("a0", "running", for_s=60.0), driver="idle"),
            "a0 (Stage) in work for 60 s",
        ),
        (REPORTS["waits-and-is-stopped"], "a0 (Stage) does not answer, 1 other waits"),
        (report_of(does("a0", "dead"), does("a1", "waiting"), state="broken"), "a0 (Stage) died"),
        (
            report_of(does("a0", "dead"), does("a1", "dead"), state="closed"),
            "a0 (Stage) and 1 more died; torn down",
        ),
        (report_of(does("a0", "ended"), state="closed"), "torn down"),
        (report_of(does("a0", "ended"), state="broken"), "broken"),
    ],
)
def test_a_few_words_say_what_is_wrong(report: Report, trouble: str) -> None:
    assert report.trouble == trouble


def test_every_picture_of_a_record_says_what_was_wrong_at_its_end() -> None:
    died = replace(pipeline(), name="chain", state="a1 (Stage) died")
    recording = trace(died, end=1 << 24)
    title = f"chain ({died.graph_id[:8]}): a1 (Stage) died"
    assert recording.graphs[0].title == title
    found = recording._repr_mimebundle_()
    assert found["text/plain"].startswith(f"{title}\n")
    assert f"<p>{title}</p>" in found["text/html"]
    for picture in (schedule_picture, timeline_picture):
        assert ": a1 (Stage) died</text>" in (picture(recording, died) or "")
    assert "Schedule: torn down</text>" in predicted_schedule(died.plan, 3, "torn down")

    well = trace(replace(died, state=""), end=1 << 24)
    found = well._repr_mimebundle_()
    assert "died" not in found["text/plain"] + found["text/html"]


def test_widgets_and_saved_pages_say_it_too(tmp_path: Path) -> None:
    died = replace(pipeline(), name="chain", state="a1 (Stage) died", marks={"a1": DIED})
    recording = trace(died, end=1 << 24)
    page = tmp_path / "page.html"
    Profile(recording).save_html(page)
    text = page.read_text(encoding="utf-8")
    assert 'data-title="Schedule: a1 (Stage) died"' in text and f">{died.title}<" in text
    widgets = pytest.importorskip(
        "rcg_widgets", reason="the widgets need pip install 'rcg[notebook]'"
    )
    topology = widgets.TopologyWidget(recording)
    assert topology.title == died.title and ">died</text>" in str(unpack(topology.payload)[0])
    assert widgets.TopologyWidget(recording, title="Mine").title == "Mine: a1 (Stage) died"
    assert widgets.ScheduleWidget(recording).title == "Schedule: a1 (Stage) died"
    assert widgets.TimelineWidget(recording, title="Mine").title == "Mine: a1 (Stage) died"
    assert widgets.TimelineWidget(trace(pipeline(), end=1 << 24)).title == "Timeline"


def test_a_file_keeps_the_state() -> None:
    died = replace(pipeline(), state="a1 (Stage) died", marks={"a1": DIED})
    file = BytesIO()
    trace(died, end=1 << 24).save(file)
    (found,) = Trace.load(file.getvalue()).graphs
    assert (found.state, found.marks) == (died.state, died.marks)


def test_a_report_marks_the_actors_that_are_lost_stuck_or_torn_down() -> None:
    lane = replace(does("a0.comm", "running", for_s=9.0), label="a0.comm (Stage)")
    hanging = report_of(
        does("a0", "waiting", "a0.comm (Stage)", for_s=9.0), lane, does("n1", "dead")
    )
    assert hanging.marks == {"a0": Mark("stuck", "stuck in work for 9 s")}
    assert idle_chain(3).marks == {} == chain_that_hangs(4, 1, LONG_S - 0.1).marks
    assert REPORTS["waits-and-is-stopped"].marks == {"a0": Mark("stuck", "does not answer")}
    died = does("a0", "dead"), does("a1", "ended")
    assert report_of(*died, state="broken").marks == {"a0": DIED}
    assert report_of(*died, state="closed").marks == {"a0": DIED, "a1": Mark("over", "torn down")}


def test_of_what_hung_before_the_recording_nobody_is_told_to_execute_or_to_record_longer() -> None:
    opens = {"a1": OpenOp(1, 2, 85), "driver": OpenOp(3, 2, 86, 86, 2)}
    for rows in ({}, {"driver": [DRIVER_ROWS[0]]}):
        summary = summarize(trace(graph_trace(rows, opens=opens), end=2 * SECOND))
        assert summary.graphs[0].stall is not None and "hint: n" not in str(summary)
        assert "execute()" not in card_of(summary.graphs[0]).about


def test_the_pictures_show_the_time_so_far_in_a_call_that_has_not_ended() -> None:
    recording = trace(hanging(), start=5, end=2 * SECOND)
    (graph,), (figures,) = recording.graphs, summarize(recording).graphs
    assert card_of(figures).answer.startswith("a1 (Stage).fwd has not ended for 2 s, usually 12 ns")
    found = topology_figures_of(Measured.of(recording, graph))
    assert found.open_ns == {("a1", 1): 2 * SECOND - 90}
    assert ">not ended: 2 s" in page_of(recording, "")
