# SPDX-License-Identifier: Apache-2.0
"""Which cases of a test the core has; see ``tests.__main__``. The others are marked ``full``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["core_has", "core_where", "in_turn"]


def core_where(is_core: Callable[[Any], bool], every: Iterable[Any]) -> list[Any]:
    """Return all values of a parameter; the core leaves out those that ``is_core`` is false for.

    A tuple stands for the values of several parameters.
    """
    return [
        each if is_core(each) else _full(*(each if isinstance(each, tuple) else (each,)))
        for each in every
    ]


def core_has(core: Any, every: Iterable[Any]) -> list[Any]:
    """Return all values of one parameter, of which the core has one."""
    return [each if each == core else _full(each) for each in every]


def in_turn(moments: Iterable[Any], kinds: Sequence[Any]) -> list[Any]:
    """Return each moment with each kind; the core has one kind of each moment, in turn."""
    return [
        (moment, kind) if kind == turn else _full(moment, kind)
        for moment, turn in zip(moments, itertools.cycle(kinds), strict=False)
        for kind in kinds
    ]


def _full(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)
