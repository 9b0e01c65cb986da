# SPDX-License-Identifier: Apache-2.0
"""What `rcg migrate` writes, for other programs, and what it loads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rcg import cli
from tests.harness.files import make

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no program `patch`")
def test_the_diff_can_be_applied(folder, capsys):
    text = "x = 'a\x0cb\u2028c'\r\nimport ray.util\r\n\x0c\nimport ray"
    make(folder, {"a.py": text, "inner/b.py": "from ray.dag import InputNode, FunctionNode\n"})
    assert cli.main(["migrate", "."]) == 1
    diff = capsys.readouterr().out
    cli.main(["migrate", "--write", "."])
    written = {path: path.read_bytes() for path in folder.rglob("*.py")}
    make(folder, {"a.py": text, "inner/b.py": "from ray.dag import InputNode, FunctionNode\n"})
    subprocess.run(
        ["patch", "-p0", "--binary"], input=diff.encode(), check=True, stdout=subprocess.DEVNULL
    )
    assert {path: path.read_bytes() for path in folder.rglob("*.py")} == written
