# SPDX-License-Identifier: Apache-2.0
"""Which sources each test file executes, actors and other processes included: tests/reaches.json.

``make reaches`` measures it. CI chooses by it which tests a change may break, and ``make mutants``
which tests may kill a mutant::

    python -m tests.power.reaches                          all test files, which takes long
    python -m tests.power.reaches tests/unit/test_ops.py   these test files
    python -m tests.power.reaches --missing                those that the map lacks or knows wrongly
    python -m tests.power.reaches --check                  fail if the map lacks a file
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MAP: Final = ROOT / "tests/reaches.json"
SITE: Final = Path(__file__).parent / "site"
NBVAL: Final = (
    "--nbval --nbval-sanitize-with=notebooks/sanitize.cfg --nbval-current-env "
    "--nbval-cell-timeout=120"
)
# These have environments and machines of their own.
_WITHOUT_MAP: Final = ("tests/vllm/", "tests/gpu/", "notebooks/vllm_inside")
# Executed there, and as a script, which Python does not import.
_NOT_REACHED: Final = ("rcg/integrations/vllm/", "rcg/bench/visitor.py")
# A session of pytest measures so many files, then the map is written.
_BATCH: Final = {"unit": 30, "process": 10, "conformance": 2}
_BATCH_TIMEOUT_S: Final = 3600.0
_WORKERS: Final = 2


@dataclass(frozen=True)
class Reach:
    """What is known of a test file.

    Attributes:
        core_s: How long the tests take that the core has.
        full_s: How long those take that are marked ``full``.
        sources: The files that it executes.
    """

    core_s: float
    full_s: float
    sources: frozenset[str]


def layer_of(test: str) -> str:
    """Return the layer of a test file: the folder below ``tests``, or ``notebooks``."""
    parts = test.split("/")
    return parts[1] if parts[0] == "tests" else parts[0]


def test_files() -> list[str]:
    """Return the test files and notebooks that the map is about."""
    found = [*ROOT.glob("tests/*/test_*.py"), *ROOT.glob("notebooks/*.ipynb")]
    names = sorted(str(each.relative_to(ROOT)) for each in found)
    return [each for each in names if not each.startswith(_WITHOUT_MAP)]


def sources() -> list[str]:
    """Return the sources that have functions: what is executed later than at the import."""
    found = [*ROOT.glob("rcg/**/*.py"), *ROOT.glob("widgets/**/*.py")]
    names = (str(each.relative_to(ROOT)) for each in found if _has_functions(each))
    return sorted(each for each in names if not each.startswith(_NOT_REACHED))


def _has_functions(path: Path) -> bool:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return any(
        isinstance(node, kinds) and not _is_stub(node)
        for node in ast.walk(ast.parse(path.read_bytes()))
    )


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has only a docstring or ``...``, as a protocol's."""
    return all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        for each in function.body
    )


def load() -> dict[str, Reach]:
    """Read the map; files that are gone are left out."""
    if not MAP.exists():
        return {}
    known = set(test_files())
    return {
        test: Reach(
            entry["core_s"],
            entry["full_s"],
            frozenset(f"{at}/{name}" for at, names in entry["reaches"].items()
                      for name in names.split()),
        )
        for test, entry in json.loads(MAP.read_text()).items()
        if test in known
    }  # fmt: skip


def save(reaches: Mapping[str, Reach]) -> None:
    """Write the map: a line for each test file."""
    lines = []
    for test, reach in sorted(reaches.items()):
        folders: dict[str, list[str]] = defaultdict(list)
        for source in sorted(reach.sources):
            folder, _, name = source.rpartition("/")
            folders[folder].append(name)
        entry = {
            "core_s": round(reach.core_s, 1),
            "full_s": round(reach.full_s, 1),
            "reaches": {folder: " ".join(names) for folder, names in sorted(folders.items())},
        }
        lines.append(f"{json.dumps(test)}: {json.dumps(entry)}")
    MAP.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def stale(reaches: Mapping[str, Reach]) -> Iterator[str]:
    """Give a sentence for each file that the map lacks."""
    for test in test_files():
        if test not in reaches:
            yield f"{test} is not in {MAP.name}: make reaches REACHES={test}"
    reached = frozenset[str]().union(*(each.sources for each in reaches.values()))
    for source in sources():
        if source not in reached:
            yield f"no test reaches {source}: make reaches REACHES=<test files that execute it>"


