# SPDX-License-Identifier: Apache-2.0
"""The profile's card: bars as wide as their shares, and what is measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import escape, unescape

import numpy as np
import pytest

from rcg.trace.analysis.latency import Latency
from rcg.trace.measured import Measured, summarize
from rcg.trace.trace import Trace
from rcg.views.data.figures import CardRow, ProfileCard, card_of, topology_figures_of
from rcg.views.data.lettering import DOT
from rcg.views.html.mimebundle import of_trace
from rcg.views.html.page import page_of
from rcg.views.svg.summary import summary_of
from tests.unit.trace_by_hand import END, ROWS
from tests.unit.traces import changed, event, events, graph_trace, trace
from tests.unit.views_traces import check_picture, check_pictures, pipeline, simulated


def test_shares_are_as_wide_as_they_are_large() -> None:
    rows = [CardRow("a", (3e6, 0, 0, 2e6, 0), "", "waits"), CardRow("b", (1e6, 0, 0, 4e6, 0))]
    for width in (360, 1040):
        svg = summary_of(ProfileCard("Profile", "", rows, [("throughput", "515 /s")]), width=width)
        check_picture(svg)
        rects = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
        found = [float(each.get("width", "nan")) for each in rects if len(each)]
        a, a_waits, b, b_waits = (each / (found[0] + found[1]) for each in found)
        assert (a, a_waits, b, b_waits) == pytest.approx((0.6, 0.4, 0.2, 0.8), abs=0.02)


def test_a_note_without_room_says_its_first_fact_and_cuts_no_figure() -> None:
    rows = [CardRow("a5 (Pipe)", (3e6, 0, 0, 2e6, 0), f"299 ms {DOT} 1.49x slower", is_odd=True)]
    card = ProfileCard("Profile", "", rows, [], note_title="busy per execution")
    assert f">299 ms {DOT} 1.49x slower</text>" in summary_of(card, width=1040)
    assert f">299 ms {DOT} 1.49x slower</text>" in summary_of(card, width=420), "a phone's width"
    narrow = summary_of(card, width=280)
    assert ">299 ms</text>" in narrow and "1.49x slower</text>" not in narrow


def test_a_card_of_nothing_says_what_to_do_and_an_axis_has_more_than_its_origin() -> None:
    graph = simulated(pipeline(3), 20).graphs[0]
    nothing = replace(graph, lanes=tuple(replace(e, events=e.events[:0]) for e in graph.lanes))
    [found] = summarize(trace(nothing, end=4_190_000)).graphs
    figures = card_of(found)
    assert figures.about.startswith("nothing ran in 4.19 ms: call execute() during the recording")
    assert not figures.keys and not figures.note_title
    svg = summary_of(replace(figures, shares=[replace(figures.shares[0], label="a" * 60)]))
    assert re.findall(r">([\d.]+ ms)<", svg)[:2] == ["0 ms", "1 ms"]


def test_the_title_of_a_card_says_what_is_wrong_with_the_graph() -> None:
    graph = replace(graph_trace(ROWS), state="a1 died")
    (found,) = summarize(trace(graph, end=END)).graphs
    assert card_of(found).title == "Profile: a1 died"
    assert "Profile: a1 died</text>" in summary_of(card_of(found))


def test_topologies_get_medians_of_calls_and_sizes_of_values() -> None:
    record = simulated(pipeline(3), 20)
    graph = record.graphs[0]
    measured = topology_figures_of(Measured.of(record, graph))
    times = {process: float(np.median(ns)) for (process, _), ns in measured.runs_ns.items()}
    assert times == {"a0": 400_000, "a1": 460_000, "a2": 520_000}
    assert measured.channel_bytes == {"c0": 4096, "c1": 3_250_000, "c2": 3_250_000, "c3": 3_250_000}
    path = summarize(record).graphs[0].critical
    assert path is not None
    calls = [part for part in path.shares if part.op == 1 and part.process != "driver"]
    shares = {process: share for (process, _), share in measured.on_path.items()}
    assert shares == pytest.approx({part.process: part.share for part in calls})
    assert shares["a2"] == pytest.approx(0.91, abs=0.01)


def test_of_kernels_the_card_says_how_long_a_gpu_was_busy() -> None:
    graph = graph_trace(ROWS)
    rows = [event(0, 0, 20, 31, peer=0), event(0, 0, 25, 36, peer=1), event(0, 1, 60, 2000, peer=0)]
    streams = ("GPU 0, stream 7", "GPU 0, stream 9")
    busy = changed(graph, "a0", kernels=events(rows), streams=streams)
    (summary,) = summarize(trace(busy, end=END)).graphs
    # From the first submission, at 10, to the last result, at 65: 20 to 36 and 60 to 65.
    assert summary.shares.device == pytest.approx(21 / 55)
    card = card_of(summary)
    assert dict(card.keys)["GPU busy"] == "38 % of 1 actor"
    assert ["GPU busy 38 % of the time" in each.hover for each in card.shares] == [
        False,
        True,
        False,
    ]
    assert "GPU busy: 38.2 % of the time" in str(summary)
    (plain,) = summarize(trace(graph, end=END)).graphs
    assert plain.shares.device is None and "GPU" not in str(plain)


@pytest.mark.parametrize("longer", [False, True])
def test_each_tick_of_the_latency_has_its_number(longer: bool) -> None:
    (graph,) = summarize(simulated(pipeline(2), 3)).graphs
    counts = tuple([50 if longer else 2] * 5)
    for last_ms in (2.05, 5, 6.46, 9.99, 12, 40.2, 99):
        latency = Latency(1e6, 1e6, 1.55e6, last_ms * 1e6, counts, (0.5,) * 5)
        assert latency.has_longer == longer
        picture = summary_of(replace(card_of(graph), latency=latency), width=420)
        check_picture(picture)
        base = re.findall(r"M([\d.]+) ([\d.]+)v4", picture)
        numbers = re.findall(rf'x="([\d.]+)" y="{float(base[0][1]) + 16:g}"[^>]*middle', picture)
        assert len(base) == len(numbers) >= 2
        assert abs(float(numbers[-1]) - float(base[-1][0])) < 25


def test_advice_is_code_on_pages_in_notebooks_and_in_pictures() -> None:
    run = simulated(pipeline(3), 60, jitter=0.4)
    (graph,) = summarize(run).graphs
    assert graph.verdict is not None
    (advice,) = graph.verdict.advice
    element = f"<code>{escape(advice.code)}</code>"
    assert element in page_of(run, "A run")
    two = Trace((*run.graphs, *run.graphs), run.start_ns, run.end_ns)
    assert page_of(two, "Two").count(element) == 2
    html = of_trace(run)["text/html"]
    assert element in html
    assert not [each for each in check_pictures(html) if ">try<" in each]  # it is there once
    long = replace(advice, code="a = 1; graph.map(inputs, " + "in_flight=3, " * 12 + ")")
    for code in (advice, long):
        for width in (1040, 420):
            picture = summary_of(replace(card_of(graph), advice=(code,)), width=width)
            check_picture(picture)
            lines = re.findall(r'<text[^>]*font-family="[^"]*monospace"[^>]*>([^<]*)<', picture)
            shown = " ".join(unescape(each).strip() for each in lines)
            assert shown == code.code.replace(";", "")
