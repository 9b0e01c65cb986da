# SPDX-License-Identifier: Apache-2.0
"""Of the unit layer: no test measures its own speed, so hypothesis has no deadline; boards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.board import Board

settings.register_profile("rcg", deadline=None)
settings.load_profile("rcg")


@pytest.fixture
def boards() -> Iterator[Callable[..., Board]]:
    """Makes boards, with the arguments of ``Board``."""
    made: list[Board] = []

    def make(*args: Any, **options: Any) -> Board:
        made.append(Board(*args, **options))
        return made[-1]

    yield make
    for board in made:
        board.close()
