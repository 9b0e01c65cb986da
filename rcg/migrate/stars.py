# SPDX-License-Identifier: Apache-2.0
"""Finds out what ``from x import *`` does to the name ``ray``, by reading the file of ``x``.

Nothing is imported. Modules are searched beside the file that imports them and in the given
folders. The content of modules that are installed elsewhere is unknown.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def parse(source: str | bytes) -> ast.Module:
    """Parse a text.

    Raises:
        SyntaxError: The text is not Python of the running version.
        ValueError: The text has a null byte.
        RecursionError, MemoryError: The text is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those about invalid escapes
        return ast.parse(source)


def is_too_deep(source: str) -> bool:
    """Return whether a text is nested too deeply for Python.

    The parser of libcst has no limit of nesting. Such a text would overflow its stack and end the
    process.
    """
    try:
        parse(source)
    except (RecursionError, MemoryError):
        return True
    except (SyntaxError, ValueError) as error:
        return isinstance(error, SyntaxError) and "too many nested" in error.msg
    return False


def unknown(module: str) -> str:
    """Return what importing ``*`` from a module may do to ``ray`` if its file is not known."""
    return (
        "may bind `ray` to Ray again: import the names you use, or put `import rcg as ray` below it"
    )


@dataclass(frozen=True)
class Neighbours:
    """The resolved paths of the files that one run rewrites, and the given folders."""

    files: frozenset[Path]
    folders: tuple[Path, ...] = ()

    def judge(self, module: str, importer: Path) -> str | None:
        """Return what importing ``*`` or ``ray`` from a module does to ``ray``; None for nothing.

        Args:
            module: The module, with its leading dots.
            importer: The file that imports it.
        """
        path = self._locate(module, importer)
        if path is None:
            return unknown(module)
        found = self._source_of_ray(path, set())
        if found is None:
            return None
        source, line = found
        shown = f"{os.path.relpath(source)}:{line}"
        if source.resolve() in self.files:
            return f"binds `ray` again, to rcg only once {shown} of this run is written, too"
        return f"binds `ray` to Ray again: {shown} imports it; rewrite that file, too"

    def _locate(self, module: str, importer: Path) -> Path | None:
        name = module.lstrip(".")
        level = len(module) - len(name)
        stem = Path(*name.split(".")) if name else Path()
        if level:
            roots = list(importer.absolute().parents[level - 1 : level])
        else:
            around = (each for folder in self.folders for each in (folder, folder.parent))
            top = importer.absolute().parent  # of the package that the importer is in
            while (top / "__init__.py").is_file():
                top = top.parent
            roots = [importer.parent, top, *around]
        for root in roots:
            for path in (root / stem / "__init__.py", (root / stem).with_suffix(".py")):
                if path.is_file():
                    return path
        return None

    def _source_of_ray(self, path: Path, seen: set[Path]) -> tuple[Path, int] | None:
        """Return the file and the line that bind ``ray`` to Ray for a star import; None if none do.

        A file that cannot be read counts as binding nothing: it is reported on its own.
        """
        if path.resolve() in seen:
            return None
        seen.add(path.resolve())
        try:
            tree = parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        listed = listed_names(tree)
        if listed is not None and "ray" not in listed:
            return None
        found: tuple[Path, int] | None = None
        for statement in _statements(tree.body):
            match statement:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        if (alias.asname or alias.name.partition(".")[0]) == "ray":
                            is_rays = alias.name.partition(".")[0] == "ray"
                            found = (path, statement.lineno) if is_rays else None
                case ast.ImportFrom(names=aliases):
                    if not {"*", "ray"} & {alias.asname or alias.name for alias in aliases}:
                        continue
                    inner = self._locate("." * statement.level + (statement.module or ""), path)
                    if inner is not None:
                        found = self._source_of_ray(inner, seen) or found
                case _:
                    pass
        return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, in order."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for field in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(statement, field, ()):
                    yield from _statements(inner.body if field == "handlers" else [inner])


def listed_names(tree: ast.Module) -> set[str] | None:
    """Return the names in ``__all__``; None without an ``__all__`` that can be read."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name("__all__")], value=value)
                | ast.AnnAssign(target=ast.Name("__all__"), value=value)
            ):
                try:
                    return set(ast.literal_eval(value)) if value is not None else None
                except (ValueError, TypeError):
                    return None
    return None
