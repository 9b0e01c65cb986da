# SPDX-License-Identifier: Apache-2.0
"""A member's end of the control connection: joining its graph, and listening to the driver.

``rcg.wire.messages`` draws the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
from typing import Final, Protocol

from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error, shielded, shortened
from rcg.errors import OutOfThreads, PlacementError
from rcg.runtime.control.joining import JOIN_TIMEOUT_S, check_user, join
from rcg.runtime.node.memory import Shared
from rcg.threads import start_thread
from rcg.trace.clocks import clock_identity, now_ns
from rcg.wire import messages, sockets
from rcg.wire.messages import Message
from rcg.wire.packets import MAX_MESSAGE_BYTES
from rcg.wire.sockets import Received

_MAX_DESCRIPTORS: Final = 128
# These keep a message within its size.
_MAX_FRAMES: Final = 40
_MAX_LINE: Final = 400
_MAX_TEXT: Final = 16_000
_MAX_JSON_BYTES: Final = MAX_MESSAGE_BYTES * 3 // 8  # a host quotes it once more


class Watched(Protocol):
    """A loop, as the thread that listens to the driver sees it."""

    def on_stop(self) -> None:
        """End: the graph ends."""

    def on_broken(self) -> None:
        """A process of the graph is gone."""

    def on_owner_gone(self) -> None:
        """The driver has ended before the loop."""

    def where(self) -> list[str]:
        """Return the stack of the user's method that runs now, innermost last; [] in none."""

    def processor_ns(self) -> tuple[int, int]:
        """Return the processor time of the thread of its methods, and of its process.

        Both are 0 if that is not known.
        """

    def profile_torch(self, is_on: bool) -> str:
        """Run torch's profiler, or stop it and record its events; returns what is in the way."""


