# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the README and the guide: what the program of the guide's profile does.

`make pictures` runs this. All pictures of that program, and what the guide says that it prints, are
of one recording, so that their figures agree. Each picture is two files, because GitHub's own
switch between light and dark reaches a ``<picture>`` but no style sheet in an image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from docs.pictures.outputs import renewed
from rcg.text import ratio_text
from rcg.trace.measured import Measured, summarize
from rcg.trace.model import Recording
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.figures import card_of
from rcg.views.scene import CriticalPaths
from rcg.views.scenes.timeline import part_words, timeline_scene
from rcg.views.svg.canvas import Canvas, Paint
from rcg.views.svg.pictures import topology_picture
from rcg.views.svg.scene import picture_of
from rcg.views.svg.summary import summary_of
from tests.harness import readme
from tests.harness.drawn import digest
from tests.unit.scenes_by_hand import pipelined, slow_stage

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 840  # of a page on GitHub, so that letters keep their size
GUTTER: Final = 56.0  # of a notebook: where the prompts are

PAGE: Final = readme.ROOT / "docs/guide/profiling.md"
"""It has the program, what it prints, and the pictures."""

_ALLOWED: Final = re.compile(r"(limits this: )\d+( % \.\.\.`.*: )\d+( % allow )[\d.]+x")
_SHARE: Final = re.compile(r"limits this: (\d+) %")
_DARK: Final = re.compile(r"<style>@media \(prefers-color-scheme:dark\)\{(.*?)\}</style>", re.S)
_HOVER: Final = re.compile(r"<title>.*?</title>", re.S)  # an image shows none
_SIZE: Final = re.compile(r' width="([\d.]+)" height="([\d.]+)"')


def main() -> None:
    """Run the program, here, so that Ray takes its classes as those of a script; draw it."""
    program = readme.blocks(PAGE)[0].text
    exec(compile(program, "pipeline.py", "exec"), globals())
    profile = globals()["p"]
    PAGE.write_text(renewed_page(PAGE.read_text(encoding="utf-8"), str(profile)), encoding="utf-8")
    draw_profile(profile.trace.active)
    draw_notebook(profile.trace.active, cell_of(program))
    draw_pipeline()


def cell_of(program: str) -> list[str]:
    """Return the lines that record a profile, without remarks, and show it, as a cell has them."""
    lines = program.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("with ray.profile()"))
    block = lines[first : lines.index("", first)]
    return [*(line.partition("  #")[0] for line in block), "p"]


def renewed_page(page: str, printed: str) -> str:
    """Return the guide with what its program printed, and what it says about that.

    Raises:
        ValueError: A line that the guide shows was not printed.
    """
    shown = readme.FENCE.findall(page)[1][1]
    page = page.replace(shown, renewed(shown, printed), 1)
    share = _SHARE.search(printed)
    if share is None:
        raise ValueError("no method limits the graph in this run")
    return _ALLOWED.sub(rf"\g<1>{share[1]}\g<2>{share[1]}\g<3>{allowed(int(share[1]))}", page)


def allowed(percent: int) -> str:
    """Return the most that twice as fast gives, if it is so much of the path, as text."""
    return ratio_text(1 / (1 - percent / 200))


def draw_profile(trace: Recording) -> None:
    """Draw the graph, and where the time went: what a notebook shows of a profile."""
    (graph,), (summary,) = trace.graphs, summarize(trace).graphs
    write(
        "graph", topology_picture(graph.plan, title="Pipeline", measured=Measured.of(trace, graph))
    )
    part = excerpt_of(Measured.of(trace, graph), most=2)
    if part is None:
        raise RuntimeError("no execution of the program was complete")
    scene = timeline_scene(Measured.of(trace, graph), part=part)
    timeline = picture_of(
        replace(scene, paths=CriticalPaths()), about=part_words(scene, part), width=WIDTH
    )
    write("profile", above(summary_of(card_of(summary), width=WIDTH), timeline))


def draw_pipeline() -> None:
    """Draw the pipeline of a simulated run, of which one stage is slow."""
    scene = pipelined(slow_stage())
    write("pipeline", picture_of(scene, width=WIDTH))


def draw_notebook(trace: Recording, lines: Sequence[str]) -> None:
    """Draw the lines of a cell, with the first two pictures that a notebook shows below it."""
    (graph,), (summary,) = trace.graphs, summarize(trace).graphs
    topology = topology_picture(graph.plan, title=graph.title, measured=Measured.of(trace, graph))
    figures = summary_of(card_of(summary), width=WIDTH - GUTTER)
    canvas = Canvas()
    canvas.define(
        "cell", Paint("fill", "#f6f7f9", "#1a212a"), Paint("stroke", "#dde2e7", "#303a46")
    )
    canvas.define("prompt", Paint("fill", "#307fc1", "#64a8e0"))
    height = 19 * len(lines) + 17
    shapes = [
        f'<rect{canvas.paint("cell")} x="{GUTTER:g}" y="6" width="{WIDTH - GUTTER - 4:g}" '
        f'height="{height}" rx="3"/>',
        canvas.text("[3]:", 12, 27, GUTTER, role="prompt", size=13, monospace=True),
    ]
    for at, line in enumerate(lines):
        code, spaces = line.lstrip(), len(line) - len(line.lstrip())
        x = GUTTER + 12 + 7.83 * spaces  # an SVG leaves spaces out
        shapes.append(canvas.text(code, x, 27 + 19 * at, WIDTH, size=13, monospace=True))
    code = canvas.document(shapes, WIDTH, height + 16, "A cell of a notebook")
    write("notebook", above(code, shifted(topology), shifted(figures)))


def shifted(picture: str) -> str:
    """Return an output of a cell at its place in the page, on the ground of the page."""
    _, height = sizes_of(picture)
    inner = picture.replace("<svg ", f'<svg x="{GUTTER:g}" ', 1)
    return Canvas().document([inner], WIDTH, height, "")


def above(*pictures: str) -> str:
    """Return pictures one below the other, as wide as the first."""
    sizes = [sizes_of(picture) for picture in pictures]
    width, height = sizes[0][0], sum(each for _, each in sizes)
    placed, y = "", 0.0
    for picture, (_, own) in zip(pictures, sizes, strict=True):
        placed += picture.replace("<svg ", f'<svg y="{y:g}" ', 1) if y else picture
        y += own
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">\n{placed}</svg>\n'
    )


def sizes_of(picture: str) -> tuple[float, float]:
    """Return the width and the height of a picture."""
    found = _SIZE.search(picture)
    if found is None:
        raise ValueError("it is no picture")
    return float(found[1]), float(found[2])


def write(name: str, picture: str) -> None:
    """Write a picture's two files, with the digest of the views that drew it."""
    picture = _HOVER.sub("", picture).rstrip() + f"\n<!-- {digest()} -->\n"
    looks: dict[str, Any] = {"light": "", "dark": r"<style>\1</style>"}
    for look, style in looks.items():
        (FOLDER / f"{name}-{look}.svg").write_text(_DARK.sub(style, picture), encoding="utf-8")


if __name__ == "__main__":
    main()
