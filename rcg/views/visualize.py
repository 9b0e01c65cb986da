# SPDX-License-Identifier: Apache-2.0
"""A topology as text, as Graphviz source, or as a file with a picture.

rcg makes text, Graphviz source and SVG. Graphviz makes other pictures if its ``dot`` is installed.
Without it the picture is an SVG; a warning names the file if another format was asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import webbrowser
from pathlib import Path
from typing import Final

from rcg.frames import warn_user
from rcg.views.data.topology import Topology
from rcg.views.svg.topology import svg_of
from rcg.views.text import ascii_of, dot_of

_RCG: Final = ("ascii", "dot", "gv", "svg")
_GRAPHVIZ: Final = ("png", "pdf", "jpg", "jpeg", "gif", "bmp", "webp", "tif", "tiff", "ps", "eps")

FORMATS: Final = (*_RCG, *_GRAPHVIZ)
"""The formats of ``visualize``."""

_DEFAULT_NAME: Final = "compiled_graph"
_DRAWING_TIMEOUT_S: Final = 120.0


def visualize(
    topology: Topology,
    *,
    filename: str | os.PathLike[str] = _DEFAULT_NAME,
    format: str | None = None,
    view: bool = False,
    channel_details: bool = False,
    legend: bool = True,
    title: str = "Compiled graph",
    dark: bool | None = None,
) -> str:
    """Draw a topology. Write a file, unless the format is "ascii".

    The options are those of ``CompiledDAG.visualize``, and the title of an SVG.

    Returns:
        The text for "ascii". For all other formats, Graphviz source.

    Raises:
        ValueError: The format is unknown, or "ascii" with ``channel_details``.
        FileNotFoundError: The folder to write into does not exist.
        OSError: The file cannot be written.
    """
    path, chosen = _target(filename, format)
    if chosen == "ascii":
        if channel_details:
            raise ValueError("Parameters 'channel_details' are not compatible with 'ascii' format.")
        text = ascii_of(topology)
        if view:
            print(text)
        return text
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(path.parent)!r} to write {path.name!r} into: make it, or "
            "choose another `filename`"
        )
    source = dot_of(topology, channel_details=channel_details, legend=legend)
    if chosen in ("dot", "gv"):
        path.write_text(source, encoding="utf-8")
    else:
        problem = None if chosen == "svg" else _draw(source, path, chosen)
        if problem is not None:
            wanted, path = path, path.with_suffix(".svg")
        if chosen == "svg" or problem is not None:
            drawing = svg_of(
                topology, title=title, channel_details=channel_details, legend=legend, dark=dark
            )
            path.write_text(drawing, encoding="utf-8")
        if problem is not None:
            warn_user(
                f"the picture is in {str(path)!r}; {wanted.name!r} needs Graphviz: {problem}",
                UserWarning,
            )
    if view:
        _open(path)
    return source


def _target(filename: str | os.PathLike[str], format: str | None) -> tuple[Path, str]:
    """Return the file to write, with its suffix, and the format."""
    path = Path(filename)
    if not path.name:
        raise ValueError(f"`filename` must name a file, found {os.fspath(filename)!r}")
    suffix = path.suffix.removeprefix(".").lower()
    if format is None:
        drawn = "png" if shutil.which("dot") else "svg"
        format = suffix if suffix in FORMATS else drawn
    format = format.lower()
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: it must be one of {', '.join(FORMATS)}")
    if suffix != format:
        # Not with_suffix(): "run.1" has no suffix to replace.
        path = path.with_name(f"{path.name}.{format}")
    return path, format


def _draw(source: str, path: Path, format: str) -> str | None:
    """Draw with Graphviz; return why that failed, None if it did not."""
    dot = shutil.which("dot")
    if dot is None:
        return "install it, for example with `apt install graphviz`, or use format='svg'"
    try:
        subprocess.run(
            [dot, f"-T{format}", "-o", os.fspath(path.absolute())],
            input=source.encode(),
            capture_output=True,
            check=True,
            timeout=_DRAWING_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"its `dot` took more than {_DRAWING_TIMEOUT_S:g} s"
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        return f"its `dot` failed: {said or f'exit status {error.returncode}'}"
    except OSError as error:
        return f"its `dot` does not start: {error}"
    return None


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
