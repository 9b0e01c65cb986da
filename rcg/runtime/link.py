# SPDX-License-Identifier: Apache-2.0
"""The connection of a process to the owner of a graph, and the thread that takes in what he sends.

It knows packets and parcels, and what came and was not got yet; nothing of arguments and refs.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.channels.shm import Failure
from rcg.error_text import describe_error
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelTimeout,
    ExecutionError,
    PlacementError,
    RcgError,
)
from rcg.options import Deadline
from rcg.runtime import packets
from rcg.runtime.awaiting import set_done
from rcg.runtime.failure import error_of_unpickling, to_exception
from rcg.runtime.inlet import Key
from rcg.runtime.outlet import FAILED, READY
from rcg.runtime.packets import Packet
from rcg.runtime.parcels import Parcel, Prepared, open_parcel

__all__ = ["Facts", "Link", "Output", "Reply", "ask_report", "no_answer"]

_MOMENT_S: Final = 1.0
_PATIENCE_S: Final = 30.0  # until the owner says that it serves us

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a handle knows of its graph."""

    graph_id: str
    address: str
    secret: str
    owner_pid: int
    node: str | None
    keys: tuple[Key, ...]
    num_positional: int
    keywords: tuple[str, ...]
    outlets: tuple[str, ...]  # their channels
    outputs: tuple[int, ...]  # numbers of outlets
    is_multi: bool
    get_timeout_s: float | None
    submit_timeout_s: float | None


class _Arrived:
    """A result that came and was not got yet."""

    __slots__ = ("_lost", "_outcome", "_parcel")

    def __init__(self, parcel: Parcel | None, lost: Exception | None) -> None:
        self._parcel = parcel
        self._lost = lost
        self._outcome: dict[int, tuple[Any, int]] = {}

    def settle(self) -> tuple[Any, int]:
        """Return (value, state) for a ref; the same for all threads that ask at once."""
        known = self._outcome.get(0)
        return known or self._outcome.setdefault(0, self._decode())

    def _decode(self) -> tuple[Any, int]:
        if self._parcel is None:
            return self._lost, FAILED
        try:
            value = self._parcel.decode()
        except BaseException as error:  # noqa: BLE001 - what unpickling raised is the result
            return error_of_unpickling(error, self._parcel.decode), FAILED
        # A failure becomes an exception when it is raised: see Outlet.fetch.
        return value, FAILED if type(value) is Failure else READY


class Output:
    """One output of the graph, as refs see it: what came and was not got yet."""

    __slots__ = ("channel", "dropped", "frames", "last", "number")

    def __init__(self, channel: str, number: int) -> None:
        self.channel = channel
        self.number = number
        self.frames: dict[int, _Arrived] = {}
        self.dropped: deque[int] = deque()
        self.last = -1  # the newest execution that has come

    def arrive(self, execution: int, result: _Arrived) -> None:
        """Keep a result until it is got."""
        self.frames[execution] = result
        self.last = execution
        self.purge()

    def purge(self) -> None:
        """Let go of results whose refs went away before they were got. Any thread."""
        for _ in range(len(self.dropped)):
            try:
                execution = self.dropped.popleft()
            except IndexError:
                return  # another thread is at it
            if execution > self.last:
                self.dropped.append(execution)  # still to come: results come in order
            else:
                self.frames.pop(execution, None)


class Reply:
    """What the owner says to one ``execute``: ``is_done`` last."""

    __slots__ = ("error", "execution", "is_abandoned", "is_done")

    def __init__(self) -> None:
        self.execution = -1
        self.error: BaseException | None = None
        self.is_abandoned = False
        self.is_done = False


