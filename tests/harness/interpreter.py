# SPDX-License-Identifier: Apache-2.0
"""A program in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(program: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it finds this rcg wherever it runs."""
    path = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        check=False,
    )


def printed(program: str, *arguments: str, cwd: Path = ROOT) -> str:
    """Run a program to its end, which has to be a good one, and return what it printed."""
    done = run(program, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
