# SPDX-License-Identifier: Apache-2.0
"""Tables, cards and images in HTML without a script, in the light and dark colours of pictures."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from typing import Final

from rcg.table import escaped
from rcg.text import visible
from rcg.trace.analysis.advice import Advice
from rcg.views.svg.canvas import MONOSPACE, SANS

_HOVER: Final = re.compile("<title>[^<]*</title>")
_EMPTY: Final = re.compile("></(?:rect|path)>")

_COLOURS: Final = {
    "ground": ("#ffffff", "#0f1419"),
    "page": ("#f6f7f9", "#090c10"),
    "text": ("#16191d", "#eceff3"),
    "faint": ("#59626e", "#a3adb9"),
    "line": ("#e3e7eb", "#252d37"),
    "mark": ("#fbeadf", "#33231a"),
    "good": ("#00734f", "#2fc08f"),
    "slow": ("#8a5a00", "#e69f00"),
    "bad": ("#b84a00", "#ff8a3d"),
    "bar": ("#0072b2", "#56b4e9"),
    "shadow": ("#c9d0d8", "#3d4b5a"),
}

_HOSTS: Final = {
    "light": (
        'body[data-jp-theme-light="true"]',
        "body.vscode-light",
        "body.vscode-high-contrast-light",
        'html[theme="light"] body',
    ),
    "dark": (
        'body[data-jp-theme-light="false"]',
        "body.vscode-dark",
        "body.vscode-high-contrast:not(.vscode-high-contrast-light)",
        'html[theme="dark"] body',
    ),
}
"""How JupyterLab, VS Code and Colab state their theme; other pages state their color-scheme."""

_SCHEME: Final = (
    ".rcg.rcg-is-dark{color-scheme:dark}.rcg.rcg-is-light{color-scheme:light}"
    + "".join(
        f":is({','.join(hosts)}) .rcg.rcg-is-auto{{color-scheme:{scheme}}}"
        for scheme, hosts in _HOSTS.items()
    )
)

# A line of code scrolls aside instead of being broken, and a click selects all of it.
_CODE: Final = (
    f".rcg code{{font-family:{MONOSPACE};font-size:12px;white-space:pre;display:inline-block;"
    "max-width:100%;overflow-x:auto;vertical-align:bottom;user-select:all;"
    "background:none!important;color:inherit!important}"
)

# An image follows the system where its page has no color-scheme, unlike the page, which is light.
_IMAGES: Final = (
    f"<style>{_SCHEME}{_CODE}"
    '@property --rcg-probe{syntax:"<color>";inherits:true;initial-value:#fff}'
    ".rcg{--rcg-probe:light-dark(#fff,#000)}"
    "@container style(--rcg-probe:#000){.rcg img{color-scheme:dark!important}}</style>"
)

_VARIABLES: Final = ";".join(
    f"--rcg-{name}:light-dark({light},{dark})" for name, (light, dark) in _COLOURS.items()
)

# What can be scrolled aside has a shadow at that edge: two that stay, which two grounds that move
# with the content cover where it ends.
_SHADED: Final = (
    "background:linear-gradient(90deg,var(--rcg-ground) 14px,transparent 42px) local,"
    "linear-gradient(270deg,var(--rcg-ground) 14px,transparent 42px) local,"
    "linear-gradient(90deg,var(--rcg-shadow),transparent 16px),"
    "linear-gradient(270deg,var(--rcg-shadow),transparent 16px),var(--rcg-ground)"
)

# Notebooks have styles for all tables (stripes, hover) and <pre>, hence "!important".
STYLE: Final = (
    "<style>"
    f".rcg{{{_VARIABLES};color:var(--rcg-text);font:13px/1.45 {SANS}}}{_SCHEME}"
    ".rcg .rcg-static{border:1px solid var(--rcg-line);border-radius:8px;padding:20px 24px;"
    f"overflow-x:auto;{_SHADED}}}"
    ".rcg h2{font-size:15px;font-weight:600!important;line-height:1.3;margin:0;"
    "color:inherit!important}"
    ".rcg .rcg-about{color:var(--rcg-faint)!important;font-size:12px;margin:2px 0 10px}"
    ".rcg table.rcg-table{table-layout:auto!important;border-collapse:collapse;width:100%;"
    "margin:0;font-size:12.5px;"
    "background:none!important;color:inherit!important}"
    ".rcg .rcg-table th{font-weight:400;font-size:11.5px;color:var(--rcg-faint)!important;"
    "text-align:left;padding:4px 14px 4px 8px;border:0;border-bottom:1px solid var(--rcg-line);"
    "white-space:nowrap}"
    ".rcg .rcg-table td{text-align:left;padding:5px 14px 5px 8px;border:0;vertical-align:top;"
    "max-width:26em;overflow-wrap:break-word}"
    ".rcg .rcg-table :is(thead,tbody,tr,th,td){background:none!important}"
    ".rcg .rcg-table .rcg-number{text-align:right;font-variant-numeric:tabular-nums;"
    "white-space:nowrap}"
    f".rcg .rcg-code{{font-family:{MONOSPACE};font-size:12px}}"
    ".rcg .rcg-op{white-space:pre-line;min-width:15em;overflow-wrap:anywhere}"
    ".rcg .rcg-short{white-space:nowrap}"
    ".rcg .rcg-strong{font-weight:600}"
    ".rcg .rcg-dim{color:var(--rcg-faint)}"
    ".rcg .rcg-table tr.rcg-marked td{background:var(--rcg-mark)!important}"
    ".rcg .rcg-table tr.rcg-marked td:first-child{box-shadow:inset 3px 0 0 var(--rcg-bad)}"
    ".rcg .rcg-good{color:var(--rcg-good)}.rcg .rcg-slow{color:var(--rcg-slow)}"
    ".rcg .rcg-bad{color:var(--rcg-bad)}"
    f".rcg pre{{font-family:{MONOSPACE};font-size:12px;margin:4px 0 0;white-space:pre-wrap;"
    "overflow-wrap:anywhere;background:none!important;color:inherit!important}"
    f"{_CODE}"
    ".rcg details{margin-top:10px}.rcg summary{cursor:pointer}"
    "</style>"
)
"""The style sheet of cards and tables. One per page is enough, and more are harmless."""


def card(title: str, about: str, body: str) -> str:
    """Return a card: a title, a line below it, and HTML."""
    line = f'<p class="rcg-about">{escape(visible(about))}</p>' if about else ""
    return f'<section class="rcg-static"><h2>{escape(visible(title))}</h2>{line}{body}</section>'


def themed(body: str) -> str:
    """Return HTML with its style sheet; the page that it is in decides about dark colours."""
    return f'<div class="rcg rcg-is-auto">{STYLE}{body}</div>'


def advised(advice: Iterable[Advice]) -> str:
    """Return advice as HTML: its lines of code, each above what it gives."""
    return "".join(
        f"<p>try <code>{escaped(each.code)}</code><br>{escaped(each.effect)}</p>\n"
        for each in advice
    )


def images(pictures: Iterable[tuple[str, ...]]) -> str:
    """Return pictures as HTML; "" without any.

    Each is an alternative text, an SVG file, and HTML that stands below it, if any.
    """
    found = "".join(f"<div>{img(svg, alt)}{''.join(below)}</div>" for alt, svg, *below in pictures)
    return f'<div class="rcg rcg-is-auto">{_IMAGES}{found}</div>' if found else ""


def img(svg: str, alt: str) -> str:
    """Return an SVG file as an ``<img>`` with a data URL, which shrinks to the width of its page.

    Viewers of notebooks (GitHub, nbviewer) remove inline SVG and styles, but keep such an image. It
    contains its style sheet, so it adapts to light and dark. Nothing shows hover texts in it: they
    are left out.
    """
    svg = _EMPTY.sub("/>", _HOVER.sub("", svg))
    data = b64encode(svg.encode("utf-8")).decode("ascii")
    found = re.match(r'<svg[^>]*( width="[\d.]+")', svg)
    width = "" if found is None else found[1]
    style = "max-width:100%;height:auto;color-scheme:light"
    return (
        f'<img alt="{escape(visible(alt))}"{width} style="{style}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
