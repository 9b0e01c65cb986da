# SPDX-License-Identifier: Apache-2.0
"""The version of rcg, which driver and actors compare."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
