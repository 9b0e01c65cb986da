# SPDX-License-Identifier: Apache-2.0
"""Pictures, tables and widgets are as light or dark as their page, whatever the system is."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

pytest.importorskip("rcg_widgets", reason="the widgets need anywidget", exc_type=ImportError)

from rcg.profiling import Profile
from rcg.views.html.findings import of_executions, of_path
from rcg_widgets.base import style
from tests.unit.views_traces import pipeline, simulated

pytestmark = pytest.mark.browser

GROUNDS = {"light": (255, 255, 255), "dark": (15, 20, 25)}

PAGES = {
    "says nothing": ("<body>", None),
    "is light": ('<body style="color-scheme:light">', "light"),
    "is dark": ('<body style="color-scheme:dark">', "dark"),
    "is either": ('<html style="color-scheme:light dark"><body>', "system"),
    "Jupyter, light": ('<body data-jp-theme-light="true">', "light"),
    "Jupyter, dark": ('<body data-jp-theme-light="false">', "dark"),
    "VS Code, dark": ('<body class="vscode-dark">', "dark"),
    "Colab, dark": ('<html theme="dark"><body>', "dark"),
}


@pytest.mark.parametrize("system", ["light", "dark"])
def test_there_is_one_ground_and_it_is_the_pages(browser: Any, system: str) -> None:
    trace = simulated(pipeline(2), 12)
    shown = [of_path(Profile(trace).critical_path(8)), of_executions(Profile(trace).executions())]
    card = f'<style>{style()}</style><section class="rcg-card">a widget</section>'
    view = browser.new_page(color_scheme=system)
    try:
        for page, (begin, wanted) in PAGES.items():
            view.set_content(begin + "".join(each["text/html"] for each in shown) + card)
            found = view.locator(".rcg img, .rcg-static, .rcg-card")
            grounds = [_ground(view, each) for each in found.all()]
            theme = system if wanted == "system" else wanted or "light"
            assert grounds == [GROUNDS[theme]] * 3, page
    finally:
        view.close()


def _ground(view: Any, element: Any) -> tuple[int, ...]:
    """The colour of a point near the corner of an element."""
    element.scroll_into_view_if_needed()
    box = element.bounding_box()
    clip = {"x": round(box["x"]) + 9, "y": round(box["y"]) + 9, "width": 1, "height": 1}
    png = view.screenshot(clip=clip)
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    return tuple(zlib.decompress(data)[1:4])
