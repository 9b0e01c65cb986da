# SPDX-License-Identifier: Apache-2.0
"""A topology as text, as Graphviz source, or as a picture that is shown or written to a file.

rcg makes text, Graphviz source and SVG. Where its Python package and its ``dot`` are installed,
Graphviz makes other pictures, and can place what rcg draws. Without them a file has an SVG; a
warning names it if another format was asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from rcg.display import Displayed, Mimebundle, Views
from rcg.frames import warn_user
from rcg.views.data.by_dot import layout_of, source_of
from rcg.views.data.folding import Folded
from rcg.views.data.layout import Sizes, TopologyLayout, lay_out
from rcg.views.data.topology import Topology
from rcg.views.html.mimebundle import mimebundle
from rcg.views.scenes.topology import diagram_of
from rcg.views.svg.diagram import svg_of
from rcg.views.text import ascii_of, dot_of

_RCG: Final = ("ascii", "dot", "gv", "svg")
_GRAPHVIZ: Final = ("png", "pdf", "jpg", "jpeg", "gif", "bmp", "webp", "tif", "tiff", "ps", "eps")

FORMATS: Final = (*_RCG, *_GRAPHVIZ)
"""The formats of ``visualize``."""

LAYOUTS: Final = ("phases", "actors", "dot")
"""The layouts of ``visualize``: two of rcg, and that of Graphviz."""

_DEFAULT_NAME: Final = "compiled_graph"
_PACKAGE: Final = "its Python package is not installed: pip install 'rcg[notebook]'"
_PROGRAM: Final = (
    "its program `dot` is not installed: apt install graphviz, or brew install graphviz"
)


class Drawing(str, Displayed):
    """What ``visualize`` returns: Graphviz source, or text, that a notebook shows as the picture.

    Args:
        source: The text that it is.
        text: What it is in places without pictures.
        draw: Returns the picture as the text of an SVG file; None if it has none.
    """

    _text: str
    _draw: Callable[[], str] | None

    def __new__(cls, source: str, text: str, draw: Callable[[], str] | None = None) -> Drawing:
        """Make a drawing."""
        self = super().__new__(cls, source)
        self._text, self._draw = text, draw
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # elsewhere it is its text

    def _mimebundle(self, _: Views) -> Mimebundle:
        return mimebundle(self._text, [] if self._draw is None else [("Topology", self._draw())])


def visualize(
    topology: Topology,
    *,
    filename: str | os.PathLike[str] | None = None,
    format: str | None = None,
    view: bool = False,
    channel_details: bool = False,
    legend: bool = True,
    title: str = "Compiled graph",
    dark: bool | None = None,
    layout: Literal["phases", "actors", "dot"] | None = None,
) -> Drawing:
    """Draw a topology. Write a file if a name or a format is given, or it is to be opened.

    The options are those of ``CompiledDAG.visualize``, and the title of an SVG.

    Returns:
        The text for "ascii". For all other formats, Graphviz source.

    Raises:
        ValueError: The format or the layout is unknown, they do not go together, or the format is
            "ascii" with ``channel_details``.
        FileNotFoundError: The folder to write into does not exist.
        ImportError: The layout "dot" was asked for, and Graphviz is not installed.
        OSError: The file cannot be written.
    """
    if layout not in (None, *LAYOUTS):
        raise ValueError(f"unknown layout {layout!r}: it must be one of {', '.join(LAYOUTS)}")
    is_written = filename is not None or format is not None or view
    is_ours = layout in ("phases", "actors")
    path, chosen = _target(_DEFAULT_NAME if filename is None else filename, format, is_ours=is_ours)
    if chosen == "ascii":
        if channel_details:
            raise ValueError("Parameters 'channel_details' are not compatible with 'ascii' format.")
        text = ascii_of(topology, title)
        if view:
            print(text)
        return Drawing(text, text)
    if chosen in _GRAPHVIZ and is_written and is_ours:
        raise ValueError(
            f"the format {chosen!r} is drawn by Graphviz, whose layout is 'dot': choose "
            f"layout='dot', or format='svg' for the layout {layout!r}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(path.parent)!r} to write {path.name!r} into: make it, or "
            "choose another `filename`"
        )
    source = dot_of(topology, title, channel_details=channel_details, legend=legend)

    diagram = diagram_of(
        topology,
        folding="actors" if layout == "actors" else "phases",
        channel_details=channel_details,
        lay_out=by_dot if layout == "dot" else lay_out,
    )

    def draw() -> str:
        return svg_of(diagram, title, legend=legend, dark=dark)

    if is_written:
        path = _write(path, chosen, source, draw)
    if view:
        _open(path)
    return Drawing(source, ascii_of(topology, title), draw)


def _write(path: Path, format: str, source: str, draw: Callable[[], str]) -> Path:
    """Write the file, and return its name: an SVG if Graphviz does not draw."""
    if format in ("dot", "gv"):
        path.write_text(source, encoding="utf-8")
    elif format == "svg":
        path.write_text(draw(), encoding="utf-8")
    else:
        try:
            path.write_bytes(_by_graphviz(source, format))
        except _NotDrawn as problem:
            wanted, path = path, path.with_suffix(".svg")
            path.write_text(draw(), encoding="utf-8")
            warn_user(
                f"the picture is in {str(path)!r}; {wanted.name!r} needs Graphviz: {problem}",
                UserWarning,
            )
    return path


def _target(
    filename: str | os.PathLike[str], format: str | None, *, is_ours: bool
) -> tuple[Path, str]:
    """Return the file to write, with its suffix, and the format."""
    path = Path(filename)
    if not path.name:
        raise ValueError(f"`filename` must name a file, found {os.fspath(filename)!r}")
    suffix = path.suffix.removeprefix(".").lower()
    if format is None:
        drawn = "png" if shutil.which("dot") and not is_ours else "svg"
        format = suffix if suffix in FORMATS else drawn
    format = format.lower()
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: it must be one of {', '.join(FORMATS)}")
    if suffix != format:
        # Not with_suffix(): "run.1" has no suffix to replace.
        path = path.with_name(f"{path.name}.{format}")
    return path, format


class _NotDrawn(ImportError):
    """Graphviz is not installed, or does not draw; the text says why."""


def _by_graphviz(source: str, format: str) -> bytes:
    """Return what Graphviz draws.

    Raises:
        _NotDrawn: It cannot.
    """
    try:
        import graphviz
    except ImportError as error:
        raise _NotDrawn(_PACKAGE) from error
    try:
        drawn: bytes = graphviz.Source(source).pipe(format=format)
    except graphviz.ExecutableNotFound as error:
        raise _NotDrawn(_PROGRAM) from error
    except graphviz.CalledProcessError as error:
        said = bytes(error.stderr or b"").decode(errors="replace").strip().partition("\n")[0]
        raise _NotDrawn(f"its `dot` failed: {said or f'exit status {error.returncode}'}") from error
    except OSError as error:
        raise _NotDrawn(f"its `dot` does not start: {error}") from error
    return drawn


def by_dot(folded: Folded, sizes: Sizes) -> TopologyLayout:
    """Return the layout of Graphviz: see ``rcg.views.data.by_dot``.

    Raises:
        ImportError: Graphviz is not installed.
    """
    try:
        drawn = _by_graphviz(source_of(folded, sizes), "json0")
    except _NotDrawn as problem:
        raise ImportError(
            f"the layout 'dot' needs Graphviz: {problem}; layout='phases' needs nothing"
        ) from problem
    return layout_of(folded, sizes, json.loads(drawn))


def _open(path: Path) -> None:
    """Open a file with the desktop's viewer, if there is a desktop."""
    # Not an option of rcg: without a display, a viewer would take over the terminal.
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    opener = shutil.which("xdg-open")
    with contextlib.suppress(OSError, webbrowser.Error):
        if opener is None:
            webbrowser.open(path.absolute().as_uri())
        else:
            subprocess.Popen(
                [opener, os.fspath(path.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
