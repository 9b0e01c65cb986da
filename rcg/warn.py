# SPDX-License-Identifier: Apache-2.0
"""Warnings at the user's line, however many of rcg's calls lie between it and the cause.

A DeprecationWarning is shown only where its line is the user's own.
"""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_user"]

# Programs of ours that use rcg as users do.
_USERS = ("rcg.demo", "rcg.bench")


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost frame that is not rcg's."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "rcg" and not module.startswith(_USERS)
