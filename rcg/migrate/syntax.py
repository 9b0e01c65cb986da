# SPDX-License-Identifier: Apache-2.0
"""Python's own parser, without its warnings about the text."""

from __future__ import annotations

import ast
import warnings


def parse(source: str | bytes) -> ast.Module:
    """Parse a text.

    Raises:
        SyntaxError: The text is not Python of the running version.
        ValueError: The text has a null byte.
        RecursionError, MemoryError: The text is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those about invalid escapes
        return ast.parse(source)


def is_too_deep(source: str) -> bool:
    """Return whether a text is nested too deeply for Python.

    The parser of libcst has no limit of nesting. Such a text would overflow its stack and end the
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
