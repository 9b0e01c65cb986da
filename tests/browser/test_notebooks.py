# SPDX-License-Identifier: Apache-2.0
"""Every notebook, opened and run in a real JupyterLab: no errors, pictures that show something."""

from __future__ import annotations

import os
from pathlib import Path

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


def check_pictures(notebook: Notebook) -> None:
    for colours in notebook.page.evaluate(_COLOURS):
        assert colours > 2
    assert notebook.page.evaluate(_BLANK) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(lab: Lab, path: Path) -> None:
    with lab.open(path, height=1400) as notebook:
        for outputs in notebook.run_all(500):
            for output in outputs:
                assert output["output_type"] != "error", "\n".join(output["traceback"])
        notebook.page.wait_for_function(
            "() => [...document.querySelectorAll('.rcg-card[data-theme]')]"
            ".every((card) => card.dataset.ready)"
        )
        for theme in ("light", "dark"):
            notebook.theme(theme)
            check_pictures(notebook)
            notebook.screenshot_of_all(f"notebook-{path.stem}-{theme}")
        assert notebook.errors == []
