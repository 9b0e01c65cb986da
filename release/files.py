# SPDX-License-Identifier: Apache-2.0
"""Where things are, and how a tool is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "release"
# Variables that would make another interpreter find this one's packages.
_UNWANTED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class Failure(Exception):
    """A step of a release did not do what it should."""


def version() -> str:
    """Return rcg's version from its one place, without importing rcg."""
    text = (ROOT / "rcg" / "version.py").read_text()
    found = re.search(r'__version__: Final = "([^"]+)"', text)
    if found is None:
        raise Failure("rcg/version.py has no __version__")
    return found[1]


def run(*command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        Failure: It did not succeed; with everything that it printed.
    """
    environment = {key: text for key, text in os.environ.items() if key not in _UNWANTED}
    environment.update(variables or {})
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise Failure(f"exit status {done.returncode}: {words}\n{done.stdout}")
    return done.stdout


def tool(name: str) -> Path:
    """Return the path of a tool beside this interpreter."""
    return Path(sys.executable).parent / name


def commit_time() -> str:
    """Return the time of the last commit in seconds: files built from it carry no other time."""
    if not (ROOT / ".git").exists():
        return "315532800"  # 1980: the first that a zip file can hold
    return run("git", "log", "-1", "--format=%ct").strip()