class Link:
    """The connection to an owner, and the thread that takes in what it sends.

    Shared by the handles of one graph in a process. It holds no handle, so that one which nobody
    uses is let go of.

    There is no lock that a user's thread holds: Ctrl-C comes anywhere, also between taking a lock
    and knowing that one has it. State changes in single steps, in an order that lets who waits look
    again: a waiter leaves a lock of his own and looks, the thread stores and releases all of them.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.pid = os.getpid()
        self.users: set[object] = set()
        self.outputs = [Output(channel, i) for i, channel in enumerate(facts.outlets)]
        self.error: RcgError | None = None
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count()
        self._sleepers: deque[Any] = deque()
        self._awaiting: dict[Any, deque[_Waiter]] = {}
        self._sending = _thread.allocate_lock()
        self._is_hung_up = False
        self._socket, self._pidfd = _connect(facts, "use")
        try:
            packet, _, _ = _answer(self._socket, self._pidfd, facts, _PATIENCE_S)
            if packet is None:
                raise _torn_down(facts)
            self._socket.settimeout(None)
            threading.Thread(
                target=self._listen, name=f"rcg-handle-{facts.graph_id[:6]}", daemon=True
            ).start()
        except BaseException:
            self._close()
            raise

    # --- any thread

    def submit(self, prepared: Prepared, *, may_wait: bool = True) -> Reply:
        """Ask the owner to execute.

        Raises:
            BlockingIOError: The owner is behind, and ``may_wait`` is False.
            RcgError: The connection is over.
        """
        if self.error is not None:
            raise self.raised()
        try:
            if may_wait:
                with self._sending:
                    return self._send(prepared, may_wait)
            if not self._sending.acquire(blocking=False):
                raise BlockingIOError
            try:
                return self._send(prepared, may_wait)
            finally:
                self._sending.release()
        except BlockingIOError:
            raise
        except OSError:
            self.wait(lambda: self.error is not None, _MOMENT_S)
            raise self.raised() from None

    def _send(self, prepared: Prepared, may_wait: bool) -> Reply:
        reply, number = Reply(), next(self._numbers)
        self._replies[number] = reply
        try:
            prepared.send(self._socket, may_wait=may_wait, number=number)
        except OSError:
            del self._replies[number]
            raise
        return reply

    def wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until ``condition`` holds; returns whether it does."""
        deadline = Deadline(timeout_s)
        while not condition():
            left = deadline.remaining_s()
            if left == 0:
                return False
            bell = _thread.allocate_lock()
            bell.acquire()
            self._sleepers.append(bell)
            try:
                if condition():
                    return True
                bell.acquire(True, -1 if left is None else min(left, threading.TIMEOUT_MAX))
            finally:
                with contextlib.suppress(ValueError):
                    self._sleepers.remove(bell)
        return True

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

    def raised(self) -> RcgError:
        """Return the error of a connection that is over, a new one each time."""
        error = self.error or ChannelClosed("Channel closed.")
        return type(error)(error.message, **error.facts)

    def abandon(self, reply: Reply) -> None:
        """Nobody has refs of what was asked for: its results are let go of."""
        reply.is_abandoned = True
        if reply.is_done and reply.execution >= 0:
            for output in self.outputs:
                output.dropped.append(reply.execution)

    def join(self, user: object) -> bool:
        """Count a user; False if the link is about to end."""
        self.users.add(user)
        return not self._is_hung_up and self.error is None

    def leave(self, user: object) -> None:
        """Count a user less; the last one hangs up. Without a lock: handles go away anywhere."""
        self.users.discard(user)
        if self.users or self.pid != os.getpid():  # a forked child's copy is the parent's
            return
        self._is_hung_up = True
        if self.users:  # somebody joined meanwhile; who comes from now on makes a link of his own
            self._is_hung_up = False
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- the thread

    def _listen(self) -> None:
        error: RcgError = _torn_down(self.facts)
        try:
            while True:
                if not packets.wait_for_packet(self._socket, self._pidfd):
                    error = _owner_gone(self.facts)
                    break
                packet, body, fds = packets.receive(self._socket)
                if packet is None:
                    if packets.how_it_ended(self._pidfd) == "its process ended":
                        error = _owner_gone(self.facts)
                    break
                self._take(packet, body, fds)
        except BaseException as problem:  # noqa: BLE001 - whatever it is, nobody may wait for ever
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
        self._close()

    def _take(self, packet: Packet, body: bytes, fds: list[int]) -> None:
        kind = packet["type"]
        parcel: Parcel | None = None
        problem: Exception | None = None
        if "bytes" in packet:
            try:
                parcel = open_parcel(packet, body, fds)[0]
            except OSError as error:  # this one value is lost, nothing else
                problem = error
        if kind == "result":
            output, execution = self.outputs[packet["output"]], int(packet["execution"])
            lost = problem and ExecutionError(str(problem), execution=execution)
            output.arrive(execution, _Arrived(parcel, lost))
            self._wake((output.number, execution))
            return
        reply = self._replies.pop(int(packet["number"]))
        if kind == "submitted":
            reply.execution = int(packet["execution"])
        else:
            reply.error = problem if parcel is None else to_exception(parcel.decode())
        reply.is_done = True
        if reply.is_abandoned:
            self.abandon(reply)
        self._wake(reply)

    def _wake(self, key: object) -> None:
        """Have everybody look again that waits for this."""
        # Taken one by one: who waits may give up meanwhile, and take itself out.
        for loop, future in _emptied(self._awaiting.pop(key, None)):
            set_done(loop, future)
        for bell in _emptied(self._sleepers):
            bell.release()

    def _close(self) -> None:
        self._socket.close()
        pidfd, self._pidfd = self._pidfd, -1
        packets.close_pidfd(pidfd)


