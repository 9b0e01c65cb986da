# SPDX-License-Identifier: Apache-2.0
"""Finds, reads and writes the files of a migration.

A file is replaced atomically and keeps its encoding, its newlines, its mode, and the links to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".py", ".ipynb")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class FileError(Exception):
    """A path cannot be read or written. The text is a sentence with the path."""


@dataclass(frozen=True)
class Source:
    """The text of a file.

    Attributes:
        path: The path as it was given or found.
        text: The text, with its original newlines.
        encoding: The encoding to write it in.
    """

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
