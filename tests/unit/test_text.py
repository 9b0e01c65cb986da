# SPDX-License-Identifier: Apache-2.0
"""Figures as text: as in the widgets, whose scripts are given the same cases; and exact ticks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rcg import text

FIGURES = Path(__file__).parents[1] / "harness" / "figures.json"
CASES = json.loads(FIGURES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", CASES)
def test_figures_are_those_of_the_widgets(kind: str) -> None:
    shown = [getattr(text, f"{kind}_text")(*given) for _, *given in CASES[kind]]
    assert shown == [wanted for wanted, *_ in CASES[kind]]


@pytest.mark.parametrize("kind", ["time", "bytes", "count", "rate", "speed", "share", "ratio"])
def test_numbers_of_numpy_are_shown_as_those_of_python(kind: str) -> None:
    show = getattr(text, f"{kind}_text")
    for number in (0, 12, 12_345):
        for of in (np.int64, np.uint8, np.float32, np.float64):
            given = of(number % 256 if of is np.uint8 else number)
            assert show(given) == show(int(given))


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_are_not_known(number: float) -> None:
    for show in (text.rate_text, text.bytes_text, text.share_text, text.count_text):
        assert show(number).startswith("-") and not any(map(str.isalnum, show(number)[:1]))


def test_an_axis_has_two_ticks_even_where_little_fits() -> None:
    assert [label for _, label in text.ticks_of(200_000_000, 1, 390_000_000)] == [
        "400 ms",
        "500 ms",
    ]
    assert all(len(text.ticks_of(10**8 + 3, 2, first)) >= 2 for first in range(0, 10**8, 10**7))
    assert len(text.ticks_of(0, 3, 7)) == 1, "a moment"


@pytest.mark.parametrize("first", [0, 1, 869_400_000, 123_456_789_012, -5_000])
@pytest.mark.parametrize("duration", [1, 999, 3_000_000, 7_000_000_000])
def test_ticks_are_exact_wherever_an_axis_begins(first: int, duration: int) -> None:
    units = {"s": 10**9, "ms": 10**6, "\N{MICRO SIGN}s": 1000, "ns": 1}
    ticks = text.ticks_of(duration, 7, first)
    for at, label in ticks:
        number, unit = label.split()
        assert 0 <= at <= duration
        assert round(float(number) * units[unit]) == first + at
    assert len({label.split()[1] for _, label in ticks}) <= 1
    assert len({label for _, label in ticks}) == len(ticks)
