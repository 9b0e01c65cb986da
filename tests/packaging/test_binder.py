# SPDX-License-Identifier: Apache-2.0
"""Binder: its steps run once in a clean environment, and the quickstart runs in what they made."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.packaging import test_install
from tests.packaging.test_install import ROOT, SOURCES, make_environment

pytestmark = pytest.mark.full

WHERE = """
import pathlib, sys
import rcg, rcg._native, rcg_widgets
for module in (rcg, rcg._native, rcg_widgets):
    assert pathlib.Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout as Binder has it: nothing is built."""
    folder = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", ".*")
    for name in (*SOURCES, "binder"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a clean environment in which Binder's steps have run."""
    python = make_environment(tmp_path_factory.mktemp("environment") / "venv")
    # A `dot` that fails, first on the path: nothing may ask it for anything.
    dot = python.parent / "dot"
    dot.write_text(f"#!/bin/sh\ntouch {dot}.was-asked\nexit 1\n")
    dot.chmod(0o755)
    # What it depends on is there, as in the tests of the wheel: nothing is fetched.
    step = str(tree / "binder" / "postBuild")
    print(run(python, step, cwd=tree, PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0"))
    return python


def run(python: Path, *command: str, cwd: Path, **variables: str) -> str:
    """Runs a command whose `python` is that one; a failure tells everything that it said."""
    path = f"{python.parent}:{os.environ['PATH']}"
    return test_install.run(*command, cwd=cwd, PATH=path, RAY_ADDRESS="local", **variables)


def first_cells(notebook: Path) -> str:
    """The code of a notebook up to its first teardown of a graph, as a program without magics."""
    code = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code.append("".join(line for line in cell["source"] if not line.startswith("%")))
            if "teardown(" in code[-1]:
                break
    assert len(code) > 3
    return "\n\n".join([*code, "import ray\nray.shutdown()"])


@pytest.mark.parametrize("folder", [".", "notebooks", ".."])
def test_rcg_and_its_widgets_are_there_in_any_folder(built: Path, tree: Path, folder: str) -> None:
    run(built, str(built), "-c", WHERE, str(tree), cwd=tree / folder)


def test_the_quickstart_runs_without_dot(built: Path, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(first_cells(tree / "notebooks" / "quickstart.ipynb"))
    assert "hello" in run(built, str(built), "cells.py", cwd=tmp_path)
    assert not (built.parent / "dot.was-asked").exists()


def test_the_image_has_a_python_that_rcg_is_for(tree: Path) -> None:
    name, _, version = (tree / "binder" / "runtime.txt").read_text().strip().partition("-")
    assert name == "python"
    assert tuple(map(int, version.split("."))) >= (3, 11)


def test_torch_is_installed_first_and_without_cuda(tree: Path) -> None:
    lines = (tree / "binder" / "postBuild").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs[0].split()[-1] == "torch"
    assert "/whl/cpu" in installs[0] and "--index-url" in installs[0]
    assert all("--constraint constraints.txt" in line for line in installs)
