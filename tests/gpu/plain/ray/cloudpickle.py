# SPDX-License-Identifier: Apache-2.0
"""Pickles of importable definitions only; see ``ray``."""

from __future__ import annotations

from pickle import Pickler as CloudPickler
from pickle import dumps, loads

__all__ = ["CloudPickler", "dumps", "list_registry_pickle_by_value", "loads"]


def list_registry_pickle_by_value() -> list[str]:
    return []
