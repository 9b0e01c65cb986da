# SPDX-License-Identifier: Apache-2.0
"""One JupyterLab and one browser for all tests here, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.browser.lab import CHROMIUM, Lab, running_lab

_NEEDED = {
    "playwright": "Playwright for Python is not installed: pip install playwright",
    "jupyterlab": 'JupyterLab is not installed: pip install ".[notebook]" in the folder of rcg',
    "anywidget": 'anywidget is not installed: pip install ".[notebook]" in the folder of rcg',
}


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the path, and RCG_CHROMIUM names none")
    for module, reason in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(reason)
    with running_lab(tmp_path_factory.mktemp("lab")) as found:
        yield found
