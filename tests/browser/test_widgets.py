# SPDX-License-Identifier: Apache-2.0
"""The widgets in a real JupyterLab: drawn, clicked through, looked at in light and in dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.lab import Lab, Notebook

EXECUTIONS = 2000

CELLS = (
    f"""
from rcg_widgets import LiveMonitor, ScheduleWidget, TimelineWidget, TopologyWidget, link
from tests.browser.synthetic import pipeline, trace_of

trace = trace_of(pipeline(6), {EXECUTIONS})
short = trace_of(pipeline(3), 30)
""",
    "topology = TopologyWidget(short)\ntopology",
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
    "selection = link(topology, schedule, timeline)",
    "ScheduleWidget(pipeline(3), title='Plan')",
    "timeline",  # a second view of one model
    """
from tests.unit.views_plans import scatter_gather

TopologyWidget(scatter_gather(40), title="Wide")
""",
    """
import json
from rcg.views.data.slicing import slices_of

print(json.dumps({
    "events": trace.num_events,
    "large": len(slices_of(trace.graphs[0], trace.start_ns, trace.end_ns)),
    "short": len(slices_of(short.graphs[0], short.start_ns, short.end_ns)),
}))
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
            "() => document.querySelectorAll('.rcg-card[data-ready]').length === 8"
        )
        yield notebook


def card(shown: Notebook, name: str, title: str, nth: int = 0) -> Any:
    found = shown.page.locator(f".rcg-{name}[aria-label='{title}']").nth(nth)
    found.scroll_into_view_if_needed()
    return found


def data(card: Any) -> dict[str, str]:
    return card.evaluate("(card) => ({...card.dataset})")


def counts(shown: Notebook) -> dict[str, int]:
    [output] = shown.outputs()[-1]
    return json.loads(output["text"])


def wait_for(card: Any, condition: str) -> None:
    """Until a condition of the card's data holds."""
    card.page.wait_for_function(
        f"(card) => {{ const data = card.dataset; return {condition}; }}",
        arg=card.element_handle(),
    )


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
                const row = lanes.rowWith(slice);
                const lines = lanes.look.tell(slice);
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


def test_every_view_is_drawn_and_says_nothing_on_the_console(shown: Notebook) -> None:
    number = counts(shown)
    assert number["events"] >= 100_000
    assert data(card(shown, "timeline", "Large"))["slices"] == str(number["large"])
    assert data(card(shown, "timeline", "Timeline"))["slices"] == str(number["short"])
    for name, title in (("timeline", "Large"), ("timeline", "Timeline"), ("schedule", "Schedule")):
        found = card(shown, name, title)
        wait_for(found, "Number(data.drawn) > 100")
        assert colours(found) > 8
        assert colours(found, 1) > 2
    topology = card(shown, "topology", "Topology")
    assert data(topology)["nodes"] == "8"
    assert topology.locator(".rcg-node").count() == 8
    assert topology.locator(".rcg-amount").count() == 6
    assert shown.errors == []


def test_it_is_drawn_fast(shown: Notebook) -> None:
    """No limit: written down, for people."""
    large = card(shown, "timeline", "Large")
    took = large.evaluate(
        """(card) => {
          const lanes = card.rcgLanes;
          const times = [];
          for (let turn = 0; turn < 40; turn += 1) {
            lanes.span = [0, (lanes.range[1] * (turn + 1)) / 40];
            lanes.draw();
            times.push(Number(card.dataset.drawMs));
          }
          times.sort((one, other) => one - other);
          return {median: times[20], most: times[39]};
        }"""
    )
    print(f"\n{counts(shown)['large']:,} bars: {took['median']} ms, at most {took['most']} ms")
    assert took["median"] > 0


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


def test_a_transfer_shows_both_its_ends(shown: Notebook) -> None:
    timeline = card(shown, "timeline", "Timeline")
    page = shown.page
    timeline.evaluate("(card) => card.rcgLanes.show(3000, 5000)")
    shown.settle()
    click_bar(timeline, "lines[0].includes('write') && lines[1].includes('communication')")
    wait_for(timeline, "data.ends === '2'")
    tooltip = timeline.locator(".rcg-tooltip")
    text = tooltip.inner_text()
    assert "execution" in text
    assert "MiB" in text
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
    search = timeline.get_by_label("find bars by name")
    search.fill("backward")
    assert "90 found" in timeline.locator(".rcg-found").inner_text()
    search.press("Enter")
    timeline.locator(".rcg-tooltip").wait_for(state="visible")
    assert "backward" in timeline.locator(".rcg-tooltip").inner_text()
    shown.screenshot("timeline-search-light", timeline)
    # Another view follows, and lets go when the search is cleared.
    topology = card(shown, "topology", "Topology")
    wait_for(topology, "data.lit !== ''")
    card(shown, "timeline", "Timeline")
    search.fill("")
    wait_for(topology, "data.lit === ''")
    search.fill("backward")
    search.press("Enter")
    wait_for(topology, "data.lit !== ''")
    search.fill("")
    timeline.get_by_label("show all").click()
    wait_for(topology, "data.lit === ''")


def test_a_search_goes_near_enough_to_see_what_it_found(shown: Notebook) -> None:
    large = card(shown, "timeline", "Large")
    large.get_by_label("show all").click()
    shown.settle()
    shown.screenshot("timeline-large-all-light", large)
    search = large.get_by_label("find bars by name")
    search.fill("backward")
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


def test_the_schedule_is_stepped_through(shown: Notebook) -> None:
    schedule = card(shown, "schedule", "Schedule")
    schedule.get_by_label("the next execution").click()
    wait_for(schedule, "data.execution === '0'")
    schedule.get_by_label("the next execution").click()
    wait_for(schedule, "data.execution === '1'")
    schedule.get_by_label("execution", exact=True).fill("17")
    wait_for(schedule, "data.execution === '17' && Number(data.outlines) > 0")
    shown.settle()
    shown.screenshot("schedule-step-light", schedule)
    schedule.get_by_label("the execution before").click()
    wait_for(schedule, "data.execution === '16'")
    schedule.get_by_label("show what was predicted").click()
    wait_for(schedule, "data.predicted === 'false' && data.outlines === '0'")
    schedule.get_by_label("show what was predicted").click()
    schedule.get_by_label("show what was measured").click()
    wait_for(schedule, "data.measured === 'false' && Number(data.outlines) > 0")
    shown.settle()
    shown.screenshot("schedule-predicted-light", schedule)
    schedule.get_by_label("show what was measured").click()
    schedule.locator("summary").click()
    schedule.get_by_label("a1 (Stage1)").uncheck()
    wait_for(schedule, "data.rows === '3'")
    shown.screenshot("schedule-filter-light", schedule)
    schedule.get_by_label("a1 (Stage1)").check()
    schedule.locator("summary").click()
    schedule.get_by_label("all executions").click()
    wait_for(schedule, "data.execution === '' && data.rows === '4'")


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
