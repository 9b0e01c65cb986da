# SPDX-License-Identifier: Apache-2.0
"""The command ``rcg migrate``: its files, output and exit status.

A file is replaced atomically and keeps its encoding, its newlines, its mode, and the links to it.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import os
import re
import secrets
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rcg.migrate.stars import Neighbours

if TYPE_CHECKING:
    from rcg.migrate.rewrite import Rewritten


_SUFFIXES: Final = (".py", ".ipynb")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class FileError(Exception):
    """A path cannot be read or written. The text is a sentence with the path."""


@dataclass(frozen=True)
class Source:
    """The text of a file with its original newlines, and the encoding to write it in."""

    path: Path
    text: str
    encoding: str

    @property
    def is_notebook(self) -> bool:
        """Whether the file is a Jupyter notebook."""
        return self.path.suffix == ".ipynb"


def find(path: Path) -> Iterator[Path]:
    """Yield a file, or the ``*.py`` and ``*.ipynb`` files of a folder in sorted order.

    Hidden folders, environments (with a ``pyvenv.cfg``), ``node_modules``, ``site-packages`` and
    ``__pycache__`` inside a folder are skipped.

    Raises:
        FileError: There is no such path, or the folder cannot be listed.
    """
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise FileError(f"{path}: there is no such file or folder")
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    for entry in entries:
        inner = path / entry.name
        if entry.is_dir(follow_symlinks=False):
            is_hidden = entry.name.startswith(".") or entry.name in _SKIPPED
            if not is_hidden and not (inner / "pyvenv.cfg").exists():
                yield from find(inner)
        elif inner.suffix in _SUFFIXES and inner.is_file():
            yield inner


def read(path: Path) -> Source:
    """Read a file in the encoding that it declares, UTF-8 if it declares none.

    Raises:
        FileError: The file cannot be read, or is not in that encoding.
    """
    encoding = "utf-8"
    try:
        data = path.read_bytes()
        if path.suffix != ".ipynb":
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Source(path, data.decode(encoding), encoding)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, SyntaxError) as error:
        what = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise FileError(f"{path}: the file is not {what}") from error


def write(source: Source, text: str) -> None:
    """Replace the text of a file atomically.

    Raises:
        FileError: The file cannot be written. It is unchanged.
    """
    path = source.path.resolve()
    try:
        data = text.encode(source.encoding)
        mode = path.stat().st_mode
    except (OSError, UnicodeEncodeError) as error:
        raise FileError(f"{source.path}: {_reason(error)}") from error
    # Its name is known before it is there, so Ctrl-C leaves none.
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(name, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(data)
            os.fchmod(file.fileno(), mode & 0o7777)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise FileError(f"{source.path}: {_reason(error)}") from error
        raise


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def unique(paths: Sequence[Path]) -> list[Path]:
    """Return the paths in order, each file once."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


DONE: Final = 0  # nothing to change, or changes are written
PENDING: Final = 1  # a diff was printed, or a check found something
FAILED: Final = 2  # a path failed, or libcst is missing


def migrate(paths: Sequence[Path], *, is_written: bool, is_checked: bool = False) -> int:
    """Rewrite files and folders, or print a diff, or only remarks; return the exit status."""
    if importlib.util.find_spec("libcst") is None:
        _say("error: migrate needs libcst: pip install 'rcg[migrate]'")
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
        if result.text != source.text and not is_checked:
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
    if is_checked and files:
        count = f"{remarked or 'no'} {_plural('remark', remarked)}"
        _say(f"{count} on {len(files)} {_plural('file', len(files))}")
    else:
        _say(_summary(changed, len(files), remarked, is_written=is_written))
    if problems:
        return FAILED
    if is_checked:
        return PENDING if remarked else DONE
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
    text = f"{verb} {changed} of {files} {_plural('file', files)}"
    if remarks:
        text += f", {remarks} {_plural('remark', remarks)}"
    return text + ("; --write changes them" if changed and not is_written else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _say(text: str) -> None:
    print(f"rcg: {text}", file=sys.stderr)
