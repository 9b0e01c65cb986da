# SPDX-License-Identifier: Apache-2.0
"""Channels: one writer, n readers, in order.

``base`` defines the protocols; ``shm``, ``tensor`` and ``local`` implement them. The plan names the
kind of each channel, and this module opens its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from rcg.channels import shm
from rcg.channels.base import Endpoint, FrameReader, FrameWriter, Reader, Writer
from rcg.channels.local import LocalReader, LocalWriter
from rcg.channels.tensor import TensorReader, TensorWriter
from rcg.errors import InternalError
from rcg.ir.channels import ChannelSpec

_End = TypeVar("_End")
_Openers = Mapping[str, Callable[[ChannelSpec, int, Endpoint], _End]]

_READERS: Final[_Openers[Reader]] = {
    "ring": shm.open_reader,
    "status": shm.open_reader,
    "tensor": TensorReader,
    "local": LocalReader,
}
_WRITERS: Final[_Openers[Writer]] = {
    "ring": shm.open_writer,
    "status": shm.open_status_writer,
    "tensor": TensorWriter,
    "local": LocalWriter,
}
_INPUTS: Final[_Openers[FrameWriter]] = {"ring": shm.open_input}
_OUTPUTS: Final[_Openers[FrameReader]] = {"ring": shm.open_reader}


def open_reader(spec: ChannelSpec, op: int, endpoint: Endpoint) -> Reader:
    """Return this process's reading end of a channel; a ``PartsReader`` if it has several parts.

    Args:
        spec: The channel, of the plan.
        op: Index of the Read in this process's program, for the flight recorder.
        endpoint: This process's place on its node.

    Raises:
        InternalError: No process can read channels of this kind.
    """
    return _open(_READERS, spec, op, endpoint)


def open_writer(spec: ChannelSpec, op: int, endpoint: Endpoint) -> Writer:
    """Return this process's writing end; a ``PartsWriter`` if it has several parts.

    See ``open_reader``.
    """
    return _open(_WRITERS, spec, op, endpoint)


def open_input(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameWriter:
    """Return the driver's end of an input, for an ``InputPublisher``; see ``open_reader``."""
    return _open(_INPUTS, spec, op, endpoint)


def open_output(spec: ChannelSpec, op: int, endpoint: Endpoint) -> FrameReader:
    """Return the driver's reading end of an output; see ``open_reader``."""
    return _open(_OUTPUTS, spec, op, endpoint)


def _open(openers: _Openers[_End], spec: ChannelSpec, op: int, endpoint: Endpoint) -> _End:
    if spec.kind not in openers:
        raise InternalError(
            f"channel {spec.id} is of the kind {spec.kind!r}, which has no implementation"
        )
    return openers[spec.kind](spec, op, endpoint)
