# SPDX-License-Identifier: Apache-2.0
"""What ``make wheels``, ``make release`` and ``make compat`` run.

::

    python -m release wheels              build, check, install and try
    python -m release files [--final]     the wheels and everything else that a release publishes
    python -m release compat              the versions of Python and Ray (3.13,2.60.0: one pair)
    python -m release newcomer            the time from an empty environment to the first picture
"""

from __future__ import annotations

import argparse
import sys

from release import compat, publishing, trying, wheels
from release.files import Failure


def main(words: list[str]) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release")
    parser.add_argument("command", choices=("wheels", "files", "compat", "newcomer"))
    parser.add_argument("pairs", nargs="*", help="of compat: Python and Ray, as 3.13,2.60.0")
    parser.add_argument("--final", action="store_true", help="refuse what is not ready to publish")
    parser.add_argument("--write", action="store_true", help="of compat: write the page")
    given = parser.parse_args(words)
    try:
        if given.command == "compat":
            return _compat(given.pairs, is_written=given.write)
        if given.command == "newcomer":
            print(trying.try_as_newcomer())
            return 0
        if given.command == "files" and given.final:
            publishing.check_ready()
        built = wheels.build()
        print(*wheels.sizes(built), sep="\n", flush=True)
        print(f"aarch64: {trying.try_for_arm(built)}", flush=True)
        print(f"x86-64: {trying.try_wheel(built)}", flush=True)
        print(f"sdist: {trying.try_sdist(built)}", flush=True)
        if given.command == "files":
            print(*publishing.write_files(built), sep="\n")
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _compat(pairs: list[str], *, is_written: bool) -> int:
    chosen = [(python, ray) for python, _, ray in (pair.partition(",") for pair in pairs)]
    outcomes = []
    for outcome in compat.try_all(chosen or compat.PAIRS):
        print(f"Python {outcome.python}, Ray {outcome.ray}: {outcome.said}", flush=True)
        outcomes.append(outcome)
    if is_written:
        compat.write_page(outcomes)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
