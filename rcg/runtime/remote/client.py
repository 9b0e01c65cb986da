# SPDX-License-Identifier: Apache-2.0
"""The connection of a process to the owner of a graph, and the thread that receives from it.

The owner is the process that compiled the graph. Each outcome of connecting has its own error: the
graph was torn down, the owner is gone, it does not answer, it is on another node.

This room knows messages, payloads and results that were not got yet, and no arguments and refs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelTimeout,
    ExecutionError,
    OutOfThreads,
    PlacementError,
    RcgError,
)
from rcg.ir.signature import ExecutionSignature
from rcg.options import Deadline
from rcg.runtime.by_reference import HeldResult
from rcg.runtime.control.joining import Joined, join
from rcg.runtime.failure import error_of_unpickling, to_exception
from rcg.runtime.refs import FAILED, state_of, take_arrived
from rcg.runtime.sleepers import Sleepers, set_done, take_all
from rcg.serialization import KIND_BYTES, Failure
from rcg.threads import start_owner, start_thread
from rcg.wire import liveness, sockets
from rcg.wire.addresses import is_tcp
from rcg.wire.liveness import How
from rcg.wire.messages import (
    AskReport,
    Completed,
    Opening,
    Ready,
    Rejected,
    Reported,
    Submitted,
    UnknownGraph,
    Use,
)
from rcg.wire.packets import PacketStream
from rcg.wire.payloads import Payload, PreparedPayloads, open_payloads
from rcg.wire.sockets import Received

JOIN_TIMEOUT_S: Final = 30.0
SUBMIT_RETRY_S: Final = 0.001  # between two attempts while the owner does not read
_TAKES_NONE: Final = "it has taken no input"

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class HandleFacts:
    """The facts that a handle has about its graph.

    Attributes:
        address: Where its owner is reached.
        tcp: Where it is reached from other nodes, as text; "" if it is not.
    """

    graph_id: str
    address: str
    secret: str
    owner_pid: int
    node: str | None
    signature: ExecutionSignature
    buffers: tuple[str, ...]  # their channels
    outputs: tuple[int, ...]  # numbers of buffers
    is_multi: bool
    max_inflight_executions: int
    get_timeout_s: float | None
    submit_timeout_s: float | None
    report_after_s: float | None = None
    tcp: str = ""
    held: tuple[int, ...] = ()  # numbers of buffers whose values are references


class _Arrived:
    """A result that came and was not got yet."""

    __slots__ = ("_outcome", "lost", "payload")

    def __init__(self, payload: Payload | None, lost: RcgError | None) -> None:
        self.payload = payload
        self.lost = lost
        self._outcome: dict[int, tuple[Any, int]] = {}

    def settle(self) -> tuple[Any, int]:
        """Return (value, state) for a ref; the same for all threads that ask at once."""
        known = self._outcome.get(0)
        return known or self._outcome.setdefault(0, self._decode())

    def _decode(self) -> tuple[Any, int]:
        if self.payload is None:
            return self.lost, FAILED
        try:
            value = self.payload.decode()
        except BaseException as error:  # noqa: BLE001 - an exception of unpickling is the result
            return error_of_unpickling(error, self.payload.decode), FAILED
        # A failure becomes an exception when it is raised: see OutputBuffer.fetch.
        return value, state_of(value)


class RemoteOutput:
    """One output of the graph: the results that arrived and were not got yet."""

    __slots__ = ("_is_held", "channel", "dropped", "frames", "last", "number")

    def __init__(self, channel: str, number: int, *, is_held: bool) -> None:
        self._is_held = is_held
        self.channel = channel
        self.number = number
        self.frames: dict[int, _Arrived] = {}
        self.dropped: deque[int] = deque()
        self.last = -1  # the newest execution that has come

    def arrive(self, execution: int, result: _Arrived) -> None:
        """Keep a result until it is got."""
        if self._is_held:
            value, _ = result.settle()
            if isinstance(value, HeldResult):
                value.keep()
        self.frames[execution] = result
        self.last = execution
        self.discard_dropped()

    def discard_dropped(self) -> None:
        """Let go of results whose refs went away before they were got. Any thread."""
        for execution in take_arrived(self.dropped, self.last + 1):
            found = self.frames.pop(execution, None)
            if found is not None and self._is_held:
                value, _ = found.settle()
                if isinstance(value, HeldResult):
                    value.discard()


class Reply:
    """The owner's answer to one ``execute``; ``is_done`` is set last."""

    __slots__ = ("execution", "is_abandoned", "is_done", "refusal")

    def __init__(self) -> None:
        self.execution = -1
        # The error because of which there is no execution, or the error of receiving that.
        self.refusal: Payload | RcgError | None = None
        self.is_abandoned = False
        self.is_done = False

    @property
    def error(self) -> BaseException | None:
        """Why there is no execution. Unpickled when it is asked for, which runs any code."""
        if not isinstance(self.refusal, Payload):
            return self.refusal
        value = self.refusal.decode()
        if type(value) is not Failure:
            return ChannelBroken("the process that compiled the graph refused and gave no reason")
        return to_exception(value)


