# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that says whose test runs, and how long those of a file take that all pass.

A file whose tests are all skipped here has no entry.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import sitecustomize

_seconds: dict[str, dict[str, float]] = defaultdict(lambda: {"core": 0.0, "full": 0.0})
_failed: set[str] = set()
_ran: set[str] = set()
_current = [""]


def _begin(path: Path) -> None:
    name = str(path).removeprefix(f"{sitecustomize.ROOT}/")
    if name != _current[0]:
        _current[0] = name
        sitecustomize.begin(name.replace("/", "%"))


def pytest_collectstart(collector) -> None:
    path = getattr(collector, "path", None)
    if path is not None and path.suffix in (".py", ".ipynb"):
        _begin(path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item) -> None:
    _begin(item.path)


def pytest_runtest_makereport(item, call) -> None:
    circle = "full" if item.get_closest_marker("full") else "core"
    _seconds[_current[0]][circle] += call.duration


def pytest_runtest_logreport(report) -> None:
    if report.failed:
        _failed.add(_current[0])
    if report.when == "call" and report.passed:
        _ran.add(_current[0])


def pytest_sessionfinish() -> None:
    passed = {name: _seconds[name] for name in _ran - _failed}
    Path(sitecustomize.FOLDER, "seconds.json").write_text(json.dumps(passed))
