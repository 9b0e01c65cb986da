# SPDX-License-Identifier: Apache-2.0
"""What an envelope has of a value: everything but the bytes of its tensors.

A value that is one plain tensor needs no pickle, which is most of what small values cost. Any other
is a skeleton and a table (``rcg.serialization.payloads``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from rcg.rdt.parts import tensors_in
from rcg.rdt.writes import Versions
from rcg.serialization import Codec, loads_with
from rcg.serialization.devices import EVERY_DEVICE
from rcg.serialization.payloads import (
    LoneTable,
    Skeleton,
    Table,
    bytes_of,
    is_plain_tensor,
    put_back,
    take_out,
)

__all__ = ["Contents", "Parts", "Whole", "taken_apart"]

_HOST: Final = frozenset({"cpu"})


class Whole:
    """A value that is exactly one tensor in host memory.

    Args:
        table: Its type and shape.
    """

    __slots__ = ("sizes", "table")

    def __init__(self, table: LoneTable) -> None:
        self.table = table
        self.sizes: tuple[int, ...] = (table.size,)

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each payload."""
        return (self.table.device,)

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value over the bytes of its tensors."""
        return self.table.put_back(payloads[0])


class Parts:
    """A value without the bytes of its tensors, and where these belong.

    Args:
        skeleton: The value without them.
        table: Where they belong.
        references: Ray's references and handles in it. Only Ray's own serializer may pickle those:
            any other keeps them for as long as the process lives.
    """

    __slots__ = ("references", "skeleton", "table")

    def __init__(self, skeleton: Skeleton, table: Table, references: Sequence[Any]) -> None:
        self.skeleton = skeleton
        self.table = table
        self.references = references

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each payload."""
        return self.table.sizes

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each payload."""
        return self.table.devices

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value over the bytes of its tensors."""
        return put_back(self.skeleton, self.table, payloads, loads_with(self.references))

    def __reduce__(self) -> tuple[Any, ...]:
        data, buffers, writable = self.skeleton
        plain = bytes(data), [_copied(each) for each in buffers], writable
        return _parts, (plain, tuple(self.table), self.references)


class Contents(Protocol):
    """A value without its tensors; it pickles."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each tensor."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each."""

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value with these tensors."""


def taken_apart(value: Any, codec: Codec) -> tuple[Contents, list[Any], Versions]:
    """Return what is left of a value without its tensors, and the bytes of these.

    Returns:
        The contents; the payloads: tensors of uint8 [n] over the memory of the value's own; and
        how often that had been written to.
    """
    if is_plain_tensor(value, _HOST):
        return Whole(LoneTable.of(value)), [bytes_of(value)], Versions([value])
    references: list[Any] = []
    encoded = codec.encode(value, None, EVERY_DEVICE, references)
    skeleton, table, payloads = take_out(encoded, EVERY_DEVICE)
    versions = Versions(tensors_in(value) if payloads else ())
    return Parts(skeleton, table, references), payloads, versions


def _parts(skeleton: tuple[Any, ...], table: tuple[Any, ...], references: Sequence[Any]) -> Parts:
    return Parts(Skeleton(*skeleton), Table(*table), references)


def _copied(buffer: Any) -> bytes:
    return bytes(buffer.raw()) if hasattr(buffer, "raw") else bytes(memoryview(buffer))
