# SPDX-License-Identifier: Apache-2.0
"""A picture inside HTML that others clean: as an image, which nobody takes apart.

Where notebooks are shown (GitHub, nbviewer) inline SVG and styles are taken out; an image whose
address is its own data stays. It follows light and dark by itself, for the style sheet is in it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape

from rcg.views.text import visible

__all__ = ["img"]


def img(svg: str, alt: str) -> str:
    """Return an SVG file as an ``<img>`` with the file in it.

    Args:
        svg: The text of the file.
        alt: What it shows, in words.
    """
    data = b64encode(svg.encode("utf-8")).decode("ascii")
    size = re.match(r'<svg[^>]* width="([\d.]+)"', svg)
    width = f' width="{size[1]}"' if size else ""
    return (
        f'<img alt="{escape(visible(alt))}"{width} style="max-width:100%;height:auto" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
