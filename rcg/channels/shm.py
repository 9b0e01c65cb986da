# SPDX-License-Identifier: Apache-2.0
"""Channels over shared memory: a ring of frames, seen through the codec.

A reader is the native core's own object, which decodes with ``loads``. A writer is a thin layer
over the native one: it encodes. The native core raises the signals of ``base``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from rcg.serialization import (
    KIND_BYTES,
    KIND_FAILURE,
    KIND_PARTS,
    KIND_PICKLE,
    KIND_TUPLE,
    Encoded,
    Failure,
    encode_failure,
    join_parts,
    loads_to,
    tuple_of_parts,
)

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


class _RingEnd:
    """A writing end of a ring, over the native one."""

    __slots__ = ("_encode", "_open", "_ring", "_write")

    def __init__(self, ring: _native.Writer, endpoint: Endpoint) -> None:
        self._ring = ring
        self._open = ring.open
        self._write = ring.write
        self._encode = endpoint.encode

    @property
    def seq(self) -> int:
        """See ``base.End``."""
        return self._ring.seq


class RingWriter(_RingEnd):
    """The writing end of a ring; see ``base.Writer``."""

    __slots__ = ()

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


class RingPartsWriter(_RingEnd):
    """The writing end of a ring whose frames have several parts; see ``base.PartsWriter``."""

    __slots__ = ()

    def write(self, values: list[Any], failed: Callable[[BaseException], Failure], /) -> None:
        """See ``base.PartsWriter``."""
        first = values[0]
        if type(first) is Failure and all(value is first for value in values):
            self._write(KIND_FAILURE, first.data)
            return
        self._open()  # encoding is part of the write
        try:
            encoded = tuple_of_parts(values)
            parts = (
                []
                if encoded
                else [self._encode_value(values, at, failed) for at in range(len(values))]
            )
        except BaseException:
            self._ring.shut()
            raise
        while True:
            try:
                self._write(*(encoded or join_parts(parts)))
                return
            except (GraphEnded, FrameDamaged):
                raise
            except BaseException as error:
                parts = parts or list(map(self._encode, values))
                encoded = None
                at = _to_blame(parts, error)
                if at is None:
                    raise
                values[at] = failed(error)
                parts[at] = encode_failure(values[at])

    def _encode_value(
        self, values: list[Any], at: int, failed: Callable[[BaseException], Failure]
    ) -> Encoded:
        value = values[at]
        if type(value) is not Failure:
            try:
                return self._encode(value)
            except BaseException as error:  # noqa: BLE001 - pickling runs any code
                value = values[at] = failed(error)
        return encode_failure(value)


def _to_blame(parts: Sequence[Encoded], error: BaseException) -> int | None:
    """Return which part is the cause of a failed write; None if all of them are failures.

    It is the one with the buffer that found no memory, or that cannot be read any more. If there is
    none, it is the largest.
    """
    largest, most = None, -1
    for at, (kind, data, buffers, _) in enumerate(parts):
        if kind == KIND_FAILURE:
            continue
        try:
            sizes = [memoryview(each).nbytes for each in (data, *(buffers or ()))]
        except (ValueError, BufferError):  # it was released meanwhile
            return at
        if type(error) is NoMemory and error.args[0] in sizes:
            return at
        if sum(sizes) > most:
            largest, most = at, sum(sizes)
    return largest


def open_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> Any:
    """Return the writing end of a ring; ``op`` is its Write in the program.

    That of a ring whose frames have several parts is a ``RingPartsWriter``.
    """
    kind = RingWriter if len(spec.nodes) == 1 else RingPartsWriter
    return kind(_ring_writer(spec, op, endpoint), endpoint)


def open_status_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> RingWriter:
    """Return the writing end of a ring for an op that does more than write, a collective."""
    return RingWriter(_ring_writer(spec, op, endpoint, goes_on=True), endpoint)


def open_input(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameWriter:
    """Return the writing end of a ring that an ``InputPublisher`` publishes on."""
    return _ring_writer(spec, op, endpoint)


def _ring_writer(
    spec: ChannelSpec, op: int, endpoint: Endpoint, *, goes_on: bool = False
) -> _native.Writer:
    """Return the native end, whose frames also go to the other nodes that read the channel."""
    writer: _native.Writer = endpoint.member.writer(endpoint.rings[spec.id], op, goes_on)
    endpoint.carry(spec.id, writer)
    return writer


def open_reader(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameReader:
    """Return the reading end of a ring; ``op`` is its Read in the program.

    One whose frames have several parts is a ``base.PartsReader``.
    """
    ring, parts = endpoint.rings[spec.id], len(spec.nodes)
    # Tensors that are moved at once need no memory of their own on the way, however many read them.
    pins = endpoint.pins(spec.device)
    loads, moves = loads_to(spec.device, pins), pins is not None
    reader: FrameReader = endpoint.member.reader(ring, op, loads, Failure, parts, moves)
    return reader
