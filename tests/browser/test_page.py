# SPDX-License-Identifier: Apache-2.0
"""A saved page in a browser: from a file, without a network, without scripts, on a phone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="Playwright for Python is not installed")

from playwright.sync_api import Locator, Page

from rcg.profiling import Profile
from rcg.views.html.page import page_of
from tests.browser.lab import SCREENSHOTS, data, wait_for
from tests.unit.views_traces import microbatches, pipeline, simulated

VIEWS = ("topology", "schedule", "timeline")

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a short trace, and of one whose bars do not all fit."""
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in ("short", "batches", "large")}
    Profile(simulated(pipeline(3, is_training=True), 30, spans=True)).save_html(
        paths["short"], "A run to share"
    )
    paths["batches"].write_text(page_of(simulated(microbatches(), 6), "Batches"))
    paths["large"].write_text(
        page_of(simulated(pipeline(4), 2_000, jitter=0.3), "A long run", max_bytes=410_000)
    )
    return paths


@pytest.fixture
def open_page(browser: Any, saved: dict[str, Path]) -> Iterator[Open]:
    contexts: list[Any] = []
    said: list[str] = []

    def opened(name: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page: Page = context.new_page()
        url = saved[name].as_uri()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: request.url == url or said.append(request.url))
        page.goto(url)
        if options.get("java_script_enabled", True):
            for name in VIEWS:
                page.wait_for_selector(f".rcg-{name}[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def screenshot(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{name}.png"), full_page=True)


