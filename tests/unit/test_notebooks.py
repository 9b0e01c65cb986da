# SPDX-License-Identifier: Apache-2.0
"""What the notebooks look like as files; that they pass is checked by running them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted(Path(__file__).parents[2].joinpath("notebooks").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def test_there_is_a_quickstart() -> None:
    assert "quickstart.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
class TestEveryNotebook:
    def test_was_run_from_top_to_bottom(self, path: Path) -> None:
        counts = [cell["execution_count"] for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_shows_what_it_printed(self, path: Path) -> None:
        for cell in code_cells(path):
            prints = re.search(r"^\s*print\(", "".join(cell["source"]), re.MULTILINE)
            assert bool(cell["outputs"]) >= bool(prints), cell["source"]

    def test_asserts_and_cleans_up(self, path: Path) -> None:
        sources = ["".join(cell["source"]) for cell in code_cells(path)]
        assert any("assert " in source for source in sources)
        assert "ray.shutdown()" in sources[-1]

    def test_has_nothing_that_needs_a_live_kernel_or_names_a_machine(self, path: Path) -> None:
        assert "widgets" not in read(path)["metadata"]
        for cell in code_cells(path):
            for output in cell["outputs"]:
                assert output["output_type"] != "error"
                assert output.get("name") != "stderr", output
                # Which is how IPython calls a cell, also where an actor says where it is.
                shown = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "", json.dumps(output))
                assert "/root/" not in shown
                assert "/tmp/" not in shown
