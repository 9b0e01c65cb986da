# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.soak``: run a soak on a Ray of its own, and say how it goes."""

from __future__ import annotations

import argparse
import faulthandler
import random

from tests.cluster.nodes import session_of
from tests.soak.rounds import GUARD_S
from tests.soak.soak import Soak

BACKSTOP_S = 5 * GUARD_S


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--executions", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--only", type=int, help="run this round alone")
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes Ray has")
    parser.add_argument("--tight", action="store_true", help="little memory in every round")
    given = parser.parse_args()
    # Each line of progress puts this off; the soak itself sees most hangs, and sooner.
    faulthandler.dump_traceback_later(BACKSTOP_S, exit=True)
    print(f"seed {given.seed}", flush=True)

    def say(text: str) -> None:
        print(text, flush=True)
        faulthandler.dump_traceback_later(BACKSTOP_S, exit=True)

    with session_of(given.nodes):
        Soak(given.seed, given.executions, given.kills, say, given.only, given.tight).run()


main()
