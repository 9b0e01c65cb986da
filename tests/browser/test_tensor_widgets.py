# SPDX-License-Identifier: Apache-2.0
"""Widgets of a graph with a broadcast and a collective, in a browser without a notebook."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright", reason="Playwright for Python is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from playwright.sync_api import Page

from rcg.views.data.schedule import schedule_payload
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
from rcg.views.svg.topology_payload import topology_payload
from rcg_widgets.base import script, style
from rcg_widgets.payload import pack
from tests.browser.lab import SCREENSHOTS
from tests.unit.tensors_by_hand import tensors_by_hand

GRAPH = tensors_by_hand()
VIEWS = {
    "timeline": (
        ("common", "lanes", "timeline"),
        timeline_payload(GRAPH, slices_of(GRAPH, 0, 175)),
    ),
    "schedule": (("common", "lanes", "schedule"), schedule_payload(GRAPH.plan, GRAPH)),
    "topology": (("common", "topology"), topology_payload(GRAPH.plan, GRAPH)),
}
PAGE = """<style>%s</style><body style="--jp-layout-color1:%s"><div id="here"></div>
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
window.state = state;
view.render({ model, el: document.getElementById("here") });
</script>"""

Open = Callable[..., Page]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    pages: list[Page] = []
    said: list[str] = []

    def opened(name: str, ground: str = "#ffffff") -> Page:
        modules, payload = VIEWS[name]
        text = script(*modules).replace("export default", "const view =")
        packed = base64.b64encode(pack(*payload)).decode()
        page: Page = browser.new_page(viewport={"width": 1000, "height": 420})
        pages.append(page)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.set_content(PAGE % (style(), ground, text, packed, name))
        page.wait_for_selector("[data-ready=true]")
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []


def data(page: Page) -> dict[str, str]:
    found: dict[str, str] = json.loads(
        page.evaluate("JSON.stringify(document.querySelector('[data-ready]').dataset)")
    )
    return found


def wait_for(page: Page, condition: str) -> None:
    page.wait_for_function(
        f"() => {{ const d = document.querySelector('[data-ready]').dataset; return {condition}; }}"
    )


def test_the_timeline_joins_transfers_and_the_ranks_of_a_collective(show: Open) -> None:
    page = show("timeline")
    wait_for(page, "d.collectives === '1'")
    assert "collective" in page.locator(".rcg-legend").inner_text()


@pytest.mark.parametrize(
    ("name", "ends", "said"),
    [
        ("allreduce", 2, ["all 2 ranks: 1.27 KiB in 28 ns", "@g1 (Gloo), rank"]),
        (
            "write c1",
            3,
            ["a0 (Stage) \N{RIGHTWARDS ARROW} a2 (Stage): 2.34 KiB in 24 ns", "rank 0"],
        ),
    ],
)
def test_a_bar_of_an_exchange_shows_bytes_time_group_and_rank(
    show: Open, name: str, ends: int, said: list[str]
) -> None:
    page = show("timeline")
    wait_for(page, "d.slices > 0")
    search = page.locator("input[type=search]")
    search.fill(name)
    for _ in range(8):  # the parts of an op are bars as well
        search.press("Enter")
        tooltip = page.locator(".rcg-tooltip").inner_text()
        if "communication" in tooltip:
            break
    assert all(words in tooltip for words in said)
    wait_for(page, f"d.ends === '{ends}'")


def test_the_schedule_joins_each_exchange(show: Open) -> None:
    page = show("schedule")
    wait_for(page, "d.joins === '3'")  # to two readers, and among the ranks
    legend = page.locator(".rcg-legend").inner_text()
    assert "transfer" in legend and "collective" in legend


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


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
@pytest.mark.parametrize("name", list(VIEWS))
def test_screenshots_of_tensors(show: Open, name: str, ground: str) -> None:
    page = show(name, ground)
    theme = "light" if ground == "#ffffff" else "dark"
    wait_for(page, f"d.theme === '{theme}'")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"tensors-{name}-{theme}.png"))
