# SPDX-License-Identifier: Apache-2.0
"""The checks of ``make gpu`` work: on the fake device, with plain processes as actors, without Ray.

Its conformance checks are those of ``tests/conformance``, so they are not run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_every_check_passes_without_ray_or_says_why_it_was_not_run() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.gpu",
        "--fake",
        "--plain",
        "--only",
        "abort|kill|graphs with |host|seed",
    ]
    path = os.pathsep.join([str(ROOT), str(ROOT / "widgets")])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    lines = done.stdout.splitlines()
    assert sum(line.startswith("ok ") for line in lines) == 8, said
    assert all("Ray is not installed" in line for line in lines if line.startswith("not run"))


@pytest.mark.full
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_it_says_that_nothing_was_run() -> None:
    command = [sys.executable, "-m", "tests.gpu"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "nothing was run: torch finds no GPU on this machine\n",
    ), done.stderr
