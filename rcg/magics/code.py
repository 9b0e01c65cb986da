# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the code of a cell as IPython does."""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell


class Code:
    """The compiled code of a cell. Its variables stay in the user's namespace."""

    def __init__(self, shell: InteractiveShell, text: str) -> None:
        self._namespace = shell.user_ns
        if "\0" in text or not _is_unicode(text):
            raise UsageError(
                "%rcg_profile: there is a character in the code that Python cannot read"
            )
        source = shell.transform_cell(text)
        try:
            tree = shell.compile.ast_parse(source)
        except SyntaxError as error:
            raise UsageError(f"%rcg_profile: {error.msg} in line {error.lineno}") from None
        tree = shell.transform_ast(tree)
        last = tree.body[-1] if tree.body else None
        shown = last if isinstance(last, ast.Expr) else None
        name = shell.compile.cache(source)  # so that tracebacks show its lines
        body = ast.Module(tree.body[: -1 if shown else None], [])
        try:
            self._body = shell.compile(body, name, "exec")
            self._last = shell.compile(ast.Expression(shown.value), name, "eval") if shown else None
        except SyntaxError as error:
            awaits = any(
                isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
                for node in ast.walk(tree)
            )
            raise UsageError(
                "%rcg_profile: a magic cannot await: write `with rcg.profile() as p:` in the cell"
                if awaits
                else f"%rcg_profile: {error.msg} in line {error.lineno}"
            ) from None

    def run(self) -> Any:
        """Run the code and return the value of the expression at its end, None without one."""
        exec(self._body, self._namespace)
        return None if self._last is None else eval(self._last, self._namespace)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