def point_of_call(timeline: Locator, execution: int) -> dict[str, float]:
    """Make the bar of a call visible; return where it is."""
    found: dict[str, float] = timeline.evaluate(
        """(card, execution) => {
          const lanes = card.rcgLanes;
          const is = (slice) => {
            const [, which, kind] = lanes.scene.tell(slice);
            return which === `execution ${execution}` && kind.startsWith("compute");
          };
          const slice = [...lanes.start.keys()].find(is);
          lanes.reveal(slice, true);
          const row = lanes.scene.rowWith(slice);
          const x = lanes.x(lanes.start[slice] + lanes.duration[slice] / 2);
          return {x, y: row.y + row.height / 2};
        }""",
        execution,
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_of_a_saved_page_zoom_and_share_what_is_selected(
    open_page: Open, scheme: str
) -> None:
    page = open_page("short", color_scheme=scheme)
    topology, schedule, timeline = (page.locator(f".rcg-{name}") for name in VIEWS)
    assert {data(each)["theme"] for each in (topology, schedule, timeline)} == {scheme}
    assert page.locator("[data-view]:not(script)").count() == 0  # their pictures are gone
    assert page.locator(".rcg-figure svg").count() == 2  # the profile, wide and narrow, is not
    screenshot(page, f"page-{scheme}")
    keys = timeline.locator(".rcg-key").all_inner_texts()
    assert "critical path" in keys
    assert any(each.startswith("values on their way") and "up to" in each for each in keys)
    span = float(data(timeline)["to"]) - float(data(timeline)["from"])
    timeline.get_by_label("zoom in").click()
    wait_for(timeline, f"data.to - data.from < {span} * 0.7")
    shown = data(timeline)
    wait_for(schedule, f"Math.abs(data.from - {shown['from']}) < 1e-2")
    wait_for(schedule, f"Math.abs(data.to - {shown['to']}) < 1e-2")
    timeline.get_by_label("show all", exact=True).click()
    timeline.locator("canvas").first.click(position=point_of_call(timeline, 7))
    wait_for(schedule, "data.execution === '7'")
    wait_for(topology, "data.lit !== ''")
    page.locator(".rcg-topology .rcg-node").nth(1).press("Escape")
    wait_for(topology, "data.lit === ''")


@pytest.mark.parametrize("name", ["short", "batches"])
def test_labels_of_a_timeline_are_those_of_its_picture(open_page: Open, name: str) -> None:
    page = open_page(name, java_script_enabled=False)
    picture = page.locator("[data-view=timeline] svg").first
    painted = picture.locator("[text-anchor=middle] > text").all_text_contents()
    drawn = (
        open_page(name)
        .locator(".rcg-timeline")
        .evaluate(
            """({rcgLanes: lanes}) => {
          const texts = [];
          lanes.context.fillText = (text) => texts.push(text);
          lanes.draw();
          return texts;
        }"""
        )
    )
    heads = re.compile(r"Stage|driver|queue|spans")
    assert Counter(painted) == Counter(each for each in drawn if not heads.match(each)) != {}
    assert any(each.startswith("waits for") for each in painted) == (name == "batches")


@pytest.mark.parametrize("width", [1200, 330])
def test_a_legend_explains_numbers_where_there_are_some(open_page: Open, width: int) -> None:
    page = open_page("batches", viewport={"width": width, "height": 900})
    for view in ("pipeline", "schedule", "timeline"):
        card = page.locator(f".rcg-{view}")
        is_numbered = card.evaluate(
            """({rcgLanes: lanes}) => {
              const texts = [];
              lanes.context.fillText = (text) => texts.push(text);
              lanes.draw();
              return texts.some((each) => /^[FB]?\\d$/.test(each));
            }"""
        )
        sign = card.locator(".rcg-key", has_text="number of the ")
        assert sign.is_visible() == is_numbered
        assert is_numbered or width < 1200


def test_what_is_not_in_the_page_is_said_and_not_drawn_as_if_it_were(open_page: Open) -> None:
    page = open_page("large")
    timeline = page.locator(".rcg-timeline")
    assert "each bar is a sum of" in timeline.locator(".rcg-note").inner_text()
    first = timeline.evaluate(
        """(card) => {
          const lanes = card.rcgLanes;
          const { scene } = lanes;
          const isSum = (slice) => scene.isSum(slice) && scene.labels(slice)[0].endsWith("fwd");
          const sum = [...lanes.start.keys()].find(isSum);
          lanes.show(0, 6 * scene.head.sums.bin_us);
          return [parseInt(scene.labels(sum)[0]), scene.tell(sum)];
        }"""
    )
    assert first[0] > 1
    assert "sums of" in first[1][0] and any("longest" in line for line in first[1])
    screenshot(page, "page-sums")
    timeline.get_by_role("button", name="show the time that has single bars").click()
    wait_for(timeline, "data.from > 0")
    timeline.locator("input[type=search]").fill("3")
    assert "among the single bars" in timeline.locator(".rcg-found").inner_text()


def test_without_scripts_a_phone_shows_narrow_pictures_and_where_a_table_goes_on(
    open_page: Open,
) -> None:
    page = open_page("short", viewport={"width": 390, "height": 844}, java_script_enabled=False)
    shown = page.locator(".rcg-figure.rcg-narrow:visible > svg")
    assert shown.count() == 2 and page.locator(".rcg-figure.rcg-wide:visible").count() == 0
    for width in shown.evaluate_all("(found) => found.map((e) => e.clientWidth)"):
        assert width <= 370
    table = page.locator("section.rcg-static", has_text="Operations")
    assert table.evaluate("(card) => card.scrollWidth > card.clientWidth")
    assert "local" in table.evaluate("(card) => getComputedStyle(card).backgroundAttachment")
    screenshot(page, "page-phone-without-scripts")


def test_without_scripts_the_pictures_are_there(open_page: Open) -> None:
    page = open_page("short", java_script_enabled=False)
    assert page.locator(".rcg-card").count() == 0
    pictures = page.locator(".rcg-figure > svg")
    assert pictures.count() == 7
    assert [each.is_visible() for each in pictures.all()].count(False) == 2  # narrow forms
    assert page.get_by_text("limits this").first.is_visible()
    screenshot(page, "page-without-scripts")


def test_a_phone_shows_it_without_scrolling_aside_and_fingers_scroll_and_zoom(
    open_page: Open,
) -> None:
    page = open_page(
        "short", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    screenshot(page, "page-phone")
    topology = page.locator(".rcg-topology")
    assert float(data(topology)["zoom"]) <= 1, "all of it is in view"
    boxes = topology.locator(".rcg-node").evaluate_all(
        "(found) => found.map((each) => each.getBoundingClientRect().right)"
    )
    assert len(boxes) == int(data(topology)["nodes"]) and max(boxes) <= 390
    timeline = page.locator(".rcg-timeline")
    assert timeline.evaluate("(card) => card.rcgLanes.gutter / card.rcgLanes.width") <= 0.2
    assert timeline.get_by_role("button", name="what keys do").count() == 0, "there are none"
    zoom = timeline.locator(".rcg-zoom button").evaluate_all(
        "(found) => found.map((each) => each.getBoundingClientRect().top)"
    )
    assert len(zoom) == 3 and len(set(zoom)) == 1, "minus, plus and all are in one line"
    timeline.scroll_into_view_if_needed()
    frame = timeline.locator("canvas").first.bounding_box()
    assert frame is not None
    x, y = frame["x"] + frame["width"] * 0.6, frame["y"] + frame["height"] / 2
    client = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        found = [{"x": x, "y": y, "id": at} for at, (x, y) in enumerate(points)]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": found})

    def drag(*ways: tuple[float, float]) -> None:
        """One finger for each way, in steps."""
        touch("touchStart", *[(x + 30 * at, y) for at in range(len(ways))])
        for step in range(1, 9):
            touch(
                "touchMove",
                *[(x + 30 * at + dx * step, y + dy * step) for at, (dx, dy) in enumerate(ways)],
            )
        touch("touchEnd")

    before, top = data(timeline), page.evaluate("scrollY")
    drag((-4, 0), (8, 0))  # apart
    wait_for(timeline, f"data.to - data.from < ({before['to']} - {before['from']}) * 0.8")
    near = data(timeline)
    drag((-10, 0))  # aside
    wait_for(timeline, f"data.from > {near['from']}")
    assert page.evaluate("scrollY") == top
    shown = data(timeline)
    drag((0, -20))  # up: the page scrolls
    page.wait_for_function(f"() => scrollY > {top} + 50")
    assert data(timeline)["from"] == shown["from"]
