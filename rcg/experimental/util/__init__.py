# SPDX-License-Identifier: Apache-2.0
"""The old path of ``rcg.collective.ReduceOp``, in ``types``; other names are Ray's."""

from __future__ import annotations

from rcg.experimental import names_behind
from rcg.experimental.util import types

__all__ = ["types"]

__getattr__, __dir__ = names_behind(__name__, __all__)
