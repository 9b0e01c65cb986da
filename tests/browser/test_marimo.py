# SPDX-License-Identifier: Apache-2.0
"""Views in marimo, which takes single widgets and no containers: they are shown, and linked."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import ROOT

pytest.importorskip("marimo", reason="marimo is not installed")

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

NOTEBOOK = """
import marimo

app = marimo.App()

@app.cell
def _():
    from rcg_widgets import ScheduleWidget, TimelineWidget, link
    from tests.unit.views_traces import pipeline, simulated

    trace = simulated(pipeline(2), 12)
    timeline, schedule = TimelineWidget(trace), ScheduleWidget(trace)
    link(timeline, schedule)
    timeline
    return schedule,

@app.cell
def _(schedule):
    schedule
    return

@app.cell
def _():
    from rcg.profiling import Profile
    from tests.unit.views_traces import pipeline as stages, simulated as run

    Profile(run(stages(2), 12)).figure("shares", dark=False)
    return
"""


def wait_until_it_listens(port: int) -> None:
    for wait_s in [0.1] * 300:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(wait_s)
    raise TimeoutError(f"marimo does not listen at port {port}")


def test_linked_views_show_one_selection(browser: Any, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(NOTEBOOK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = ["run", "--headless", "--no-token", "--port", f"{port}", str(notebook)]
    page = browser.new_page()
    server = subprocess.Popen(
        [sys.executable, "-m", "marimo", *how], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        next(line for line in server.stdout if "URL" in line)
        wait_until_it_listens(port)  # it says its address before that
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        timeline, schedule = (
            page.locator(f".rcg-{name}[data-ready=true]") for name in ("timeline", "schedule")
        )
        for each in (timeline, schedule):
            each.locator("canvas").first.wait_for(timeout=60_000)
        steps = timeline.get_attribute("data-path")  # of the critical path through all executions
        schedule.get_by_label("the next execution").click()
        expect(timeline).not_to_have_attribute("data-path", steps or "", timeout=30_000)
        pytest.importorskip("plotly", reason="Plotly is not installed")
        bars = page.locator(".js-plotly-plot .barlayer .point")
        expect(bars).to_have_count(15, timeout=60_000)  # the driver and two stages, by kind of time
        assert not errors
    finally:
        page.close()
        server.terminate()
        server.wait(20)
