# SPDX-License-Identifier: Apache-2.0
"""How nbval runs the notebooks, and what it compares: what `make pictures` would store, less stderr.

Each process has a Ray of its own: ``two_nodes.ipynb`` makes a cluster that any ``ray.init()`` of
the machine would join, and takes it away.

The figures of every profile are checked: that they agree with each other, and that no wait of the
record ends before its Write began (``tests/harness/invariants.py``).

On a machine that is busy with other things, Ray and rcg may have remarks about that there. (That
the notebooks themselves are stored without any is a test in ``tests/unit/test_notebooks.py``.)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from docs.pictures.notebooks import NEEDS_VLLM, cleaned
from tests.harness.readme import ROOT

_CHECKS: Final = """
import sys

sys.path.append({root!r})

from rcg.profiling import Profile
from rcg.trace.measured import measured_of
from tests.harness.invariants import check_measured


def _complete(profile, trace, complete=Profile.complete):
    complete(profile, trace)
    for each in measured_of(trace):
        check_measured(each)


Profile.complete = _complete
del sys, _complete
"""
"""What the kernel of each notebook runs first."""

collect_ignore = [] if find_spec("vllm") else [*NEEDS_VLLM]


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Have Ray look for clusters, and put its files, where no other process does."""
    folder = tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["RAY_TMPDIR"] = folder.name
    startup = Path(folder.name, "ipython", "profile_default", "startup")
    startup.mkdir(parents=True)
    (startup / "checks.py").write_text(_CHECKS.format(root=str(ROOT)), encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(startup.parent.parent)


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out of what is compared what is not stored either."""
    for item in items:
        if hasattr(item, "compare_outputs"):
            item.compare_outputs = partial(_compare, item.compare_outputs)
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare = (*notebook.skip_compare, "stderr")


def _compare(compare: Callable[..., bool], new: list[Any], stored: list[Any], *more: Any) -> bool:
    return compare(cleaned(new), stored, *more)