def missing(reaches: Mapping[str, Reach]) -> list[str]:
    """Return the test files that the map lacks, and those that reached a source that is gone.

    Of the latter the map does not say what does the work of that source now.
    """
    there = {
        source: (ROOT / source).exists() for each in reaches.values() for source in each.sources
    }
    return [
        test
        for test in test_files()
        if test not in reaches or not all(there[source] for source in reaches[test].sources)
    ]


def measure(tests: Iterable[str]) -> list[str]:
    """Run test files, put what they reach into the map, and return those that did not pass."""
    failed = []
    for chosen, measured in _in_batches(tests, {}):
        save(load() | measured)
        failed += [test for test in chosen if test not in measured]
    return failed


def executing(tests: Iterable[str], places: Iterable[tuple[str, int]]) -> dict[str, set[str]]:
    """Run what the core has of test files; returns the files that execute each place.

    A place is a source and a line of a function in it; the keys are ``source:line``.
    """
    found = defaultdict[str, set[str]](set)
    lines = defaultdict[str, list[int]](list)
    for source, line in sorted(set(places)):
        lines[source].append(line)
    for _, measured in _in_batches(tests, lines):
        for test, reach in measured.items():
            for place in reach.sources:
                found[place].add(test)
    return found


def _in_batches(
    tests: Iterable[str], places: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Sequence[str], dict[str, Reach]]]:
    batches = []
    for layer, of_layer in groupby(sorted(tests, key=layer_of), layer_of):
        chosen = list(of_layer)
        size = _BATCH.get(layer, 4)
        batches += [(layer, chosen[at : at + size]) for at in range(0, len(chosen), size)]
    with ThreadPoolExecutor(_WORKERS) as workers:
        measured = workers.map(lambda batch: _measured(*batch, places), batches)
        yield from zip((tests for _, tests in batches), measured, strict=True)


def _measured(
    layer: str, tests: Sequence[str], places: Mapping[str, Sequence[int]]
) -> dict[str, Reach]:
    """Run test files of a layer; returns what those reach that pass."""
    module = "tests.netns" if layer == "netns" else "pytest"
    nbval = NBVAL.split() if layer == "notebooks" else []
    # More examples would not reach more.
    quick = [] if layer == "notebooks" else ["--hypothesis-profile=quick"]
    marked = "not gpu and not full" if places else "not gpu"
    with tempfile.TemporaryDirectory(prefix="reaches-", ignore_cleanup_errors=True) as folder:
        paths = [str(SITE), str(ROOT), str(ROOT / "widgets"), os.environ.get("PYTHONPATH", "")]
        ours = {"REACHES_FOLDER": folder, "REACHES_ROOT": str(ROOT)}
        if places:
            ours["REACHES_PLACES"] = json.dumps(places)
        command = [sys.executable, "-m", module, "-q", "-p", "rcg_reaches", "-m", marked]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *quick, *nbval, *tests],
            env={**os.environ, **ours, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            cwd=ROOT,
            timeout=_BATCH_TIMEOUT_S,
            check=False,
        )
        seconds = Path(folder, "seconds.json")
        spent = json.loads(seconds.read_text()) if seconds.exists() else {}
        measured = {}
        for test in tests:
            notes = Path(folder, test.replace("/", "%"))
            if not any(spent.get(test, {}).values()):
                print(f"{test} did not pass, exit status {done.returncode}", flush=True)
                continue
            noted = notes.read_text().split("\n") if notes.exists() else []
            measured[test] = Reach(
                spent[test]["core"], spent[test]["full"], frozenset(filter(None, noted))
            )
        return measured


def main() -> int:
    """Do what the command line says; returns 1 if the map lacks a file, or one did not pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.power.reaches")
    parser.add_argument("tests", nargs="*", help="test files; all if none is given")
    parser.add_argument("--missing", action="store_true",
                        help="those that the map lacks, or that reached what is gone")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="only say which files the map lacks")
    given = parser.parse_args()
    reaches = load()
    if given.check:
        lines = list(stale(reaches))
        print(*lines, sep="\n", end="\n" if lines else "")
        return bool(lines)
    failed = measure(given.tests or (missing(reaches) if given.missing else test_files()))
    print(*stale(load()), sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
