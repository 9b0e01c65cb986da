# SPDX-License-Identifier: Apache-2.0
"""The protocols of channels, which all implementations share.

A channel has one writer and any number of readers. Each value that is written is one *frame*, and
every reader gets every frame once, in order: frame *i* is that of execution *i*. A frame carries a
value, or a ``Failure`` in its place; or several values, its *parts*, each of which may be a
``Failure`` and is decoded on its own. A channel holds a fixed number of frames; writing waits while
a reader is that far behind.

The ends of a channel are opened by ``rcg.channels.open_writer`` and ``open_reader``. The types here
are protocols: an end may be an object of the native core, whose methods are called without a layer
in between. Every implementation passes ``tests/conformance/test_channels.py``.

Times are in nanoseconds, and None means no limit. A channel itself raises a ``Signal``, which
concerns the graph. Every other exception of ``write`` or ``read`` was raised by users' code that
pickles or unpickles, and concerns one value.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, overload

from rcg.comm import Communicator
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    OutOfSharedMemory,
    RcgError,
)
from rcg.serialization import Encoded, Failure
from rcg.serialization.pinned import Pins
from rcg.streams import Handover

_MAX_S: Final = 1e9  # thirty years, which is still a number of nanoseconds for C


@overload
def timeout_ns(timeout_s: float) -> int: ...
@overload
def timeout_ns(timeout_s: float | None) -> int | None: ...
def timeout_ns(timeout_s: float | None) -> int | None:
    """Return a timeout in whole nanoseconds; None for none."""
    return None if timeout_s is None else max(0, int(min(timeout_s, _MAX_S) * 1e9))


# --- exceptions of channels -----------------------------------------------------------------------


class Signal(Exception):
    """Raised by a channel itself and never by users' code.

    The runtime catches it. What it lets through to users is ``public()``. The classes have no
    constructor in Python: the native core makes them where no other code of Python may run.
    """

    def public(self, *, channel: str | None = None) -> RcgError:
        """Return the error of ``rcg.errors`` with the same meaning.

        Args:
            channel: Id of the channel in the plan, if it is known.
        """
        return ChannelError(", ".join(map(str, self.args)), channel=channel)

    def __str__(self) -> str:
        return str(self.public())


class TimedOut(Signal):
    """The time was up. Nothing was read or written."""

    def public(self, *, channel: str | None = None) -> ChannelError:
        """See ``Signal``."""
        return ChannelTimeout("the time was up", channel=channel)


class GraphEnded(Signal):
    """The graph was closed, or a process of it is gone: ``GraphEnded(is_closed, culprit)``.

    The culprit is a member number; -1 if it has none here, because it is on another node.
    """

    @property
    def is_closed(self) -> bool:
        """Whether the graph was closed."""
        return bool(self.args[0])

    def public(self, *, channel: str | None = None) -> ChannelError:
        """See ``Signal``."""
        if self.is_closed:
            return ChannelClosed("Channel closed.", channel=channel)
        culprit = self.args[1] if len(self.args) > 1 else -1
        peer = None if culprit == -1 else str(culprit)
        return ChannelBroken("a process of the graph is gone", peer=peer, channel=channel)


class NoMemory(Signal):
    """There is no shared memory for a value: ``NoMemory(wanted, used, cap, reason)``.

    The first three are bytes: what the value needs, what the graph's values take, what they may
    take. The reason is an ``errno``: ENOSPC, the cap is reached; EFBIG, the value is larger than
    the cap; anything else comes from the kernel. Nothing was written.
    """

    def public(self, *, channel: str | None = None) -> ChannelError:
        """See ``Signal``."""
        wanted, used, cap, reason = self.args
        if reason == errno.EFBIG:
            text = (
                f"a value of {wanted:,} bytes does not fit into the graph's shared memory of "
                f"{cap:,} bytes, whatever else is under way: raise `memory_cap_bytes` to "
                f"{wanted:,} or more, or pass the value in parts"
            )
        else:
            text = (
                f"{wanted:,} bytes of shared memory were wanted, {used:,} of {cap:,} "
                "are taken by the graph: drop results that are still held, let fewer executions "
                "be in flight, or raise `memory_cap_bytes`"
            )
            if reason != errno.ENOSPC:
                text += f" ({os.strerror(reason)})"
        return OutOfSharedMemory(text, size_bytes=wanted, cap_bytes=cap, channel=channel)


class FrameDamaged(Signal):
    """Shared memory holds something that a writer of rcg does not write: ``FrameDamaged(text)``."""

    def public(self, *, channel: str | None = None) -> ChannelError:
        """See ``Signal``."""
        return ChannelError(f"shared memory is damaged: {self.args[0]}", channel=channel)


class TransferFailed(Signal):
    """A communicator failed while it moved tensors: ``TransferFailed(error)``.

    The frame was written or taken, and the group cannot be used any more.
    """

    def public(self, *, channel: str | None = None) -> RcgError:
        """Return the communicator's error."""
        error: RcgError = self.args[0]
        return error


