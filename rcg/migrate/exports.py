# SPDX-License-Identifier: Apache-2.0
"""The modules and names of rcg, read from its source files.

Importing the modules would give the same result, but it would load Ray.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Exports:
    """The names that can be imported from a module of rcg.

    Attributes:
        names: The names in its ``__all__``.
        is_open: Whether it has a ``__getattr__``, which gets any other public name from Ray.
    """

    names: frozenset[str]
    is_open: bool

    def has(self, name: str) -> bool:
        """Return whether ``from module import name`` can work."""
        return name in self.names or (self.is_open and not name.startswith("_"))


@functools.cache
def exports_of(module: str) -> Exports | None:
    """Return what a module of rcg exports; None if rcg has no such module.

    Args:
        module: Its dotted name, such as ``rcg.dag``.
    """
    first, *rest = module.split(".")
    if first != PACKAGE.name:
        return None
    stem = PACKAGE.joinpath(*rest)
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if path.is_file():
            return _read(ast.parse(path.read_bytes()))
    return None


def _read(tree: ast.Module) -> Exports:
    names: frozenset[str] = frozenset()
    is_open = False
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name("__all__")], value=ast.List() | ast.Tuple() as listed)
                | ast.AnnAssign(
                    target=ast.Name("__all__"), value=ast.List() | ast.Tuple() as listed
                )
            ):
                names = frozenset(ast.literal_eval(listed))
            case (
                ast.FunctionDef(name="__getattr__")
                | ast.Assign(targets=[ast.Tuple(elts=[ast.Name("__getattr__"), *_])])
            ):
                is_open = True
    return Exports(names, is_open)
