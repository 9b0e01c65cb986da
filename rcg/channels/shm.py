# SPDX-License-Identifier: Apache-2.0
"""Channels over shared memory: a ring of frames, seen through the codec.

A reader is the native core's own object, which decodes with ``loads``. A writer is a thin layer
over the native one: it encodes. The native core raises the signals of ``base``.
"""

from __future__ import annotations

from typing import Any, Final

from rcg import _native
from rcg.channels.base import (
    Endpoint,
    FrameDamaged,
    FrameReader,
    FrameWriter,
    GraphEnded,
    NoMemory,
    PartFailed,
    TimedOut,
)
from rcg.errors import InternalError
from rcg.ir.channels import ChannelSpec
from rcg.serialization import (
    KIND_BYTES,
    KIND_FAILURE,
    KIND_PARTS,
    KIND_PICKLE,
    KIND_TUPLE,
    Encoded,
    Failure,
    encoded_failure,
    join_parts,
    loads,
    size_of,
    tuple_of_parts,
)

__all__ = [
    "BUFFER_TYPES",
    "ERRORS",
    "RingPartsWriter",
    "RingWriter",
    "Ticket",
    "open_input",
    "open_reader",
    "open_writer",
    "release",
]

if (KIND_PICKLE, KIND_BYTES, KIND_FAILURE, KIND_PARTS, KIND_TUPLE) != (
    _native.KIND_PICKLE,
    _native.KIND_BYTES,
    _native.KIND_FAILURE,
    _native.KIND_PARTS,
    _native.KIND_TUPLE,
):
    raise InternalError("the native core and `rcg.serialization` number kinds of frames apart")

BUFFER_TYPES: Final = (_native.Lease, _native.Loan)
"""The memory behind an array that arrived, or that ``rcg.empty`` made; see ``Codec``."""


Ticket = _native.Ticket
"""What a ref of a result stands on: it lets go of the result when it dies, in one step."""

release: Final = _native.release
"""``release(left, execution, output)``: an output of an execution was fetched or dropped. One step;
once is as good as twice. See ``base.InputPublisher`` for ``left``."""


class _Poisoned(GraphEnded):
    """As the native core makes it, of (code, culprit)."""

    @property
    def is_closed(self) -> bool:
        """See ``GraphEnded``."""
        return bool(self.args[0] == _native.POISON_CLOSED)


ERRORS: Final = (_Poisoned, TimedOut, NoMemory, FrameDamaged)
"""The exceptions of a member of shared memory; see ``_native.Member``."""


class RingWriter:
    """The writing end of a ring; see ``base.Writer``.

    Args:
        ring: The native end.
        endpoint: Encodes the values.
    """

    __slots__ = ("_encode", "_open", "_ring", "_write")

    def __init__(self, ring: _native.Writer, endpoint: Endpoint) -> None:
        self._ring = ring
        self._open = ring.open
        self._write = ring.write
        self._encode = endpoint.encode

    @property
    def seq(self) -> int:
        """See ``base.Writer``."""
        return self._ring.seq

    def write(self, value: Any, /) -> None:
        """See ``base.Writer``."""
        if type(value) is bytes:
            self._write(KIND_BYTES, value)
        elif type(value) is Failure:
            self._write(KIND_FAILURE, value.data)
        else:
            self._open()  # encoding is part of the write
            try:
                encoded = self._encode(value)
            except BaseException:
                self._ring.shut()
                raise
            self._write(*encoded)


class RingPartsWriter(RingWriter):
    """The writing end of a ring whose frames have several parts; see ``base.PartsWriter``."""

    __slots__ = ()

    def write(self, values: list[Any], /) -> None:
        """See ``base.PartsWriter``."""
        first = values[0]
        if type(first) is Failure and all(value is first for value in values):
            self._write(KIND_FAILURE, first.data)
            return
        self._open()  # encoding is part of the write
        parts: list[Encoded] = []
        encoded = tuple_of_parts(values)
        if encoded is None:
            parts = [self._encoded_part(number, value) for number, value in enumerate(values)]
            encoded = join_parts(parts)
        try:
            self._write(*encoded)
        except NoMemory as signal:
            if parts and all(part[0] == KIND_FAILURE for part in parts):
                raise
            sizes = [0 if part[0] == KIND_FAILURE else 1 + size_of(part) for part in parts] or [0]
            raise PartFailed(sizes.index(max(sizes)), signal) from None

    def _encoded_part(self, number: int, value: Any) -> Encoded:
        if type(value) is Failure:
            return encoded_failure(value)
        try:
            return self._encode(value)
        except BaseException as error:  # noqa: BLE001 - pickling runs any code
            self._ring.shut()
            raise PartFailed(number, error) from None


def open_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> RingWriter:
    """Return the writing end of a ring; ``op`` is its Write in the program."""
    kind = RingWriter if len(spec.nodes) == 1 else RingPartsWriter
    return kind(endpoint.member.writer(endpoint.rings[spec.id], op), endpoint)


def open_input(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameWriter:
    """Return the writing end of a ring that an ``InputPublisher`` publishes on."""
    writer: FrameWriter = endpoint.member.writer(endpoint.rings[spec.id], op)
    return writer


def open_reader(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameReader:
    """Return the reading end of a ring; ``op`` is its Read in the program.

    One whose frames have several parts is a ``base.PartsReader``.
    """
    ring, parts = endpoint.rings[spec.id], len(spec.nodes)
    reader: FrameReader = endpoint.member.reader(ring, op, loads, Failure, parts)
    return reader
