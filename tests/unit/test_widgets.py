# SPDX-License-Identifier: Apache-2.0
"""The widgets without a browser: what they send, what they refuse, and that they let go."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isnan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the widgets need pip install 'rcg[notebook]'")
from traitlets import TraitError

from rcg.errors import TraceError
from rcg.ir.plan import Plan
from rcg.runtime.observe.live import Meter
from rcg.runtime.observe.report import Report
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.data.packing import pack
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg_widgets import (
    LiveMonitor,
    PipelineWidget,
    ScheduleWidget,
    Selection,
    TimelineWidget,
    TopologyWidget,
    View,
    link,
)
from rcg_widgets.base import script
from rcg_widgets.sampler import Sampler
from tests.harness.peers import until
from tests.unit.live_reports import (
    GRAPH_ID,
    backlog,
    chain_that_hangs,
    does,
    idle_chain,
    later,
    report_of,
)
from tests.unit.packed import unpack
from tests.unit.test_progress import Clock
from tests.unit.traces import PIPELINE, graph_trace, trace
from tests.unit.views_plans import ring_of_stages, scatter_gather
from tests.unit.views_traces import microbatches, pipeline, simulated

EXECUTIONS = 3
PLAN = Plan.from_text(PIPELINE)


def recorded(executions: int = 3) -> Trace:
    """A driver and two actors."""
    return simulated(pipeline(2), executions, spans=True)


VIEWS: tuple[Callable[[Any], View], ...] = (TopologyWidget, ScheduleWidget, TimelineWidget)


# --- payloads -------------------------------------------------------------------------------------


def test_a_payload_is_read_back() -> None:
    columns = {
        "one": np.arange(3, dtype="<u1"),
        "none": np.empty(0, "<f8"),
        "two": np.array([1.5, -2.5]),
        "big": np.array([1, 2], ">i4"),
        "start": np.array([3.001, 9.5, 2e12, -7.25]),  # whole thousandths: their differences
        "duration": np.array([6.499, 0, 0.001, 4e12]),
        "third": np.array([1 / 3, np.nan, np.inf]),
    }
    head, found = unpack(pack({"title": "µ"}, columns))
    assert [each["name"] for each in head["columns"] if "planes" in each] == [
        *("none", "two", "start", "duration")
    ]
    assert head["title"] == "µ"
    assert [each["name"] for each in head["columns"]] == list(columns)
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)


def test_a_widget_sends_its_scene() -> None:
    record = recorded(10)
    measured = Measured.of(record, record.graphs[0])
    for view, scene in (
        (TimelineWidget(record), timeline_scene(measured)),
        (ScheduleWidget(record, executions=4), schedule_scene(measured, executions=4)),
    ):
        head, columns = unpack(view.payload)
        expected_head, expected = unpack(pack(*scene.to_payload()))
        assert head == expected_head and columns.keys() == expected.keys()
        for name, column in columns.items():
            np.testing.assert_array_equal(column, expected[name])


def test_a_plan_alone_has_a_prediction_in_units() -> None:
    widget = ScheduleWidget(PLAN)
    head, columns = unpack(widget.payload)
    assert head["in_calls"]
    assert set(columns["kind"]) == {9}
    assert len(set(columns["execution"])) == 8
    assert "<img" in widget._repr_mimebundle_()[0]["text/html"]


@pytest.mark.parametrize("window", [[float("nan"), 1.0], [0.0, float("inf")], [2.0, 1.0], [1.0]])
def test_a_window_that_is_no_time_is_refused(window: list[float]) -> None:
    """It would make the state of the widget no JSON."""
    widget = TimelineWidget(recorded())
    before = widget.window
    with pytest.raises(TraitError, match="two finite times"):
        widget.window = window
    assert widget.window == before
    with pytest.raises(TraitError, match="two finite times"):
        link(widget).window = window
    widget.window = None
    assert widget.window is None


def test_a_widget_has_a_picture_for_each_level_that_shows_more() -> None:
    def levels(plan: Plan) -> list[tuple[str, int]]:
        head, _ = unpack(TopologyWidget(plan).payload)
        return [(picture["level"], len(picture["nodes"])) for picture in head["pictures"]]

    assert levels(scatter_gather(4)) == [("methods", 7)]
    assert levels(scatter_gather(26)) == [("methods", 4), ("actors", 29)]
    assert levels(ring_of_stages(3, 5)) == [("methods", 5), ("calls", 17)]
    assert levels(ring_of_stages(9, 2)) == [("methods", 3), ("actors", 11), ("calls", 20)]


@pytest.mark.parametrize("actors", [3, 9])
def test_a_few_executions_are_shown_first(actors: int) -> None:
    trace = simulated(pipeline(actors), 40)
    start, end = TimelineWidget(trace).window
    assert ScheduleWidget(trace).window == [start, end]
    assert ScheduleWidget(trace, executions=5).window is None  # all of these
    assert 0 < start < end < trace.duration_ns / 1e3
    assert end - start < trace.duration_ns / 1e3 / 2


def test_a_schedule_has_what_it_shows_first_however_many_were_in_flight() -> None:
    """What is shown first ends 256 executions before the end, and 200 are in the schedule."""
    widget = ScheduleWidget(simulated(pipeline(2), 500, window=256))
    _, columns = unpack(widget.payload)
    executions = columns["execution"]
    assert len(set(executions)) == executions.max() - executions.min() + 1 == 200
    start, end = widget.window
    begins = columns["start"]
    assert len(begins[(begins >= start) & (begins < end)]) > 8 * 2


def test_a_graph_that_did_nothing_is_shown() -> None:
    topology, *others = [unpack(view(graph_trace({})).payload)[0] for view in VIEWS]
    assert topology["pictures"][0]["about"].startswith("2 actors")
    assert all(each["about"].startswith("nothing ran") for each in others)
    shown = [view(graph_trace({})) for view in VIEWS]
    assert all("text/plain" in each._repr_mimebundle_()[0] for each in shown)


# --- where only the notebook is read --------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_small_picture_stands_beside_the_widget(view: Callable[[Any], View]) -> None:
    shown = view(recorded(40))
    data, metadata = shown._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.model_id
    assert data["text/plain"] == repr(shown)
    assert isinstance(metadata, dict)
    assert '<img alt="' in data["text/html"]
    assert "data:image/svg+xml;base64," in data["text/html"]
    assert len(data["text/html"]) <= 100_000
    assert shown._repr_mimebundle_()[0] == data


def test_a_picture_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rcg_widgets.static._MAX_HTML_CHARS", 5000)
    data, _ = TopologyWidget(scatter_gather(20))._repr_mimebundle_()
    assert "text/html" not in data
    assert "application/vnd.jupyter.widget-view+json" in data


# --- what may be given ----------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_no_graph_is_refused_in_a_sentence(view: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^[^\n]+, found int"):
        view(3)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: TimelineWidget(PLAN), "needs a trace of what ran, found a plan"),
        (lambda: ScheduleWidget(PLAN, executions=0), "must be a positive integer, found 0"),
        (lambda: link(TopologyWidget(PLAN), {}), "dict cannot be linked"),
        (lambda: LiveMonitor(dict, interval_s=0.001), "at least 0.05 seconds, found 0.001"),
        (lambda: Sampler(3), "or a function that returns a dict of numbers, found int"),
        (lambda: Sampler(lambda: [1]).take(), "returned list instead of a dict"),
        (lambda: Sampler(lambda: {"speed": 1}).take(), "none of throughput, in_flight"),
    ],
)
def test_what_cannot_be_shown_is_refused(call: Callable[[], Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        call()


def test_a_pipeline_has_micro_batches_and_says_what_it_lacks() -> None:
    widget = PipelineWidget(simulated(microbatches(2, 3), 3))
    head, columns = unpack(widget.payload)
    assert widget.title.startswith("Pipeline: bubble ") and head["noted"] == "bubble"
    assert {head["names"][name]["batch"] for name in columns["name"]} == {0, 1, 2}
    assert PipelineWidget(simulated(microbatches(2, 3), 3), title="Step").title == "Step"
    with pytest.raises(TraceError, match="no pipeline: it needs an execution with all its calls"):
        PipelineWidget(recorded())


@pytest.mark.parametrize("view", [TimelineWidget, TopologyWidget, ScheduleWidget])
def test_the_only_graph_that_did_something_need_not_be_chosen(view) -> None:
    ran = recorded().graphs[0]
    idle = graph_trace({})
    assert repr(view(trace(idle, ran, idle, end=100))) == repr(view(trace(ran, end=100)))


def test_what_has_a_plan_or_a_trace_will_do() -> None:
    assert "2 actors" in repr(TopologyWidget(SimpleNamespace(plan=PLAN)))
    assert "3 processes" in repr(TimelineWidget(SimpleNamespace(trace=recorded())))


# --- selection ------------------------------------------------------------------------------------


def test_linked_views_share_a_selection() -> None:
    topology, timeline = TopologyWidget(recorded()), TimelineWidget(recorded())
    topology.select("a0", 1)
    selection = link(topology, timeline)
    assert isinstance(selection, Selection)
    assert (timeline.selected_process, timeline.selected_op) == ("a0", 1)
    timeline.selected_execution = 2
    assert topology.selected_execution == 2
    selection.selected_process = "a1"
    assert topology.selected_process == timeline.selected_process == "a1"
    selection.unlink()
    topology.select()
    assert timeline.selected_process == "a1"


def test_linked_views_show_the_window_of_the_first_that_has_one() -> None:
    plan = ScheduleWidget(pipeline(3), executions=60)
    timeline = TimelineWidget(recorded(60))
    assert None is not plan.window != timeline.window
    first = timeline.window
    selection = link(timeline, plan)
    assert first == timeline.window == selection.window == plan.window


# --- the monitor ----------------------------------------------------------------------------------


class FakeGraph:
    """The methods of a compiled graph that a monitor calls; by default two actors that run."""

    name = ""

    def __init__(self, report: Report | None = None) -> None:
        self.found = report or report_of(
            does("a0", "running"), does("a1", "running"), backlogs=(backlog(1, 2), backlog(1, 5))
        )
        self.is_teardown = False
        self.asked = threading.Event()

    def get_id(self) -> str:
        return GRAPH_ID

    def statistics(self) -> Any:
        return {"completed": self.found.completed}

    def report(self, timeout: float = 0.5) -> Report:
        assert timeout == 0, "no actor may be asked"
        self.asked.set()
        return self.found


@pytest.fixture
def monitors() -> Iterator[list[LiveMonitor]]:
    made: list[LiveMonitor] = []
    yield made
    for each in made:
        each.close()


def watched() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rcg-live-monitor"]


def ended(monitor: LiveMonitor) -> bool:
    """Whether its thread ends; waits for that, not for long if it does."""
    thread = monitor._thread
    if thread is not None:
        thread.join(20)
    return thread is None or not thread.is_alive()


def test_the_driver_and_each_actor_are_a_row_with_what_they_do_and_the_queues_add_up() -> None:
    report = report_of(
        does("a0", "running", shared_bytes=100),
        does("a0.comm", "waiting", "a1 (Stage)", shared_bytes=20),
        does("a1", "waiting", "a0 (Stage), a2 (Stage)"),
        does("a2", "dead"),
        does("n1", "waiting"),
        backlogs=(
            *(backlog(1, 4), replace(backlog(1, 3), slots=4), backlog(2, 0)),
            *(replace(backlog(1, 2), reader="driver"), replace(backlog(1, 1), reader="n2, n3")),
        ),
    )
    gate = replace(report.processes[-1], process="n2", label="n2")
    report = replace(report, processes=(*report.processes, gate))
    lane = replace(report.processes[2], label="a0.comm (Stage)")
    report = replace(report, processes=(*report.processes[:2], lane, *report.processes[3:]))
    sample = Meter().take(0, report)
    rows = sample.rows
    assert [(row.label, row.state, row.doing) for row in rows] == [
        ("driver", "waiting", "waits for n1"),
        ("a0 (Stage)", "running", "work, execution 8"),
        ("a1 (Stage)", "waiting", "waits for a0, a2"),
        ("a2 (Stage)", "dead", "died in reading, execution 8"),
        ("n2", "waiting", "waits"),  # a gate that values wait for
    ]
    queues = [(row.queued, row.slots) for row in rows]
    assert queues == [(2, 10), (0, 0), (7, 14), (0, 10), (1, 10)]
    assert sample.queued == sum(length for length, _ in queues) == 10
    assert rows[1].memory == 120  # with its lane


def test_as_many_rows_wait_as_the_sample_and_the_report_and_titles_say() -> None:
    report = chain_that_hangs(4, 1, 7.2)
    just_now = replace(report.processes[0], for_s=0.1)  # that it waits is true all the same
    report = replace(report, processes=(just_now, *report.processes[1:]))
    sample = Meter().take(0, report)
    assert sample.verdict == str(report.verdict)
    assert "holds up 4 others" in sample.verdict and "4 others wait" in report.trouble
    assert sum(row.state == "waiting" for row in sample.rows) == 4


def test_a_lane_that_hangs_is_shown_for_its_actor() -> None:
    lane = replace(does("a0.comm", "running", for_s=9.0), label="a0.comm (Stage)")
    report = report_of(does("a0", "waiting", "a0.comm (Stage)"), lane)
    sample = Meter().take(0, report)
    assert sample.verdict.startswith("a0.comm (Stage) holds up 2 others: in work for 9 s")
    assert [(row.state, row.doing) for row in sample.rows] == [
        ("waiting", "waits for a0.comm"),
        ("stuck", "work for 9 s, execution 8"),
    ]


def test_actors_of_a_running_graph_are_not_folded_so_rows_stay_in_place() -> None:
    actors = [does(f"a{i}", "waiting", "a0 (Stage)") for i in range(40)]
    assert len(Meter().take(0, report_of(*actors)).rows) == 41


def hanging(for_s: float, **changes: Any) -> Report:
    """a1 is in its method, a2 and the driver wait for it, a0 for an input that never comes."""
    return report_of(
        does("a0", "waiting", "driver", for_s=for_s),
        does("a1", "running", for_s=for_s),
        does("a2", "waiting", "a1 (Stage)", for_s=for_s),
        **changes,
    )


def test_a_sample_reports_a_hang_and_who_waits(monitors: list[LiveMonitor]) -> None:
    clock, graph = Clock(), FakeGraph(hanging(4.7))
    sampler = Sampler(graph, clock)
    assert sampler.take().verdict == ""
    clock.now, graph.found = clock.now + 2.5, hanging(7.2)
    sample = sampler.take()
    assert sample.verdict == "a1 (Stage) holds up 2 others: in work for 7.2 s, execution 8"
    monitors.append(LiveMonitor(graph, start=False))
    monitors[0].look()
    assert (monitors[0].status, monitors[0].stuck) == (sample.verdict, True)
    assert sample.waiting == pytest.approx(2 / 3)  # a0 and a2 of the three actors
    # Something completed every two seconds so far: 7.2 s are nothing unusual.
    for turn in range(3):
        clock.now += 2
        graph.found = hanging(7.2, completed=turn + 1)
        sample = sampler.take()
    assert sample.verdict == ""
    # Without an execution under way nothing hangs.
    graph.found = hanging(7.2, in_flight=0)
    assert Sampler(graph, clock).take().verdict == ""
    # How long an op may take can be said.
    graph.found = hanging(1.5)
    assert Sampler(graph, clock, stuck_after_s=1.0).take().verdict


def test_a_graph_without_work_is_ready_and_waits_for_nothing(monitors: list[LiveMonitor]) -> None:
    clock, graph = Clock(), FakeGraph(idle_chain(64, completed=5))
    sampler = Sampler(graph, clock)
    sampler.take()
    clock.now += 2
    graph.found = later(graph.found, {f"a{number}": 2.0 for number in range(64)})
    sample = sampler.take()
    assert isnan(sample.waiting)
    _, row = sample.rows  # the first is the driver's
    assert (row.label, row.state, row.busy) == ("a0 to a63 (Stage)", "ready", 0)
    monitor = LiveMonitor(graph, start=False)
    monitors.append(monitor)
    monitor.start()
    until(lambda: monitor.status == "ready: nothing in flight, looks every 0.5 s")
    assert not monitor.stuck


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"is_teardown": True}, "closed"),
        ({"found": report_of(does("a0", "dead"), state="broken")}, "broken"),
    ],
)
def test_the_end_of_a_graph_is_seen(change: dict[str, Any], state: str) -> None:
    graph = FakeGraph()
    sampler = Sampler(graph)
    vars(graph).update(change)
    sample = sampler.take()
    assert sample.is_last
    assert sample.state == state


def test_a_monitor_keeps_no_graph_alive(monitors: list[LiveMonitor]) -> None:
    graph = FakeGraph()
    gone = weakref.ref(graph)
    monitors.append(LiveMonitor(graph, interval_s=0.05))
    assert graph.asked.wait(20)
    del graph
    assert ended(monitors[0])
    gc.collect()
    assert gone() is None
    assert monitors[0].ended
    assert monitors[0].status == "the graph is gone"
    monitors[0].start()
    assert not monitors[0].running


def test_nor_does_the_monitor_of_its_method() -> None:
    graph = FakeGraph()
    monitor = LiveMonitor(graph.statistics, start=False)
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    sample = monitor.look()
    assert sample is not None
    assert sample.state == "gone"


def test_it_stops_and_starts_again(monitors: list[LiveMonitor]) -> None:
    looks = threading.Semaphore(0)

    def look() -> dict[str, float]:
        looks.release()
        return {"in_flight": 1}

    monitor = LiveMonitor(look, interval_s=0.05)
    monitors.append(monitor)
    assert looks.acquire(timeout=20)
    assert monitor.running
    monitor.stop()
    assert ended(monitor)
    assert monitor.status == "stopped"
    while looks.acquire(blocking=False):
        pass
    monitor.running = True  # as the button does
    assert looks.acquire(timeout=20)
    monitor.close()
    assert ended(monitor)
    assert watched() == []


def test_a_newer_monitor_of_the_same_graph_replaces_it(monitors: list[LiveMonitor]) -> None:
    graph, other = FakeGraph(), FakeGraph()
    monitors.append(LiveMonitor(other, interval_s=0.05))
    for _ in range(4):
        monitors.append(LiveMonitor(graph, interval_s=0.05))
    elsewhere, *old, new = monitors
    assert all(ended(each) for each in old)
    assert [each.status for each in old] == ["replaced by a newer monitor"] * 3
    assert not any(each.ended or each.running for each in old)
    assert new.running
    assert elsewhere.running
    old[0].start()  # asked for: both look
    assert new.running


def test_a_function_that_is_defined_again_is_the_same(monitors: list[LiveMonitor]) -> None:
    cell = "def look(): return {'queued': 1}"
    for _ in range(3):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(cell, names)  # as a notebook does
        monitors.append(LiveMonitor(names["look"], interval_s=0.05))
    assert [each.running for each in monitors] == [False, False, True]

    def of(number: int) -> Callable[[], dict[str, int]]:
        return lambda: {"queued": number}

    monitors += [LiveMonitor(of(number), interval_s=0.05) for number in range(2)]
    assert [each.running for each in monitors[2:]] == [True, True, True]
    graph = FakeGraph()
    assert not Sampler(of(1)).is_of(Sampler(graph))
    assert Sampler(graph).is_of(Sampler(graph))
    assert Sampler(graph.statistics).is_of(Sampler(graph.statistics))
    assert not Sampler(graph.statistics).is_of(Sampler(FakeGraph().statistics))


def test_it_stops_when_its_last_view_has_gone(
    monitors: list[LiveMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rcg_widgets.monitor._STOP_WITHOUT_VIEW_S", 0.1)

    def say(view: str, shown: bool) -> None:
        monitor._handle_custom_msg({"view": view, "shown": shown}, [])

    monitor = LiveMonitor(lambda: {"queued": 1}, interval_s=0.05)
    monitors.append(monitor)
    say("one", True)
    say("other", True)
    say("one", False)
    assert monitor._unviewed_since is None
    say("other", False)
    assert ended(monitor)
    assert monitor.status == "stopped: no view is open"
    assert not monitor.ended
    say("third", True)
    assert monitor.running
    monitor.stop()
    say("third", False)
    say("fourth", True)
    assert not monitor.running  # it was stopped by hand


def test_a_source_that_fails_ends_it_with_a_sentence() -> None:
    def fail() -> dict[str, float]:
        raise RuntimeError("no such graph")

    monitor = LiveMonitor(fail, start=False)
    assert monitor.look() is None
    assert monitor.ended
    assert monitor.status == "the source failed: RuntimeError: no such graph"


def test_a_graph_that_is_torn_down_while_it_is_looked_at_has_ended() -> None:
    class Torn(FakeGraph):
        def report(self, timeout: float = 0.5) -> Report:
            self.is_teardown = True
            raise RuntimeError("closed")

    graph = Torn()
    monitor = LiveMonitor(graph, start=False)
    assert monitor.look() is None
    assert monitor.status == "the graph was torn down"


def test_what_was_seen_is_kept_within_bounds() -> None:
    monitor = LiveMonitor(lambda: {"queued": 4, "limit": 9}, start=False)
    for _ in range(300):
        monitor.look()
    rows = np.frombuffer(monitor.history, "<f8").reshape(-1, 6)
    assert rows.shape == (240, 6)
    assert (rows[:, 3] == 4).all()
    assert monitor.facts == {"limit": 9, "cap": 0, "completed": 0, "most": {"queued": 4.0}}
    assert monitor.samples == 300


# --- the package ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["lanes panel scene", "topology", "monitor"])
def test_scripts_stand_alone(names: str) -> None:
    text = script("common", *names.split())
    assert "import " not in text and text.count("export default") == 1
    assert set(re.findall(r"https?://[^\"]*", text)) <= {"http://www.w3.org/2000/svg"}
