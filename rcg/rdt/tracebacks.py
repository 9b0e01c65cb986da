# SPDX-License-Identifier: Apache-2.0
"""Errors that are kept in a list until the right thread, or the right frame, raises them."""

from __future__ import annotations

from typing import Final, TypeVar

__all__ = ["without_frames"]

_E = TypeVar("_E", bound=BaseException)

_MOST_CAUSES: Final = 20


def without_frames(error: _E) -> _E:
    """Return an error without its traceback, and without those of its causes.

    A traceback holds the frames of all callers, and their local names. If one of these is a list
    with the error in it, all of them live until Python collects cycles, and so do the references
    of the user's method.
    """
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error
