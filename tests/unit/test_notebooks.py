# SPDX-License-Identifier: Apache-2.0
"""What the notebooks look like as files; that they pass is checked by running them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.pictures.notebooks import NEEDS_VLLM
from tests.harness.drawn import STALE, digest

NOTEBOOKS = sorted(Path(__file__).parents[2].joinpath("notebooks").glob("*.ipynb"))


SHOWS_ERROR = "raises-exception"
TEST_CODE = re.compile(r"^\s*(assert|try|except|raise \w*Assert)\b|\bpytest\b", re.MULTILINE)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in code_cells(path) for output in cell["outputs"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
class TestEveryNotebook:
    def test_was_run_from_top_to_bottom(self, path: Path) -> None:
        counts = [cell["execution_count"] for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_was_drawn_by_the_views_of_today(self, path: Path) -> None:
        if path.name not in NEEDS_VLLM:  # `make pictures` does not store it
            assert read(path)["metadata"].get("rcg", {}).get("drawn") == digest(), STALE

    def test_has_no_code_of_tests_and_cleans_up(self, path: Path) -> None:
        """What its cells show is checked by nbval, which compares it."""
        sources = ["".join(cell["source"]) for cell in code_cells(path)]
        assert not [source for source in sources if TEST_CODE.search(source)]
        assert "ray.shutdown()" in sources[-1]

    def test_has_a_widget(self, path: Path) -> None:
        """It is stored as a picture, for viewers that run no widgets."""
        widgets = [
            output["data"]
            for output in outputs(path)
            if re.match(r"\w+Widget\(", "".join(output.get("data", {}).get("text/plain", "")))
        ]
        assert widgets
        for data in widgets:
            assert data.keys() == {"text/plain", "text/html"}
            assert "<img " in "".join(data["text/html"])

    def test_shows_errors_where_it_says_so(self, path: Path) -> None:
        for cell in code_cells(path):
            kinds = [output["output_type"] for output in cell["outputs"]]
            expected = SHOWS_ERROR in cell["metadata"].get("tags", [])
            assert ("error" in kinds) == expected, cell["source"]

    def test_has_nothing_that_needs_a_live_kernel_or_names_a_machine(self, path: Path) -> None:
        assert "widgets" not in read(path)["metadata"]
        for output in outputs(path):
            assert output.get("name") != "stderr", output
            # Which is how IPython calls a cell, also where an actor says where it is.
            shown = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "", json.dumps(output))
            assert not re.search(r"/root/|/home/|/tmp/|site-packages", shown)


CLAIMS = {
    # A notebook and one of its cells: what the prose says beside it, and between which throughputs,
    # as shares of the one before, that is true.
    ("weight_sync", "0e3a2e95"): ("Hardly: the timeline shows", 0.9, 1.1),
    ("weight_sync", "5718c32c"): ("no more throughput in it", 0.5, 1.1),
    ("profiling", "profiling-11"): ("`price` would take 2 ms instead of 8", 3, 4.5),
    ("profiling", "profiling-13"): ("It gains nothing", 0.95, 1.05),
    ("profiling", "profiling-15"): ("about four times as fast, as predicted", 3, 4.5),
    ("language_model", "compare"): ("two batches give little\nmore throughput, if any", 0.7, 1.25),
    ("overlap", "overlap-15"): ("Without overlap they would", 1.05, 2),
    ("overlap", "overlap-17"): ("they help less", 0.9, 1.1),
    ("placement", "c13"): ("what was gained", 1.2, 3),
    ("minilm_pipeline", "minilm-pipeline-15"): ("at most twice as fast", 1.1, 2.1),
    ("rdt", "fbc504c8"): ("there is a faster one", 1.2, 20),
    ("two_nodes", "two-nodes-11"): ("An execution gains a part of it", 1.05, 1.6),
}


@pytest.mark.parametrize(("notebook", "cell"), CLAIMS, ids=lambda each: each)
def test_prose_beside_a_figure_is_true_of_it(notebook: str, cell: str) -> None:
    (path,) = (each for each in NOTEBOOKS if each.stem == notebook)
    said, least, most = CLAIMS[notebook, cell]
    cells = read(path)["cells"]
    prose = ["".join(each["source"]) for each in cells if each["cell_type"] == "markdown"]
    assert any(said in text for text in prose)
    (shown,) = (each["outputs"] for each in cells if each["id"] == cell)
    text = next("".join(each["data"]["text/plain"]) for each in shown if "data" in each)
    assert least <= throughput_ratio(text) <= most


def throughput_ratio(text: str) -> float:
    """The throughput after a change, or a predicted one, divided by that before."""
    row = re.search(r"^ +executions +([\d.,]+) /s +([\d.,]+) /s", text, re.MULTILINE)
    if row is None:  # a prediction has them below each other
        row = re.search(r"measured +([\d.,]+) /s.*predicted +([\d.,]+) /s", text, re.DOTALL)
    assert row is not None
    before, after = (float(each.replace(",", "")) for each in row.groups())
    return after / before


def test_the_ratio_of_a_stored_figure_is_read() -> None:
    compared = "1.00x\n\n  executions   68.9 /s  1,378 /s  20x\n  latency  1 ms"
    assert throughput_ratio(compared) == pytest.approx(20)
    predicted = "0.5x\n   executions  latency\n  measured  100 /s  1 ms\n  predicted  50 /s  2 ms"
    assert throughput_ratio(predicted) == pytest.approx(0.5)
