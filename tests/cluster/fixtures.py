# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the conftests of all tests that have a Ray, of a fixture ``ray_session``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.stage import Driver, Gate

__all__ = ["driver", "gate", "gates"]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A closed gate."""
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes closed gates."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def driver(ray_session: None, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts a program that joins this Ray session; it is gone when the test ends."""
    started: list[Driver] = []

    def start(source: str, *arguments: Any, **options: Any) -> Driver:
        folder = tmp_path / f"driver{len(started)}"
        folder.mkdir()
        started.append(Driver(source, folder, *arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()
