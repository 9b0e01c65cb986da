# SPDX-License-Identifier: Apache-2.0
"""Alike rows are one row: of a schedule, of a profile, of a prediction and of a comparison."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from rcg.ir.ops import Call, Op
from rcg.ir.plan import Plan
from rcg.profiling import Profile
from rcg.trace.analysis.alike import (
    Odd,
    alike_rows,
    members_text,
    name_of_rows,
    odd_ones,
    odd_text,
)
from rcg.trace.measured import Measured, measured_of, summarize
from rcg.trace.trace import Trace
from rcg.views.data.alike import typical
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.data.topology import topology_of
from rcg.views.html.findings import comparison_picture, what_if_picture
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.topology import NARROW_ROOM, ROOM, diagram_of
from rcg.views.svg.diagram import svg_of
from rcg.views.svg.pictures import schedule_picture, topology_picture
from rcg.views.svg.summary import summary_of
from tests.unit.traces import changed
from tests.unit.views_plans import Builder, scatter_gather
from tests.unit.views_traces import check_picture, labelled, microbatches, pipeline, simulated

SVG = "{http://www.w3.org/2000/svg}"
CALL_NS = 400_000
ALL = [f"a{number}" for number in range(20)]


def workers(*, slow: str = "") -> Trace:
    """20 workers and a reducer; one may take three times as long."""

    def cost(op: Op) -> float:
        return CALL_NS * (3 if op.actor == slow else 1) if isinstance(op, Call) else 1e4

    return labelled(simulated(scatter_gather(20), 12, op_cost=cost))


def members_in(trace: Trace, *, is_part: bool = False) -> list[list[str]]:
    """The processes of each row of a schedule that stands for several."""
    scene = schedule_scene(Measured.of(trace, trace.graphs[0]), is_part=is_part)
    return [
        [scene.rows[each].process for each in row.members]
        for row in scene.rows
        if row.members and not row.part
    ]


def names_in(svg: str) -> list[str]:
    check_picture(svg)
    heads = ElementTree.fromstring(svg).findall(f".//{SVG}g[@class='rcg-head']/{SVG}text")
    return [each.text or "" for each in heads]


def test_one_long_call_among_many_counts() -> None:
    trace = workers()
    (graph,) = trace.graphs
    lane = graph.lane("a7")
    events = lane.events.copy()
    is_call = np.array([op.is_call for op in graph.program(lane).ops])
    events["end_ns"][np.flatnonzero(is_call[events["op"]])[-1]] += 10 * CALL_NS
    late = replace(trace, graphs=(changed(graph, "a7", events=events),))
    assert "a7" not in members_in(late)[0]


def test_a_picture_of_a_part_folds_what_the_view_of_all_folds() -> None:
    """Of workers that differ a little, a part has calls of more executions of some."""

    def cost(op: Op) -> float:
        if not isinstance(op, Call):
            return 3e3
        return CALL_NS * (1 + 0.02 * (int(op.actor[1:]) % 5)) * (1.5 if op.actor == "a7" else 1)

    build = Builder()
    plan = build.plan(*[build.call(f"a{at}", "work", 0, label="Worker") for at in range(20)])
    trace = labelled(simulated(plan, 20, op_cost=cost))
    (members,) = members_in(trace)
    assert set(ALL) - set(members) == {"a7"}
    assert members_in(trace, is_part=True) == [members]


def test_a_few_rows_are_not_folded() -> None:
    trace = simulated(scatter_gather(7), 12)
    assert members_in(trace) == []
    svg = schedule_picture(trace, trace.graphs[0])
    assert svg is not None and len(names_in(svg)) == 8


def test_a_typical_bar_begins_and_ends_when_the_median_of_its_bars_does() -> None:
    execution = np.array([1, 0, 1, 1, 0])
    start, end = np.array([12, 1, 10, 11, 2]), np.array([20, 5, 21, 29, 9])
    found = typical((execution,), start, end)
    assert found.start.tolist() == [2, 11] and found.end.tolist() == [9, 21]
    assert found.count.tolist() == [2, 3] and found.of.tolist() == [1, 0, 1, 1, 0]
    assert found.least.tolist() == [4, 8] and found.most.tolist() == [7, 18]


def test_rows_of_one_kind_with_the_same_figures_are_one() -> None:
    names = [f"a{number} (Stage{number}) write c{number}" for number in range(9)]
    names += ["a9 (Other) write c9", "driver write c10"]
    figures = [[1.0]] * 4 + [[5.0]] + [[1.05]] * 4 + [[1.0]] * 2
    groups = alike_rows(names, figures, 0.1)
    assert groups == [[0, 1, 2, 3, 5, 6, 7, 8], [4], [9], [10]]
    first = [names[at] for at in groups[0]]
    assert name_of_rows(first) == "a0 to a3, a5 to a8 (Stage0 to Stage8) write"
    assert members_text(first).startswith("median of 8: a0 (Stage0) write c0, ")
    assert alike_rows(names[:8], figures[:8], 0.1) == [[at] for at in range(8)]


def test_few_of_many_stand_out_by_their_time() -> None:
    names = [f"a{number} (Worker)" for number in range(32)]
    took = [100.0 + number % 5 for number in range(32)]  # usually 102, and by 1 off
    assert odd_ones(names, took) == {}
    slow = [*took[:18], 153.0, *took[19:]]
    assert odd_ones(names, slow) == {"a18 (Worker)": Odd(1.5, 31, "Worker")}
    assert odd_text(odd_ones(names, slow)) == "31 alike, a18 1.50x slower"
    fast = [51.0, *slow[1:]]
    assert odd_text(odd_ones(names, fast)) == "30 alike, a0 2.00x faster, a18 1.50x slower"
    spread = [100.0 + 10 * number for number in range(32)]  # no two are alike
    assert odd_ones(names, spread) == {}
    assert odd_ones(names[:3], slow[17:20]) == {}  # of three, no one can say what is usual
    noisy = [80.0 + 5 * (number % 9) for number in range(31)]  # about 100, and by 10 or more off
    assert odd_ones(names, [*noisy, 140.0]) == {}
    assert odd_ones(names, [*noisy, 180.0]).keys() == {"a31 (Worker)"}


def test_an_actor_that_stands_out_is_a_card_and_a_row_of_its_own() -> None:
    trace = workers(slow="a7")
    (measured,) = measured_of(trace)
    figures, summary = topology_figures_of(measured), measured.summary
    assert str(figures.odd["a7"]) == "3.00x slower" and list(figures.odd) == ["a7"]
    drawn = topology_picture(measured.graph.plan, title="x", measured=measured)
    assert ">19 alike, a7 3.00x slower" in drawn and ">3.00x slower than 19 others<" in drawn
    assert ">Worker \u00d719<" in drawn
    assert ">unlike others of its class<" in drawn and drawn.count('class="rcg-odd"') == 2
    card = card_of(summary)
    assert card.about.startswith("19 alike, a7 3.00x slower \u00b7 ")
    for width in (840, 420):
        picture = summary_of(replace(card, answer="a7 limits this"), width=width)
        check_picture(picture)
        texts = re.findall(r"<text[^>]*>([^<]+)<", picture)
        assert "a0 to a6, a8 to a19" in " ".join(texts) and "12 executions in " in " ".join(texts)
        assert not [each for each in texts if "\u2026" in each]
    (row,) = [each for each in card.shares if each.is_odd]
    assert row.label == "a7 (Worker)" and row.note.endswith(" \u00b7 3.00x slower")


@pytest.mark.parametrize("room", [ROOM, NARROW_ROOM])
@pytest.mark.parametrize("plan", [pipeline(63), microbatches(32, 16)], ids=["chain", "1F1B"])
def test_among_many_stages_that_do_not_fold_the_odd_one_has_its_words_whole(
    room: float, plan: Plan
) -> None:
    def cost(op: Op) -> float:
        return CALL_NS * (1.5 if op.actor == "a18" else 1) if isinstance(op, Call) else 1e4

    (measured,) = measured_of(labelled(simulated(plan, 3, op_cost=cost)))
    diagram = diagram_of(topology_of(measured.graph.plan), room=room,
                         figures=topology_figures_of(measured))  # fmt: skip
    (odd,) = [card for card in diagram.cards if card.kind == "odd"]
    name, words = odd.labels
    assert name.text == "a18 (Stage)" and words.font == "strong"
    assert odd.words[-1] == f"1.50x slower than {len(plan.actors) - 1} others"
    picture = svg_of(diagram, "x", room=room)
    check_picture(picture)
    assert f">{words.text}<" in picture and words.text.startswith("1.50x slower")
    legend = re.findall(r'class="rcg-key".*?>([^<>]+)<', picture)
    assert "unlike others of its class" in legend and not [x for x in legend if "\u2026" in x]


def test_each_of_sixteen_stages_has_a_row() -> None:
    (summary,) = summarize(simulated(pipeline(16), 20, op_cost=lambda _: 1_000.0)).graphs
    assert len(card_of(summary).shares) == 17


def test_profiles_predictions_and_comparisons_fold() -> None:
    profile = Profile(workers(slow="a7"))
    rows = [each.label for each in card_of(summarize(profile.trace).graphs[0]).shares]
    assert rows == ["driver", "a0 to a6, a8 to a19 (Worker)", "a7 (Worker)", "a20 (Reducer)"]
    found = what_if_picture(profile.what_if({"Worker.work": 0.5}))
    assert ">a0 to a6, a8 to a19 (Worker) busy<" in found and ">a7 (Worker) busy<" in found
    (graph,) = profile.compare(Profile(workers())).graphs
    found = comparison_picture(graph)
    check_picture(found)
    assert ">a0 to a6, a8 to a19 (Worker).work<" in found and ">a7 (Worker).work<" in found


# --- as text -------------------------------------------------------------------------------------


def long_chain(slow: str = "") -> Trace:
    """A chain of 20 stages, one at a time for one of them: the others wait, each for its own time.

    A stage takes 2 ms of the 12 that pass between two results, or 3 if it is slow.
    """

    def cost(op: Op) -> float:
        return (3e6 if op.actor == slow else 2e6) if isinstance(op, Call) else 0.0

    return labelled(simulated(pipeline(20), 24, op_cost=cost, window=4))


def sections(text: str) -> dict[str, list[str]]:
    """The lines of a report below each title."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        title, *lines = block.strip("\n").splitlines()
        found[title.strip()] = lines
    return found