class ControlClient:
    """A member's connection to the endpoint at ``address``, of its driver or of its node's host.

    Raises:
        PlacementError: The driver cannot be reached from this process.
        OutOfDescriptors: There is none left, in this process or in the driver's.
    """

    def __init__(self, address: str, graph_id: str, secret: str, process: str) -> None:
        hello = messages.Hello(
            graph=graph_id, secret=secret, process=process, clock=clock_identity()
        )
        try:
            joined = join(address, hello, JOIN_TIMEOUT_S, check_user, descriptors=_MAX_DESCRIPTORS)
        except ConnectionAbortedError as error:
            raise PlacementError(
                "the driver refused the connection: its graph has ended"
            ) from error
        except (OSError, ValueError) as error:
            raise PlacementError(
                f"this process cannot reach the driver's control socket ({error}): driver and "
                "actors on a node must share a network namespace (one container, or host network)"
            ) from error
        self._process = process
        self._joined = joined
        self._socket = joined.connection
        self._is_over = False
        self._may_close_groups = threading.Event()
        try:
            self.shared = _shared_of(joined.answer)
        except BaseException as error:
            self.finish(f"it could not start: {error}")  # it counts us already
            joined.close()
            raise

    def close_descriptors(self) -> None:
        """Close the descriptors of the connection; mapped memory stays mapped."""
        self.shared = Shared(-1, [])
        self._joined.answer.close()

    def watch(self, loop: Watched, name: str) -> None:
        """Listen to the driver on a thread of this name, until ``finish`` or the driver's end.

        Raises:
            OutOfThreads: No more threads can be started.
        """
        thread = threading.Thread(target=self._watch, args=(loop,), name=name, daemon=True)
        start_thread(thread, "to listen to the driver of a compiled graph")

    def _watch(self, loop: Watched) -> None:
        try:
            while sockets.wait_for_message(self._socket, self._joined.pidfd.fd):
                with sockets.receive(self._socket) as received:
                    if received.message is None:
                        return
                    self._answer(received.message, loop)
        except (OSError, ValueError):
            return  # closed by `finish`, or broken: the same to us
        finally:
            if not self._is_over:
                loop.on_owner_gone()
            self._joined.close()

    def _answer(self, message: Message, loop: Watched) -> None:
        match message:
            case messages.Stop():
                loop.on_stop()  # the loop itself is ended by the poison in shared memory
            case messages.Broken():
                loop.on_broken()
            case messages.CloseGroups():
                self._may_close_groups.set()
            case messages.Where():
                found = shielded(loop.where, otherwise=list[str]())  # looks into users' modules
                stack = [shortened(line, _MAX_LINE) for line in found[-_MAX_FRAMES:]]
                while len(json.dumps(stack)) > _MAX_JSON_BYTES:
                    del stack[0]
                thread_ns, process_ns = loop.processor_ns()
                answer = messages.Here(
                    number=message.number,
                    clock_ns=now_ns(),
                    stack=tuple(stack),
                    thread_ns=thread_ns,
                    process_ns=process_ns,
                )
                sockets.send(self._socket, answer, may_wait=False)
            case messages.ProfileTorch():  # it may take seconds
                thread = threading.Thread(
                    target=self._profile_torch, args=(message, loop), name="rcg-torch", daemon=True
                )
                try:
                    start_thread(thread, "to run torch's profiler")
                except OutOfThreads as error:
                    self._tell_profiled(message, error.message)
            case _:
                raise ValueError("a member expects no such message")

    def _profile_torch(self, message: messages.ProfileTorch, loop: Watched) -> None:
        try:
            trouble = loop.profile_torch(message.is_on)
        except Exception as error:  # noqa: BLE001 - torch's; the graph goes on without
            trouble = describe_error(error)
        self._tell_profiled(message, trouble)

    def _tell_profiled(self, message: messages.ProfileTorch, trouble: str) -> None:
        self._report(
            messages.TorchProfiled(number=message.number, trouble=shortened(trouble, _MAX_LINE))
        )

    def _report(self, message: Message, *, may_wait: bool = True) -> None:
        with contextlib.suppress(OSError):  # the driver has ended: the watching thread hears of it
            sockets.send(self._socket, message, may_wait=may_wait)

    def report_prepared(self) -> None:
        """Report that the communicator groups are open, and the loop runs."""
        self._report(messages.Prepared())

    def done(self, timeout_s: float) -> None:
        """Report that the loop has ended, and wait until the communicator groups may be closed.

        That is when the loops of other members have ended, too. If the driver has ended, nothing
        reports that, and this waits for all of ``timeout_s``.
        """
        self._report(messages.Done())
        self._may_close_groups.wait(timeout_s)

    def link_lost(self, node: str, text: str) -> None:
        """Report that the connection to the gate of a node has ended. Any thread."""
        message = messages.LinkLost(process=self._process, node=node, text=text[:_MAX_LINE])
        self._report(message, may_wait=False)

    def finish(self, failure: str | None = None, *, is_exiting: bool = False) -> None:
        """Report that the loop has ended, with the reason if no stop was requested.

        Ends the watching thread. Idempotent: the first report counts.

        Args:
            failure: The reason.
            is_exiting: Whether that is a call of ``exit_actor``.
        """
        if self._is_over:
            return
        self._is_over = True
        try:
            message: messages.Message = messages.Stopped()
            if failure is not None:
                message = messages.Failed(text=_fitting(failure), is_exiting=is_exiting)
            self._report(message)
        finally:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close everything; mapped memory stays mapped. For a member whose loop never ran."""
        self.close_descriptors()
        self._joined.close()


def _shared_of(answer: Received) -> Shared:
    """Return the descriptors of the shared memory, which came with an answer."""
    if answer.is_short:
        missing = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise out_of_descriptors(missing, "for the shared memory of a compiled graph") or missing
    welcome = answer.message
    fds = list(answer.fds)
    if not isinstance(welcome, messages.Welcome) or (
        1 + sum(welcome.arenas) + welcome.has_bell != len(fds)
    ):
        raise PlacementError(
            "the process that answered on the driver's control socket is not the driver"
        )
    bell = fds.pop() if welcome.has_bell else -1
    board, *rest = fds
    arenas = iter(rest)
    return Shared(board, [next(arenas) if each else -1 for each in welcome.arenas], bell)


def _fitting(text: str) -> str:
    """Return a text with its middle left out, if need be, so that a message can hold it."""
    longest = _MAX_TEXT
    while len(json.dumps(found := shortened(text, longest))) > _MAX_JSON_BYTES:
        longest //= 2
    return found
