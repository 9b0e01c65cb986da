# SPDX-License-Identifier: Apache-2.0
"""Figures as text: the same as in the widgets, whose scripts are given the same cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rcg import text

CASES = json.loads((Path(__file__).parents[1] / "figures.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", CASES)
def test_figures_are_those_of_the_widgets(kind: str) -> None:
    shown = [getattr(text, f"{kind}_text")(*given) for _, *given in CASES[kind]]
    assert shown == [wanted for wanted, *_ in CASES[kind]]
