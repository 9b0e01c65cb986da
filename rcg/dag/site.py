# SPDX-License-Identifier: Apache-2.0
"""Where in the user's source a node was made: the first frame that is not rcg's authoring code.

A notebook cell compiles under a made-up file name, so its site is spelled as the user sees the
cell, ``cell [3]``. This room must not import IPython: where the user runs one, it is loaded.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from rcg.graph import Site

__all__ = ["find_site", "warn_user"]

# The modules that stand between a user's line and the node it makes.
_AUTHORING = ("rcg.dag", "rcg.actors", "rcg.interop")


def find_site() -> Site:
    """Return the file and line of the innermost frame outside rcg's authoring modules."""
    frame, _ = _user_frame()
    file = frame.f_code.co_filename
    return Site(_cell_name(file) or file, frame.f_lineno)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the user's line, which is where ``find_site`` finds it."""
    _, depth = _user_frame()
    warnings.warn(message, category, stacklevel=depth)


def _user_frame() -> tuple[FrameType, int]:
    """Return the user's frame, and how many frames it is above the function that called this."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and _is_authoring(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def _is_authoring(module: str) -> bool:
    return module.startswith(_AUTHORING)


def _cell_name(file: str) -> str | None:
    """Return the name of the notebook cell that was compiled as ``file``, if it is one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    format_code_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = format_code_name(file) if format_code_name is not None else None
    # IPython gives ("Cell", "In[3]").
    return f"cell {named[1].removeprefix('In')}" if named else None
