# SPDX-License-Identifier: Apache-2.0
"""How long a newcomer waits: from an empty environment to the first picture in a notebook."""

from __future__ import annotations

import itertools
import json
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from release.files import DIST, WORK, Failure, run

_CELLS: Final = (
    "import rcg as ray\nfrom rcg.dag import InputNode",
    "@ray.remote\nclass Stage:\n    def work(self, text):\n        return text + '!'",
    "a, b = Stage.remote(), Stage.remote()\n"
    "with InputNode() as inp:\n"
    "    dag = b.work.bind(a.work.bind(inp))\n"
    "graph = dag.experimental_compile()\n"
    "ray.get(graph.execute('one'))",
    "graph",
)


def measure() -> str:
    """Install the wheel with its extra ``notebook`` by pip and run a notebook; says the times."""
    place = WORK / "newcomer"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    [wheel] = DIST.glob(f"*{platform.machine()}.whl")
    _write_notebook(place / "first.ipynb")
    times = [time.monotonic()]
    run(sys.executable, "-m", "venv", place / "venv")
    times.append(time.monotonic())
    python = place / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"rcg[notebook] @ {wheel.as_uri()}")
    times.append(time.monotonic())
    run(
        *(python, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook"),
        *("--output", "done.ipynb", "first.ipynb"),
        cwd=place,
        variables={
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "RAY_ADDRESS": "local",
            "RAY_raylet_start_wait_time_s": "180",  # a busy machine takes long to start Ray
        },
    )
    times.append(time.monotonic())
    if "image/svg+xml" not in (place / "done.ipynb").read_text():
        raise Failure("the notebook has no picture of the graph")
    steps = [after - before for before, after in itertools.pairwise(times)]
    return (
        f"{sum(steps):.0f} s from nothing to the first picture: environment {steps[0]:.0f} s, "
        f"pip install {steps[1]:.0f} s, notebook {steps[2]:.0f} s"
    )


def _write_notebook(path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(_CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}}
    path.write_text(json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}))
