# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of another process: what a pickled ``CompiledDAG`` becomes elsewhere.

A handle is a client of its owner's control socket. It connects when it is first used, and one
thread takes in what the owner sends; results wait here until they are got.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import itertools
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rcg import cluster
from rcg.channels.shm import Failure
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelTimeout,
    ExecutionError,
    GraphError,
    PlacementError,
    RcgError,
)
from rcg.options import Deadline
from rcg.runtime import packets
from rcg.runtime.failure import to_exception
from rcg.runtime.inlet import Key, arguments_by_key
from rcg.runtime.outlet import FAILED, READY
from rcg.runtime.packets import Packet
from rcg.runtime.parcels import Parcel, Prepared, open_parcel
from rcg.runtime.results import CompiledDAGRef, confirm, refs_of
from rcg.runtime.worker import make_codec

if TYPE_CHECKING:
    from rcg.runtime.execute import CompiledDAG

__all__ = ["CompiledDAGHandle", "handle_of"]

_AGAIN_S: Final = 0.001
_MOMENT_S: Final = 1.0
_GRACE_S: Final = 5.0
_LONGEST_QUESTION_S: Final = 0.5
_PATIENCE_S: Final = 30.0  # until the owner says that it serves us


@dataclass(frozen=True, slots=True)
class _Facts:
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


# Graphs of this process that were pickled, and connections to others', by graph.
_owned: weakref.WeakValueDictionary[str, CompiledDAG] = weakref.WeakValueDictionary()
_links: weakref.WeakValueDictionary[str, _Link] = weakref.WeakValueDictionary()
_lock: Final = _thread.allocate_lock()


def handle_of(dag: CompiledDAG) -> tuple[Callable[..., Any], tuple[_Facts]]:
    """Return how a graph of this process is pickled."""
    session = dag.session
    _owned[session.graph_id] = dag
    facts = _Facts(
        graph_id=session.graph_id,
        address=session.control.address,
        secret=session.control.secret,
        owner_pid=session.pid,
        node=cluster.node_id() if cluster.is_connected() else None,
        keys=dag.input_keys,
        num_positional=dag.plan.num_positional,
        keywords=tuple(dag.plan.keywords),
        outlets=tuple(outlet.channel for outlet in dag.outlets),
        outputs=dag.output_numbers,
        is_multi=dag.plan.is_multi,
        get_timeout_s=dag.get_timeout_s,
        submit_timeout_s=session.options.submit_timeout_s,
    )
    return _handle_from, (facts,)


def _handle_from(facts: _Facts) -> Any:
    """Return the graph itself in its own process, elsewhere a handle."""
    if facts.owner_pid == os.getpid():
        own = _owned.get(facts.graph_id)
        if own is not None:
            return own
    return CompiledDAGHandle(facts)


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
        except Exception as error:  # noqa: BLE001 - what unpickling raised is the result
            return error, FAILED
        # A failure becomes an exception when it is raised: see Outlet.fetch.
        return value, FAILED if type(value) is Failure else READY


class _Output:
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


_Sleeper = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class _Reply:
    """What the owner says to one ``execute``: ``is_done`` last."""

    __slots__ = ("error", "execution", "is_abandoned", "is_done")

    def __init__(self) -> None:
        self.execution = -1
        self.error: BaseException | None = None
        self.is_abandoned = False
        self.is_done = False


class _Link:
    """The connection to an owner, and the thread that takes in what it sends.

    Shared by the handles of one graph in a process. It holds no handle, so that one which nobody
    uses is let go of.

    There is no lock that a user's thread holds: Ctrl-C comes anywhere, also between taking a lock
    and knowing that one has it. State changes in single steps, in an order that lets who waits look
    again: a waiter leaves a lock of his own and looks, the thread stores and releases all of them.
    """

    def __init__(self, facts: _Facts) -> None:
        self.facts = facts
        self.pid = os.getpid()
        self.users: set[object] = set()
        self.outputs = [_Output(channel, i) for i, channel in enumerate(facts.outlets)]
        self.error: RcgError | None = None
        self._replies: dict[int, _Reply] = {}
        self._numbers = itertools.count()
        self._sleepers: deque[Any] = deque()
        self._awaiting: dict[
            Any, deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]
        ] = {}
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

    def submit(self, prepared: Prepared, *, may_wait: bool = True) -> _Reply:
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

    def _send(self, prepared: Prepared, may_wait: bool) -> _Reply:
        reply, number = _Reply(), next(self._numbers)
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

    def abandon(self, reply: _Reply) -> None:
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
        poller = select.poll()
        for fd in (self._socket.fileno(), self._pidfd):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poller.poll()}
                if self._socket.fileno() not in ready:
                    error = _owner_gone(self.facts)  # though a child of his keeps the socket open
                    break
                packet, body, fds = packets.receive(self._socket)
                if packet is None:
                    if packets.how_it_ended(self._pidfd) == "its process ended":
                        error = _owner_gone(self.facts)
                    break
                self._take(packet, body, fds)
        except Exception as problem:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            error = ChannelBroken(
                f"the connection to the process {self.facts.owner_pid}, which compiled the graph, "
                f"failed: {problem!r}",
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
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set_done, future)
        for bell in _emptied(self._sleepers):
            bell.release()

    def _close(self) -> None:
        self._socket.close()
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def _emptied(queue: deque[Any] | None) -> Iterator[Any]:
    """Yield what is in a queue at this moment, taking it out; others may do so at the same time."""
    for _ in range(len(queue or ())):
        try:
            yield queue.popleft()  # type: ignore[union-attr]
        except IndexError:
            return


