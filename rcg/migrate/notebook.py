# SPDX-License-Identifier: Apache-2.0
"""Rewrites the code cells of a notebook. Its JSON keeps its format.

Lines that only IPython understands (``%magic``, ``!command``, ``name?``) are replaced by
placeholders while a cell is rewritten. Cells in other languages stay unchanged.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rcg.migrate.remarks import Remark
from rcg.migrate.rewrite import Rewritten, SourceError, rewrite
from rcg.migrate.stars import unknown

# Cell magics whose cell is Python that runs in the namespace of the notebook.
_PYTHON_CELLS: Final = frozenset({"capture", "prun", "rcg_profile", "time", "timeit"})
_MAGIC_LINE: Final = re.compile(r"^(\s*)([%!?].*|[^\s#'\"][^#'\"]*\?|.*?=\s*[%!].*)$")


def rewrite_notebook(source: str, *, judge: Callable[[str], str | None] = unknown) -> Rewritten:
    """Rewrite the import statements in the code cells of a notebook.

    A cell that does not parse stays unchanged and gets a remark.

    Args:
        source: The text of the file.
        judge: As in ``rewrite``.

    Raises:
        SourceError: The text is not a notebook, or the format of its JSON cannot be kept.
    """
    try:
        notebook = json.loads(source)
        cells = [cell for cell in notebook["cells"] if isinstance(cell, dict)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SourceError("this is not a notebook of version 4", 1) from error
    remarks: list[Remark] = []
    names: dict[str, str] = {}
    form = _format_of(source, notebook)
    for number, cell in enumerate(cells, start=1):
        if cell.get("cell_type") != "code" or not _is_python(notebook):
            continue
        text = _text_of(cell.get("source"))
        if text is None:
            raise SourceError(f"the source of cell {number} is not text", 1)
        try:
            done = _rewrite_cell(text, judge, names)
        except SourceError as error:
            text = f"{error}, so the cell is left as it is"
            remarks.append(Remark(error.line, text, number))
            continue
        names.update(done.names)
        remarks.extend(replace(each, cell=number) for each in done.remarks)
        if done.text != text:
            is_text = isinstance(cell["source"], str)
            cell["source"] = done.text if is_text else done.text.splitlines(keepends=True)
    end = source[len(source.rstrip()) :]
    return Rewritten(json.dumps(notebook, **form) + end, tuple(remarks), names)


def _is_python(notebook: dict[str, Any]) -> bool:
    for key, field in (("language_info", "name"), ("kernelspec", "language")):
        match notebook.get("metadata"):
            case {**metadata} if isinstance(found := metadata.get(key), dict) and field in found:
                return str(found[field]).lower() in ("python", "ipython")
    return True


def _text_of(source: object) -> str | None:
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def _format_of(source: str, notebook: object) -> dict[str, Any]:
    """Return the keywords of ``json.dumps`` that write the notebook as it is in its text."""
    for indent, is_ascii, separators in itertools.product(
        (1, 2, 4, None, 0, 3, "\t"), (False, True), ((",", ": "), (", ", ": "), (",", ":"))
    ):
        form: dict[str, Any] = {
            "indent": indent,
            "ensure_ascii": is_ascii,
            "separators": separators,
        }
        if json.dumps(notebook, **form) == source.rstrip():
            return form
    raise SourceError("its JSON is in a format that would be lost: save it in Jupyter first", 1)


def _rewrite_cell(
    text: str, judge: Callable[[str], str | None], names: dict[str, str]
) -> Rewritten:
    magic = re.match(r"\s*%%(\w+)", text)
    if magic is not None and magic[1] not in _PYTHON_CELLS:
        return Rewritten(text, (), {})
    try:
        return rewrite(text, judge=judge, names=names)
    except SourceError:
        return _rewrite_around_magics(text, judge, names)


def _rewrite_around_magics(
    text: str, judge: Callable[[str], str | None], names: dict[str, str]
) -> Rewritten:
    placeholder = "magic"
    while placeholder in text:
        placeholder += "_"
    lines: list[str] = []
    aside: list[str] = []
    continues = False
    for line in text.split("\n"):
        found = _MAGIC_LINE.match(line)
        if found is None and not continues:
            lines.append(line)
            continue
        prefix = "# " if continues or found is None else f"{found[1]}pass  # "
        lines.append(f"{prefix}{placeholder}{len(aside)}")
        aside.append(line)
        continues = line.endswith("\\")
    done = rewrite("\n".join(lines), judge=judge, names=names)
    pattern = re.compile(rf"^.*# {placeholder}(\d+)$", re.MULTILINE)
    return replace(done, text=pattern.sub(lambda found: aside[int(found[1])], done.text))
