# SPDX-License-Identifier: Apache-2.0
"""Change the code where tests should see it, and count the changes that no test sees.

A mutant is one small change of a function: another comparison, a dropped statement, a number that
is one more. First the tests that reach its file (``tests/reaches.json``) run once, to find those
that execute its place. Those run on a copy of the tree with the change, layer after layer, the
narrowest first; the first that fails has killed it, as has a test that hangs. What survives shows
where a test is missing, or code that changes nothing::

    python -m tests.power.mutants --room rcg/weights --count 40 --seed 7

Several rooms may be given: the tests run once for all. Without a room it takes the sources that the
last commits changed. ``--write`` puts the result into the table of docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any, Final

import pytest

from tests.power import choice, reaches
from tests.power.reaches import ROOT, Reach, layer_of

LAYERS: Final = ("unit", "process", "conformance", "cluster")
# Meets what those do not execute: what runs between machines only.
FAR: Final = "netns"
CHANGED: Final = "what changed"
NO_TEST: Final = "no test"
PAGE: Final = ROOT / "docs/mutants.md"
# So many seconds of tests of each layer meet a mutant, as the map measured them.
_SHARE_S: Final = {"unit": 60.0, "process": 45.0, "conformance": 45.0, "cluster": 90.0, FAR: 90.0}
_HANG_S: Final = 60
_SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one source.

    Attributes:
        source: The file.
        line: Where.
        change: What is changed into what.
        text: The file with the change.
    """

    source: str
    line: int
    change: str
    text: str = field(repr=False)

    @property
    def place(self) -> str:
        """Its source and line."""
        return f"{self.source}:{self.line}"


@dataclass
class Fate:
    """What became of a mutant.

    Attributes:
        mutant: The mutant.
        killed_by: The layer whose test failed; "" if it survived, ``NO_TEST`` if none executes it.
        test: The test that failed, or where one hung.
    """

    mutant: Mutant
    killed_by: str
    test: str = ""


def mutants_of(source: str, text: str) -> Iterator[Mutant]:
    """Give all mutants of a source, in the order of its lines."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node, changed in _changes(ast.parse(text)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        low = starts[node.lineno - 1] + node.col_offset
        high = starts[node.end_lineno - 1] + node.end_col_offset
        new = ast.unparse(changed)
        if isinstance(node, ast.expr):
            new = f"({new})"
        whole = text.encode()
        old = " ".join(whole[low:high].decode().split())
        mutated = whole[:low] + new.encode() + whole[high:]
        with contextlib.suppress(SyntaxError):  # in an f-string, say
            compile(mutated, source, "exec")
            yield Mutant(source, node.lineno, f"{old[:70]} -> {new[:70]}", mutated.decode())


def _changes(tree: ast.Module) -> Iterator[tuple[Any, Any]]:
    """Give the nodes in functions that can be changed, each with what it becomes."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _changes_in(statement)


def _changes_in(node: ast.AST) -> Iterator[tuple[Any, Any]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.JoinedStr():
            return  # a function in one is visited as a function
        case ast.Compare(ops=[op]) if type(op) in _SWAPS:
            yield node, _with(node, ops=[_SWAPS[type(op)]()])
        case ast.BoolOp(op=op):
            yield node, _with(node, op=_SWAPS[type(op)]())
        case ast.BinOp(op=op) if type(op) in _SWAPS:
            yield node, _with(node, op=_SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # changed below
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield node, ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await() as value) if "_log." not in ast.unparse(value):
            yield node, ast.Pass()
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()
        case ast.Break():
            yield node, ast.Continue()
        case ast.Continue():
            yield node, ast.Break()
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "msg"):
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    yield from _changes_in(each)


def _with(node: Any, **fields: Any) -> Any:
    made = copy.copy(node)
    vars(made).update(fields)
    return made


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def narrowest_for(tests: Collection[str], known: dict[str, Reach], layer: str) -> list[str]:
    """Return those tests of a layer that are to meet a mutant, the narrowest first."""
    found = [test for test in tests if layer_of(test) == layer and known[test].core_s]
    found.sort(key=lambda test: (len(known[test].sources), known[test].core_s))
    chosen, left_s = [], _SHARE_S[layer]
    for test in found:
        if not chosen or known[test].core_s <= left_s:
            chosen.append(test)
            left_s -= known[test].core_s
    return chosen


