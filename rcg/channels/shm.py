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
    TimedOut,
)
from rcg.errors import InternalError
from rcg.ir.channels import ChannelSpec
from rcg.serialization import KIND_BYTES, KIND_FAILURE, KIND_PICKLE, Failure, loads

__all__ = [
    "BUFFER_TYPES",
    "ERRORS",
    "RingWriter",
    "Ticket",
    "open_input",
    "open_reader",
    "open_writer",
    "release",
]

if (KIND_PICKLE, KIND_BYTES, KIND_FAILURE) != (
    _native.KIND_PICKLE,
    _native.KIND_BYTES,
    _native.KIND_FAILURE,
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


def open_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> RingWriter:
    """Return the writing end of a ring; ``op`` is its Write in the program."""
    return RingWriter(endpoint.member.writer(endpoint.rings[spec.id], op), endpoint)


def open_input(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameWriter:
    """Return the writing end of a ring that an ``InputPublisher`` publishes on."""
    writer: FrameWriter = endpoint.member.writer(endpoint.rings[spec.id], op)
    return writer


def open_reader(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameReader:
    """Return the reading end of a ring; ``op`` is its Read in the program."""
    reader: FrameReader = endpoint.member.reader(endpoint.rings[spec.id], op, loads, Failure)
    return reader
