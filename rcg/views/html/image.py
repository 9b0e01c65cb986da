# SPDX-License-Identifier: Apache-2.0
"""A picture in HTML as an image with a data URL.

Viewers of notebooks (GitHub, nbviewer) remove inline SVG and styles, but keep such an image. It
contains its style sheet, so it adapts to light and dark.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from typing import Final

from rcg.text import visible
from rcg.views.svg.canvas import WIDTH

MAX_SHRINKING: Final = 1.6
"""A picture up to this many times wider than ``WIDTH`` is shrunk. A wider one is scrolled."""


def img(svg: str, alt: str) -> str:
    """Return an SVG file as an ``<img>`` with a data URL, which scrolls if it is very wide.

    Args:
        svg: The text of the file.
        alt: The alternative text.
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
