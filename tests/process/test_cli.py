# SPDX-License-Identifier: Apache-2.0
"""The command line as a program in a pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.traces import save_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_run(tmp_path)


def test_python_m_rcg_is_the_same_and_survives_head(saved):
    command = f"{sys.executable} -m rcg trace {saved} --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() in ("0", "1")  # 0 where the pipe took it all first
