# SPDX-License-Identifier: Apache-2.0
"""Ray's own channels in Ray's object store, where this Ray has them; rcg's are not public."""

from __future__ import annotations

from rcg.experimental import names_behind

__all__: list[str] = []

__getattr__, __dir__ = names_behind(__name__, __all__)
