# SPDX-License-Identifier: Apache-2.0
"""The scripts of the widgets, as node sees them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the widgets need pip install 'rcg[notebook]'")

from rcg_widgets.base import script

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    "names",
    [
        ("common", "lanes", "timeline"),
        ("common", "lanes", "schedule"),
        ("common", "topology"),
        ("common", "monitor"),
    ],
)
def test_scripts_parse(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "script.mjs"
    path.write_text(script(*names))
    done = node("--check", str(path))
    assert done.returncode == 0, done.stderr


def test_what_scripts_compute() -> None:
    done = node("--test", str(Path(__file__).with_name("widgets.test.mjs")))
    assert done.returncode == 0, done.stdout + done.stderr
