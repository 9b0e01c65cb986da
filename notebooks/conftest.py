# SPDX-License-Identifier: Apache-2.0
"""What nbval compares when it runs the notebooks: every output but stderr.

On a machine that is busy with other things, Ray and rcg may have remarks about that there. (That
the notebooks themselves are stored without any is a test in ``tests/unit/test_notebooks.py``.)
"""

from __future__ import annotations

import pytest


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave stderr out of what is compared."""
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare = (*notebook.skip_compare, "stderr")