def _emptied(queue: deque[Any] | None) -> Iterator[Any]:
    """Yield what is in a queue at this moment, taking it out; others may do so at the same time."""
    for _ in range(len(queue or ())):
        try:
            yield queue.popleft()  # type: ignore[union-attr]
        except IndexError:
            return


def _connect(facts: Facts, wants: str) -> tuple[socket.socket, int]:
    """Return a connection to the owner, and a descriptor that tells of his end, or -1."""
    try:
        connection = packets.connect(facts.address, _PATIENCE_S)
    except ConnectionRefusedError:
        here = cluster.node_id() if cluster.is_connected() else None
        if facts.node is not None and here is not None and facts.node != here:
            raise PlacementError(
                f"this handle works on the node of the process that compiled the graph, "
                f"{facts.node}, and this is node {here}",
                location=here,
            ) from None
        raise (_torn_down if _is_alive(facts.owner_pid) else _owner_gone)(facts) from None
    except OSError as error:
        raise no_answer(facts, str(error), _PATIENCE_S) from error
    pid, uid = packets.peer_of(connection)
    if uid != os.getuid() or (pid > 0 and not _is_alive(pid)):
        # Once the owner is gone, his address is free for anybody, or a child of his still has it.
        connection.close()
        raise _owner_gone(facts)
    pidfd = packets.open_pidfd(pid)
    try:
        packets.send(connection, {"type": "call", "secret": facts.secret, "wants": wants})
    except OSError as error:
        connection.close()
        packets.close_pidfd(pidfd)
        raise no_answer(facts, str(error), _PATIENCE_S) from error
    return connection, pidfd


def _answer(
    connection: socket.socket, pidfd: int, facts: Facts, patience_s: float
) -> tuple[Packet | None, bytes, list[int]]:
    """Wait for the owner's next packet.

    Raises:
        ChannelTimeout: It did not come in time.
        ChannelBroken: The owner is gone.
    """
    try:
        is_there = packets.wait_for_packet(connection, pidfd, patience_s)
    except TimeoutError:
        raise no_answer(facts, "it may be stopped", patience_s) from None
    if not is_there:
        raise _owner_gone(facts)
    return packets.receive(connection)


def ask_report(facts: Facts, patience_s: float = _PATIENCE_S) -> str:
    """Return the owner's report of a graph.

    Raises:
        ChannelClosed: The graph was torn down.
        ChannelBroken: The owner is gone.
        ChannelTimeout: He does not answer.
    """
    connection, pidfd = _connect(facts, "report")
    try:
        packet, body, fds = _answer(connection, pidfd, facts, patience_s)
        if packet is None:
            raise _torn_down(facts)
        return str(open_parcel(packet, body, fds)[0].decode(), "utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, RcgError):
            raise
        raise no_answer(facts, str(error), patience_s) from error
    finally:
        connection.close()
        packets.close_pidfd(pidfd)


def no_answer(facts: Facts, why: str, timeout_s: float) -> ChannelTimeout:
    """Return the error that says that the owner does not answer."""
    return ChannelTimeout(
        f"process {facts.owner_pid}, which compiled the graph, does not answer: {why}",
        timeout_s=timeout_s,
    )


def _owner_gone(facts: Facts) -> ChannelBroken:
    return ChannelBroken(
        f"the process {facts.owner_pid}, which compiled the graph, is gone. Its actors are usable: "
        "compile a new graph in a process that lives.",
        peer=str(facts.owner_pid),
    )


def _torn_down(facts: Facts) -> ChannelClosed:
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
