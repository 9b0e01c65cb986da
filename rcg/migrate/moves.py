# SPDX-License-Identifier: Apache-2.0
"""Decides, for one imported module or name of Ray, what is imported instead.

The decisions are about dotted names. What rcg exports is read from its source files: importing the
modules would give the same result, but it would load Ray.

``import ray.util`` binds ``ray``, not ``ray.util``. Unchanged, it would bind ``ray`` to Ray again
after ``import rcg as ray``. So it becomes two imports: one binds ``ray`` to rcg, and the other
loads ``ray.util`` under a private name:

>>> move_import("ray.util", None).imports
(('rcg', 'ray'), ('ray.util', '_ray_util'))
>>> move_import("ray.dag", None).imports
(('rcg', 'ray'),)
>>> move_name("ray.dag.input_node", "InputNode").module
'rcg.dag.input_node'
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rcg.migrate.stars import listed_names

_REPLACED: Final = ("ray.actor", "ray.dag", "ray.experimental")
# Those that are there once `rcg` is imported.
_REACHED: Final = ("ray", *_REPLACED)


class ImportMove(NamedTuple):
    """The replacement of one part of an ``import`` statement.

    Attributes:
        imports: Modules, each with the name after ``as`` or None.
        remark: What the user has to check, or None.
    """

    imports: tuple[tuple[str, str | None], ...]
    remark: str | None = None


class NameMove(NamedTuple):
    """The module that replaces the one in a ``from`` statement, None to keep it; and a remark."""

    module: str | None
    remark: str | None = None


def home_of(module: str) -> str | None:
    """Return the module of rcg that replaces a module of Ray; None if rcg has none."""
    if module != "ray" and not f"{module}.".startswith(tuple(f"{each}." for each in _REPLACED)):
        return None
    moved = f"rcg{module.removeprefix('ray')}"
    return moved if exports_of(moved) is not None else None


def move_import(module: str, alias: str | None) -> ImportMove:
    """Decide what replaces ``import module`` or ``import module as alias``."""
    home = home_of(module)
    remark = None if home is not None else _no_home(module)
    if alias is not None:
        return ImportMove(((home or module, alias),), remark)
    if module.partition(".")[0] != "ray":
        return ImportMove(((module, None),))
    bound = ("rcg", "ray")
    if module in _REACHED:
        return ImportMove((bound,))
    loaded = home or module
    return ImportMove((bound, (loaded, f"_{loaded.replace('.', '_')}")), remark)


def move_name(module: str, name: str) -> NameMove:
    """Decide what replaces ``module`` in ``from module import name``."""
    home = home_of(module)
    if home is None:
        return NameMove(None, _no_home(module))
    exports = exports_of(home)
    if exports is not None and (exports.has(name) or home_of(f"{module}.{name}") is not None):
        is_private = name.startswith("_")  # `__version__` is Ray's version
        return NameMove(None if is_private else home)
    if name.startswith("_"):
        return NameMove(None)
    return NameMove(None, f"rcg has no `{name}` of {module}; the import stays Ray's")


def move_star(module: str) -> NameMove:
    """Decide what replaces ``module`` in ``from module import *``."""
    home = home_of(module)
    if home is None:
        return NameMove(None, _no_home(module))
    exports = exports_of(home)
    if exports is not None and not exports.is_open:
        return NameMove(home)
    text = f"`from {module} import *` takes Ray's own names; import the ones you use by name"
    return NameMove(None, text)


def _no_home(module: str) -> str | None:
    if module.startswith(tuple(f"{each}." for each in _REPLACED)):
        return f"rcg has no module for {module}; the import stays Ray's"
    return None


# --- what rcg exports ---------------------------------------------------------------------------

_PACKAGE: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Exports:
    """The names in the ``__all__`` of a module of rcg; without one, what type checkers see of it.

    ``is_open`` says whether it has a ``__getattr__``, which gets any other public name from Ray.
    """

    names: frozenset[str]
    is_open: bool

    def has(self, name: str) -> bool:
        """Return whether ``from module import name`` can work."""
        return name in self.names or (self.is_open and not name.startswith("_"))


@functools.cache
def exports_of(module: str) -> Exports | None:
    """Return what a module of rcg exports; None if rcg has no such module."""
    first, *rest = module.split(".")
    if first != _PACKAGE.name:
        return None
    stem = _PACKAGE.joinpath(*rest)
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if path.is_file():
            return _read(ast.parse(path.read_bytes()))
    return None


def _read(tree: ast.Module) -> Exports:
    is_open = False
    listed = listed_names(tree)
    names = listed or set()
    for statement in tree.body:
        match statement:
            case (
                ast.FunctionDef(name="__getattr__")
                | ast.Assign(targets=[ast.Tuple(elts=[ast.Name("__getattr__"), *_])])
            ):
                is_open = True
            case ast.If(test=ast.Name("TYPE_CHECKING"), body=imports) if listed is None:
                for each in imports:
                    if isinstance(each, ast.ImportFrom):
                        names.update(*(_imported(each.module, alias.name) for alias in each.names))
    return Exports(frozenset(names), is_open)


def _imported(module: str | None, name: str) -> frozenset[str]:
    exports = exports_of(module or "") if name == "*" else None
    return frozenset([name]) if exports is None else exports.names
