# SPDX-License-Identifier: Apache-2.0
"""The scripts of the widgets, as node sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from base64 import b64encode
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the widgets need pip install 'rcg[notebook]'")

from rcg.views.data.packing import pack
from rcg_widgets.base import script
from tests.unit.scenes_by_hand import SCENES

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def node(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | variables,
    )


@pytest.mark.parametrize(
    "names",
    [
        ("common", "lanes", "panel", "scene"),
        ("common", "topology"),
        ("common", "monitor"),
    ],
)
def test_scripts_parse(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "script.mjs"
    path.write_text(script(*names))
    done = node("--check", str(path))
    assert done.returncode == 0, done.stderr


def test_what_scripts_compute(tmp_path: Path) -> None:
    """Also of every bar of the scenes by hand: the words of Python and of the scripts are equal."""
    told = []
    for name, make in SCENES.items():
        scene = make()
        bars = [(scene.labels(bar), scene.hover(bar)) for bar in range(len(scene.bars))]
        inflated = zlib.decompress(pack(*scene.to_payload()))
        told.append({"name": name, "payload": b64encode(inflated).decode(), "bars": bars})
    path = tmp_path / "scenes.json"
    path.write_text(json.dumps(told))
    script = str(Path(__file__).with_name("widgets.test.mjs"))
    done = node("--test", script, RCG_SCENES=str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("has the labels and the words") >= len(SCENES)