# --- the ends -------------------------------------------------------------------------------------


class End(Protocol):
    """One end of a channel.

    What waits raises ``GraphEnded`` or ``FrameDamaged`` if the channel cannot be used any more.
    """

    @property
    def seq(self) -> int:
        """How many frames were written, or taken: the execution of the next one."""


class Writer(End, Protocol):
    """The writing end of a channel, used by one thread at a time."""

    def write(self, value: Any, /) -> None:
        """Publish a value, or a ``Failure`` in its place, as the next frame.

        It blocks while a reader is as many frames behind as the channel holds. Pickling runs users'
        code, whose exceptions are raised here. After an exception nothing was written, and the next
        write is for the same execution.

        Raises:
            UnpicklableError: The value cannot leave its process.
            NoMemory: There is no room for its bytes.
        """


class Reader(End, Protocol):
    """The reading end of a channel, used by one thread at a time."""

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """Return the next value, or the ``Failure`` in its place.

        It blocks until the value is there. Unpickling runs users' code: if that raises, the frame
        was taken nevertheless, and ``seq`` has grown.

        Raises:
            TimedOut: It did not come in time.
        """


class PartsWriter(End, Protocol):
    """The writing end of a channel whose frames have several parts."""

    def write(self, values: list[Any], failed: Callable[[BaseException], Failure], /) -> None:
        """Publish the values, or ``Failure`` objects in their places, as the next frame.

        A value that cannot be pickled or stored fails alone: ``failed(error)`` takes its place, in
        ``values`` as well.

        Raises:
            NoMemory: There is no room for the failures either; nothing was written.
        """


class PartsReader(End, Protocol):
    """The reading end of a channel whose frames have several parts."""

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """Return the parts of the next frame.

        They are the tuple of the values, the list of a ``Frame`` for each, or one ``Failure`` in
        place of all.

        Raises:
            TimedOut: It did not come in time.
        """


class Frame(Protocol):
    """A frame that was taken and not decoded yet, or one part of it."""

    @property
    def is_failure(self) -> bool:
        """Whether it carries a ``Failure``."""

    def decode(self, at_once: bool = False, /) -> Any:
        """Return its value, or the ``Failure``; the same object each time. Any thread.

        While another thread decodes it, the frame itself is returned. With ``at_once`` both threads
        decode it, and both get the object that was stored first. An exception of unpickling leaves
        the frame unchanged.
        """


Frames = dict[int, Any] | tuple[dict[int, Any], ...]
"""Frames by execution; where a frame has several parts, a dict for each of them."""


class FrameReader(Reader, Protocol):
    """A reading end whose frames are taken now and decoded later, by any number of threads."""

    def pending(self) -> int:
        """Return how many frames could be taken without waiting."""

    def take(self, timeout_ns: int | None = None, /) -> Any:
        """Return the next frame undecoded, or the list of its parts. One thread at a time."""

    def collect(self, frames: Frames, execution: int, timeout_ns: int | None = None, /) -> None:
        """Take frames into ``frames``, by execution, until that of ``execution`` was taken.

        Any number of threads may call it at once; each returns when any of them took the frame. A
        frame is taken and entered in one step: no exception, not even of a signal handler, loses
        it.

        Raises:
            TimedOut: As in ``read``.
        """

    def collect_pending(self, frames: Frames, /) -> None:
        """Take the frames that are there into ``frames``, without waiting for more."""


