# SPDX-License-Identifier: Apache-2.0
"""Import statements as syntax trees of libcst: reading their names, and making changed ones."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst


def dotted(node: cst.CSTNode | None) -> str:
    """Return `a.b.c` for names and attributes of names, "" for anything else."""
    match node:
        case cst.Name():
            return node.value
        case cst.Attribute():
            of = dotted(node.value)
            return f"{of}.{node.attr.value}" if of else ""
        case _:
            return ""


def dotted_node(path: str) -> cst.Name | cst.Attribute:
    """Return the node of `a.b.c`."""
    *of, last = path.split(".")
    return cst.Attribute(dotted_node(".".join(of)), cst.Name(last)) if of else cst.Name(last)


def name_after_as(alias: cst.ImportAlias) -> str | None:
    """Return the name after `as`; None without one."""
    return None if alias.asname is None else dotted(alias.asname.name)


def bound_name(alias: cst.ImportAlias) -> str:
    """Return the name that one part of an import binds."""
    return name_after_as(alias) or dotted(alias.name).partition(".")[0]


def aliases_of(node: cst.ImportFrom) -> Sequence[cst.ImportAlias]:
    """Return the parts of a `from` import; none for a star."""
    return () if isinstance(node.names, cst.ImportStar) else node.names


def imports_star(node: cst.ImportFrom) -> bool:
    """Return whether a statement is `from x import *`."""
    return isinstance(node.names, cst.ImportStar)


def moved_alias(
    alias: cst.ImportAlias, target: str, name: str | None, *, keeps_comma: bool
) -> cst.ImportAlias:
    """Return one part of an import with another module and another name after `as`."""
    if name_after_as(alias) != name:
        asname = None if name is None else cst.AsName(cst.Name(name))
        alias = alias.with_changes(asname=asname)
    alias = alias.with_changes(name=dotted_node(target))
    return alias if keeps_comma else without_comma(alias)


def without_comma(alias: cst.ImportAlias) -> cst.ImportAlias:
    """Return one part of an import without the comma after it."""
    return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)


def with_module(node: cst.ImportFrom, module: str) -> cst.ImportFrom:
    """Return a `from` import of the same names from another module."""
    return node.with_changes(module=dotted_node(module))


def with_names(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """Keep some names of a statement, with their comments, and its layout."""
    *others, last = aliases
    end = aliases_of(node)[-1]
    if last is end or not isinstance(last.comma, cst.Comma):
        return node.with_changes(names=aliases)
    # What stood before the next name: a comment, and the indentation of that name.
    space = last.comma.whitespace_after
    rpar = node.rpar
    if rpar is None or not isinstance(space, cst.ParenthesizedWhitespace):
        return node.with_changes(names=[*others, without_comma(last)])
    if isinstance(end.comma, cst.Comma):
        closing = end.comma.whitespace_after
    else:
        closing = rpar.whitespace_before
        rpar = rpar.with_changes(whitespace_before=cst.SimpleWhitespace(""))
    if isinstance(closing, cst.ParenthesizedWhitespace):
        space = space.with_changes(indent=closing.indent, last_line=closing.last_line)
    last = last.with_changes(comma=last.comma.with_changes(whitespace_after=space))
    return node.with_changes(names=[*others, last], rpar=rpar)


def name_bound_to_rcg(line: cst.BaseStatement) -> str | None:
    """Return the name that a line binds to rcg, if that is all the line does."""
    match line:
        case cst.SimpleStatementLine(body=[cst.Import(names=[alias])]) if (
            dotted(alias.name) == "rcg"
        ):
            return name_after_as(alias)
        case _:
            return None


def has_only_imports(line: cst.BaseStatement) -> bool:
    """Return whether a line has nothing but import statements."""
    return isinstance(line, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in line.body
    )


def names_bound_by(line: cst.BaseStatement, names: set[str]) -> set[str]:
    """Return which of some names a line of imports may bind."""
    bound: set[str] = set()
    for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        match small:
            case cst.ImportFrom(names=cst.ImportStar()):
                return set(names)
            case cst.Import(names=aliases):
                bound |= set(map(bound_name, aliases))
            case cst.ImportFrom():
                bound |= set(map(bound_name, aliases_of(small)))
            case _:
                pass
    return bound & names
