# SPDX-License-Identifier: Apache-2.0
"""The command ``rcg migrate``: its files, output and exit status."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rcg.migrate.files import FileError, Source, find, read, unique, write
from rcg.migrate.stars import Neighbours

if TYPE_CHECKING:
    from rcg.migrate.rewrite import Rewritten

DONE: Final = 0  # nothing to change, or changes are written
PENDING: Final = 1  # a diff was printed
FAILED: Final = 2  # a path failed, or libcst is missing


def migrate(paths: Sequence[Path], *, is_written: bool) -> int:
    """Rewrite files, or print a diff; return the exit status.

    Args:
        paths: Files and folders.
        is_written: Whether to change the files.
    """
    if importlib.util.find_spec("libcst") is None:
        _say('error: migrate needs libcst: pip install ".[migrate]" in the folder of rcg')
        return FAILED
    problems: list[str] = []
    found: list[Path] = []
    for path in paths:
        try:
            found.extend(find(path))
        except FileError as error:
            problems.append(str(error))
    files = unique(found)
    folders = tuple(path for path in paths if path.is_dir())
    neighbours = Neighbours(frozenset(path.resolve() for path in files), folders)
    changes: list[tuple[Source, Rewritten]] = []
    for path in files:
        try:
            source = read(path)
            changes.append((source, _rewrite(source, neighbours, is_written=is_written)))
        except FileError as error:
            problems.append(str(error))
    changed = remarked = 0
    for source, result in changes:
        if result.text != source.text:
            try:
                if is_written:
                    write(source, result.text)
                else:
                    sys.stdout.write(_diff(source, result.text))
                changed += 1
            except FileError as error:
                problems.append(str(error))
        for remark in result.remarks:
            cell = f"cell {remark.cell}:" if remark.cell else ""
            _say(f"{source.path}:{cell}{remark.line}: {remark.text}")
            remarked += 1
    for problem in problems:
        _say(f"error: {problem}")
    _say(_summary(changed, len(files), remarked, is_written=is_written))
    if problems:
        return FAILED
    return PENDING if changed and not is_written else DONE


def _rewrite(source: Source, neighbours: Neighbours, *, is_written: bool) -> Rewritten:
    """Rewrite one file. The lines of remarks are those of the file after the command.

    Raises:
        FileError: The file does not parse.
    """
    from rcg.migrate.notebook import rewrite_notebook
    from rcg.migrate.rewrite import SourceError, rewrite

    def judge(module: str) -> str | None:
        return neighbours.judge(module, source.path)

    function = rewrite_notebook if source.is_notebook else rewrite
    try:
        result = function(source.text, judge=judge)
        # A second rewrite changes nothing and gives the same remarks, with the new lines.
        return function(result.text, judge=judge) if is_written else result
    except SourceError as error:
        raise FileError(f"{source.path}:{error.line}: {error}") from error


def _diff(source: Source, text: str) -> str:
    name = str(source.path)
    lines = difflib.unified_diff(_lines(source.text), _lines(text), name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Split a text at newlines, and, unlike `str.splitlines`, nowhere else."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _summary(changed: int, files: int, remarks: int, *, is_written: bool) -> str:
    if not files:
        return "there are no Python files and no notebooks here"
    verb = "changed" if is_written else "would change"
    told = f"{verb} {changed} of {files} {_plural('file', files)}"
    if remarks:
        told += f", {remarks} {_plural('remark', remarks)}"
    return told + ("; --write changes them" if changed and not is_written else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _say(text: str) -> None:
    print(f"rcg: {text}", file=sys.stderr)
