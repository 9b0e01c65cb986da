# SPDX-License-Identifier: Apache-2.0
"""Notes which sources a process executes; Python imports this at its start (``PYTHONPATH``).

``tests.power.reaches`` sets the environment; actors and other processes inherit it. Every function
of the sources gets a first statement that notes its file. The note is written at once, because
tests kill processes. What a module executes while it is imported does not count: nearly every test
imports nearly everything.
"""

import ast
import builtins
import importlib.machinery
import marshal
import os
import types

FOLDER = os.environ["REACHES_FOLDER"]
ROOT = os.environ["REACHES_ROOT"]
SOURCES = tuple(f"{ROOT}/{each}/" for each in ("rcg", "widgets", "benchmarks", "release", "tests"))
NOW = f"{FOLDER}/now"

noted: set[str] = set()


def note(path: str) -> None:
    """Write down that the test file of this moment executes a source."""
    noted.add(path)
    try:
        with open(NOW) as now, open(f"{FOLDER}/{now.read()}", "a") as notes:
            notes.write(f"{path}\n")
    except OSError:  # no test file yet, or no descriptor left in a test about that
        pass


def begin(name: str) -> None:
    """From now on, what is executed counts for the test file of this name."""
    with open(f"{NOW}.new", "w") as now:
        now.write(name)
    os.replace(f"{NOW}.new", NOW)
    noted.clear()


class _Noting(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self._source = f"if {path!r} not in __rcg_noted__: __rcg_note__({path!r})"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        (noting,) = ast.parse(self._source).body
        at = int(ast.get_docstring(node, clean=False) is not None)
        for each in ast.walk(noting):
            ast.copy_location(each, node.body[0])
        node.body.insert(at, noting)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


def _compiled(path: str) -> types.CodeType:
    """Return the code of a source, which the first process of a run compiles for the others."""
    cache = f"{FOLDER}/{path.replace('/', '%')}c"
    try:
        with open(cache, "rb") as file:
            return marshal.load(file)
    except OSError:
        with open(path, "rb") as file:
            tree = _Noting(path.removeprefix(f"{ROOT}/")).visit(ast.parse(file.read()))
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
