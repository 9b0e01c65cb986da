# SPDX-License-Identifier: Apache-2.0
"""Every notebook, opened and run in a real JupyterLab: no errors, pictures that show something."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import ROOT, Lab, Notebook

# All of them run under nbval as well. `make browser` opens all, the usual run of the tests the one
# that shows most.
NOTEBOOKS = sorted(
    ROOT.joinpath("notebooks").glob(
        "*.ipynb" if os.environ.get("BROWSER_NOTEBOOKS") == "all" else "profiling.ipynb"
    )
)

# For each picture in the outputs how many colours it has; an image that did not load has none.
_COLOURS = """async () => {
  const pictures = document.querySelectorAll(".jp-OutputArea-output img");
  const found = [];
  for (const picture of pictures) {
    try { await picture.decode(); } catch { found.push(0); continue; }
    const canvas = document.createElement("canvas");
    canvas.width = Math.min(picture.naturalWidth, 800);
    canvas.height = Math.min(picture.naturalHeight, 800);
    if (!canvas.width || !canvas.height) { found.push(0); continue; }
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
    found.push(new Set(new Uint32Array(data.buffer)).size);
  }
  return found;
}"""

# Canvases that nothing was drawn on.
_BLANK = """() => [...document.querySelectorAll(".rcg-card canvas")].filter((canvas) => {
  if (!canvas.width || !canvas.height) return true;
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return !data.some((value) => value);
}).length"""


# A reader who tries things runs all cells again, without the clean-up.
_AGAIN = """async () => {
  await jupyterapp.shell.currentWidget.context.ready;  // else what is loaded would come over it
  const {cells} = jupyterapp.shell.currentWidget.content.model.sharedModel;
  for (const cell of cells) {
    cell.setSource(cell.getSource().replace("ray.init(", "ray.init(ignore_reinit_error=True, "));
  }
  cells.filter((cell) => cell.cell_type === "code").at(-1).setSource(%r);
}"""

# In the place of the cell that cleans up: how many graphs and actors there are.
_CENSUS = """import time
from ray._private.state import actors
from rcg.runtime.driver.compiled_dag import live_graphs

def alive():
    return sum(each["State"] == "ALIVE" for each in actors().values())

rcg_first_count = globals().get("rcg_first_count", alive())
guard = time.monotonic() + 60
while alive() > rcg_first_count and time.monotonic() < guard:
    time.sleep(0.1)  # until Ray has ended those whose handles have gone
[len(live_graphs()), alive()]
"""


_IS_COUNTED = """() => jupyterapp.shell.currentWidget.content.widgets
  .filter((cell) => cell.model.type === "code").at(-1).model.toJSON().outputs.length > 0"""


def census(outputs: list[list[dict[str, Any]]]) -> list[int]:
    """How many graphs and actors there were at the end of a run."""
    [text] = [each["data"]["text/plain"] for each in outputs[-1] if "data" in each]
    found: list[int] = json.loads(text)
    return found


def check_errors(path: Path, outputs: list[list[dict[str, Any]]]) -> None:
    """Only cells that are there to show an error have one."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell, shown in zip(code, outputs, strict=True):
        if "raises-exception" not in cell["metadata"].get("tags", []):
            for output in shown:
                assert output["output_type"] != "error", "\n".join(output["traceback"])


def check_pictures(notebook: Notebook) -> None:
    for colours in notebook.page.evaluate(_COLOURS):
        assert colours > 2
    assert notebook.page.evaluate(_BLANK) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_says_and_run_again_leaves_no_more_graphs_and_actors(
    lab: Lab, path: Path
) -> None:
    with lab.open(path, height=1400) as notebook:
        notebook.page.evaluate(_AGAIN % _CENSUS)
        runs = []
        for _ in range(2):
            check_errors(path, notebook.run_all(500))
            # The last cell's value comes by itself.
            notebook.page.wait_for_function(_IS_COUNTED, timeout=90_000)
            runs.append(census(notebook.outputs()))
        assert runs[0][0] >= 1
        assert runs == [runs[0]] * 2
        notebook.page.wait_for_function(
            "() => [...document.querySelectorAll('.rcg-card[data-theme]')]"
            ".every((card) => card.dataset.ready)"
        )
        for theme in ("light", "dark"):
            notebook.theme(theme)
            check_pictures(notebook)
            notebook.screenshot_of_all(f"notebook-{path.stem}-{theme}")
        assert notebook.errors == []
