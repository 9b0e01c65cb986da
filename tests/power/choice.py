# SPDX-License-Identifier: Apache-2.0
"""Which tests CI runs beside the core: what the last commits may have broken, then others.

A unit is a test file and a way to run it. Those come first that reach what was changed last and
little else, and are quick: the tests of the file that was mended, not all that start a graph.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.power.reaches import ROOT, Reach, layer_of

COMMITS: Final = 40
# A machine without chromium measures nothing of these tests, and they take no less elsewhere.
_BROWSER_S: Final = 30.0
# What the map does not see: C executes no Python, and scripts run in browsers.
_NATIVE: Final = ("native", "ring", "gate", "loan", "frames", "segments", "drain", "conformance")


@dataclass(frozen=True)
class Unit:
    """A test file and a way to run it.

    Attributes:
        test: The file.
        way: `full`: what the core leaves out; `two nodes`; or the layer, where it has a way of its
            own.
        duration_s: How long it takes.
    """

    test: str
    way: str
    duration_s: float


def units(reaches: Mapping[str, Reach], on_two_nodes: Iterable[str]) -> list[Unit]:
    """Return what there is to run beside the core."""
    found = []
    spread = set(on_two_nodes)
    for test, reach in sorted(reaches.items()):
        whole_s = reach.core_s + reach.full_s
        layer = layer_of(test)
        if layer in ("netns", "browser", "notebooks", "nodes"):
            found.append(Unit(test, layer, max(whole_s, _BROWSER_S * (layer == "browser"))))
        elif reach.full_s:
            found.append(Unit(test, "full", reach.full_s))
        if test in spread:
            found.append(Unit(test, "two nodes", whole_s))
    return found


def changed(commits: int = COMMITS) -> dict[str, int]:
    """Return the files that the last commits changed; how many commits ago each was last."""
    said = subprocess.run(
        ["git", "log", "--first-parent", "-m", f"-{commits}", "--name-only", "--format=%x00"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ages: dict[str, int] = {}
    for age, names in enumerate(said.stdout.split("\0")[1:]):
        for name in names.split():
            ages.setdefault(name, age)
    return ages


def executed_by(test: str, reach: Reach, ages: Iterable[str]) -> set[str]:
    """Return which of the changed files a test file executes, itself included."""
    folders = {source.rpartition("/")[0] for source in reach.sources}
    return {
        name
        for name in ages
        if name in reach.sources
        or name == test
        or (name.startswith("rcg/native/") and any(word in test for word in _NATIVE))
        or (name.endswith(".js") and name.rpartition("/")[0] in folders)
    }


def priorities(reaches: Mapping[str, Reach], ages: Mapping[str, int]) -> dict[str, float]:
    """Return for each test file how much of what was changed it shows, per second."""
    executed = {test: executed_by(test, reach, ages) for test, reach in reaches.items()}
    shared = Counter(name for names in executed.values() for name in names)
    return {
        test: sum(1 / (1 + ages[name]) / shared[name] for name in names)
        / max(5.0, reaches[test].core_s + reaches[test].full_s)
        for test, names in executed.items()
        if names
    }
