# SPDX-License-Identifier: Apache-2.0
"""Charts of plotly, and pictures of Graphviz, in a JupyterLab."""

from __future__ import annotations

import shutil

import pytest

from tests.browser.lab import Lab

pytest.importorskip("plotly", reason="Plotly is not installed")

pytestmark = pytest.mark.browser

CELLS = [
    """
from rcg.profiling import Profile
from rcg.views.data.topology import topology_of
from rcg.views.visualize import visualize
from tests.unit.views_plans import steps_around_allreduces
from tests.unit.views_traces import microbatches, simulated

profile = Profile(simulated(microbatches(), 30))
meeting = topology_of(steps_around_allreduces(3))
""",
    'profile.figure("schedule")',
    """
chart = profile.figure("latency", dark=True)
chart.update_layout(title="mine")
""",
    "visualize(meeting)",
    'visualize(meeting, layout="dot")',
]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's dot is not installed")
def test_charts_and_pictures_show_themselves(lab: Lab) -> None:
    with lab.open(lab.write("charts.ipynb", CELLS)) as notebook:
        outputs = notebook.run_all()
        assert [len(each) for each in outputs] == [0, 1, 1, 1, 1]
        stored = [set(each[0]["data"]) for each in outputs[1:]]
        mime = "application/vnd.plotly.v1+json"
        # What was not changed is stored with a picture of rcg for viewers without scripts.
        assert "data:image/svg+xml" in str(outputs[1][0]["data"]["text/html"])
        assert mime in stored[0] and mime in stored[1]
        assert "data:image/svg+xml" not in str(outputs[2][0]["data"].get("text/html", ""))
        plots = notebook.page.locator(".js-plotly-plot")
        plots.nth(1).wait_for(timeout=60_000)
        titles = notebook.page.locator(".js-plotly-plot .gtitle").all_text_contents()
        assert [title.partition(" of ")[0] for title in titles] == ["Schedule", "mine"]
        for cell in (3, 4):
            assert "data:image/svg+xml" in str(outputs[cell][0]["data"]["text/html"])
        inks = set()
        for theme in ("light", "dark"):
            notebook.theme(theme)
            notebook.screenshot_of_all(f"charts-{theme}")
            title = notebook.page.locator(".gtitle tspan[style*=jp-ui-font]").first
            inks.add(title.evaluate("each => getComputedStyle(each).fill"))
        assert len(inks) == 2  # a title has the ink of the page
