# SPDX-License-Identifier: Apache-2.0
"""The interactive views of a page: the scripts of the widgets, and their data, as text.

A page has pictures without a script. Where scripts run, ``page.js`` replaces each picture whose
data is in the page with the view that notebooks show as a widget. The scripts are files of
``rcg_widgets``, which is not imported and need not be installed: without them, pictures stay.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rcg.text import stated, visible
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace, Recording
from rcg.views.data.packing import pack
from rcg.views.scene import Scene
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.sums import packed_within
from rcg.views.svg.pictures import topology_payload

_MODULES: Final = ("common", "lanes", "panel", "scene", "topology", "page")
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./[\w.]+";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?!default)", re.MULTILINE)
_DEFAULT: Final = re.compile(r"^export default .*\n", re.MULTILINE)
_LEVEL: Final = 6  # of compression


def joined_script(folder: Path, names: Iterable[str]) -> str:
    """Return modules joined to one text, which exports what the last one exports by default.

    Each may use the modules before it.
    """
    *texts, last = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in names]
    texts = [*(_DEFAULT.sub("", text) for text in texts), last]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def assets() -> str:
    """Return the style sheet and the script as elements; "" if they are not installed."""
    found = find_spec("rcg_widgets")
    folder = None if found is None or found.origin is None else Path(found.origin).parent
    if folder is None or not (folder / "page.js").exists():
        return ""
    style = (folder / "widgets.css").read_text(encoding="utf-8")
    script = joined_script(folder, _MODULES)
    return f'<style>{style}</style><script type="module">\n{script}</script>'


def place_of(view: str, number: int) -> str:
    """Return the attributes of the element that a view of a graph replaces."""
    return f'data-view="{view}" data-graph="{number}"'


def data_of(
    trace: Recording,
    graph: GraphTrace,
    timeline: Scene,
    number: int,
    most_bytes: int,
) -> str:
    """Return the data of the views of a graph as elements that take at most so many bytes.

    The timeline gets what the others leave. A view whose data does not fit keeps its picture. The
    graph is one that did something; ``number`` is its number in the page.
    """
    measured = Measured.of(trace, graph)
    schedule = schedule_scene(measured, timeline=timeline)
    pipeline = pipeline_scene(measured, timeline=timeline)
    found = []
    left = most_bytes

    def add(view: str, packed: bytes | None, title: str) -> None:
        nonlocal left
        if packed is None:
            return
        window = json.dumps(None if view == "pipeline" else schedule.window_us)
        element = (
            f'<script type="text/plain" {place_of(view, number)} data-window="{window}" '
            f'data-title="{escape(visible(title))}">{b64encode(packed).decode("ascii")}</script>\n'
        )
        if len(element) <= left:
            left -= len(element)
            found.append(element)

    def add_scene(scene: Scene, packed: bytes | None) -> None:
        add(scene.view, packed, stated(scene.title or scene.view.capitalize(), graph.state))

    add("topology", pack(*topology_payload(graph.plan, measured), level=_LEVEL), graph.title)
    for scene in filter(None, [pipeline, schedule]):
        add_scene(scene, pack(*scene.to_payload(), level=_LEVEL))
    add_scene(timeline, packed_within(timeline, left * 3 // 4 - 200))
    return "".join(found)
