# SPDX-License-Identifier: Apache-2.0
"""Settings of the unit layer: no test measures its own speed, so hypothesis has no deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rcg", deadline=None)
settings.load_profile("rcg")
