# SPDX-License-Identifier: Apache-2.0
"""Python's own parser, without its warnings about the text."""

from __future__ import annotations

import ast
import warnings

__all__ = ["is_too_deep", "parse"]


def parse(source: str | bytes) -> ast.Module:
    """Parse a text.

    Raises:
        SyntaxError: It is not Python of the version that runs.
        ValueError: It has a null byte.
        RecursionError, MemoryError: It is too deeply nested.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are the user's affair
        return ast.parse(source)


def is_too_deep(source: str) -> bool:
    """Return whether Python refuses a text for its nesting.

    The parser of libcst has no limit of its own: such a text would overflow its stack and end the
    process.
    """
    try:
        parse(source)
    except (RecursionError, MemoryError):
        return True
    except SyntaxError as error:
        return "too many nested" in error.msg
    except ValueError:
        return False
    return False
