# SPDX-License-Identifier: Apache-2.0
"""Rewrites the import statements of one source text and leaves every other character unchanged.

The input is a text, the output a text and remarks. This file must not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from rcg.migrate.imports import (
    aliases_of,
    bound_name,
    dotted,
    has_only_imports,
    imports_star,
    moved_alias,
    name_after_as,
    name_bound_to_rcg,
    names_bound_by,
    with_module,
    with_names,
    without_comma,
)
from rcg.migrate.moves import exports_of, home_of, move_import, move_name, move_star
from rcg.migrate.remarks import Remark, remarks_on_uses
from rcg.migrate.stars import is_too_deep, unknown


class SourceError(ValueError):
    """The text is not Python, or it is nested too deeply to be parsed.

    Attributes:
        line: The line, counted from 1.
    """

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True)
class Rewritten:
    """A source text after the rewrite.

    Attributes:
        text: The new text.
        remarks: The lines that the user has to check, sorted.
        names: The names bound to rcg or one of its modules, such as ``{"ray": "rcg"}``.
    """

    text: str
    remarks: tuple[Remark, ...]
    names: Mapping[str, str]


def rewrite(
    source: str,
    *,
    judge: Callable[[str], str | None] = unknown,
    names: Mapping[str, str] | None = None,
) -> Rewritten:
    """Rewrite the import statements of a source text.

    Rewriting the result changes nothing.

    Args:
        source: The text.
        judge: Returns what an import of ``*`` or of ``ray`` from a module does to ``ray``, None for
            nothing. Its argument is the module with its leading dots.
        names: The names that earlier cells of a notebook bound to rcg and its modules.

    Raises:
        SourceError: The text is not Python of the version that libcst reads.
    """
    if is_too_deep(source):
        raise SourceError("the code is nested too deeply", 1)
    try:
        tree = cst.parse_module(source)
        if tree.code != source:
            raise SourceError("the code cannot be reproduced from its syntax tree", 1)
        wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
        bindings = _Bindings(dict(names or {}))
        wrapper.module.visit(bindings)
        rewriter = _Rewriter(judge, is_bound="ray" in (names or {}))
        text = wrapper.visit(rewriter).code
        uses = remarks_on_uses(wrapper, bindings.names)
    except cst.ParserSyntaxError as error:
        raise SourceError("the code does not parse as Python", error.raw_line) from error
    except RecursionError as error:
        raise SourceError("the code is nested too deeply", 1) from error
    return Rewritten(text, tuple(sorted({*rewriter.remarks, *uses})), bindings.names)


# --- the names that are bound to rcg ------------------------------------------------------------


class _Bindings(cst.CSTVisitor):
    """Collects the names that the rewritten import statements bind to rcg and its modules."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            module, bound = dotted(alias.name), name_after_as(alias)
            for target, name in move_import(module, bound).imports:
                if name is None and target.partition(".")[0] == "rcg":
                    self.names["rcg"] = "rcg"
                elif name is not None and exports_of(target) is not None:
                    self.names[name] = target
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = dotted(node.module)
        if module in ("ray", "rcg") and not node.relative and not imports_star(node):
            for alias in aliases_of(node):
                target = f"rcg.{dotted(alias.name)}"
                if home_of(f"ray.{dotted(alias.name)}") == target:
                    self.names[name_after_as(alias) or dotted(alias.name)] = target
        return False


# --- the rewrite --------------------------------------------------------------------------------


