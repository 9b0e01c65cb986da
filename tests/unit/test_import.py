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


def rooms_after(statement: str) -> set[str]:
    """Returns the modules of rcg that a fresh interpreter has after a statement."""
    program = f"{statement}\nimport sys; print(*(name for name in sys.modules if 'rcg' in name))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import rcg, rcg.dag",
        "import rcg; rcg.remote, rcg.get, rcg.compile, rcg.CompiledDAG, rcg.InputNode",
        "import rcg.runtime.actor.loop",
        "import rcg.runtime.driver.compiled_dag, rcg.runtime.remote.handle",
        "import rcg.ipython",
    ],
)
def test_a_process_that_only_executes_loads_neither_views_nor_analysis(statement):
    loaded = rooms_after(statement)
    assert "rcg.display" in loaded  # the names are those of modules
    seeing = ("rcg.views", "rcg.trace.analysis", "rcg.trace.export", "rcg.profiles")
    assert not {name for name in loaded if name.startswith(seeing)}


def test_what_is_shown_loads_the_views_without_the_extension_of_ipython():
    make = "import rcg\nfrom rcg.trace.model import Recording\nmade = Recording((), 0, 1)"
    assert "rcg.views.display" not in rooms_after(make)
    show = "bundle = made._repr_mimebundle_(); assert 'no graph' in bundle['text/plain']"
    assert "rcg.views.display" in rooms_after(f"{make}\n{show}")