class FrameWriter(End, Protocol):
    """The writing end of an input: its frames are published by an ``InputPublisher``."""


class InputPublisher(Protocol):
    """Publishes the inputs of an execution, each on a channel of its own, in one step."""

    def submit(
        self,
        frames: tuple[Any, ...],
        limit: int,
        left: dict[int, int],
        wanted: int,
        refs: Any,
        started_ns: int = 0,
        stash: bool = False,
        /,
    ) -> int | None:
        """Give the next execution its number and publish its inputs, or do nothing.

        In one step, in which no other code of this process runs, the number is compared with
        ``limit``, ``left[number] = wanted`` is set, each ref gets its ``execution`` and ``state``,
        and all frames are published.

        Args:
            frames: One ``(writer, *encoded)`` for each input channel.
            limit: How many executions there may be so far.
            left: The outputs that are still wanted, a bit for each, by execution.
            wanted: The entry of the new execution.
            refs: The ref, or the list of refs, of its results.
            started_ns: When encoding began, for the flight recorder; 0 if that took no time.
            stash: Whether values without shared memory wait on this process's heap.

        Returns:
            The number of the execution, or None if the limit is reached.

        Raises:
            NoMemory: There is no room for their bytes now.
            TimedOut: A reader is a whole channel behind.
            GraphEnded, FrameDamaged: The channels cannot be used any more.
        """


class Waiter(Protocol):
    """Waits for any of several channels of one process."""

    def wait_any(
        self, readers: list[Any], timeout_ns: int | None = None, interrupts: int | None = None, /
    ) -> int:
        """Wait until one of the readers has a frame.

        Args:
            readers: Readers of this process, or ``(reader, seq)``: until frame ``seq`` has been
                published, even if another thread took it meanwhile.
            timeout_ns: How long.
            interrupts: What the last call returned, to be ended by ``interrupt`` as well, also by
                one that came in between.

        Returns:
            How often ``interrupt`` was called so far.

        Raises:
            TimedOut, GraphEnded: See the classes.
        """

    def interrupt(self) -> None:
        """End the waits of this process that listen for it; any thread."""


class Groups(Protocol):
    """The communicator groups that a process is in."""

    def members(self, group: str) -> tuple[str, ...]:
        """Return the processes of a group in the order of their ranks."""

    def labels(self, group: str) -> tuple[str, ...]:
        """Return what errors call the members, in the same order."""

    def communicator(self, group: str) -> Communicator:
        """Return this process's communicator of a group; not before the loop has opened it."""

    def devices(self, group: str) -> frozenset[str]:
        """Return the types of devices whose tensors a group takes."""


class Endpoint(Protocol):
    """A process's place on a node, as far as channels need it."""

    @property
    def member(self) -> Any:
        """The process's member of the node's shared memory."""

    @property
    def rings(self) -> Mapping[str, int]:
        """The number of the ring of each channel on this node."""

    @property
    def groups(self) -> Groups:
        """The communicator groups that this process is in."""

    @property
    def queues(self) -> Mapping[str, deque[Any]]:
        """What is on its way through each local channel of this process."""

    def carry(self, channel: str, writer: Any) -> None:
        """Have the frames of a writing end also go to the other nodes that read its channel."""

    def pins(self, device: str) -> Pins | None:
        """Return what locks memory for tensors that are moved to a device as they are read.

        None where they are not: they stay on the CPU, or a frame may be decoded later.
        """

    @property
    def handover(self) -> Handover | None:
        """Orders what devices do for the values in these; None where no group has devices."""

    @property
    def encode(self) -> Callable[..., Encoded]:
        """Encodes a value, and lists its tensors if asked to; see ``Codec.encode``."""
