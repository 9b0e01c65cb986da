# SPDX-License-Identifier: Apache-2.0
"""A picture in HTML as an image, which survives viewers that clean the HTML.

Viewers of notebooks (GitHub, nbviewer) remove inline SVG and styles; an image whose address is its
own data stays. The image contains its style sheet, so it adapts to light and dark.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from typing import Final

from rcg.text import visible
from rcg.views.svg.canvas import WIDTH

__all__ = ["MAX_SHRINKING", "img"]

MAX_SHRINKING: Final = 1.6
"""How much wider than that a picture may be to be shrunk to fit; a wider one is scrolled."""


def img(svg: str, alt: str) -> str:
    """Return an SVG file as an ``<img>`` with the file in it, to be scrolled if it is very wide.

    Args:
        svg: The text of the file.
        alt: What it shows, in words.
    """
    data = b64encode(svg.encode("utf-8")).decode("ascii")
    size = re.match(r'<svg[^>]* width="([\d.]+)"', svg)
    width = f' width="{size[1]}"' if size else ""
    is_wide = size is not None and float(size[1]) > WIDTH * MAX_SHRINKING
    image = (
        f'<img alt="{escape(visible(alt))}"{width} '
        f'style="max-width:{"none" if is_wide else "100%"};height:auto" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
    return f'<div style="overflow-x:auto">{image}</div>' if is_wide else image
