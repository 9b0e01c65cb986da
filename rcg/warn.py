# SPDX-License-Identifier: Apache-2.0
"""Warnings at the user's line, however many of rcg's calls lie between it and the cause.

A DeprecationWarning is shown only where its line is the user's own.
"""

from __future__ import annotations

import warnings

from rcg.frames import innermost_of_user


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost frame that is not rcg's."""
    _, depth = innermost_of_user()
    warnings.warn(message, category, stacklevel=depth)
