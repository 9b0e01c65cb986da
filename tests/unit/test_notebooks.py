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
