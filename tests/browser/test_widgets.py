# SPDX-License-Identifier: Apache-2.0
"""The widgets in a real JupyterLab: drawn, clicked through, looked at in light and in dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.lab import Lab, Notebook, data, wait_for

EXECUTIONS = 2000

CELLS = (
    f"""
from rcg_widgets import (
    LiveMonitor,
    PipelineWidget,
    ScheduleWidget,
    TimelineWidget,
    TopologyWidget,
    WhatIfWidget,
    link,
)
from tests.unit.views_traces import labelled, microbatches, pipeline, simulated, times

trace = simulated(pipeline(6, is_training=True), {EXECUTIONS}, jitter=0.1, spans=True)
cost = times(140, 90)
short = labelled(simulated(pipeline(3, is_training=True), 30, op_cost=cost, spans=True))
""",
    "topology = TopologyWidget(short, title='Topology')\ntopology",
    "schedule = ScheduleWidget(short)\nschedule",
    "timeline = TimelineWidget(short)\ntimeline",
    "large = TimelineWidget(trace, title='Large')\nlarge",
    """
from itertools import count

looks = count(1)


def look():
    turn = next(looks)
    return {"completed": 400 * turn, "in_flight": turn % 8, "limit": 10, "queued": turn % 5,
            "waiting": 0.25 + 0.1 * (turn % 3)}


monitor = LiveMonitor(look, interval_s=0.05)
monitor
""",
    """
from tests.unit.live_reports import GRAPH_ID, chain_that_hangs, does, report_of


class Graph:
    name = "pipeline"

    def __init__(self, found):
        self.found = found

    def get_id(self):
        return GRAPH_ID

    def statistics(self):
        return self.found

    def report(self, timeout=0.5):
        return self.found


states = ["unreachable" if i == 17 else "running" for i in range(64)]
runs = Graph(report_of(*[does(f"a{i}", state) for i, state in enumerate(states)]))
LiveMonitor(runs, interval_s=0.05)
""",
    "hangs = Graph(chain_that_hangs(40, 11, 7.2))\nLiveMonitor(hangs, title='Hangs')",
    "selection = link(topology, schedule, timeline)",
    "ScheduleWidget(pipeline(3, is_training=True), title='Plan')",
    "timeline",  # a second view of one model
    """
from tests.unit.scenes_by_hand import ROWS
from tests.unit.traces import graph_trace

TimelineWidget(graph_trace(ROWS, spans={"a0": ("attention",)}), title="Hand")
""",
    "TimelineWidget(simulated(pipeline(60, is_training=True), 20), title='Tall')",
    """
from tests.unit.traces import event

edge = [event(1, 0, 0, 100), event(3, 0, 100, 102, coded=2), event(1, 1, 900, 1000)]
TimelineWidget(graph_trace({"a0": edge}), title="Edge")
""",
    "ScheduleWidget(short, op_cost=lambda op: 3e6 if op.is_call else 1e3, title='Drifted')",
    "ScheduleWidget(microbatches(), title='Batches')",
    "PipelineWidget(labelled(simulated(microbatches(), 3)), title='Step')",
    """
from tests.unit.views_plans import scatter_gather

TopologyWidget(scatter_gather(40), title="Wide")
""",
    """
cost = lambda op: 1e5 if op.is_call else 1e3
alike = labelled(simulated(scatter_gather(40), 12, op_cost=cost, jitter=0.02))
ScheduleWidget(alike, title="Alike")
""",
    "what = WhatIfWidget(short)\nwhat",
    """
import json
from rcg.views.scenes.timeline import timeline_scene
from rcg.trace.measured import Measured


def bars(of):
    return len(timeline_scene(Measured.of(of, of.graphs[0])).bars)


