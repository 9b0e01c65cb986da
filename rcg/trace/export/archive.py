# SPDX-License-Identifier: Apache-2.0
"""Reads the members of an untrusted zip file, and never allocates more than its size justifies."""

from __future__ import annotations

import re
import zipfile
from typing import Any, BinaryIO, Final

import numpy as np

from rcg.trace.model import EVENT, Events

_ALWAYS_ALLOWED_BYTES: Final = 64 << 20
"""This much may be read from any file, however small it is."""

_MAX_RATIO: Final = 50
"""The content may be this many times larger than the file. Events compress less than this, because
their times differ."""

_MAX_MEMBERS: Final = 100_000
_PIECE_BYTES: Final = 1 << 20

_ARRAY: Final = re.compile(
    rb"\{'descr': (\[.{1,2000}\]), 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_LAYOUT: Final = repr(np.lib.format.dtype_to_descr(EVENT)).encode()
_MAGIC: Final = b"\x93NUMPY\x01\x00"


class Archive:
    """The members of a zip file. Together they return no more than the size of the file justifies.

    Args:
        archive: The zip file.
        size: Its size in bytes.
    """

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise ValueError(f"the file has {len(infos):,} members")
        self._archive = archive
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) != len(infos):
            raise ValueError("two of its members have the same name")
        # Limited by the size of the file, not by what the members claim: members may overlap.
        self._left = max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * size)

    def open(self, name: str, most: int | None = None) -> tuple[Any, int]:
        """Return a member as a file, and the size in bytes that it claims.

        Raises:
            ValueError: It is missing, encrypted, compressed in another way, or too large.
        """
        info = self._infos.get(name)
        if info is None:
            raise ValueError(f"{name} is missing")
        if info.flag_bits & 1 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ValueError(f"{name} is encrypted, or compressed in another way")
        left = self._left if most is None else min(self._left, most)
        if info.file_size > left:
            raise ValueError(
                f"{name} claims {info.file_size:,} bytes, more than a file of this size holds"
            )
        self._left -= info.file_size
        return self._archive.open(info), info.file_size

    def text(self, name: str, most: int) -> bytes:
        """Return the bytes of a member."""
        file, size = self.open(name, most)
        with file:
            stored = bytearray(size)
            _fill(file, memoryview(stored), name)
        return bytes(stored)

    def events(self, name: str, process: str) -> Events:
        """Return the events in a member."""
        file, size = self.open(name)
        with file:
            start = file.read(len(_MAGIC) + 2)
            length = int.from_bytes(start[len(_MAGIC) :], "little")
            if not start.startswith(_MAGIC) or length > 4096:
                raise ValueError(f"{name} is not an array in NumPy's format 1.0")
            head = _ARRAY.fullmatch(file.read(length))
            if head is None or head[1] != _LAYOUT:
                raise ValueError(f"the events of {process} have another layout")
            count = int(head[2])
            holds = size - len(start) - length
            if count * EVENT.itemsize != holds:
                raise ValueError(f"{name} claims {count:,} events and holds {holds:,} bytes")
            events = np.empty(count, EVENT)
            _fill(file, memoryview(events.view(np.uint8).data) if count else memoryview(b""), name)
        return events


def _fill(file: BinaryIO, room: memoryview, name: str) -> None:
    """Fill memory from a member. Reading to the end also makes zipfile check the checksum."""
    at = 0
    while at < len(room):
        piece = file.read(min(_PIECE_BYTES, len(room) - at))
        if not piece:
            raise ValueError(f"{name} is shorter than it says")
        room[at : at + len(piece)] = piece
        at += len(piece)
    if file.read(1):
        raise ValueError(f"{name} is longer than it says")
