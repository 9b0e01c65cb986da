# SPDX-License-Identifier: Apache-2.0
"""One JupyterLab and one browser for all tests here, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.lab import CHROMIUM, Lab, running_browser, running_lab


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the path, and RCG_CHROMIUM names none")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright for Python is not installed: pip install playwright")
    with running_browser() as found:
        yield found


@pytest.fixture(scope="session")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for module, name in {"jupyterlab": "JupyterLab", "anywidget": "anywidget"}.items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{name} is not installed: pip install 'rcg[notebook]'")
    with running_lab(tmp_path_factory.mktemp("lab"), browser) as found:
        yield found
