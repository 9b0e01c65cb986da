# SPDX-License-Identifier: Apache-2.0
"""Remarks: the lines that the user has to check, such as uses of names that are still Ray's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from rcg.migrate.imports import dotted
from rcg.migrate.moves import exports_of, home_of

# The last part of the names of functions whose string argument names a module or an attribute.
_TAKES_A_PATH: Final = frozenset(
    {
        "__import__",
        "delattr",
        "delitem",
        "find_spec",
        "import_module",
        "importorskip",
        "patch",
        "setattr",
        "setitem",
    }
)
_PATH_OF_RAY: Final = re.compile(r"ray(\.\w+)*")
# What Ray's nodes and graphs have, and rcg's have not.
_INTERNALS: Final = {
    "_bound_args": "node.get_args()",
    "_bound_kwargs": "node.get_kwargs()",
    "_bound_options": "node.get_options()",
    "apply_functional": None,
    "apply_recursive": None,
    "cache_from_last_execute": None,
    "get_object_refs_from_last_execute": None,
    "get_other_args_to_resolve": None,
    "get_stable_uuid": None,
    "input_attribute_nodes": None,
    "traverse_and_apply": None,
    "worker_task_refs": "cdag.report()",
    "actor_to_tasks": "cdag.plan",
    "actor_to_execution_schedule": "cdag.plan",
    "idx_to_task": "cdag.plan",
}


@dataclass(frozen=True, order=True)
class Remark:
    """A line that the user has to check.

    Attributes:
        line: The line in the source text, counted from 1.
        text: What is there and what to do.
        cell: The cell of a notebook, counted from 1; 0 where there are no cells.
    """

    line: int
    text: str
    cell: int = 0


def remarks_on_uses(wrapper: MetadataWrapper, names: Mapping[str, str]) -> list[Remark]:
    """Return remarks on uses of names, outside of imports, that differ from Ray after the rewrite.

    Args:
        wrapper: The syntax tree.
        names: What is bound to rcg or one of its modules, such as ``{"ray": "rcg"}``.
    """
    uses = _Uses(names)
    wrapper.visit(uses)
    return uses.remarks


class _Uses(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self._names = names
        self._function_depth = 0
        self.remarks: list[Remark] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._function_depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._function_depth -= 1

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if self._function_depth and node.value is not None:
            node.value.visit(self)
        return not self._function_depth  # Python evaluates no annotation of a variable there

    def visit_Import(self, node: cst.Import) -> bool:
        return False  # a name in it is not a use of the name

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if self._names and node.attr.value in _INTERNALS:
            instead = _INTERNALS[node.attr.value]
            text = f"`.{node.attr.value}` is internal to Ray's graphs, and rcg's have none"
            self._remark(node, text + (f"; use {instead}" if instead else ""))
        head, _, path = dotted(node).partition(".")
        module = self._names.get(head)
        if module is None or not path:
            return
        *rooms, name = path.split(".")
        module = ".".join((module, *rooms))
        text = f"`{dotted(node)}`"
        if module == "rcg" and name == "__version__":
            text += " is rcg's version now; `from ray import __version__` gives Ray's"
        elif module == "rcg" and name.startswith("_") and not name.startswith("__"):
            text += f" does not reach Ray; `from ray import {name}` does"
        elif module == "rcg.dag":
            exports = exports_of(module)
            if exports is None or exports.has(name) or name.startswith("__"):
                return
            if home_of(f"ray.dag.{name}") is not None:
                return
            text += f" is not there; rcg.dag has no {name}"
        else:
            return
        self._remark(node, text)

    def visit_Call(self, node: cst.Call) -> None:
        function = dotted(node.func)
        is_lookup = re.search(r"\bmodules\.(get|pop|setdefault)$", function) is not None
        if is_lookup or function.rpartition(".")[2] in _TAKES_A_PATH:
            for argument in node.args:
                self._mention(node, argument.value)
        for argument in node.args:
            match argument:
                case cst.Arg(keyword=cst.Name("_ray_cache_refs")) if self._names:
                    text = (
                        "rcg's `execute` has no `_ray_cache_refs`: keep the references it returns"
                    )
                    self._remark(node, text)
                case cst.Arg(value=cst.SimpleString() as address) if function.endswith("init"):
                    if str(address.evaluated_value).startswith("ray://"):
                        text = (
                            "graphs do not work over Ray Client (ray://): run the driver on a node"
                        )
                        self._remark(node, f"{text} of the cluster")

    def visit_Subscript(self, node: cst.Subscript) -> None:
        if dotted(node.value).rpartition(".")[2] == "modules":
            for element in node.slice:
                if isinstance(element.slice, cst.Index):
                    self._mention(node, element.slice.value)

    def _mention(self, node: cst.CSTNode, value: cst.BaseExpression) -> None:
        if isinstance(value, cst.SimpleString | cst.ConcatenatedString):
            text = value.evaluated_value
            if isinstance(text, str) and _PATH_OF_RAY.fullmatch(text):
                self._remark(
                    node, f'the string "{text}" names Ray\'s own; write rcg if that is meant'
                )

    def _remark(self, node: cst.CSTNode, text: str) -> None:
        line: int = self.get_metadata(PositionProvider, node).start.line
        self.remarks.append(Remark(line, text))
