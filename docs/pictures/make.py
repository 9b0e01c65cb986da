# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the README and the guide: what the program of the guide's profile does.

`make pictures` runs this. Each picture is two files, because GitHub's own switch between light and
dark reaches a ``<picture>`` but no style sheet in an image.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rcg.trace.measured import Measured, summarize
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.figures import card_of
from rcg.views.scene import CriticalPaths
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.pictures import topology_picture
from rcg.views.svg.scene import picture_of
from rcg.views.svg.summary import summary_of
from tests.harness import readme
from tests.harness.drawn import digest

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 840  # of a page on GitHub, so that letters keep their size

_DARK: Final = re.compile(r"<style>@media \(prefers-color-scheme:dark\)\{(.*?)\}</style>", re.S)
_HOVER: Final = re.compile(r"<title>.*?</title>", re.S)  # an image shows none
_SIZE: Final = re.compile(r' width="([\d.]+)" height="([\d.]+)"')


def main() -> None:
    """Run the program, here, so that Ray takes its classes as those of a script; draw it."""
    program = readme.blocks(readme.ROOT / "docs/guide/profiling.md")[0]
    exec(compile(program.text, "pipeline.py", "exec"), globals())
    trace = globals()["p"].trace.active
    (graph,), (summary,) = trace.graphs, summarize(trace).graphs
    write("graph", topology_picture(graph.plan, title="Pipeline", measured=(graph, summary)))
    part = excerpt_of(Measured.of(trace, graph), most=2)
    if part is None:
        raise RuntimeError("no execution of the program was complete")
    scene = timeline_scene(Measured.of(trace, graph), part=part)
    timeline = picture_of(replace(scene, paths=CriticalPaths()), about=part.words, width=WIDTH)
    write("profile", above(summary_of(card_of(summary), width=WIDTH), timeline))


def above(first: str, second: str) -> str:
    """Return one picture below another, both of the same width."""
    sizes = [_SIZE.search(picture) for picture in (first, second)]
    (width, top), (_, bottom) = [tuple(map(float, size.groups())) for size in sizes if size]
    lower = second.replace("<svg ", f'<svg y="{top:g}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{top + bottom:g}" '
        f'viewBox="0 0 {width:g} {top + bottom:g}">\n{first}{lower}</svg>\n'
    )


def write(name: str, picture: str) -> None:
    """Write a picture's two files, with the digest of the views that drew it."""
    picture = _HOVER.sub("", picture).rstrip() + f"\n<!-- {digest()} -->\n"
    looks: dict[str, Any] = {"light": "", "dark": r"<style>\1</style>"}
    for look, style in looks.items():
        (FOLDER / f"{name}-{look}.svg").write_text(_DARK.sub(style, picture), encoding="utf-8")


if __name__ == "__main__":
    main()
