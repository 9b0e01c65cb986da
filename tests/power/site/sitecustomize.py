# SPDX-License-Identifier: Apache-2.0
"""Notes which sources a process executes; Python imports this at its start (``PYTHONPATH``).

``tests.power.reaches`` sets the environment; actors and other processes inherit it. Every function
of the sources gets a first statement that notes its file. If it is about places, lines of sources,
the statements there get one that notes the place instead. The note is written at once, because
tests kill processes. What a module executes while it is imported does not count: nearly every test
imports nearly everything.
"""

import ast
import builtins
import importlib.machinery
import json
import marshal
import os
import types

FOLDER = os.environ["REACHES_FOLDER"]
ROOT = os.environ["REACHES_ROOT"]
SOURCES = tuple(f"{ROOT}/{each}/" for each in ("rcg", "widgets", "benchmarks", "release", "tests"))
NOW = f"{FOLDER}/now"
# Lines by source; None if it is about sources.
PLACES: dict[str, list[int]] | None = json.loads(os.environ.get("REACHES_PLACES", "null"))

noted: set[str] = set()


def note(what: str) -> None:
    """Write down that the test file of this moment executes a source, or a place."""
    noted.add(what)
    try:
        with open(NOW) as now, open(f"{FOLDER}/{now.read()}", "a") as notes:
            notes.write(f"{what}\n")
    except OSError:  # no test file yet, or no descriptor left in a test about that
        pass


def begin(name: str) -> None:
    """From now on, what is executed counts for the test file of this name."""
    with open(f"{NOW}.new", "w") as now:
        now.write(name)
    os.replace(f"{NOW}.new", NOW)
    noted.clear()


def _noting(what: str, before: ast.stmt) -> ast.stmt:
    """Return the statement that notes something, for the line of another."""
    (made,) = ast.parse(f"if {what!r} not in __rcg_noted__: __rcg_note__({what!r})").body
    for each in ast.walk(made):
        ast.copy_location(each, before)
    return made


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _note_source(tree: ast.Module, source: str) -> None:
    for function in _functions(tree):
        at = int(ast.get_docstring(function, clean=False) is not None)
        function.body.insert(at, _noting(source, function.body[0]))


def _note_places(tree: ast.Module, source: str, lines: list[int]) -> None:
    for line in lines:
        blocks = [
            block
            for function in _functions(tree)
            for node in ast.walk(function)
            for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
            if isinstance(block, list)
        ]
        within = [
            (statement.lineno, block, statement)
            for block in blocks
            for statement in block
            if statement.lineno <= line <= (statement.end_lineno or 0)
        ]
        if within:  # the innermost begins last
            _, block, statement = max(within, key=lambda each: each[0])
            block.insert(block.index(statement), _noting(f"{source}:{line}", statement))


def _compiled(path: str) -> types.CodeType:
    """Return the code of a source, which the first process of a run compiles for the others."""
    cache = f"{FOLDER}/{path.replace('/', '%')}c"
    try:
        with open(cache, "rb") as file:
            return marshal.load(file)
    except OSError:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
        source = path.removeprefix(f"{ROOT}/")
        if PLACES is None:
            _note_source(tree, source)
        else:
            _note_places(tree, source, PLACES.get(source, []))
        code = compile(tree, path, "exec", dont_inherit=True)
        with open(f"{cache}.{os.getpid()}", "wb") as file:
            marshal.dump(code, file)
        os.replace(f"{cache}.{os.getpid()}", cache)
        return code


_plain = importlib.machinery.SourceFileLoader.get_code


def _get_code(self, name: str):
    path = self.get_filename(name)
    return _compiled(path) if path.startswith(SOURCES) else _plain(self, name)


importlib.machinery.SourceFileLoader.get_code = _get_code  # type: ignore
vars(builtins).update(__rcg_noted__=noted, __rcg_note__=note)