def _connect(facts: _Facts, wants: str) -> tuple[socket.socket, int]:
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
        raise _no_answer(facts, str(error), _PATIENCE_S) from error
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
        if pidfd >= 0:
            os.close(pidfd)
        raise _no_answer(facts, str(error), _PATIENCE_S) from error
    return connection, pidfd


def _answer(
    connection: socket.socket, pidfd: int, facts: _Facts, patience_s: float
) -> tuple[Packet | None, bytes, list[int]]:
    """Wait for the owner's next packet.

    Raises:
        ChannelTimeout: It did not come in time.
        ChannelBroken: The owner is gone.
    """
    poller = select.poll()
    for fd in (connection.fileno(), pidfd):
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poller.poll(patience_s * 1000)}
    if not ready:
        raise _no_answer(facts, "it may be stopped", patience_s)
    if connection.fileno() not in ready:
        raise _owner_gone(facts)
    return packets.receive(connection)


def _no_answer(facts: _Facts, why: str, timeout_s: float) -> ChannelTimeout:
    return ChannelTimeout(
        f"process {facts.owner_pid}, which compiled the graph, does not answer: {why}",
        timeout_s=timeout_s,
    )


def _owner_gone(facts: _Facts) -> ChannelBroken:
    return ChannelBroken(
        f"the process {facts.owner_pid}, which compiled the graph, is gone. Its actors are usable: "
        "compile a new graph in a process that lives.",
        peer=str(facts.owner_pid),
    )


