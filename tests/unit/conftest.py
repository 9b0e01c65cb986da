# SPDX-License-Identifier: Apache-2.0
"""The unit layer starts no processes: a test that does fails, and belongs in tests/process."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
HERE = os.getpid()
FOLDER = Path(__file__).parent

# The unit test that runs now. A list, for the hook below lives as long as the process.
running: list[str] = []


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: Python calls it before any code starts a process."""
    if running and event in STARTS and os.getpid() == HERE:
        raise AssertionError(f"{running[0]} starts a process: it belongs in tests/process")


sys.addaudithook(refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if FOLDER in item.path.parents:  # pytest calls this for the tests of every folder
        running.append(item.nodeid)
    try:
        return (yield)
    finally:
        running.clear()