class _Rewriter(cst.CSTTransformer):
    """Replaces import statements, and remarks on imports that may bind `ray` to Ray again."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, judge: Callable[[str], str | None], *, is_bound: bool) -> None:
        super().__init__()
        self.judge = judge
        # Whether an import has bound `ray` to rcg so far, and the later imports that may undo that.
        self.is_bound = is_bound
        self.threats: list[Remark] = []
        # Whether the file takes anything from rcg: then a `ray` from elsewhere has to be rcg, too.
        self.uses_rcg = is_bound
        self.found: list[Remark] = []
        self.function_depth = 0
        # The lines made here, by id, and whether the next line continues the same statement. The
        # references keep the ids unique.
        self.made: dict[int, tuple[cst.SimpleStatementLine, bool]] = {}

    @property
    def remarks(self) -> list[Remark]:
        return [*self.found, *(self.threats if self.uses_rcg else ())]

    # Import statements.

    def visit_Import(self, node: cst.Import) -> bool:
        return False  # a name in it is not a use of the name

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        is_alone = len(updated_node.body) == 1
        body = self._expand(original_node.body, updated_node.body, is_alone=is_alone)
        if body is None:
            return updated_node
        if not is_alone:
            return updated_node.with_changes(body=body)
        lines = [cst.SimpleStatementLine([small]) for small in body]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        self.made.update({id(line): (line, line is not lines[-1]) for line in lines})
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        body = self._expand(original_node.body, updated_node.body, is_alone=False)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def _expand(
        self,
        originals: Sequence[cst.BaseSmallStatement],
        updated: Sequence[cst.BaseSmallStatement],
        *,
        is_alone: bool,
    ) -> list[cst.BaseSmallStatement] | None:
        """Return the statements that replace those of a line; None if nothing changes."""
        body: list[cst.BaseSmallStatement] = []
        for original, statement in zip(originals, updated, strict=True):
            match statement:
                case cst.Import():
                    new = self._import(original, statement, is_alone=is_alone)
                case cst.ImportFrom() if not statement.relative:
                    new = self._from(original, statement)
                case _:
                    new = [statement]
            # The last statement keeps its separator.
            body.extend(each.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for each in new[:-1])
            body.append(new[-1])
            self._follow(original, new)
        is_same = len(body) == len(updated) and all(map(is_, body, updated))
        return None if is_same else body

    def _import(
        self, original: cst.CSTNode, node: cst.Import, *, is_alone: bool
    ) -> list[cst.BaseSmallStatement]:
        aliases: list[cst.ImportAlias] = []
        bound_to: dict[str | None, str] = {}  # by the parts of this statement so far
        for alias in node.names:
            module, bound = dotted(alias.name), name_after_as(alias)
            move = move_import(module, bound)
            self._remark(original, move.remark)
            if move.imports == ((module, bound),):
                bound_to[bound_name(alias)] = module
                aliases.append(alias)
                continue
            for position, (target, name) in enumerate(move.imports):
                if bound_to.get(name) == target:
                    continue
                bound_to[name] = target
                is_last = position == len(move.imports) - 1
                aliases.append(moved_alias(alias, target, name, keeps_comma=is_last))
        if all(map(is_, aliases, node.names)) and len(aliases) == len(node.names):
            return [node]
        if is_alone and len(node.names) == 1:
            return [node.with_changes(names=[without_comma(alias)]) for alias in aliases]
        aliases[-1] = without_comma(aliases[-1])
        return [node.with_changes(names=aliases)]

    def _from(self, original: cst.CSTNode, node: cst.ImportFrom) -> list[cst.BaseSmallStatement]:
        module = dotted(node.module)
        if module != "ray" and not module.startswith(("ray.dag", "ray.experimental")):
            return [node]
        if imports_star(node):
            star = move_star(module)
            self._remark(original, star.remark)
            return [node if star.module is None else with_module(node, star.module)]
        names = list(map(bound_name, aliases_of(node)))
        is_ordered = len(set(names)) < len(names)  # if two bind the same name, the last one counts
        groups: list[tuple[str | None, list[cst.ImportAlias]]] = []
        for alias in aliases_of(node):
            move = move_name(module, dotted(alias.name))
            self._remark(original, move.remark)
            for target, aliases in groups[-1:] if is_ordered else groups:
                if target == move.module:
                    aliases.append(alias)
                    break
            else:
                groups.append((move.module, [alias]))
        new: list[cst.BaseSmallStatement] = []
        for target, aliases in groups:
            part = node if len(groups) == 1 else with_names(node, aliases)
            new.append(part if target is None else with_module(part, target))
        return new

    def _follow(self, original: cst.CSTNode, new: Sequence[cst.BaseSmallStatement]) -> None:
        """Note what a rewritten import does to the name `ray`."""
        for node in new:
            if isinstance(node, cst.Import):
                bound = [(dotted(each.name), name_after_as(each)) for each in node.names]
                if ("rcg", "ray") in bound:
                    self.is_bound = self.uses_rcg = True
                    if not self.function_depth:
                        self.threats.clear()
            elif isinstance(node, cst.ImportFrom):
                names = list(map(bound_name, aliases_of(node)))
                module = "." * len(node.relative) + dotted(node.module)
                if module.partition(".")[0] in ("ray", "rcg"):
                    self.uses_rcg |= module.startswith("rcg.")
                    continue
                what = "*" if imports_star(node) else "ray"
                if ("ray" not in names) if what == "ray" else not self.is_bound:
                    continue
                verdict = self.judge(module)
                if verdict is not None:
                    line = self._line(original)
                    self.threats.append(Remark(line, f"`from {module} import {what}` {verdict}"))

    # Repeated imports.

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._tidy(updated_node.body))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        return updated_node.with_changes(body=self._tidy(updated_node.body))

    def _tidy(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Drop each import made here that repeats one of the imports directly above it.

        An import with a comment stays.
        """
        kept: list[cst.BaseStatement] = []
        bound: set[str] = set()
        above: Sequence[cst.EmptyLine] = ()
        for line in body:
            made, continues = self.made.get(id(line), (None, False))
            name = name_bound_to_rcg(line)
            if made is not None and name in bound and isinstance(line, cst.SimpleStatementLine):
                if continues:
                    above = line.leading_lines
                    continue
                if not line.leading_lines and line.trailing_whitespace.comment is None:
                    continue
            if above:
                line = line.with_changes(leading_lines=above)
                above = ()
            kept.append(line)
            if not has_only_imports(line):
                bound.clear()
            elif name is not None:
                bound.add(name)
            else:
                bound -= names_bound_by(line, bound)
        return kept

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.function_depth += 1

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement:
        self.function_depth -= 1
        return updated_node

    def _remark(self, node: cst.CSTNode, text: str | None) -> None:
        if text is not None:
            self.found.append(Remark(self._line(node), text))

    def _line(self, node: cst.CSTNode) -> int:
        line: int = self.get_metadata(PositionProvider, node).start.line
        return line
