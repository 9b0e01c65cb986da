# SPDX-License-Identifier: Apache-2.0
"""A soak: rounds until enough was executed and killed, and then nothing may be left over.

The account must balance, and threads, files, segments of shared memory and resident memory of the
driver and of the actors that survived, on every node, must be what they were. Beside the graphs of
every round a publisher of weights pushes versions, which two readers get.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import rcg
from tests.soak.callers import Held, SoakFailure
from tests.soak.performer import inspect_process
from tests.soak.rounds import Pool, Round, Task, watch
from tests.soak.weights import Weights

__all__ = ["Soak"]

ACTORS = 5
WARM_UP_ROUNDS = 5
INSPECT_EVERY = 10
SAY_EVERY_S = 5.0
ENDS = ("right", "user errors", "died", "closed", "out of memory", "dropped")

# Ray's own threads, sockets and caches come and go. What grows with the number of rounds shows.
MORE_THREADS = 8
MORE_FILES = 8
# The driver's levels off some 100 MB up: what malloc keeps after megabytes from many threads.
MORE_RESIDENT_MB = 200


@dataclass
class Soak:
    """A soak on the running Ray session.

    Attributes:
        seed: Decides every round.
        executions: How many at least.
        kills: How many at least.
        say: Where progress goes.
        only: Run this round alone.
        tight: Whether every round has little memory, and not one in four.
    """

    seed: int
    executions: int
    kills: int
    say: Callable[[str], None] = print
    only: int | None = None
    tight: bool = False
    accounts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    def run(self) -> None:
        """Run it.

        Raises:
            SoakFailure: Something was wrong; notes on it say in which round, and how to run it
                again.
        """
        self._begun = self._said = time.monotonic()
        self._pool = Pool(ACTORS)
        self._weights = Weights(self._pool.nodes, self.accounts)
        self._held = Held(random.Random(self.seed))
        self._first: dict[tuple[str, int], dict[str, int]] = {}
        self._before = inspect_process()
        # Half of the rounds have a death.
        share = self.executions // max(1, 2 * self.kills) if self.kills else 500
        number = 0 if self.only is None else self.only
        while True:
            self._run_round(number, max(2, share))
            self.rounds += 1
            number += 1
            is_last = self.only is not None or self._is_enough()
            if self.rounds == WARM_UP_ROUNDS or self.rounds % INSPECT_EVERY == 0 or is_last:
                self._inspect()
            if is_last:
                break
            self._say_progress()
        self._weights.close()
        self.say(self.summary())

    def _is_enough(self) -> bool:
        done = self.accounts
        return done["executions"] >= self.executions and done["kills"] >= self.kills

    def _run_round(self, number: int, executions: int) -> None:
        current = Round(self.seed, number, self._pool, self._held, executions, is_tight=self.tight)
        rng = random.Random(f"{self.seed}/{number}/weights")
        weights = Task("weights", lambda: self._weights.run(rng))
        try:
            try:
                current.run()
            finally:
                watch("weights", [weights])
            self._balance(current.accounts)
        except BaseException as error:
            error.add_note(
                f"round {number} of seed {self.seed}: {current}\n"
                f"python -m tests.soak --executions {self.executions} --kills {self.kills} "
                f"--seed {self.seed} --only {number} --nodes {self._pool.nodes}"
                f"{' --tight' if self.tight else ''}"
            )
            raise
        self.accounts.update(current.accounts)

    @staticmethod
    def _balance(accounts: Counter[str]) -> None:
        ended = sum(accounts[end] for end in ENDS)
        if accounts["submitted"] != ended:
            raise SoakFailure(
                f"{accounts['submitted']} refs were given and {ended} accounted for: {accounts}"
            )

    def _inspect(self) -> None:
        """Drop everything that is held, and check that nothing else is."""
        self._held.clear()
        states = {"the driver": inspect_process()}
        for what in ("segments", "segment_files"):
            states["the driver"][what] -= self._before[what]
        found = rcg.get([actor.inspect.remote() for actor in self._pool.actors])
        states.update(
            (f"actor {index} ({pid}) of node {self._pool.node_of(index)}", state)
            for index, (pid, state) in enumerate(zip(self._pool.pids, found, strict=True))
        )
        states.update(self._weights.inspect())
        for who, state in states.items():
            first = self._first.setdefault((who, state["has_torch"]), state)
            for what, more in (
                ("segments", 0),
                ("segment_files", 0),
                ("threads", MORE_THREADS),
                ("files", MORE_FILES),
                ("resident_mb", MORE_RESIDENT_MB),
            ):
                allowed = first[what] + more if more else 0
                if state[what] > allowed:
                    raise SoakFailure(
                        f"after {self.rounds} rounds {who} has {state}; first it had {first}"
                    )
        self._states = states

    def _say_progress(self) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_S:
            self._said = now
            self.say(f"{now - self._begun:6.0f} s, {self.rounds} rounds: {self._counts()}")

    def _counts(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.accounts.items()))

    def summary(self) -> str:
        """What was done, and what the processes have at the end, beside the first look at them."""
        lines = [
            f"seed {self.seed}: {self.rounds} rounds in {time.monotonic() - self._begun:.0f} s",
            self._counts(),
            f"{self._held.looked_at:,} results were held and looked at again",
        ]
        for who, state in self._states.items():
            first = self._first[who, state["has_torch"]]
            changes = (f"{what} {first[what]} -> {now}" for what, now in state.items())
            lines.append(f"{who}: {', '.join(changes)}")
        return "\n".join(lines)
