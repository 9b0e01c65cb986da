# SPDX-License-Identifier: Apache-2.0
"""State machines over real processes: fresh cases for some minutes, not a number of them.

``MODEL_MINUTES`` says how long each machine runs, ``MODEL_SEED`` repeats its cases.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["START_S", "TIMEOUT_S", "Journal", "run_for_minutes"]

START_S = 600.0  # for actors to start, on a machine that is busy with other things

_MINUTES = float(os.environ.get("MODEL_MINUTES", 0.75))  # of a machine
TIMEOUT_S = START_S + 60 * _MINUTES + 300  # of its test: a case may take long
_STEPS = 30
_CASES = 20  # of one seed: the first of them is the plainest


def run_for_minutes(make: Callable[[], RuleBasedStateMachine]) -> None:
    """Run cases of a machine with fresh seeds until the minutes are over.

    What fails is not made smaller: processes are not exactly as quick again. The steps of the case
    are in the machine's ``journal``.
    """
    until_s = time.monotonic() + 60 * _MINUTES
    first = int(os.environ.get("MODEL_SEED") or random.SystemRandom().randrange(1 << 32))
    number = first
    options = settings(
        max_examples=_CASES,
        stateful_step_count=_STEPS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    made: list[Any] = []

    def made_next() -> RuleBasedStateMachine:
        made.append(make())
        return made[-1]

    while number == first or time.monotonic() < until_s:
        made.clear()
        try:
            run_state_machine_as_test(seed(number)(lambda: made_next()), settings=options)
        except BaseException as error:  # noqa: BLE001 - raised again; also the end of a time limit
            # Hypothesis runs a case that failed once more, which may go otherwise.
            failures = [each.journal.failure for each in made if each.journal.failure is not None]
            failure = failures[0] if failures else error
            failure.add_note(f"MODEL_SEED={number} repeats it")
            raise failure from None
        number += 1


class Journal:
    """What a case did, one line for each step, for the error of a check that fails."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.failure: AssertionError | None = None

    def note(self, line: str) -> None:
        """Add a step, or what came of it."""
        self._lines.append(line)

    def check(self, holds: object, problem: str) -> None:
        """Raise AssertionError with all steps so far unless something holds."""
        if not holds:
            self.failure = AssertionError("\n  ".join([problem, *self._lines]))
            raise self.failure