print(json.dumps({"events": trace.num_events, "large": bars(trace), "short": bars(short)}))
""",
)


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Iterator[Notebook]:
    path = lab.write("widgets.ipynb", CELLS)
    with lab.open(path) as notebook:
        for outputs in notebook.run_all():
            for output in outputs:
                assert output["output_type"] != "error", output["traceback"]
        notebook.page.wait_for_function(
            "() => document.querySelectorAll('.rcg-card[data-ready]').length === 18"
        )
        yield notebook


def card(shown: Notebook, name: str, title: str, nth: int = 0) -> Any:
    found = shown.page.locator(f".rcg-{name}[aria-label='{title}']").nth(nth)
    found.scroll_into_view_if_needed()
    return found


def counts(shown: Notebook) -> dict[str, int]:
    [output] = shown.outputs()[-1]
    return json.loads(output["text"])


def colours(card: Any, canvas: int = 0) -> int:
    """How many colours are on a canvas; a blank one has none."""
    return (
        card.locator("canvas")
        .nth(canvas)
        .evaluate(
            """(canvas) => {
          const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Set();
          for (const pixel of new Uint32Array(data.buffer)) if (pixel >>> 24) seen.add(pixel);
          return seen.size;
        }"""
        )
    )


def point_of(card: Any, which: str) -> tuple[float, float]:
    """The middle, in the canvas, of the first bar in sight whose tooltip meets a condition."""
    return tuple(
        card.evaluate(
            f"""(card) => {{
              const lanes = card.rcgLanes;
              for (let slice = 0; slice < lanes.start.length; slice += 1) {{
                const row = lanes.scene.rowWith(slice);
                const lines = lanes.scene.tell(slice);
                const x = lanes.x(lanes.start[slice] + lanes.duration[slice] / 2);
                if (row && x > lanes.gutter && x < lanes.width - 20 && ({which}))
                  return [x, row.y - lanes.scroller.scrollTop + row.height / 3];
              }}
              throw new Error("no such bar");
            }}"""
        )
    )


def click_bar(card: Any, which: str) -> None:
    x, y = point_of(card, which)
    card.locator("canvas").first.click(position={"x": x, "y": y})


HAS_PREDICTION = "({rcgLanes: l}) => l.shown.some((row) => row.part === 'predicted')"


def test_a_click_on_a_cell_lights_its_micro_batch_through_all_stages(shown: Notebook) -> None:
    step = card(shown, "pipeline", "Step")
    click_bar(step, "lines.includes('micro-batch 3') && lines[0] === 'a1 (Stage).bwd'")
    lit = step.evaluate(
        """({rcgLanes: l}) => [...l.start.keys()].filter((bar) => l.scene.isLit(bar))
          .map((bar) => l.scene.tell(bar).slice(0, 3).join(", "))"""
    )
    # Measured, and ideal.
    execution = step.locator(".rcg-subtitle").inner_text().split(",")[0]
    expected = [
        f"a{stage} (Stage).{method}, call 3 of {execution}, micro-batch 3"
        for stage in range(4)
        for method in ("fwd", "bwd")
    ]
    assert sorted(lit) == sorted(2 * expected)


def test_every_view_is_drawn_and_says_nothing_on_the_console(shown: Notebook) -> None:
    number = counts(shown)
    assert number["events"] >= 100_000
    assert data(card(shown, "timeline", "Large"))["slices"] == str(number["large"])
    assert data(card(shown, "timeline", "Timeline"))["slices"] == str(number["short"])
    for name, title in (("timeline", "Large"), ("timeline", "Timeline"), ("schedule", "Schedule")):
        found = card(shown, name, title)
        wait_for(found, "Number(data.drawn) > 30")
        assert colours(found) > 8
        assert colours(found, 1) > 2
    topology = card(shown, "topology", "Topology")
    assert data(topology)["nodes"] == "8"
    assert topology.locator(".rcg-node").count() == 8
    assert topology.locator(".rcg-amount").count() == 6
    # No style of another view shapes its boxes.
    assert topology.locator(".rcg-node rect").evaluate_all(
        "(boxes) => boxes.every((each) => each.getBBox().height == each.getAttribute('height'))"
    )
    assert shown.errors == []


def test_transfers_are_drawn_for_the_bar_that_is_pointed_at(shown: Notebook) -> None:
    hand = card(shown, "timeline", "Hand")
    shown.page.mouse.move(0, 0)
    wait_for(hand, "data.transfers === '0'")
    x, y = point_of(hand, "lines[0].includes('write c1') && lines[2].includes('communication')")
    hand.locator("canvas").first.hover(position={"x": x, "y": y})
    wait_for(hand, "data.transfers === '1'")
    shown.screenshot("timeline-pointed-light", hand)
    shown.page.mouse.move(0, 0)
    wait_for(hand, "data.transfers === '0'")


def test_a_bar_of_two_pixels_is_no_edge_over_the_whole_height(shown: Notebook) -> None:
    found = card(shown, "timeline", "Edge").evaluate(
        """({rcgLanes: lanes}) => {
          const row = lanes.shown.find((each) => each.process === "a0");
          const x = lanes.x(0.101);
          const scale = lanes.scale;
          const at = (y) => [...lanes.context.getImageData(x * scale, y * scale, 1, 1).data];
          return {width: 0.002 * lanes.perUs, top: at(row.y + 3), foot: at(row.y + row.height - 2)};
        }"""
    )
    assert 1 < found["width"] < 3
    red, green, blue, opacity = found["foot"]
    assert opacity > 120 and red > blue + 60 and green > blue + 40  # yellow
    red, green, blue, _ = found["top"]
    assert abs(red - blue) < 40


def test_a_prediction_that_does_not_fit_is_a_number(shown: Notebook) -> None:
    drifted = card(shown, "schedule", "Drifted")
    assert "not drawn: the prediction, 5" in drifted.locator(".rcg-subtitle").inner_text()
    assert not drifted.evaluate(HAS_PREDICTION)
    assert card(shown, "schedule", "Schedule").evaluate(HAS_PREDICTION)


def test_micro_batches_have_their_colours(shown: Notebook) -> None:
    """As in the picture: eight outlines, paler for the second method, and grey outside methods."""
    found = card(shown, "schedule", "Batches").evaluate(
        """({rcgLanes: lanes}) => {
          const seen = {};
          for (let slice = 0; slice < lanes.start.length; slice += 1) {
            const text = lanes.scene.labels(slice).at(-1);
            seen[/^[FB]/.test(text) ? text : ""] = lanes.look[slice];
          }
          return seen;
        }"""
    )
    marks = {f"{letter}{turn}" for letter in "FB" for turn in range(8)}
    assert set(found) == marks | {""} and found[""] == 32
    assert all(found[f"F{n}"] == 16 + n and found[f"B{n}"] == 24 + n for n in range(8))


def test_the_critical_path_is_shown_and_hidden(shown: Notebook) -> None:
    hand = card(shown, "timeline", "Hand")
    hand.get_by_label("show all").click()
    wait_for(hand, "data.path === '3'")  # driver, a0, a1: see test_views_timeline
    button = hand.get_by_label("show the critical path")
    button.click()
    wait_for(hand, "data.path === '0'")
    button.click()
    wait_for(hand, "data.path === '3'")
    # Of one execution, where one is selected.
    timeline = card(shown, "timeline", "Timeline")
    whole = int(data(timeline)["path"])
    click_bar(timeline, "lines[0].includes('fwd')")
    wait_for(timeline, f"Number(data.path) > 0 && Number(data.path) < {whole}")
    timeline.locator("canvas").first.press("Escape")
    wait_for(timeline, f"data.path === '{whole}'")


def test_a_click_lights_the_execution_in_all_lanes(shown: Notebook) -> None:
    timeline = card(shown, "timeline", "Timeline")
    timeline.get_by_label("show all").click()
    click_bar(timeline, "lines[0].includes('a1') && lines[0].includes('fwd')")
    wait_for(card(shown, "schedule", "Schedule"), "data.execution !== ''")
    turn = int(data(card(shown, "schedule", "Schedule"))["execution"])
    lit = """({rcgLanes: lanes}) => {
      const turns = {};
      for (let slice = 0; slice < lanes.start.length; slice += 1) {
        if (!lanes.scene.isLit(slice)) continue;
        const row = lanes.scene.rowWith(slice);
        const turn = /execution (\\d+)/.exec(lanes.scene.tell(slice)[1])[1];
        (turns[turn] ??= new Set()).add(row.name);
      }
      return Object.entries(turns).map(([turn, rows]) => [Number(turn), rows.size]);
    }"""
    assert timeline.evaluate(lit) == [[turn, 4]]
    timeline.locator("canvas").first.press("Escape")
    wait_for(card(shown, "schedule", "Schedule"), "data.execution === ''")


def test_a_brushed_range_is_summed_and_sorted(shown: Notebook) -> None:
    """From 100 to 600 ns of the trace by hand."""
    hand = card(shown, "timeline", "Hand")
    brush = """({rcgLanes: lanes}) => lanes.mark([0.1, 0.6])"""
    hand.evaluate(brush)
    wait_for(hand, "Number(data.sums) > 0")

    def rows() -> list[list[str]]:
        found = hand.locator(".rcg-sums tbody tr")
        return [each.locator("td").all_inner_texts() for each in found.all()]

    table = rows()
    assert table[0] == ["driver", "read c2", "waiting", "1", "500 ns", "100 %", "500 ns"]
    assert ["a0 (Stage)", "fwd", "compute", "1", "360 ns", "72 %", "360 ns"] in table
    assert ["a0 (Stage)", "attention", "span", "1", "100 ns", "20 %", "100 ns"] in table
    assert ["a0 (Stage)", "write c1", "communication", "1", "70 ns", "14 %", "70 ns"] in table
    assert len(table) == int(data(hand)["sums"])
    shown.screenshot("timeline-sums-light", hand)
    hand.get_by_role("button", name="process", exact=True).click()
    names = [each[0] for each in rows()]
    assert names == sorted(names)
    hand.get_by_role("button", name="process", exact=True).click()
    assert [each[0] for each in rows()] == sorted(names, reverse=True)
    hand.get_by_role("button", name="time", exact=True).click()
    assert rows()[0] == table[0]
    hand.get_by_label("close the sums").click()
    assert not hand.locator(".rcg-sums").is_visible()


def test_sums_are_of_measured_time_alone(shown: Notebook) -> None:
    schedule = card(shown, "schedule", "Schedule")
    schedule.evaluate("({rcgLanes: lanes}) => lanes.mark(lanes.range)")
    wait_for(schedule, "Number(data.sums) > 0")
    kinds = schedule.locator(".rcg-sums tbody td:nth-child(3)").all_inner_texts()
    assert "compute" in kinds and "predicted" not in kinds
    assert "measured time alone" in schedule.locator(".rcg-sums span").first.inner_text()
    schedule.get_by_label("close the sums").click()


def test_linked_views_show_one_window_on_one_axis(shown: Notebook) -> None:
    timeline, schedule = card(shown, "timeline", "Timeline"), card(shown, "schedule", "Schedule")
    timeline.evaluate("({rcgLanes: lanes}) => lanes.show(2000, 4000)")
    wait_for(schedule, "data.from === '2000' && data.to === '4000'")
    places = [
        each.evaluate("({rcgLanes: l}) => [l.x(2000), l.x(4000)]") for each in (timeline, schedule)
    ]
    assert places[0] == places[1]
    shown.screenshot("linked-window-light")
    timeline.get_by_label("show all").click()
    wait_for(schedule, "data.from === '0'")


def test_sixty_actors_fit_without_scrolling(shown: Notebook) -> None:
    tall = card(shown, "timeline", "Tall")
    scroller = tall.locator(".rcg-scroller")
    fits = "(each) => each.scrollHeight <= each.clientHeight + 1"
    assert scroller.evaluate(fits)
    shown.screenshot("timeline-tall-light", tall)
    tall.get_by_label("fit all rows into the view").click()
    assert not scroller.evaluate(fits)
    tall.get_by_label("fit all rows into the view").click()
    assert scroller.evaluate(fits)


def test_a_search_finds_actors_and_executions(shown: Notebook) -> None:
    hand, timeline = card(shown, "timeline", "Hand"), card(shown, "timeline", "Timeline")
    search = hand.get_by_label("find bars")
    for text, count in (("a0", 7), ("stage", 14), ("fwd", 2), ("execution 0", 18), ("#1", 0)):
        search.fill(text)
        assert hand.locator(".rcg-found").inner_text() == f"{count} found"
    search.fill("")
    search = timeline.get_by_label("find bars")
    search.fill("12")
    search.press("Enter")
    wait_for(card(shown, "schedule", "Schedule"), "data.execution === '12'")
    search.fill("")
    timeline.get_by_label("show all").click()


def test_keys_act_while_the_focus_is_in_the_card(shown: Notebook) -> None:
    """As in Perfetto; those of the notebook, where "a" makes a cell, do not."""
    hand = card(shown, "timeline", "Hand")
    page, canvas = shown.page, hand.locator("canvas").first
    cells = page.locator(".jp-Cell").count()
    click_bar(hand, "lines[0].includes('a1') && lines[0].includes('fwd')")
    wait_for(hand, "data.causes === '2'")  # a0 wrote c1; the driver wrote c0
    page.keyboard.press("c")
    wait_for(hand, "data.execution === '0'")
    assert "read c1" in hand.locator(".rcg-tooltip").inner_text()
    page.keyboard.press("f")
    wait_for(hand, "Number(data.to) - Number(data.from) < 0.05")
    for key in "addss":
        page.keyboard.press(key)
    wait_for(hand, "Number(data.to) - Number(data.from) > 0.08")
    page.keyboard.press("p")
    wait_for(hand, "data.pinned === 'a1'")
    assert hand.evaluate("(card) => card.rcgLanes.shown[0].process") == "a1"
    page.keyboard.press("?")
    assert hand.locator(".rcg-keys").is_visible()
    shown.screenshot("timeline-keys-light", hand)
    page.keyboard.press("?")
    page.keyboard.press("/")
    page.keyboard.type("a1 fwd")
    assert hand.locator(".rcg-found").inner_text() == "1 found"
    page.keyboard.press("Escape")  # to the picture, whose bar is let go, and out of it
    assert canvas.evaluate("(canvas) => canvas === document.activeElement")
    page.keyboard.press("p")  # of no bar
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    assert not canvas.evaluate("(canvas) => canvas === document.activeElement")
    hand.get_by_label("find bars").fill("")
    assert page.locator(".jp-Cell").count() == cells
    assert data(hand)["from"] == "0"
    # A click on the name lets the row go.
    where = """({rcgLanes: lanes}) => lanes.shown[0].y + lanes.shown[0].height / 2"""
    canvas.click(position={"x": 20, "y": hand.evaluate(where)})
    wait_for(hand, "data.pinned === ''")


def test_brush_wheel_and_double_click(shown: Notebook) -> None:
    large = card(shown, "timeline", "Large")
    large.get_by_label("show all").click()
    shown.settle()
    whole = data(large)
    canvas = large.locator("canvas").first
    box = canvas.bounding_box()
    page = shown.page
    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 460, box["y"] + 70, steps=4)
    page.mouse.up()
    wait_for(large, f"Number(data.to) - Number(data.from) < {float(whole['to']) / 5}")
    brushed = data(large)
    assert float(brushed["from"]) > 0
    part = large.locator(".rcg-subtitle")
    assert " shown \u00b7 executions 0 to " in part.inner_text()  # the first line says which part
    canvas.focus()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, -300)
    wait_for(
        large,
        f"Number(data.to) - Number(data.from) < "
        f"{(float(brushed['to']) - float(brushed['from'])) * 0.8}",
    )
    canvas.press("ArrowRight")
    shown.settle()
    canvas.dblclick(position={"x": 500, "y": 2})
    wait_for(large, f"data.from === '{whole['from']}' && data.to === '{whole['to']}'")
    assert part.inner_text().startswith("executions 0 to ")


def test_a_transfer_shows_both_its_ends(shown: Notebook) -> None:
    timeline = card(shown, "timeline", "Timeline")
    page = shown.page
    timeline.evaluate("(card) => card.rcgLanes.show(3000, 5000)")
    shown.settle()
    click_bar(timeline, "lines[0].includes('write c1') && lines[2].includes('communication')")
    wait_for(timeline, "data.ends === '2'")
    tooltip = timeline.locator(".rcg-tooltip")
    text = tooltip.inner_text()
    assert "execution" in text
    assert "MB" in text
    assert "GB/s" in text
    assert "→" in text
    shown.screenshot("timeline-transfer-light", timeline)
    # The other views follow.
    topology = card(shown, "topology", "Topology")
    wait_for(topology, "data.lit !== ''")
    schedule = card(shown, "schedule", "Schedule")
    wait_for(schedule, "data.execution !== ''")
    canvas = timeline.locator("canvas").first
    canvas.focus()
    canvas.press("Escape")
    wait_for(topology, "data.lit === ''")
    timeline.get_by_label("show all").click()
    assert page.locator(".rcg-tooltip:visible").count() <= 1


def test_search_counts_and_goes_to_what_it_found(shown: Notebook) -> None:
    timeline = card(shown, "timeline", "Timeline")
    search = timeline.get_by_label("find bars")
    search.fill("bwd")
    assert "90 found" in timeline.locator(".rcg-found").inner_text()
    search.press("Enter")
    timeline.locator(".rcg-tooltip").wait_for(state="visible")
    assert "bwd" in timeline.locator(".rcg-tooltip").inner_text()
    shown.screenshot("timeline-search-light", timeline)
    # Another view follows, and lets go when the search is cleared.
    topology = card(shown, "topology", "Topology")
    wait_for(topology, "data.lit !== ''")
    card(shown, "timeline", "Timeline")
    search.fill("")
    wait_for(topology, "data.lit === ''")
    timeline.get_by_label("show all").click()


def test_a_search_goes_near_enough_to_see_what_it_found(shown: Notebook) -> None:
    large = card(shown, "timeline", "Large")
    large.get_by_label("show all").click()
    shown.settle()
    shown.screenshot("timeline-large-all-light", large)
    search = large.get_by_label("find bars")
    search.fill("bwd")
    shown.settle()
    shown.screenshot("timeline-large-found-light", large)
    search.press("Enter")
    wait_for(large, "data.marked === 'true'")
    width = large.evaluate(
        "({rcgLanes: lanes}) => lanes.duration[lanes.picked] * lanes.perUs",
    )
    assert width >= 6
    shown.screenshot("timeline-large-search-light", large)
    # Far away again: there is still a slice where it is.
    large.evaluate("({rcgLanes: lanes}) => lanes.reset()")
    shown.settle()
    assert data(large)["marked"] == "true"
    shown.screenshot("timeline-large-marked-light", large)
    search.fill("")
    large.get_by_label("show all").click()


def test_all_of_a_large_topology_can_be_seen(shown: Notebook) -> None:
    wide = card(shown, "topology", "Wide")

    def is_whole() -> bool:
        return wide.evaluate(
            """(card) => {
              const frame = card.querySelector(".rcg-picture").getBoundingClientRect();
              return [...card.querySelectorAll(".rcg-actor, .rcg-node")].every((each) => {
                const {top, bottom, left, right} = each.getBoundingClientRect();
                return top >= frame.top && bottom <= frame.bottom && left >= frame.left
                  && right <= frame.right;
              });
            }"""
        )

    assert is_whole()  # 40 alike workers are one card
    wide.locator(".rcg-folded").click()
    wait_for(wide, "data.level === 'actors'")
    assert not is_whole()  # a part of it that can be read
    wide.get_by_label("show all").click()
    assert is_whole()
    shown.screenshot("topology-wide-all-light", wide)
    wide.get_by_label("zoom in").click()
    assert not is_whole()
    wide.locator(".rcg-picture").dblclick(position={"x": 3, "y": 3})
    assert is_whole()


def test_a_call_of_the_topology_is_highlighted_everywhere(shown: Notebook) -> None:
    topology = card(shown, "topology", "Topology")
    topology.locator(".rcg-call").first.hover()
    assert "median" in topology.locator(".rcg-tooltip").inner_text()
    topology.locator(".rcg-call").first.click()
    wait_for(topology, "data.lit !== ''")
    assert topology.locator(".rcg-node[aria-pressed=true]").count() == 1
    shown.screenshot("topology-selected-light", topology)
    node = topology.locator(".rcg-node[aria-pressed=true]")
    node.press("ArrowRight")
    topology.locator(".rcg-node:focus").press("Enter")
    assert topology.locator(".rcg-node[aria-pressed=true]").count() == 1
    topology.locator(".rcg-node:focus").press("Escape")
    wait_for(topology, "data.lit === ''")
    before = float(data(topology)["zoom"])
    topology.get_by_label("zoom in").click()
    assert float(data(topology)["zoom"]) > before
    topology.get_by_label("show all").click()


def test_actors_that_do_the_same_are_one_row_until_it_is_opened(shown: Notebook) -> None:
    schedule = card(shown, "schedule", "Alike")
    wait_for(schedule, "data.rows === '2'")  # the workers, what reduces
    named = "({rcgLanes: l}) => l.shown.filter((row) => row.isFirst).map((row) => row.label)"
    assert schedule.evaluate(named) == ["a0 to a39 (Worker)", "a40 (Reducer)"]
    told = "({rcgLanes: lanes}) => lanes.scene.tell(lanes.shown[0].bars.indices[0])"
    assert any(re.match("median of 40, of .* to ", line) for line in schedule.evaluate(told))
    boxes = schedule.locator(".rcg-menu-list label:not([hidden])")
    assert boxes.all_text_contents() == schedule.evaluate(named)  # in the order of the rows
    fold = schedule.get_by_label("one row, of medians")
    fold.click()
    wait_for(schedule, "data.rows === '41'")
    assert "a17 (Worker)" in schedule.evaluate(named)
    # What is not ticked stays so while its row is folded.
    schedule.locator(".rcg-menu summary").click()
    schedule.get_by_label("a17 (Worker)").uncheck()
    wait_for(schedule, "data.rows === '40'")
    schedule.locator(".rcg-menu summary").click()
    fold.click()
    wait_for(schedule, "data.rows === '2'")
    assert schedule.get_by_label("a0 to a39 (Worker)").evaluate("box => box.indeterminate")
    fold.click()
    wait_for(schedule, "data.rows === '40'")
    assert "a17 (Worker)" not in schedule.evaluate(named)


def test_the_schedule_is_stepped_through(shown: Notebook) -> None:
    schedule = card(shown, "schedule", "Schedule")
    schedule.get_by_label("the next execution").click()
    wait_for(schedule, "data.execution === '0'")
    schedule.get_by_label("the next execution").click()
    wait_for(schedule, "data.execution === '1'")
    schedule.get_by_label("execution", exact=True).fill("17")
    wait_for(schedule, "data.execution === '17'")
    shown.settle()
    shown.screenshot("schedule-step-light", schedule)
    schedule.get_by_label("the execution before").click()
    wait_for(schedule, "data.execution === '16'")
    schedule.get_by_label("show what was predicted").click()
    assert not schedule.evaluate(HAS_PREDICTION)
    schedule.get_by_label("show what was predicted").click()
    assert schedule.evaluate(HAS_PREDICTION)
    schedule.locator("summary").click()
    schedule.get_by_label("a1 (Stage)").uncheck()
    wait_for(schedule, "data.rows === '2'")
    shown.screenshot("schedule-filter-light", schedule)
    schedule.get_by_label("a1 (Stage)").check()
    schedule.locator("summary").click()
    # What the timeline has: sums of a range, and a search.
    schedule.evaluate("({rcgLanes: lanes}) => lanes.mark([0, 10000])")
    wait_for(schedule, "Number(data.sums) > 0")
    schedule.evaluate("({rcgLanes: lanes}) => lanes.mark(null)")
    schedule.get_by_label("find bars").fill("bwd")
    assert schedule.locator(".rcg-found").inner_text() == "90 found, and 12 predicted"
    schedule.get_by_label("find bars").fill("a1 idle")
    found = schedule.locator(".rcg-found").inner_text()
    assert re.fullmatch(r"[\d,]+ times waiting or idle", found), found
    schedule.get_by_label("find bars").press("Enter")
    wait_for(schedule, "Number(data.sums) > 0")
    held = "({rcgLanes: l}) => l.scene.search.gaps.map(({row}) => row.process)"
    assert set(schedule.evaluate(held)) == {"a1"}
    assert schedule.evaluate(
        """({rcgLanes: l}) => {
          const [from, to] = l.brushedRange;
          const row = l.shown.find((each) => each.process === "a1" && !each.part);
          return [...row.bars.indices].every((bar) =>
            l.start[bar] + l.duration[bar] <= from + 1e-3 || l.start[bar] >= to - 1e-3);
        }"""
    ), "nothing is done in it"
    schedule.evaluate("({rcgLanes: lanes}) => lanes.mark(null)")
    schedule.get_by_label("find bars").fill("")
    schedule.get_by_label("show all", exact=True).click()
    wait_for(schedule, "data.execution === '' && data.rows === '3'")


def test_the_monitor_stops_and_starts(shown: Notebook) -> None:
    monitor = card(shown, "monitor", "Live")
    wait_for(monitor, "Number(data.samples) > 3 && data.running === 'true'")
    shown.screenshot("monitor-light", monitor)
    assert monitor.locator(".rcg-spark-line").first.get_attribute("d")
    monitor.get_by_role("button", name="stop looking").click()
    wait_for(monitor, "data.running === 'false'")
    seen = data(monitor)["samples"]
    monitor.get_by_role("button", name="look again").click()
    wait_for(monitor, f"data.running === 'true' && Number(data.samples) > {seen}")


def test_the_monitor_has_a_row_for_each_actor_and_names_the_one_that_hangs(
    shown: Notebook,
) -> None:
    monitor = card(shown, "monitor", "pipeline (87752519)")
    wait_for(monitor, "data.state === 'running'")
    boxes = [each.bounding_box() for each in monitor.locator(".rcg-row:not(.rcg-alarm)").all()]
    assert len(boxes) == 64  # with the driver
    assert {box["height"] for box in boxes if box} == {18}
    assert len({box["x"] for box in boxes if box}) > 1  # in several columns
    trouble = monitor.locator(".rcg-alarm")  # one line, all across, with the reason
    whole, line = monitor.locator(".rcg-rows").bounding_box(), trouble.bounding_box()
    assert line and whole and line["width"] == pytest.approx(whole["width"], abs=1)
    assert trouble.locator(".rcg-row-name").inner_text() == "a17 (Stage)"
    assert trouble.locator(".rcg-row-doing").is_visible()
    assert "cannot be reached in read" in trouble.locator(".rcg-row-doing").inner_text()
    monitor = card(shown, "monitor", "Hangs")
    wait_for(monitor, "data.state === 'stuck'")
    assert (
        "a11 (Stage) holds up 40 others: in work for 7.2 s"
        in monitor.locator(".rcg-state").inner_text()
    )
    assert [each.inner_text() for each in monitor.locator(".rcg-row-name").all()] == [
        "driver", "a0 to a10 (Stage)", "a11 (Stage)", "a12 to a39 (Stage)"
    ]  # fmt: skip
    assert monitor.locator(".rcg-row[data-state='stuck']").inner_text().startswith("a11")


def test_a_slider_asks_the_kernel_what_would_be(shown: Notebook) -> None:
    found = card(shown, "what-if", "What if")
    assert data(found)["answer"] == "as measured: move a slider"
    assert found.locator(".rcg-change-row").count() == 6
    found.get_by_label("in flight", exact=True).fill("1")
    wait_for(found, "data.waiting === 'false' && data.answer.includes(' /s to ')")
    assert "if 1 execution was in flight" in found.inner_text()
    found.get_by_label("time of", exact=True).fill("0.5")
    wait_for(found, "data.waiting === 'false'")
    assert "Stage.fwd took 0.5x" in found.inner_text()
    shown.screenshot("what-if-light", found)
    found.get_by_label("all as measured").click()
    wait_for(found, "data.answer.startsWith('as measured')")
    assert shown.errors == []


@pytest.mark.parametrize("width", [1280, 640])
def test_screenshots_light_and_dark(shown: Notebook, width: int) -> None:
    shown.page.set_viewport_size({"width": width, "height": 1000})
    names = [
        ("topology", "Topology"),
        ("schedule", "Schedule"),
        ("schedule", "Plan"),
        ("timeline", "Timeline"),
        ("timeline", "Large"),
        ("monitor", "Live"),
        ("monitor", "pipeline (87752519)"),
        ("monitor", "Hangs"),
    ]
    for theme in ("dark", "light"):
        shown.theme(theme)
        for name, title in names:
            found = card(shown, name, title)
            shown.settle()
            path = shown.screenshot(f"{title.lower()}-{theme}-{width}", found)
            assert path.stat().st_size > 3000
            assert found.evaluate("(card) => card.scrollWidth <= card.clientWidth + 1")
    assert shown.errors == []


def test_views_come_back_after_a_reload(shown: Notebook) -> None:
    """The last one: the page of the others is gone after it."""
    shown.page.set_viewport_size({"width": 1280, "height": 1000})
    shown.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    expected = str(counts(shown)["large"])
    shown.page.reload()
    shown.page.wait_for_selector(".rcg-timeline[aria-label='Large'][data-ready]")
    large = card(shown, "timeline", "Large")
    wait_for(large, f"data.slices === '{expected}'")
    assert shown.errors == []
