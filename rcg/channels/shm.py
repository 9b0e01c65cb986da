# SPDX-License-Identifier: Apache-2.0
"""Channels over shared memory: a ring of frames, seen through the codec.

``Writer`` and ``Reader`` are what the runtime holds; the native ends below them speak of frames.
Their methods are bound at construction, so a read costs one call. Native errors become rcg's in
``translate``; the caller adds what it knows (execution, report).
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from rcg import _native
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    InternalError,
    OutOfSharedMemory,
    RcgError,
)
from rcg.serialization import Codec, loads

__all__ = ["NATIVE_ERRORS", "Failure", "Reader", "Writer", "timeout_ns", "translate"]

NATIVE_ERRORS: Final = (
    _native.Poisoned,
    _native.TimedOut,
    _native.NoMemory,
    _native.Corrupt,
)


_LONGEST_S: Final = 1e9  # thirty years, which is still a number of nanoseconds for C


class Failure:
    """A value that is not there, because a method failed: what travels in its place.

    Args:
        data: The pickled error, passed on unread by everyone but the driver.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def timeout_ns(timeout_s: float | None) -> int:
    """Return a timeout for the native core: nanoseconds, -1 for none."""
    return -1 if timeout_s is None else max(0, int(min(timeout_s, _LONGEST_S) * 1e9))


class Writer:
    """The writing end of a channel; used by one thread at a time.

    Args:
        member: This process in the graph.
        ring: Number of the ring.
        op: Index of the op in the program, for the flight recorder.
        codec: Encodes the values.
    """

    __slots__ = ("_codec", "_open", "_write", "end", "op")

    def __init__(self, member: _native.Member, ring: int, op: int, codec: Codec) -> None:
        self.op = op
        self.end = member.writer(ring, op)
        self._open = self.end.open
        self._write = self.end.write
        self._codec = codec

    def write(self, value: Any) -> None:
        """Publish a value, or a Failure in its place, as the next frame.

        Blocks while a reader is a whole ring behind.

        Raises:
            UnpicklableError: Nothing was written.
            _native.NoMemory: Shared memory is used up; nothing was written.
            _native.Poisoned: The graph ended.
        """
        if type(value) is bytes:
            self._write(_native.KIND_BYTES, value)
        elif type(value) is Failure:
            self._write(_native.KIND_FAILURE, value.data)
        else:
            self._open()  # encoding is part of the write
            try:
                encoded = self._codec.encode(value)
            except BaseException:
                self.end.shut()
                raise
            self._write(*encoded)

    @property
    def seq(self) -> int:
        """How many frames were published: the execution that the next one carries."""
        return self.end.seq


class Reader:
    """The reading end of a channel; used by one thread at a time.

    ``read(timeout_ns=-1)`` returns the next value (or a Failure); ``take(timeout_ns=-1)`` returns
    the next frame undecoded; ``pending()`` says how many frames are there.

    Args:
        member: This process in the graph.
        ring: Number of the ring.
        op: Index of the op in the program, for the flight recorder.
    """

    __slots__ = ("end", "pending", "read", "take")

    def __init__(self, member: _native.Member, ring: int, op: int) -> None:
        self.end = member.reader(ring, op, loads, Failure)
        self.read = self.end.read
        self.take = self.end.take
        self.pending = self.end.pending

    @property
    def seq(self) -> int:
        """How many frames were read: the execution of the next one."""
        return self.end.seq


def translate(error: BaseException, *, channel: str | None = None) -> RcgError:
    """Return rcg's error for one of the native core's."""
    match error:
        case _native.TimedOut():
            return ChannelTimeout("the time was up", channel=channel)
        case _native.NoMemory():
            wanted, used, cap, number = error.args
            if number == errno.EFBIG:
                return OutOfSharedMemory(
                    f"a value of {wanted:,} bytes does not fit into the graph's shared memory of "
                    f"{cap:,} bytes, whatever else is under way: raise `memory_cap_bytes` to "
                    f"{wanted:,} or more, or pass the value in parts",
                    size_bytes=wanted,
                    cap_bytes=cap,
                    channel=channel,
                )
            return OutOfSharedMemory(
                f"{wanted:,} bytes of shared memory were wanted, {used:,} of {cap:,} are taken "
                "by the graph: drop results that are still held, let fewer executions be in "
                "flight, or raise `memory_cap_bytes`"
                + ("" if number == errno.ENOSPC else f" ({os.strerror(number)})"),
                size_bytes=wanted,
                cap_bytes=cap,
                channel=channel,
            )
        case _native.Poisoned():
            code, culprit = error.args
            if code == _native.POISON_CLOSED:
                return ChannelClosed("Channel closed.", channel=channel)
            return ChannelBroken(
                "a process of the graph is gone", peer=str(culprit), channel=channel
            )
        case _native.Corrupt():
            return ChannelError(f"a damaged frame was found: {error}", channel=channel)
    return InternalError(f"unexpected error of the native core: {error!r}")
