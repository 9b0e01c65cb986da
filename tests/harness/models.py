# SPDX-License-Identifier: Apache-2.0
"""State machines over real processes: fresh cases for some minutes, not a number of them.

A test calls the fixture ``run_model`` with its machine; ``--model-minutes`` says how long it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.harness.chance import seed_of, sow

__all__ = ["START_S", "Journal", "RunModel"]

START_S = 600.0  # for actors to start, on a machine that is busy with other things

_STEPS = 30
_CASES = 20  # of one seed: the first of them is the plainest


@dataclass(frozen=True)
class RunModel:
    """Runs cases of a machine with fresh seeds until its minutes are over.

    What fails is not made smaller: processes are not exactly as quick again. The steps of the case
    are in the machine's ``journal``, and its seed becomes that of the run, which the report says.

    Attributes:
        config: Pytest's.
        minutes: For how long.
    """

    config: pytest.Config
    minutes: float

    @property
    def timeout_s(self) -> float:
        """What the test may take: the last case may take long."""
        return START_S + 60 * self.minutes + 300

    def __call__(self, make: Callable[[], RuleBasedStateMachine]) -> None:
        until_s = time.monotonic() + 60 * self.minutes
        first = number = seed_of(self.config)
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
            sow(self.config, number)
            try:
                run_state_machine_as_test(seed(number)(lambda: made_next()), settings=options)
            except BaseException as error:  # noqa: BLE001 - raised again; also a time limit
                # Hypothesis runs a case that failed once more, which may go otherwise.
                failures = [each.journal.failure for each in made]
                failure = next(filter(None, failures), None)
                if failure is None and made:
                    error.add_note(str(made[-1].journal))
                raise failure or error from None
            number += 1


class Journal:
    """What a case did, one line for each step, for the error of a check that fails."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.failure: AssertionError | None = None

    def note(self, line: str) -> None:
        """Add a step, or what came of it."""
        self._lines.append(line)

    def __str__(self) -> str:
        return "\n  ".join(self._lines)

    def check(self, holds: object, problem: str) -> None:
        """Raise AssertionError with all steps so far unless something holds."""
        if not holds:
            self.failure = AssertionError(f"{problem}\n  {self}")
            raise self.failure
