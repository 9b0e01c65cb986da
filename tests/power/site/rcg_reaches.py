# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that says whose test runs, and how long those of a file take that all pass."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import sitecustomize

_seconds: dict[str, dict[str, float]] = defaultdict(lambda: {"core": 0.0, "full": 0.0})
_failed: set[str] = set()
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


def pytest_sessionfinish() -> None:
    passed = {name: spent for name, spent in _seconds.items() if name not in _failed}
    Path(sitecustomize.FOLDER, "seconds.json").write_text(json.dumps(passed))