class Copy:
    """A copy of the tree, in which one source at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        files = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        built = [str(each.relative_to(ROOT)) for each in ROOT.glob("rcg/**/*.so")]
        for name in filter(None, files + built):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        self._sound: dict[str, bool] = {}
        self._number = 0

    @contextlib.contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Change the source; puts it back in the end."""
        self._write(mutant.source, mutant.text)
        try:
            yield
        finally:
            self._write(mutant.source, (ROOT / mutant.source).read_text())

    def _write(self, source: str, text: str) -> None:
        path = self.root / source
        path.write_text(text)
        self._number += 1  # Python compiles it anew, however fast the mutants come
        os.utime(path, (self._number, self._number))

    def failing(self, tests: Sequence[str]) -> str | None:
        """Run tests; returns the one that failed or hung, None if all passed."""
        module = "tests.netns" if tests[0].startswith(f"tests/{FAR}/") else "pytest"
        command = [sys.executable, "-m", module, "-q", "-x", "-p", "no:cacheprovider"]
        options = ["--hypothesis-profile=quick", "-m", "not full and not gpu", "--tb=no"]
        paths = os.pathsep.join([str(self.root), str(self.root / "widgets")])
        process = subprocess.Popen(
            [*command, *options, "-o", f"timeout={_HANG_S}", *tests],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            said, _ = process.communicate(timeout=6 * _HANG_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # Ray ends with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_HANG_S)
            process.kill()
            process.communicate()
            return "hangs"
        if process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.M)
        return failed[1] if failed else f"exit status {process.returncode}"

    def is_sound(self, test: str) -> bool:
        """Whether a test passes without a mutant: one that does not kills none."""
        if "::" not in test and not test.endswith(".py"):
            return True
        if test not in self._sound:
            self._sound[test] = self.failing([test]) is None
        return self._sound[test]


def fate_of(mutant: Mutant, tree: Copy, tests: Collection[str], known: dict[str, Reach]) -> Fate:
    """Run the tests that execute a mutant until one kills it."""
    for layer in (*LAYERS, FAR):
        left = narrowest_for(tests, known, layer)
        while left:
            with tree.with_mutant(mutant):
                killer = tree.failing(left)
            if killer is None:
                break
            if tree.is_sound(killer):
                return Fate(mutant, layer, killer)
            left = [each for each in left if each != killer.partition("::")[0]]
    return Fate(mutant, "" if tests else NO_TEST)


def sample(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of files; the same for the same seed and code."""
    every = [each for name in files for each in mutants_of(name, (ROOT / name).read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def row_of(fates: Sequence[Fate]) -> dict[str, Any]:
    """Return what the table says of a room."""
    counts = Counter(fate.killed_by for fate in fates)
    return {
        "mutants": len(fates),
        **{layer: counts[layer] for layer in (*LAYERS, FAR)},
        "survived": counts[""] + counts[NO_TEST],
    }


def write(room: str, seed: int, fates: Sequence[Fate]) -> None:
    """Put the row of a room into the page."""
    head, _, table = PAGE.read_text().partition("| room |")
    rows = dict(re.findall(r"^\| `(.+?)` (\|.*)$", table, re.M))
    row = row_of(fates)
    killed = row["mutants"] - row["survived"]
    share = f"{100 * killed / row['mutants']:.0f} %"
    cells = [row["mutants"], f"{killed} ({share})", *(row[layer] for layer in (*LAYERS, FAR)), seed]
    rows[room] = "".join(f"| {cell} " for cell in cells) + "|"
    titles = ["room", "mutants", "killed", *(f"by {layer}" for layer in (*LAYERS, FAR)), "seed"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += [f"| `{room}` {rest}" for room, rest in sorted(rows.items())]
    PAGE.write_text(head + "\n".join(lines) + "\n")


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.power.mutants")
    parser.add_argument("--room", action="append", default=[],
                        help="a folder or file of rcg, as weights; else what changed")  # fmt: skip
    parser.add_argument("--count", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=1, help="so many mutants at the same time")
    parser.add_argument("--list", action="store_true", help="show the sample, run nothing")
    parser.add_argument("--write", action="store_true", help="put the result into docs/mutants.md")
    given = parser.parse_args()
    rooms = [f"rcg/{each.removeprefix('rcg/').strip('/')}" for each in given.room] or [CHANGED]
    chosen = {room: sample(files_of(room), given.count, given.seed) for room in rooms}
    every = [mutant for of_room in chosen.values() for mutant in of_room]
    print(f"{len(every)} mutants of {', '.join(rooms)}, --seed {given.seed}", flush=True)
    if given.list:
        print(*(f"{each.place}: {each.change}" for each in every), sep="\n")
        return 0
    known = reaches.load()
    executed_by = reaches.executing(
        reaching({each.source for each in every}, known, LAYERS),
        [(each.source, each.line) for each in every],
    )
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(given.jobs) as jobs,
    ):
        trees = Queue[Copy]()
        for number in range(given.jobs):
            trees.put(Copy(Path(folder, str(number))))

        def fate(mutant: Mutant) -> Fate:
            began, tree = time.monotonic(), trees.get()
            try:
                tests = executed_by.get(mutant.place) or reaching({mutant.source}, known, [FAR])
                found = fate_of(mutant, tree, tests, known)
            finally:
                trees.put(tree)
            verdict = f"killed by {found.test}" if found.test else f"SURVIVED {found.killed_by}"
            print(f"{time.monotonic() - began:5.0f} s  {mutant.place}: {mutant.change}\n"
                  f"         {verdict}", flush=True)  # fmt: skip
            return found

        fates = dict(zip(every, jobs.map(fate, every), strict=True))
    for room, mutants in chosen.items():
        of_room = [fates[each] for each in mutants]
        print(room, json.dumps(row_of(of_room)))
        if given.write:
            write(room, given.seed, of_room)
    return 0


def files_of(room: str) -> list[str]:
    """Return the sources of a room, or what changed."""
    changed = choice.changed() if room == CHANGED else ()
    return [
        each for each in reaches.sources() if each in changed or f"{each}/".startswith(f"{room}/")
    ]


def reaching(
    sources: Set[str], known: dict[str, Reach], layers: Collection[str] = LAYERS
) -> list[str]:
    """Return the tests of some layers that may execute mutants of sources."""
    return [test for test, reach in known.items()
            if layer_of(test) in layers and reach.core_s and reach.sources & sources]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