def _torn_down(facts: _Facts) -> ChannelClosed:
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


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class CompiledDAGHandle:
    """A compiled graph of another process on this node: execute and get as on the graph itself.

    Made by pickling a ``CompiledDAG``: pass it to an actor or a task. The process that compiled it
    owns its window, options and end: it has to stay alive and keep the graph. Results are sent on
    as they come, so a limit on executions in flight counts, for a handle, those that have not
    completed; what was not got yet waits in this process.
    """

    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self.get_timeout_s = facts.get_timeout_s
        self.num_outlets = len(facts.outlets)
        # What refs append to when they go away; here it is the outputs that count.
        self.finished: deque[int] = deque(maxlen=0)
        self._codec = make_codec()
        self._link: _Link | None = None
        self._let_go: weakref.finalize[..., Any] | None = None
        self._is_closed = False

    # --- running

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return its ref, or a list of refs; see ``CompiledDAG.execute``.

        Raises:
            Exception: As there.
            ChannelBroken: The process that compiled the graph is gone.
        """
        link = self._linked()
        with self._prepared(args, kwargs) as prepared:
            reply = link.submit(prepared)
        is_kept = False
        try:
            limit_s = self._facts.submit_timeout_s
            if limit_s is not None:
                limit_s += _GRACE_S  # the owner keeps the limit, if it can
            if not link.wait(lambda: reply.is_done or link.error is not None, limit_s):
                raise _no_answer(self._facts, "it may be stopped", limit_s or 0.0)
            refs = self._refs(link, reply)
            is_kept = True
            return refs
        finally:
            if not is_kept:
                link.abandon(reply)
            for output in link.outputs:
                if output.dropped:
                    output.purge()

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """As ``execute``, without blocking the event loop."""
        link = self._link
        if link is None or link.pid != os.getpid() or self._is_closed:
            link = await asyncio.to_thread(self._linked)
        with self._prepared(args, kwargs) as prepared:
            while True:
                try:
                    reply = link.submit(prepared, may_wait=False)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_AGAIN_S)
        is_kept = False
        try:
            known = link
            await link.wait_async(lambda: reply.is_done or known.error is not None, reply)
            refs = self._refs(link, reply)
            is_kept = True
            return refs
        finally:
            if not is_kept:
                link.abandon(reply)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared:
        facts = self._facts
        values = arguments_by_key(
            args, kwargs, facts.keys, num_positional=facts.num_positional, keywords=facts.keywords
        )
        encoded = [self._codec.encode(values[key]) for key in facts.keys]
        return Prepared({"type": "execute"}, encoded)

    def _linked(self) -> _Link:
        link = self._link
        if self._is_closed:
            raise ChannelClosed("Channel closed. The handle was closed.")
        if link is not None and link.pid == os.getpid():
            return link
        with _lock:
            link = _links.get(self._facts.graph_id)
            user = object()
            if link is None or link.pid != os.getpid() or not link.join(user):
                link = _Link(self._facts)
                link.join(user)
                _links[self._facts.graph_id] = link
            self._let_go = weakref.finalize(self, link.leave, user)
            self._let_go.atexit = False
            self._link = link
            return link

    def _refs(self, link: _Link, reply: _Reply) -> Any:
        if reply.error is not None:
            raise reply.error
        if not reply.is_done:
            raise link.raised()
        listed = [link.outputs[number] for number in self._facts.outputs]
        refs: Any
        if self._facts.is_multi:
            refs = refs_of(self, listed, reply.execution)
        else:
            refs = CompiledDAGRef(self, listed[0], reply.execution, None)
        confirm(refs)
        return refs

    # --- what refs ask

    def fetch(
        self, ref: CompiledDAGRef, timeout_s: float | None, asked_s: float | None = None
    ) -> None:
        """Wait for the result of a ref and fill it; see ``CompiledDAGRef.get`` for the errors."""
        if not self.try_fetch(ref, timeout_s):
            asked_s = timeout_s if asked_s is None else asked_s
            raise ChannelTimeout(
                f"execution {ref.execution} has no result yet after {asked_s:g} s. Nothing is "
                "lost: call again to go on waiting.",
                timeout_s=asked_s,
                report=self._report_within(min(asked_s or 0.0, _LONGEST_QUESTION_S)),
            )

    def try_fetch(self, ref: CompiledDAGRef, timeout_s: float | None) -> bool:
        """Wait for the result of a ref and fill it; False when the time is up."""
        link, output = self._link_of(ref)
        if not link.wait(lambda: self._is_settled(ref), timeout_s):
            return False
        arrived = output.frames.get(ref.execution)
        if arrived is not None:
            # Read, filled, and only then let go of: Ctrl-C between any two lines loses nothing.
            ref.value, ref.state = arrived.settle()
            output.frames.pop(ref.execution, None)
        elif ref.state < READY:
            raise link.raised()
        return True

    def _link_of(self, ref: CompiledDAGRef) -> tuple[_Link, _Output]:
        link = self._link
        if link is None or link.pid != os.getpid() or ref.outlet not in link.outputs:
            raise ExecutionError(
                "this process was forked from the one that executed, and the result goes there"
            )
        return link, link.outputs[ref.outlet.number]

    def _is_settled(self, ref: CompiledDAGRef) -> bool:
        link, output = self._link_of(ref)
        return ref.state >= READY or ref.execution in output.frames or link.error is not None

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""
        return self._is_settled(ref)

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs."""
        link, _ = self._link_of(refs[0])
        link.wait(lambda: any(map(self._is_settled, refs)), timeout_s)

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref would not wait."""
        link, output = self._link_of(ref)
        await link.wait_async(lambda: self._is_settled(ref), (output.number, ref.execution))

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self._facts.graph_id

    def report(self) -> str:
        """Return the owner's report: who does what, since when, and who waits for whom.

        Raises:
            ChannelClosed: The graph was torn down.
            ChannelBroken: The process that compiled the graph is gone.
            ChannelTimeout: It does not answer.
        """
        return self._ask_report(_PATIENCE_S)

    def _ask_report(self, patience_s: float) -> str:
        connection, pidfd = _connect(self._facts, "report")
        try:
            packet, body, fds = _answer(connection, pidfd, self._facts, patience_s)
            if packet is None:
                raise _torn_down(self._facts)
            return str(open_parcel(packet, body, fds)[0].decode(), "utf-8")
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise _no_answer(self._facts, str(error), patience_s) from error
        finally:
            connection.close()
            if pidfd >= 0:
                os.close(pidfd)

    def _report_within(self, patience_s: float) -> str | None:
        if not patience_s:
            return None
        try:
            return self._ask_report(2 * patience_s)  # the owner asks its actors first
        except RcgError as error:
            return str(error)

    def __repr__(self) -> str:
        return f"CompiledDAGHandle({self._facts.graph_id}, owner={self._facts.owner_pid})"

    # --- elsewhere, and the end

    def __reduce__(self) -> Any:
        return _handle_from, (self._facts,)

    def close(self) -> None:
        """Hang up: it cannot be used any more. The graph, and other handles on it, go on."""
        self._is_closed = True
        if self._let_go is not None:
            self._let_go()

    def teardown(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: only the process that compiled a graph can tear it down.

        Raises:
            GraphError: Always.
        """
        raise GraphError(
            f"only the process that compiled the graph, {self._facts.owner_pid}, can tear it "
            "down; close() lets go of this handle"
        )
