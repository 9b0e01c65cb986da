# SPDX-License-Identifier: Apache-2.0
"""What importing rcg's rooms loads: nothing that only some people have, or that takes long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rcg

ROOT = Path(rcg.__file__).parents[1]

# Only where they are asked for. (tqdm would be one more, but Ray loads it.)
HEAVY = {
    "torch",
    "cupy",
    "pandas",
    "plotly",
    "matplotlib",
    "graphviz",
    "IPython",
    "ipywidgets",
    "anywidget",
    "jupyterlab",
    "perfetto",
    "rcg_widgets",
}


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level modules that a fresh interpreter has after a statement."""
    program = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_the_face_loads_neither_ray_nor_numpy():
    assert not loaded_by("import rcg") & (HEAVY | {"ray", "numpy"})


@pytest.mark.parametrize(
    "statement",
    [
        "import rcg; rcg.remote, rcg.get, rcg.compile, rcg.CompiledDAG",
        "import rcg.dag",
        "import rcg.trace.trace, rcg.trace.analysis.figures",
        "import rcg.views",
        "import rcg.cli, rcg.doctor, rcg.progress",
    ],
)
def test_no_room_loads_what_only_some_have(statement):
    assert not loaded_by(statement) & HEAVY
