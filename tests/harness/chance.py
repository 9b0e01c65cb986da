# SPDX-License-Identifier: Apache-2.0
"""The seed of a run of pytest, from which every generator of cases draws.

Hypothesis and the fixture ``dice`` both draw from ``--hypothesis-seed``. A run that is given none
draws a new one, prints it, and a failure prints the command that runs its test with it again. What
a seed finds becomes an example. Seeds that only make data are fixed, in the tests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count, groupby, pairwise
from typing import Final

import pytest
from hypothesis import core, is_hypothesis_test

__all__ = ["command_of", "draw_seed", "in_turn_until", "is_random", "seed_of", "sow"]

_OPTION: Final = "--hypothesis-seed"


def seed_of(config: pytest.Config) -> int:
    """Return the seed of the run; the processes of xdist share it."""
    return int(config.getoption(_OPTION))


def draw_seed(config: pytest.Config) -> None:
    """Give a run that has no seed a new one, and a worker of xdist that of its run."""
    if hasattr(config, "workerinput"):
        sow(config, config.workerinput["seed"])
    elif config.getoption(_OPTION) is None:
        sow(config, random.SystemRandom().randrange(10**9))


def sow(config: pytest.Config, seed: int) -> None:
    """Let what is drawn from now on come from another seed."""
    config.option.hypothesis_seed = core.global_force_seed = seed


def is_random(item: pytest.Item) -> bool:
    """Whether a test draws cases."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(fixtures & {"dice", "run_model"}) or is_hypothesis_test(getattr(item, "obj", None))


def command_of(item: pytest.Item) -> str:
    """Return the command that runs a test with the seed that it has now."""
    words = [f"{_OPTION}={seed_of(item.config)}"]
    for option in ("--hypothesis-profile", "--nodes"):
        if (value := item.config.getoption(option)) not in (None, 1):
            words.append(f"{option}={value}")
    return f"python -m pytest {' '.join(words)} '{item.nodeid}'"


def in_turn_until(session: pytest.Session, deadline_s: float) -> None:
    """Run the tests of a session again and again, with another seed each time, for so long.

    Args:
        session: Pytest's, whose tests are collected.
        deadline_s: On the monotonic clock. A test that runs then is the last.
    """
    modules = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    random.Random(seed_of(session.config)).shuffle(modules)

    def endless() -> Iterator[tuple[int, pytest.Item]]:
        for number in count(seed_of(session.config)):
            yield from ((number, item) for items in modules for item in items)

    for (seed, item), (_, following) in pairwise(endless()):
        sow(session.config, seed)
        is_last = time.monotonic() > deadline_s or session.testsfailed > 0
        follows = None if is_last or following is item else following
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=follows)
        if is_last or session.shouldstop:
            return