def test_a_printed_summary_names_the_one_that_stands_out_and_folds_the_others() -> None:
    trace = long_chain(slow="a7")
    (graph,) = summarize(trace).graphs
    waits = [lane.waiting_ns / lane.duration_ns for lane in graph.shares.lanes[1:]]
    assert max(waits) - min(waits) > 0.1  # by more than what tells rows apart
    text = str(graph)
    assert "\n  actors      19 alike, a7 1.50x slower\n" in text
    others = "a0 to a6, a8 to a19 (Stage)"
    found = sections(text)
    rows = next(lines for title, lines in found.items() if title.startswith("Where the time"))
    labels = [line.strip().split("  ")[0] for line in rows[1:4]]
    assert labels == ["driver", others, "a7 (Stage)"]
    ops = [line.strip().split("  ")[0] for line in found["What each op took, without waiting"]]
    assert f"{others}.fwd" in ops and "a7 (Stage).fwd" in ops
    assert len(ops) < 20 < len(graph.methods)


def test_the_shares_of_a_folded_path_are_those_of_the_path() -> None:
    """All rows add up to the whole path, and a7 has one of its own."""
    (graph,) = summarize(long_chain(slow="a7")).graphs
    title = "What the results waited for (the critical path of all executions)"
    shares = {}
    for line in (each for each in sections(str(graph))[title] if each.endswith("%")):
        name, *_, share = re.split("  +", line.strip())
        shares[name] = shares.get(name, 0.0) + float(share.strip(" %"))
    assert abs(sum(shares.values()) - 100) < 0.5
    assert shares["a7 (Stage).fwd"] < shares["a0 to a6, a8 to a19 (Stage).fwd"]


def test_a_card_folds_stages_that_compute_alike_however_they_wait() -> None:
    (graph,) = summarize(long_chain(slow="a7")).graphs
    labels = [row.label for row in card_of(graph).shares]
    assert labels == ["driver", "a0 to a6, a8 to a19 (Stage)", "a7 (Stage)"]


def test_of_a_comparison_what_did_not_change_is_one_line() -> None:
    before, after = Profile(workers()), Profile(workers(slow="a7"))
    found = sections(str(before.compare(after)))["What each op took, median without waiting"]
    assert sum("noise" in line for line in found) <= 1
    assert any(line.strip().startswith("a7 (Worker).work") for line in found), found
    assert found[-1].endswith(" as before, within the noise: comparison.ops")
    same = sections(str(before.compare(before)))["What each op took, median without waiting"]
    (graph,) = before.compare(before).graphs
    assert same == [f"    {len(graph.ops)} ops as before, within the noise: comparison.ops"]
