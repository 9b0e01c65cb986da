# SPDX-License-Identifier: Apache-2.0
"""Widgets in a browser without a notebook: of a graph with a collective, and of folded ones."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.traces import measure

pytest.importorskip("playwright", reason="Playwright for Python is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from playwright.sync_api import Locator, Page

from rcg.views.data.packing import pack
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.pictures import topology_payload
from rcg_widgets.base import script, style
from tests.browser.lab import data, wait_for
from tests.unit.tensors_by_hand import tensors_by_hand
from tests.unit.views_plans import ring_of_stages, scatter_gather

GRAPH = tensors_by_hand()
SCENE = ("common", "lanes", "panel", "scene")
VIEWS = {
    "timeline": (SCENE, timeline_scene(measure(GRAPH, 0, 175)).to_payload()),
    "schedule": (SCENE, schedule_scene(measure(GRAPH, 0, 175)).to_payload()),
    "topology": (
        ("common", "topology"),
        topology_payload(GRAPH.plan, measure(GRAPH, 0, 175)),
    ),
}
FOLDED = {
    "wide": (("common", "topology"), topology_payload(scatter_gather(26))),
    "deep": (("common", "topology"), topology_payload(ring_of_stages(3, 5))),
}
PAGE = """<style>%s</style><body style="color-scheme:%s"><div id="here"></div>
<script type="module">
%s
const bytes = Uint8Array.from(atob("%s"), (each) => each.charCodeAt(0));
const state = { payload: new DataView(bytes.buffer), title: "%s", selected_process: null,
                selected_op: null, selected_execution: null };
const heard = {};
const model = {
  get: (name) => state[name],
  set: (name, value) => {
    state[name] = value;
    (heard[`change:${name}`] ?? []).forEach((each) => each());
  },
  save_changes: () => {},
  on: (name, callback) => (heard[name] ??= []).push(callback),
  off: () => {},
};
Object.assign(window, { state, model });
view.render({ model, el: document.getElementById("here") });
</script>"""

Open = Callable[..., Page]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    pages: list[Page] = []
    said: list[str] = []

    def opened(name: str, theme: str = "light") -> Page:
        modules, payload = (VIEWS | FOLDED)[name]
        text = script(*modules).replace("export default", "const view =")
        packed = base64.b64encode(pack(*payload)).decode()
        page: Page = browser.new_page(viewport={"width": 1000, "height": 420})
        pages.append(page)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.set_content(PAGE % (style(), theme, text, packed, name))
        page.wait_for_selector("[data-ready=true]")
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []


def card(page: Page) -> Locator:
    return page.locator("[data-ready]")


@pytest.mark.parametrize("name", ["timeline", "schedule"])
def test_each_exchange_is_joined(show: Open, name: str) -> None:
    page = show(name, "dark")
    wait_for(card(page), "data.collectives === '1' && data.theme === 'dark'")
    legend = page.locator(".rcg-legend").inner_text()
    assert "transfer" in legend and "collective" in legend


@pytest.mark.parametrize(
    ("name", "ends", "said"),
    [
        ("allreduce", 2, ["all 2 ranks: 1.3 kB in 28 ns", "@g1 (Gloo), rank"]),
        (
            "write c1",
            3,
            ["a0 (Stage) \N{RIGHTWARDS ARROW} a2 (Stage): 2.4 kB in 24 ns", "rank 0"],
        ),
    ],
)
def test_a_bar_of_an_exchange_shows_bytes_time_group_and_rank(
    show: Open, name: str, ends: int, said: list[str]
) -> None:
    page = show("timeline")
    wait_for(card(page), "data.slices > 0")
    search = page.locator("input[type=search]")
    search.fill(name)
    for _ in range(8):  # the parts of an op are bars as well
        search.press("Enter")
        tooltip = page.locator(".rcg-tooltip").inner_text()
        if "communication" in tooltip:
            break
    assert all(words in tooltip for words in said)
    wait_for(card(page), f"data.ends === '{ends}'")


def test_a_window_is_followed_and_none_shows_all(show: Open) -> None:
    page = show("timeline")
    page.evaluate("model.set('window', [0.05, 0.1])")
    wait_for(card(page), "data.from === '0.05' && data.to === '0.1'")
    page.evaluate("model.set('window', null)")
    wait_for(card(page), "data.from === '0' && data.to === '0.175'")


def test_the_topology_lists_groups_and_highlights_a_collective_by_any_rank(show: Open) -> None:
    page = show("topology")
    assert "group g1 \N{MIDDLE DOT} Gloo" in page.locator(".rcg-legend").inner_text()
    pill = page.locator(".rcg-collective")
    assert pill.count() == 1
    pill.click()
    assert page.evaluate("[state.selected_process, state.selected_op]") == ["a2", 4]
    assert pill.get_attribute("aria-pressed") == "true"
    pill.click()
    assert page.evaluate("state.selected_process") is None


IS_WIDE_ENOUGH = """() => {
  const frame = document.querySelector(".rcg-picture").getBoundingClientRect();
  return [...document.querySelectorAll(".rcg-node")].every((each) => {
    const { left, right } = each.getBoundingClientRect();
    return left >= frame.left && right <= frame.right;
  });
}"""


def test_a_card_of_alike_actors_is_opened_by_a_click_and_closed_by_its_button(show: Open) -> None:
    page = show("wide")
    assert (data(card(page))["level"], data(card(page))["nodes"]) == ("methods", "4")
    page.locator(".rcg-folded").hover()
    assert "a0 to a25" in page.locator(".rcg-tooltip").inner_text()
    page.locator(".rcg-folded").click()
    wait_for(card(page), "data.level === 'actors' && data.nodes === '29'")
    assert page.locator(".rcg-node").count() == 29
    assert page.evaluate(IS_WIDE_ENOUGH)
    # An actor is selected now, as in the other views.
    page.locator(".rcg-call").first.click()
    assert page.evaluate("[state.selected_process, state.selected_op]") == ["a0", 1]
    assert page.locator("[aria-pressed=true].rcg-node").count() == 1
    page.get_by_text("methods").click()
    wait_for(card(page), "data.level === 'methods' && data.nodes === '4'")
    assert page.locator(".rcg-node[aria-pressed=true]").count() == 1  # what it is in


def test_a_method_is_opened_by_a_key_to_its_calls(show: Open) -> None:
    page = show("deep")
    assert (data(card(page))["level"], data(card(page))["nodes"]) == ("methods", "5")
    page.locator(".rcg-folded").nth(1).press("Enter")
    wait_for(card(page), "data.level === 'calls' && data.nodes === '17'")
    assert page.evaluate("[state.selected_process, state.selected_op]") == ["a1", None]
    assert page.locator(".rcg-node:not(.rcg-off)").count() > 5  # its calls, and what is beside them
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Stage.step"
    )
    page.keyboard.press("Enter")
    assert page.evaluate("state.selected_op") is not None
    page.keyboard.press("Escape")
    wait_for(card(page), "data.lit === ''")


@pytest.mark.parametrize("width", [420, 1000])
@pytest.mark.parametrize("name", list(FOLDED))
def test_a_topology_fits_the_width_of_its_cell(show: Open, name: str, width: int) -> None:
    page = show(name)
    page.set_viewport_size({"width": width, "height": 700})
    for level in ("methods", page.locator(".rcg-controls button").nth(1).inner_text()):
        page.get_by_text(level, exact=True).click()
        page.wait_for_function(IS_WIDE_ENOUGH)
