# SPDX-License-Identifier: Apache-2.0
"""The search of the documentation site, as `make docs` built it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.lab import ROOT

SEARCH = ROOT / "build" / "site" / "search.html"


@pytest.mark.skipif(not SEARCH.exists(), reason="the site is not built: make docs")
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("send weights to inference actors", "docs/guide/weights.html"),
        ("await fastapi", "docs/guide/callers.html"),
        ("get hangs which actor blocks", "docs/troubleshooting.html"),
    ],
)
def test_a_query_finds_pages_that_lack_a_word_of_it(browser: Any, query: str, page: str) -> None:
    shown = browser.new_page()
    shown.goto(f"{SEARCH.as_uri()}?q={query}")
    links = shown.locator("#search-results ul.search > li > a")
    links.nth(3).wait_for()
    first = [links.nth(rank).get_attribute("href").partition("?")[0] for rank in range(4)]
    assert page in first
    shown.close()
