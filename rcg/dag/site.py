# SPDX-License-Identifier: Apache-2.0
"""Where in the user's source a node was made: the first frame that is not rcg's authoring code.

A notebook cell compiles under a made-up file name, so its site is spelled as the user sees the
cell, ``cell [3]``. This room must not import IPython: where the user runs one, it is loaded.
"""

from __future__ import annotations

import sys

from rcg.graph import Site

__all__ = ["find_site"]

# The modules that stand between a user's line and the node it makes.
_AUTHORING = ("rcg.dag", "rcg.actors", "rcg.interop")


def find_site() -> Site:
    """Return the file and line of the innermost frame outside rcg's authoring modules."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_authoring(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return Site(_cell_name(file) or file, frame.f_lineno)


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
