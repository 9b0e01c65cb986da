# SPDX-License-Identifier: Apache-2.0
"""Charts of plotly: they have the figures of the trace, and are legible on light and dark pages."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import TraceError
from rcg.profiling import Profile
from rcg.text import bytes_text, rate_text, share_text, time_text
from rcg.trace.analysis.comparison import Change
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.charts import KINDS, figure_of, ratio_ticks, ticks_up_to
from rcg.views.data.colours import EXECUTIONS
from rcg.views.data.excerpts import Excerpt, excerpt_of
from rcg.views.data.over_time import WORK, bytes_on_the_way, shares_over_time
from rcg.views.html.findings import comparison_picture, judged, what_if_picture
from rcg.views.scenes.heat import heat_scene, shares_scene
from rcg.weights.planning import plan_of
from rcg.weights.shards import Member
from tests.unit.tensors_by_hand import tensor_trace
from tests.unit.test_views_report import REPORT
from tests.unit.test_weights import rows
from tests.unit.trace_by_hand import LANES_ROWS, NODES, NODES_ROWS, WITH_LANES
from tests.unit.traces import graph_trace
from tests.unit.views_plans import steps_around_allreduces
from tests.unit.views_traces import check_pictures, microbatches, pipeline, simulated, times

pytest.importorskip("plotly", reason="Plotly is not installed")


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile(simulated(microbatches(), 30, jitter=0.1))


@pytest.fixture(scope="module")
def part(profile: Profile) -> Excerpt:
    found = excerpt_of(profile.measured())
    assert found is not None
    return found


def test_a_timeline_has_all_of_the_time_of_an_excerpt(profile: Profile, part: Excerpt) -> None:
    """Each kind takes what the record says, no moment has two bars, and none has no bar."""
    figure, start_ns = profile.figure("timeline"), profile.trace.start_ns
    begin, end = ((each - start_ns) / 1e6 for each in (part.start_ns, part.end_ns))
    assert figure.layout.xaxis.range == pytest.approx((begin, end))
    for kind in TimeKind:
        expected = 0
        for parts in profile.measured().parts:
            is_shown = (parts.end_ns > part.start_ns) & (parts.start_ns < part.end_ns)
            expected += int(parts.duration_ns[is_shown & (parts.kind == kind)].sum())
        bars = [bar for bar in figure.data if bar.name == kind.name.lower()]
        if kind != TimeKind.IDLE:
            assert sum(sum(bar.x) for bar in bars) == pytest.approx(expected / 1e6)
    covered: Counter[str] = Counter()
    for bar in figure.data:
        for row, at, length in zip(bar.y, bar.base, bar.x, strict=True):
            covered[row] += min(at + length, end) - max(at, begin)  # type: ignore[assignment]
    assert covered == {row: pytest.approx(end - begin) for row in figure.layout.yaxis.categoryarray}
    assert list(covered) == list(figure.layout.yaxis.categoryarray)[: len(covered)]


def test_calls_of_a_schedule_have_the_words_and_colours_of_all_views(
    profile: Profile, part: Excerpt
) -> None:
    """Four stages train on eight micro-batches: F0 to F7 and B0 to B7, a colour for each."""
    assert part.first == part.last
    bars = {bar.name: bar for bar in profile.figure("schedule").data}
    assert list(bars)[:2] == ["fwd (F)", "bwd (B)"]
    assert set(bars) <= {"fwd (F)", "bwd (B)", "other executions"}
    for name, letter in (("fwd (F)", "F"), ("bwd (B)", "B")):
        bar, calls = bars[name], [f"{letter}{call}" for call in range(8)]
        assert sorted(bar.text) == sorted(calls * 4)
        assert Counter(bar.y) == {f"Stage#{at}": 8 for at in range(1, 5)}
        for text, hover, frame in zip(bar.text, bar.customdata, bar.marker.line.color, strict=True):
            call = int(text[1:])
            assert f"<br>call {call} of execution {part.first}<br>" in hover
            assert frame == EXECUTIONS[(part.first * 8 + call) % 8]
    assert list(profile.figure("schedule").layout.yaxis.categoryarray) == [
        f"Stage#{at}" for at in range(1, 5)
    ]
    # The second method of an actor is paler; which is which is not told by colour alone.
    assert set(bars["fwd (F)"].marker.color) == set(EXECUTIONS)
    assert not set(bars["bwd (B)"].marker.color) & set(EXECUTIONS)


def test_executions_of_a_schedule_are_the_entries_of_its_legend() -> None:
    profile = Profile(simulated(pipeline(3), 40))
    part = excerpt_of(profile.measured())
    assert part is not None
    figure = profile.figure("schedule")
    names = [f"execution {each}" for each in range(part.first, part.last + 1)]
    assert [bar.name for bar in figure.data][: len(names)] == names
    for number, bar in zip(range(part.first, part.last + 1), figure.data, strict=False):
        assert set(bar.text) == {str(number)} and len(bar.y) == 3
        assert set(bar.marker.color) == {EXECUTIONS[number % 8]}
    assert part.words in figure.layout.title.text


def test_shares_of_a_process_add_up_and_are_those_of_the_summary(profile: Profile) -> None:
    figure = profile.figure("shares")
    lanes = profile.summary.graphs[0].shares.lanes
    total = np.sum([bar.x for bar in figure.data], axis=0)
    assert total == pytest.approx([100] * len(lanes))
    compute = next(bar for bar in figure.data if bar.name == "compute")
    assert list(compute.y) == [lane.label for lane in lanes]
    assert compute.x[1] == pytest.approx(100 * lanes[1].compute_ns / lanes[1].duration_ns)


def test_work_over_time_adds_up_to_the_work_of_all(profile: Profile) -> None:
    trace = profile.trace
    window = trace.start_ns, trace.end_ns
    edges, shares = shares_over_time(profile.measured(), WORK, *window, 200)
    assert (5, len(edges) - 1) == shares.shape == (5, 200)
    work = shares.mean(axis=1) * (trace.end_ns - trace.start_ns)
    lanes = profile.summary.graphs[0].shares.lanes
    assert work == pytest.approx([lane.busy_ns for lane in lanes], rel=0.01)


def test_bytes_are_on_the_way_from_their_write_to_their_read() -> None:
    """One value at a time: the driver sends 4 kB, each of three stages 3.25 MB to the next."""
    trace = simulated(pipeline(3), 1, op_cost=times(400, 25))
    when, sizes = bytes_on_the_way(Measured.of(trace, trace.graphs[0]))
    assert list(dict.fromkeys(sizes.tolist())) == [0.0, 4096.0, 3_250_000.0]
    assert sizes[-1] == 0 and (np.diff(when) >= 0).all()


@pytest.mark.parametrize(
    ("ratio", "text_of", "spread", "expected"),
    [
        (1.5, rate_text, 0.01, "better"),
        (0.5, rate_text, 0.01, "worse"),
        (0.5, time_text, 0.01, "better"),
        (1.5, time_text, 0.01, "worse"),
        (1.5, time_text, 2.0, "alike"),
        (1.0, rate_text, 0.01, "alike"),
        (1.53, rate_text, None, "not known"),
        (1.5, share_text, None, "changed"),
        (1.5, share_text, 0.01, "changed"),
    ],
)
def test_what_is_better_and_worse(ratio, text_of, spread, expected) -> None:  # type: ignore[no-untyped-def]
    assert judged(Change("x", 1.0, ratio, (0.0, spread)), text_of) == expected


def test_a_comparison_says_better_and_worse_in_words(profile: Profile) -> None:
    faster = Profile(simulated(microbatches(), 30, op_cost=times(200), jitter=0.1))
    for before, after, word in ((profile, faster, "better"), (faster, profile, "worse")):
        found = before.compare(after)
        bars = {bar.name: bar for bar in found.figure().data}
        assert "executions" in bars[word].y and "Stage#3.bwd" in bars[word].y
        at = list(bars[word].y).index("executions")
        assert bars[word].base + bars[word].x[at] == found.graphs[0].throughput.ratio
        assert bars[word].text[at].endswith(f"x {word}") or "\u00b1" in bars[word].text[at]
        html = found._repr_mimebundle_()["text/html"]
        assert "data:image/svg+xml" in html


def test_of_too_few_executions_nothing_is_called_better() -> None:
    few = [Profile(simulated(pipeline(3), 5, op_cost=times(each))) for each in (400, 200)]
    found = few[0].compare(few[1]).graphs[0]
    assert found.throughput.ratio is not None and found.throughput.ratio > 1.5
    assert found.throughput.is_noise is None
    bars = {bar.name: bar for bar in found.figure().data}
    assert not {"better", "worse"} & set(bars)
    at = list(bars["not known"].y).index("executions")
    assert bars["not known"].text[at].endswith("x not known")
    picture = comparison_picture(found)
    assert ">after: not known, too few executions<" in picture
    assert "x not known<" in picture and "x better<" not in picture
    (row,) = [line for line in str(found).splitlines() if line.startswith("  executions")]
    assert row.endswith("x  not known")
    predicted = few[0].what_if({"Stage.fwd": 0.5})
    assert predicted.is_noise is None and (predicted.speedup or 0) > 1.1
    assert "x not known<" in what_if_picture(predicted)
    assert "x better<" not in what_if_picture(predicted)


def test_the_axis_of_ratios_says_which_they_are(profile: Profile) -> None:
    slower = Profile(simulated(microbatches(), 30, op_cost=times(4000), jitter=0.1))
    axis = profile.compare(slower).figure().layout.xaxis
    assert axis.tickvals[0] < 1 < axis.tickvals[-1] and 1.0 in axis.tickvals
    assert axis.ticktext == tuple(f"{each:g}x" for each in axis.tickvals)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5))
def test_ticks_of_ratios_surround_them(ratios: list[float]) -> None:
    ticks = ratio_ticks(ratios)
    assert ticks == sorted(set(ticks)) and 3 <= len(ticks) <= 20
    assert any(each == pytest.approx(1) for each in ticks)
    assert ticks[0] <= min(1.0, *ratios) * 1.001 and ticks[-1] >= max(1.0, *ratios) * 0.999


@given(st.floats(0, 1e15))
def test_ticks_of_amounts_reach_them(most: float) -> None:
    ticks = ticks_up_to(most)
    assert ticks[0] == 0 and ticks[-1] >= most * 0.999 and len(ticks) <= 7


def test_the_axis_of_memory_has_units(profile: Profile) -> None:
    axis = profile.figure("memory").layout.yaxis
    assert axis.ticktext == tuple(bytes_text(each) for each in axis.tickvals)
    assert axis.tickvals[-1] >= bytes_on_the_way(profile.measured())[1].max()


@pytest.mark.parametrize(
    ("kind", "kinds"), [("heat", (TimeKind.COMPUTE,)), ("busy", WORK)], ids=["heat", "busy"]
)
def test_actors_over_time_are_those_of_the_picture(
    profile: Profile, kind: str, kinds: tuple[TimeKind, ...]
) -> None:
    """The same actors and slices, and each share is of the level of its cell."""
    found = profile.figure(kind).data[0]
    scene = heat_scene(profile.measured(), kinds)
    assert [each.split(",")[0].removeprefix("<b>") for each in found.y] == [
        row.label for row in scene.rows
    ]
    assert "driver" not in found.y and len(found.y) == 4
    shares, bars, middles = np.asarray(found.z, float), scene.bars, np.asarray(found.x) * 1e6
    assert shares.shape == (4, 100)
    levels = np.full(shares.shape, -1)
    for at in range(len(bars)):
        is_own = (middles > bars.start[at]) & (middles < bars.end[at])
        levels[bars.row[at], is_own] = bars.look[at]
    assert (levels == np.where(shares > 0, np.minimum(shares // 10, 9), -1)).all()
    middle = (found.x[0] + found.x[1]) / 2 * 1e6
    assert middle == pytest.approx(scene.begin + (scene.end - scene.begin) / 100)


def test_shares_of_many_actors_are_those_of_the_picture() -> None:
    many = Profile(simulated(pipeline(17), 6, jitter=0.1))
    labels = [row.label for row in shares_scene(many.measured()).rows]
    assert [each.split(",")[0].removeprefix("<b>") for each in many.figure("shares").data[0].y] == (
        labels
    )


def test_a_comparison_says_what_it_leaves_out(profile: Profile) -> None:
    slower = Profile(simulated(microbatches(), 30, op_cost=times(400), jitter=0.1))
    found = profile.compare(slower).graphs[0]
    shown = sum(len(bar.y) for bar in found.figure().data)
    assert 2 < shown < 2 + len(found.ops)
    words = f"the longest {shown - 2} of {len(found.ops)} ops"
    assert words in found.figure().layout.title.text and words in comparison_picture(found)
    few = replace(found, ops=found.ops[:1])
    assert "the longest" not in few.figure().layout.title.text + comparison_picture(few)
    without = replace(found, ops=(replace(found.ops[0], before=None),))
    assert "1 more without a ratio" in without.figure().layout.title.text


def test_busy_actors_are_as_busy_as_in_the_profile(profile: Profile) -> None:
    """What is not busy waits or is idle: most of it is no idle time."""
    found = profile.figure("busy").data[0]
    lanes = [each for each in profile.summary.graphs[0].shares.lanes if each.label != "driver"]
    assert [each.split(",")[0].removeprefix("<b>") for each in found.y] == [
        lane.label for lane in lanes
    ]
    busy = np.asarray(found.z, float).mean(axis=1)
    assert busy == pytest.approx(
        [100 * lane.busy_ns / lane.duration_ns for lane in lanes], rel=0.01
    )


def test_notes_of_latencies_do_not_meet(profile: Profile) -> None:
    median, high = profile.figure("latency").layout.annotations
    assert median.text.startswith("median") and high.text.startswith("max")  # of fewer than 100
    assert abs(median.yshift - high.yshift) >= 16


@pytest.mark.parametrize("kind", KINDS)
def test_ink_is_for_the_page_and_the_ground_is_the_pages(profile: Profile, kind: str) -> None:
    inks = set()
    for dark in (None, False, True):
        layout = profile.figure(kind, dark=dark).layout.template.layout
        assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
        inks.add(layout.font.color)
    assert len(inks) == 3
    titles = [profile.figure(kind, dark=dark).layout.title.text for dark in (None, True)]
    assert titles[0].startswith('<span style="color:var(--jp-ui-font-color1,')
    assert titles[1].startswith("<b>")


def test_a_schedule_has_no_rows_without_calls() -> None:
    found = Profile(Trace((graph_trace(LANES_ROWS, plan=WITH_LANES),), 0, 80)).figure("schedule")
    assert not [label for label in found.layout.yaxis.categoryarray if "." in label]


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_collectives_and_nodes_of_a_cluster_have_charts(kind: str) -> None:
    for trace in (
        tensor_trace(),
        Trace((graph_trace(LANES_ROWS, plan=WITH_LANES),), 0, 80),
        Trace((graph_trace(NODES_ROWS, plan=NODES, limit=4),), 0, 300),
        simulated(steps_around_allreduces(3), 12),
    ):
        assert Profile(trace).figure(kind).data


def test_a_figure_is_stored_with_a_picture_until_it_is_changed(profile: Profile) -> None:
    from plotly import graph_objects, io

    was, io.renderers.default = io.renderers.default, "plotly_mimetype"
    try:
        figure = profile.figure("shares")
        shown = figure._repr_mimebundle_()
        assert "data:image/svg+xml" in shown["text/html"]
        assert shown["application/vnd.plotly.v1+json"]["data"]
        figure.update_layout(title="mine")
        assert "text/html" not in figure._repr_mimebundle_()
        assert type(pickle.loads(pickle.dumps(figure))) is graph_objects.Figure
    finally:
        io.renderers.default = was


def test_what_if_weights_and_reports_are_charts() -> None:
    found = Profile(simulated(pipeline(3), 40)).what_if({"Stage.fwd": 0.5})
    now, then = found.figure().data
    assert (now.name, then.name) == ("now", "then") and list(now.y) == list(found.busy)
    stuck, *_ = [bar for bar in figure_of(REPORT).data if bar.name == "stuck"]
    assert list(stuck.y) == ["decode"] and list(stuck.x) == [9.8]
    have = [Member("A", {"w": rows(0, 2, 4, 4)}), Member("A", {"w": rows(2, 4, 4, 4)})]
    weights, _ = plan_of(have, [Member("C", {"w": rows(0, 4, 4, 4)})])
    assert check_pictures(weights._repr_mimebundle_()["text/html"])
    figure = weights.figure()
    assert np.asarray(figure.data[0].z).tolist() == [[32], [32]]  # 2 rows of 4 float32
    assert figure.data[0].text[0][0] == "32 B" and figure.layout.yaxis.ticktext == ("A", "A")


def test_what_is_missing_is_said(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown chart 'pie': it must be one of timeline, "):
        profile.figure("pie")
    empty = Profile(Trace((graph_trace({}),), 0, 80))
    for kind in ("timeline", "schedule", "latency"):
        with pytest.raises(TraceError):
            empty.figure(kind)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"charts need plotly: pip install 'rcg\[notebook\]'"):
        profile.figure("shares")
