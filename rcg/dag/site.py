# SPDX-License-Identifier: Apache-2.0
"""Where in the user's source a node was made: the innermost frame that is not rcg's.

A notebook cell is compiled under a generated file name, so its site is written as the user sees the
cell: ``cell [3]``. This room must not import IPython; if the user runs it, it is already loaded.
"""

from __future__ import annotations

import sys

from rcg.frames import innermost_of_user
from rcg.ir.nodes import Site


def find_site() -> Site:
    """Return the file and line of the innermost frame outside of rcg."""
    frame, _ = innermost_of_user()
    file = frame.f_code.co_filename
    return Site(_cell_name(file) or file, frame.f_lineno)


def _cell_name(file: str) -> str | None:
    """Return the name of the notebook cell that was compiled as ``file``, if it is one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    format_code_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = format_code_name(file) if format_code_name is not None else None
    # IPython gives ("Cell", "In[3]").
    return f"cell {named[1].removeprefix('In')}" if named else None
