# SPDX-License-Identifier: Apache-2.0
"""Layers: a test's folder gives its marker, and the layers run from the cheap to the dear."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest

LAYERS = ("unit", "conformance", "cluster", "packaging", "notebooks", "browser", "gpu")
TESTS = Path(__file__).parent
# Whoever looks for worked examples in docstrings asks its classes for their names.
collect_ignore = ["hostile.py"]

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start
# inherits that; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def layer_of(item: pytest.Item) -> str | None:
    """Returns the layer that the folder of `item` stands for, or None outside tests/."""
    try:
        first = item.path.relative_to(TESTS).parts[0]
    except ValueError:
        return None
    return first if first in LAYERS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        layer = layer_of(item)
        if layer is not None:
            item.add_marker(layer)
    items.sort(key=lambda item: LAYERS.index(layer_of(item) or "unit"))


def pytest_collection_finish() -> None:
    """What is there for good need not be looked through by each of thousands of collections."""
    gc.collect()
    gc.freeze()
