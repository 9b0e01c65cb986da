# SPDX-License-Identifier: Apache-2.0
"""Charts of plotly: they have the figures of the trace, and are legible on light and dark pages."""

from __future__ import annotations

import pickle
import sys
from collections import Counter

import numpy as np
import pytest

from rcg.errors import TraceError
from rcg.profiling import Profile
from rcg.text import rate_text, share_text, time_text
from rcg.trace.analysis.comparison import Change
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.charts import KINDS, bars_of, figure_of
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.over_time import WORK, bytes_on_the_way, shares_over_time
from rcg.views.html.findings import judged
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


def test_bars_are_the_calls_and_the_times_of_the_excerpt(profile: Profile) -> None:
    measured = profile.measured()
    excerpt = excerpt_of(measured)
    assert excerpt is not None
    by_kind: Counter[str] = Counter()
    for bar in bars_of(measured, "timeline"):
        by_kind[bar.look] += bar.duration_ns  # type: ignore[assignment]
    for kind in TimeKind:
        expected = 0
        for parts in measured.parts:
            is_shown = (parts.end_ns > excerpt.start_ns) & (parts.start_ns < excerpt.end_ns)
            expected += int(parts.duration_ns[is_shown & (parts.kind == kind)].sum())
        assert by_kind[kind.name.lower()] == expected
    calls = [*bars_of(measured, "schedule")]
    whole = [bar for bar in calls if bar.look == f"execution {excerpt.last}"]
    # 4 stages with a forward and a backward call for each of 8 micro-batches.
    assert Counter(bar.row for bar in whole) == {f"Stage#{at}": 16 for at in range(1, 5)}
    first = min(bar.start_ns for bar in whole)
    assert 0 <= first - (excerpt.start_ns - profile.trace.start_ns) < 1e6


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
        (1.0, rate_text, None, "alike"),
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


@pytest.mark.parametrize("kind", KINDS)
def test_ink_is_for_the_page_and_the_ground_is_the_pages(profile: Profile, kind: str) -> None:
    inks = set()
    for dark in (None, False, True):
        layout = profile.figure(kind, dark=dark).layout.template.layout
        assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
        inks.add(layout.font.color)
    assert len(inks) == 3


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
