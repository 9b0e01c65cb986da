# SPDX-License-Identifier: Apache-2.0
"""Whether a stack frame belongs to the user or to rcg, lines of source, and warnings.

A module states it with a name in its globals, so moving a file changes nothing:

* ``__rcg_plumbing__ = True``: its frames stand between a loop and the user's method, and say
  nothing about what went wrong there;
* ``__rcg_user__ = True``: it belongs to rcg and uses rcg as its users do (demo, bench).
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import warnings
from types import FrameType
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Any)

_PACKAGE: Final = __name__.partition(".")[0]
_WITHIN: Final = f"{_PACKAGE}."
# Of files that users did not write: those of Python here, and those of packages anywhere.
_LIBRARIES: Final = (f"{sysconfig.get_paths()['stdlib']}{os.sep}", "<frozen ")
_PACKAGES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3")
# Modules of others that stand there as well.
_FOREIGN_PLUMBING: Final = ("concurrent.futures._base", "ray.util.tracing.tracing_helper")


def is_plumbing(frame: FrameType) -> bool:
    """Return whether a frame is of what runs users' methods."""
    names = frame.f_globals
    return "__rcg_plumbing__" in names or names.get("__name__") in _FOREIGN_PLUMBING


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame is of rcg's code, and not of a program that uses it."""
    names = frame.f_globals
    name = names.get("__name__")
    if not isinstance(name, str) or "__rcg_user__" in names:
        return False
    return name.startswith(_WITHIN) or name == _PACKAGE


def cell_name(file: str) -> str | None:
    """Return the name of the notebook cell that was compiled as ``file``, ``In [3]``, if it is one.

    An actor does not know the cells of the driver, so this is for the driver alone.
    """
    ipython = sys.modules.get("IPython")  # not imported: it is loaded if the user runs it
    shell = ipython.get_ipython() if ipython is not None else None
    format_code_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = format_code_name(file) if format_code_name is not None else None
    # IPython gives ("Cell", "In[3]").
    return f"In [{named[1].removeprefix('In[')}" if named else None


def place_text(file: str, line: int) -> str:
    """Return a line of a file as people say it: ``In [7] line 4``, ``loss.py:41``."""
    cell = cell_name(file)
    return f"{cell} line {line}" if cell else f"{os.path.basename(file)}:{line}"


def source_of(file: str, line: int) -> str:
    """Return a line of source, "" if it is not known here; cells of a notebook are."""
    try:
        return linecache.getline(file, line).strip()
    except ValueError:  # a name that no file can have
        return ""


def is_of_library(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package, by its path alone.

    >>> is_of_library(linecache.__file__), is_of_library("/home/me/loss.py")
    (True, False)
    """
    return file.startswith(_LIBRARIES) or any(each in file for each in _PACKAGES)


def left_out_by_ray(function: _F) -> _F:
    """Have Ray leave the frames of a function out of the tracebacks that it prints.

    It leaves out its own: those of files with such a name. In ``<>`` it is a file without lines, of
    which one would be left otherwise.
    """
    function.__code__ = function.__code__.replace(co_filename="<ray/_private/rcg>")
    return function


class _FromUserOn:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            trace = error.__traceback__
            while trace is not None and is_ours(trace.tb_frame):
                trace = trace.tb_next
            error.__traceback__ = trace


errors_from_user_on: Final = _FromUserOn()
"""Errors in its ``with`` have a traceback that begins in the user's code; none if it has none."""


def innermost_of_user() -> tuple[FrameType, int]:
    """Return the innermost frame that is not rcg's, and how far from the caller it is.

    The distance is a ``stacklevel`` of ``warnings.warn`` for the caller.
    """
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and is_ours(frame):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost frame that is not rcg's.

    A DeprecationWarning is shown only where its line is the user's own.
    """
    _, depth = innermost_of_user()
    warnings.warn(message, category, stacklevel=depth)
