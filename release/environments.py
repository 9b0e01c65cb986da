# SPDX-License-Identifier: Apache-2.0
"""Environments that have nothing but what a user has who installs rcg, and tests run in them.

The tests lie in a folder without the sources, so that they import the rcg that is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from release.files import ROOT, Failure, run, tool

# Programs that a machine without a compiler does not have.
_COMPILERS: Final = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|c89|c99|cpp|clang|clang\+\+|tcc|as|ld|make|cmake|zig)(-[\d.]+)?"
)
TEST_TOOLS: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")
# The share of the tests that is run where rcg is installed: programs on real actors, the native
# core, values, and what needs neither torch nor the sources.
SHARE: Final = (
    "tests/unit/test_native_memory.py",
    "tests/unit/test_plan.py",
    "tests/unit/test_messages.py",
    "tests/conformance/test_channels.py",
    "tests/cluster/test_execute.py",
    "tests/cluster/test_asyncio.py",
)


class Environment:
    """A fresh virtual environment.

    Attributes:
        python: Its interpreter.
        tests: A folder with the tests and without the sources.
    """

    def __init__(self, folder: Path, python: str | None = None) -> None:
        """Make it in this folder, with the interpreter of this version or path."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self._run("uv", "venv", "--python", python or sys.executable, folder / "venv")
        self.tests = folder / "tests"
        self._path = f"{self.python.parent}:{_without_compilers(folder / 'bin')}"

    def install(self, *packages: str | Path) -> None:
        """Install packages, none of which may be built here."""
        self._run("uv", "pip", "install", "--python", self.python, "--no-build", *packages)

    def run(self, *command: str | Path) -> str:
        """Run the interpreter with arguments, in the folder of the tests, without a compiler."""
        self.tests.mkdir(exist_ok=True)
        variables = {
            "PATH": self._path,
            "RAY_ADDRESS": "local",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "180",  # a busy machine takes long to start Ray
        }
        return run(self.python, *command, cwd=self.tests, variables=variables)

    def run_tests(self) -> str:
        """Run the share of the tests and return pytest's last line.

        Raises:
            Failure: A test failed; with what pytest printed.
        """
        self.install(*pinned(TEST_TOOLS))
        unwanted = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "tests", self.tests / "tests", ignore=unwanted, dirs_exist_ok=True)
        shutil.copy(ROOT / "pyproject.toml", self.tests)
        self.run("-c", _IS_INSTALLED)
        said = self.run(
            "-m",
            "pytest",
            "-q",
            "-m",
            "not full and not gpu",
            "--hypothesis-profile=quick",
            "--any-skip",
            *SHARE,
        )
        return said.strip().splitlines()[-1].strip("= ")

    def version_of(self, package: str) -> str:
        """Return the version of an installed package."""
        program = f"from importlib.metadata import version; print(version({package!r}))"
        return self.run("-c", program).strip()

    def python_version(self) -> str:
        """Return the version of the interpreter."""
        return self.run("-c", "import platform; print(platform.python_version())").strip()

    def _run(self, *command: str | Path) -> None:
        run(tool(str(command[0])), *command[1:])


_IS_INSTALLED: Final = """
import pathlib, shutil, sys
import rcg, rcg._native
for module in (rcg, rcg._native):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
for name in ("cc", "gcc", "clang"):
    assert shutil.which(name) is None, name
"""


def _without_compilers(folder: Path) -> Path:
    """Make a folder with all programs of the system but compilers, and return it."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for path in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
            link = folder / path.name
            if not _COMPILERS.fullmatch(path.name) and not link.is_symlink():
                os.symlink(path, link)
    return folder


def pinned(names: tuple[str, ...]) -> list[str]:
    """Return the packages as development pins them, where it does."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.partition("==")[::2] for line in lines if "==" in line)
    return [f"{name}=={pins[name]}" if name in pins else name for name in names]


def quickstart() -> str:
    """Return the program of the README's quickstart."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"## Quickstart.*?```python\n(.*?)```", text, re.DOTALL)
    if found is None:
        raise Failure("README.md has no quickstart")
    return found[1]
