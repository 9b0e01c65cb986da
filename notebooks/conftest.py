# SPDX-License-Identifier: Apache-2.0
"""How nbval runs the notebooks, and what it compares: every output but stderr.

Each process has a Ray of its own: ``two_nodes.ipynb`` makes a cluster that any ``ray.init()`` of
the machine would join, and takes it away.

On a machine that is busy with other things, Ray and rcg may have remarks about that there. (That
the notebooks themselves are stored without any is a test in ``tests/unit/test_notebooks.py``.)
"""

from __future__ import annotations

import os
import tempfile

import pytest


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Have Ray look for clusters, and put its files, where no other process does."""
    folder = tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["RAY_TMPDIR"] = folder.name


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave stderr out of what is compared."""
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare = (*notebook.skip_compare, "stderr")
