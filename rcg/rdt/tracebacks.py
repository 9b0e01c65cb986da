# SPDX-License-Identifier: Apache-2.0
"""Errors that are kept in a list until the right thread, or the right frame, raises them."""

from __future__ import annotations

import copy
from typing import Final, TypeVar

from rcg.error_text import describe_error, shielded
from rcg.errors import Transfer

__all__ = ["for_each", "without_frames"]

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


def for_each(error: Exception, count: int) -> list[Exception]:
    """Return an error for each of several results: who raises one changes it.

    The first is the error itself. The others are copies, or ``Transfer`` with the text of an error
    that cannot be copied.

    Args:
        error: The error of all of them.
        count: How many results there are.
    """
    without_frames(error)
    return [error if not number else _copied(error) for number in range(count)]


def _copied(error: Exception) -> Exception:
    found: Exception | None = shielded(copy.copy, error, otherwise=None)
    if found is None or type(found) is not type(error) or found is error:
        found = Transfer(describe_error(error))
    found.__cause__ = error.__cause__
    return found
