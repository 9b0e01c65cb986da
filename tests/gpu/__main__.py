# SPDX-License-Identifier: Apache-2.0
"""``make gpu``: what rcg does on GPUs, tried and measured; it says what was not run, and why.

It needs torch and CuPy, and one GPU. Where Ray is not installed, actors are plain processes
(``tests/gpu/plain``). ``--fake`` tries the checks themselves without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import time
import traceback
from pathlib import Path

PLAIN = Path(__file__).parent / "plain"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--fake", action="store_true", help="on the fake device of the tests")
    parser.add_argument("--plain", action="store_true", help="plain processes, even with Ray")
    parser.add_argument("--only", default="", help="checks whose name this pattern finds")
    chosen = parser.parse_args()
    for name, what in (("torch", "torch"), ("numpy", "NumPy"), ("rcg._native", "the native core")):
        if importlib.util.find_spec(name) is None:
            print(f"nothing was run: {what} is not there ({name}); see CONTRIBUTING.md")
            return 1
    if chosen.plain or importlib.util.find_spec("ray") is None:
        sys.path.insert(0, str(PLAIN))
    from tests.gpu import checks

    try:
        machine = checks.machine_of("fake" if chosen.fake else "cuda")
    except checks.NotRunError as why:
        print(f"nothing was run: {why}")
        return 0
    for name, fact in machine.facts.items():
        print(f"{name:10} {fact}")
    counts = {"ok": 0, "FAILED": 0, "not run": 0}
    for name, check in checks.all_checks(machine):
        if not re.search(chosen.only, name):
            continue
        started = time.perf_counter()
        try:
            outcome, found = "ok", check()
        except checks.NotRunError as why:
            outcome, found = "not run", str(why)
        except Exception as error:  # noqa: BLE001 - the next check may work
            outcome, found = "FAILED", f"{type(error).__name__}: {error}"
            traceback.print_exc()
        counts[outcome] += 1
        print(f"{outcome:8} {name:32} {found}  [{time.perf_counter() - started:.1f} s]", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