class Client:
    """The connection to an owner, and the thread that receives from it once it is open.

    The handles of one graph in a process share it. It holds no handle, so that unused handles are
    freed.

    There is no lock: Ctrl-C may arrive at any point, also between taking a lock and storing that it
    is held, and signal handlers and ``__del__`` may execute in the middle of ``execute``. The
    kernel keeps messages of several threads whole. State changes in single steps. A waiter
    registers a lock of its own and then checks the state; the receiving thread stores the state and
    then releases all waiters.
    """

    def __init__(self, facts: HandleFacts, timeout_s: float | None = None) -> None:
        self.facts = facts
        self.pid = os.getpid()
        self.users: set[object] = set()
        self.outputs = [
            RemoteOutput(channel, number, is_held=number in facts.held)
            for number, channel in enumerate(facts.buffers)
        ]
        self.error: RcgError | None = None
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count()
        self._sleepers = Sleepers()
        self._awaiting: dict[Any, deque[_Waiter]] = {}
        self._is_hung_up = False
        opening = Use(graph=facts.graph_id, secret=facts.secret)
        limit_s = JOIN_TIMEOUT_S if timeout_s is None else min(timeout_s, JOIN_TIMEOUT_S)
        self._joined = _join_owner(facts, opening, limit_s)
        self._socket = self._joined.connection
        if not isinstance(self._joined.message, Ready):
            self._joined.close()
            raise ChannelBroken(
                f"process {facts.owner_pid}, which compiled the graph, sent an answer that this "
                "rcg does not understand: use the same version of rcg in all processes",
                peer=str(facts.owner_pid),
            )

    def open(self) -> None:
        """Start the thread, which ends when the last user has left.

        Raises:
            OutOfThreads: No more threads can be started.
        """
        name = f"rcg-handle-{self.facts.graph_id[:6]}"
        purpose = "to use a compiled graph of another process"
        start_owner(self._listen, self._joined.close, name, purpose)

    # --- any thread

    def submit(self, prepared: PreparedPayloads, deadline: Deadline) -> Reply:
        """Ask the owner to execute, and wait until it has taken the inputs.

        Raises:
            ChannelTimeout: The owner did not take them in time.
            RcgError: The connection is over.
        """
        while True:
            try:
                return self.try_submit(prepared)
            except BlockingIOError:
                if deadline.expired:
                    raise no_answer(self.facts, _TAKES_NONE, deadline.timeout_s or 0.0) from None
                left_s = deadline.remaining_s()
                pause_s = SUBMIT_RETRY_S if left_s is None else min(left_s, SUBMIT_RETRY_S)
                self.wait(lambda: self.error is not None, pause_s)

    def try_submit(self, prepared: PreparedPayloads) -> Reply:
        """Ask the owner to execute, without waiting.

        Raises:
            BlockingIOError: The owner is behind, or the connection is over for a reason that is not
                known yet: the listening thread is about to say it.
            RcgError: The connection is over.
        """
        if self.error is not None:
            raise self.end_error()
        reply, number = Reply(), next(self._numbers)
        self._replies[number] = reply
        try:
            prepared.send(self._socket, may_wait=False, number=number)
        except BlockingIOError:
            del self._replies[number]
            raise
        except OSError as error:
            self._replies.pop(number, None)
            exhausted = out_of_descriptors(error, "to send an input to the compiling process")
            if exhausted is not None:
                raise exhausted from error
            if self.error is None:
                raise BlockingIOError from None
            raise self.end_error() from None
        return reply

    def wait(self, condition: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait until ``condition`` holds; returns whether it does."""
        return self._sleepers.wait(condition, timeout_s)

    async def wait_async(self, condition: Callable[[], bool], key: object) -> None:
        """Wait until ``condition`` holds, which happens when something came under ``key``."""
        loop = asyncio.get_running_loop()
        while not condition():
            future: asyncio.Future[None] = loop.create_future()
            entry = loop, future
            waiting = self._awaiting.setdefault(key, deque())
            waiting.append(entry)
            try:
                if condition() or self.error is not None:
                    return
                await future
            finally:
                with contextlib.suppress(ValueError):
                    waiting.remove(entry)

    def has_completed(self, execution: int) -> bool:
        """Return whether all results of an execution have come, or never will."""
        return self.error is not None or all(each.last >= execution for each in self.outputs)

    def end_error(self) -> RcgError:
        """Return the error of a connection that is over, a new one each time."""
        error = self.error or ChannelClosed("Channel closed.")
        return type(error)(error.message, **error.facts)

    def abandon(self, reply: Reply) -> None:
        """Discard the results of an execution without refs."""
        reply.is_abandoned = True
        if reply.is_done and reply.execution >= 0:
            for output in self.outputs:
                output.dropped.append(reply.execution)

    def join(self, user: object) -> bool:
        """Count a user; False if the client is about to end."""
        self.users.add(user)
        return not self._is_hung_up and self.error is None

    def leave(self, user: object) -> None:
        """Count a user less; the last one hangs up. Without a lock: handles go away anywhere."""
        self.users.discard(user)
        if self.users or self.pid != os.getpid():  # a forked child's copy is the parent's
            return
        self._is_hung_up = True
        if self.users:  # one joined meanwhile; those that come from now on make another client
            self._is_hung_up = False
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- the thread

    def _listen(self) -> None:
        error: RcgError = _torn_down(self.facts)
        pidfd = self._joined.pidfd.fd
        try:
            while True:
                if not sockets.wait_for_message(self._socket, pidfd):
                    error = _owner_gone(self.facts)
                    break
                with sockets.receive(self._socket, 1) as received:
                    if received.message is None:
                        # The owner of another node says it if the graph was torn down.
                        is_remote = isinstance(self._socket, PacketStream)
                        if is_remote or liveness.how_it_ended(pidfd) is How.DIED:
                            why = f"is gone: {received.why}" if received.why else "is gone"
                            error = _owner_gone(self.facts, why)
                        break
                    if isinstance(received.message, UnknownGraph):
                        break
                    self._take(received)
        except BaseException as problem:  # noqa: BLE001 - no waiter may wait for ever
            error = ChannelBroken(
                f"the connection to the process {self.facts.owner_pid}, which compiled the graph, "
                f"failed: {describe_error(problem)}",
                peer=str(self.facts.owner_pid),
            )
        if self._is_hung_up:
            error = ChannelClosed("Channel closed. The handle was closed.")
        self.error = error
        for key in list(self._awaiting):
            self._wake(key)
        self._wake(None)
        self._joined.close()

    def _take(self, received: Received) -> None:
        """Take in a message of the owner; ValueError if it is wrong or not expected."""
        match received.message:
            case Completed() as message:
                if message.output >= len(self.outputs):
                    raise ValueError("the graph has no such output")
                found = _open(received, message.execution)
                output = self.outputs[message.output]
                output.arrive(message.execution, found)
                self._wake((output.number, message.execution))
            case Submitted() as message:
                reply = self._reply_to(message.number)
                reply.execution = message.execution
                self._settle(reply)
            case Rejected() as message:
                found = _open(received)
                reply = self._reply_to(message.number)
                reply.refusal = found.payload or found.lost or _torn_down(self.facts)
                self._settle(reply)
            case _:
                raise ValueError("a handle expects no such message")

    def _reply_to(self, number: int) -> Reply:
        if number not in self._replies:
            raise ValueError("this was not asked for")
        return self._replies.pop(number)

    def _settle(self, reply: Reply) -> None:
        reply.is_done = True
        if reply.is_abandoned:
            self.abandon(reply)
        self._wake(reply)

    def _wake(self, key: object) -> None:
        """Wake all waiters, so that they check again."""
        # Taken one by one: a coroutine that gives up in the meantime takes itself out.
        for loop, future in take_all(self._awaiting.pop(key, None)):
            set_done(loop, future)
        self._sleepers.wake()


def _open(received: Received, execution: int | None = None) -> _Arrived:
    """Return the value that came with a message, or the error of receiving it."""
    try:
        (payload,) = open_payloads(received)
        return _Arrived(payload, None)
    except (OSError, MemoryError) as problem:  # this one value is lost, nothing else
        exhausted = out_of_descriptors(problem, "to receive a value of a compiled graph")
        text = str(problem) or "there is no memory for it"
        lost = exhausted or ExecutionError(f"a value did not arrive: {text}")
        return _Arrived(None, type(lost)(lost.message, **lost.facts, execution=execution))


def _join_owner(
    facts: HandleFacts, opening: Opening, timeout_s: float, *, descriptors: int = 0
) -> Joined:
    """Connect to the owner and return its answer to a first message.

    Raises:
        PlacementError: It is on another node.
        RcgError: As ``ask_report``.
    """

    def check(pid: int, uid: int) -> None:
        # Once the owner is gone, its address is free, or a child of it still has the socket.
        if uid != os.getuid() or (pid > 0 and not _is_alive(pid)):
            raise _owner_gone(facts)

    here = cluster.node_id() if cluster.is_connected() else None
    is_elsewhere = facts.node is not None and here is not None and facts.node != here
    address = facts.tcp if is_elsewhere and facts.tcp else facts.address
    if is_tcp(address):
        return _join_elsewhere(facts, address, opening, timeout_s)
    try:
        return join(address, opening, timeout_s, check, descriptors=descriptors)
    except (ConnectionRefusedError, ConnectionAbortedError) as error:
        if is_elsewhere and isinstance(error, ConnectionRefusedError):
            raise PlacementError(
                f"this handle works on the node of the process that compiled the graph, "
                f"{facts.node}, and this is node {here}",
                location=here,
            ) from None
        raise (_torn_down if _is_alive(facts.owner_pid) else _owner_gone)(facts) from None
    except ProcessLookupError:
        raise _owner_gone(facts) from None
    except PermissionError as error:  # another process listens there now
        raise _owner_gone(facts, f"cannot be reached: {error.strerror}") from None
    except TimeoutError:
        raise no_answer(facts, "it may be suspended", timeout_s) from None
    except (OSError, ValueError) as error:
        if isinstance(error, RcgError):
            raise
        raise no_answer(facts, str(error), timeout_s) from error


def _join_elsewhere(facts: HandleFacts, address: str, opening: Opening, timeout_s: float) -> Joined:
    """As ``_join_owner``, to an owner on another node."""
    try:
        return join(address, opening, timeout_s, lambda *_: None)
    except ConnectionAbortedError:
        raise _torn_down(facts) from None
    except TimeoutError as error:
        raise no_answer(facts, str(error), timeout_s) from error
    except (OSError, ValueError) as error:
        if isinstance(error, RcgError):
            raise
        raise _owner_gone(facts, f"cannot be reached: {error}") from error


def ask_report(facts: HandleFacts, timeout_s: float = JOIN_TIMEOUT_S) -> str:
    """Return the owner's report of a graph.

    Raises:
        ChannelClosed: The graph was torn down.
        ChannelBroken: The owner is gone.
        ChannelTimeout: It does not answer.
        OutOfDescriptors: There is none left, in this process or in the owner.
    """
    asked = AskReport(
        graph=facts.graph_id, secret=facts.secret, within_ms=math.ceil(timeout_s * 1000)
    )
    joined = _join_owner(facts, asked, timeout_s, descriptors=1)
    try:
        if not isinstance(joined.message, Reported):
            raise ValueError("its answer is not a report")
        (payload,) = open_payloads(joined.answer)
        if payload.encoded[0] != KIND_BYTES:
            raise ValueError("a report is text")
        return str(payload.decode(), "utf-8", "replace")
    except (OSError, ValueError) as error:
        exhausted = out_of_descriptors(error, "to receive a report")
        raise exhausted or no_answer(facts, str(error), timeout_s) from error
    finally:
        joined.close()


class RemoteInquiry:
    """A question to the owner of a graph for its report; see ``watch.Inquiry``.

    A thread asks, because connecting takes as long as the owner likes.
    """

    def __init__(self, facts: HandleFacts, within_s: float) -> None:
        self._facts, self._within_s = facts, within_s
        self._texts: list[str] = []
        self._thread = threading.Thread(target=self._ask, name="rcg-watch", daemon=True)
        if within_s:
            with contextlib.suppress(OutOfThreads):
                start_thread(self._thread, "to ask for a report")

    def _ask(self) -> None:
        try:
            self._texts.append(ask_report(self._facts, self._within_s))
        except RcgError as error:
            self._texts.append(str(error))

    def wait(self, timeout_s: float) -> None:
        """Wait until the owner has answered, or for so long."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def text(self) -> str | None:
        """Return what the owner said, or why it said nothing; None if it was not asked."""
        if self._texts:
            return self._texts[0]
        if not self._within_s:
            return None
        return str(no_answer(self._facts, "it may be stopped", self._within_s))


def no_answer(facts: HandleFacts, why: str, timeout_s: float) -> ChannelTimeout:
    """Return the error for an owner that does not answer."""
    return ChannelTimeout(
        f"process {facts.owner_pid}, which compiled the graph, does not answer: {why}",
        timeout_s=round(timeout_s, 3),
    )


def _owner_gone(facts: HandleFacts, how: str = "is gone") -> ChannelBroken:
    """Return the error for an owner that has ended, or cannot be reached."""
    return ChannelBroken(
        f"the process {facts.owner_pid}, which compiled the graph, {how}. Its actors are usable: "
        "compile a new graph in another process.",
        peer=str(facts.owner_pid),
    )


def _torn_down(facts: HandleFacts) -> ChannelClosed:
    """Return the error for a graph that its owner tore down."""
    return ChannelClosed(
        "Channel closed. The compiled graph was torn down by its owner (process "
        f"{facts.owner_pid})."
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
