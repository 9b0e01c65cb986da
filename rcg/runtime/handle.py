# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of another process: what a pickled ``CompiledDAG`` becomes elsewhere.

A handle is a client of its owner's control socket. It connects when it is first used, and one
thread takes in what the owner sends; results wait here until they are got.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
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
from rcg.runtime import packets
from rcg.runtime.failure import to_exception
from rcg.runtime.inlet import Key, arguments_by_key
from rcg.runtime.outlet import FAILED, READY
from rcg.runtime.parcels import Parcel, open_parcel, send_parcel
from rcg.runtime.results import CompiledDAGRef, confirm, refs_of
from rcg.runtime.worker import make_codec

if TYPE_CHECKING:
    from rcg.runtime.execute import CompiledDAG

__all__ = ["CompiledDAGHandle", "handle_of"]

_MOMENT_S: Final = 0.001
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


# Graphs of this process that were pickled, and handles that are in use here, by graph.
_owned: weakref.WeakValueDictionary[str, CompiledDAG] = weakref.WeakValueDictionary()
_handles: weakref.WeakValueDictionary[str, CompiledDAGHandle] = weakref.WeakValueDictionary()
_lock: Final = threading.Lock()


def handle_of(dag: CompiledDAG) -> tuple[Callable[..., Any], tuple[_Facts]]:
    """Return how a graph of this process is pickled."""
    session = dag.session
    _owned[session.graph_id] = dag
    facts = _Facts(
        graph_id=session.graph_id,
        address=session.control.address,
        secret=session.control.secret,
        owner_pid=os.getpid(),
        node=cluster.node_id() if cluster.is_connected() else None,
        keys=dag.input_keys,
        num_positional=dag.plan.num_positional,
        keywords=tuple(dag.plan.keywords),
        outlets=tuple(outlet.channel for outlet in dag.outlets),
        outputs=dag.output_numbers,
        is_multi=dag.plan.is_multi,
        get_timeout_s=dag.get_timeout_s,
    )
    return _handle_from, (facts,)


def _handle_from(facts: _Facts) -> Any:
    """Return the graph itself in its own process, elsewhere a handle: the same while it is used."""
    with _lock:
        if facts.owner_pid == os.getpid():
            own = _owned.get(facts.graph_id)
            if own is not None:
                return own
        known = _handles.get(facts.graph_id)
        if known is None:
            known = _handles[facts.graph_id] = CompiledDAGHandle(facts)
        return known


class _Output:
    """One output of the graph, as refs see it: what came and was not got yet."""

    __slots__ = ("channel", "dropped", "frames", "number")

    def __init__(self, channel: str, number: int) -> None:
        self.channel = channel
        self.number = number
        self.frames: dict[int, Parcel] = {}
        self.dropped: deque[int] = deque()


class _Link:
    """The connection of one handle, and the thread that takes in what the owner sends.

    It does not know the handle, so that a handle that nobody uses is let go of.
    """

    def __init__(self, facts: _Facts, outputs: Sequence[_Output]) -> None:
        self.facts = facts
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.error: RcgError | None = None
        self._outputs = outputs
        self._replies: dict[int, concurrent.futures.Future[int]] = {}
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._number = 0
        self._is_hung_up = False
        self._sending = threading.Lock()
        self._socket = _connect(facts, "use")
        try:
            packet, _, _ = packets.receive(self._socket)
        except OSError as error:
            self._socket.close()
            raise ChannelTimeout(
                f"process {facts.owner_pid}, which compiled the graph, does not answer: {error}",
                timeout_s=_PATIENCE_S,
            ) from error
        if packet is None:
            self._socket.close()
            raise _torn_down(facts)
        self._socket.settimeout(None)
        self._pidfd = packets.open_pidfd(packets.peer_of(self._socket)[0])
        self._thread = threading.Thread(
            target=self._listen, name=f"rcg-handle-{facts.graph_id[:6]}", daemon=True
        )
        self._thread.start()

    # --- any thread

    def submit(self, values: list[Any], *, may_wait: bool = True) -> concurrent.futures.Future[int]:
        """Ask the owner to execute; the future is the index of the execution.

        Raises:
            BlockingIOError: The owner is behind, and ``may_wait`` is False.
            RcgError: The connection is over.
        """
        reply: concurrent.futures.Future[int] = concurrent.futures.Future()
        reply.set_running_or_notify_cancel()
        with self.changed:
            if self.error is not None:
                raise self.raised()
            self._number += 1
            number = self._number
            self._replies[number] = reply
        try:
            with self._sending:
                packet = {"type": "execute", "number": number}
                send_parcel(self._socket, packet, values, may_wait=may_wait)
        except BlockingIOError:
            with self.changed:
                self._replies.pop(number, None)
            raise
        except OSError:
            with self.changed:
                self.changed.wait_for(lambda: self.error is not None, 1.0)
                if self.error is None:
                    raise
                raise self.raised() from None
        return reply

    def raised(self) -> RcgError:
        """Return the error of a connection that is over, a new one each time."""
        error = self.error or ChannelClosed("Channel closed.")
        return type(error)(error.message, **error.facts)

    def wake_at_change(self) -> asyncio.Future[None]:
        """Return a future of the running loop, done when something came. Hold ``changed``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop, future))
        return future

    def close(self) -> None:
        """Hang up; the thread ends. Idempotent."""
        if self.pid != os.getpid():
            return  # a forked child: the connection is the parent's
        self._is_hung_up = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- the thread

    def _listen(self) -> None:
        try:
            while True:
                packet, body, fds = packets.receive(self._socket)
                if packet is None:
                    break
                self._take(packet, open_parcel(packet, body, fds) if "values" in packet else [])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        how = packets.how_it_ended(self._pidfd)
        error: RcgError
        if self._is_hung_up:
            error = ChannelClosed("Channel closed. The handle was closed.")
        elif how == "its process ended":
            error = _owner_gone(self.facts)
        else:
            error = _torn_down(self.facts)
        with self.changed:
            self.error = error
            replies, self._replies = self._replies, {}
            self._changed()
        for reply in replies.values():
            reply.set_exception(self.raised())
        self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _take(self, packet: packets.Packet, values: list[Parcel]) -> None:
        match packet["type"]:
            case "result":
                output, execution = self._outputs[packet["output"]], int(packet["execution"])
                with self.changed:
                    if execution in output.dropped:
                        output.dropped.remove(execution)
                    else:
                        output.frames[execution] = values[0]
                    self._changed()
            case "submitted":
                with self.changed:
                    reply = self._replies.pop(packet["number"])
                reply.set_result(int(packet["execution"]))
            case "refused":
                with self.changed:
                    reply = self._replies.pop(packet["number"])
                reply.set_exception(to_exception(values[0].decode()))

    def _changed(self) -> None:
        """Wake who waits; the lock is held."""
        self.changed.notify_all()
        waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set_done, future)


def _connect(facts: _Facts, wants: str) -> socket.socket:
    try:
        connection = packets.connect(facts.address, _PATIENCE_S)
    except OSError as error:
        here = cluster.node_id() if cluster.is_connected() else None
        if facts.node is not None and here is not None and facts.node != here:
            raise PlacementError(
                f"this handle works on the node of the process that compiled the graph, "
                f"{facts.node}, and this is node {here}",
                location=here,
            ) from error
        if _is_alive(facts.owner_pid):
            raise _torn_down(facts) from None
        raise _owner_gone(facts) from None
    packets.send(connection, {"type": "call", "secret": facts.secret, "wants": wants})
    return connection


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
    owns its window, options and end: it has to stay alive and keep the graph.
    """

    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self.get_timeout_s = facts.get_timeout_s
        self.num_outlets = len(facts.outlets)
        self.finished: deque[int] = deque()
        self._codec = make_codec()
        self._linking = threading.Lock()
        self._link: _Link | None = None
        self._outputs: list[_Output] = []

    # --- running

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return its ref, or a list of refs; see ``CompiledDAG.execute``.

        Raises:
            Exception: As there.
            ChannelBroken: The process that compiled the graph is gone.
        """
        link, outputs = self._linked()
        reply = link.submit(self._encode(args, kwargs))
        try:
            return self._refs(outputs, reply.result())
        except BaseException:
            if not reply.done():  # Ctrl-C: nobody will want the results
                reply.add_done_callback(lambda done: _drop(link, outputs, done))
            raise

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """As ``execute``, without blocking the event loop."""
        link, outputs = self._linked()
        values = self._encode(args, kwargs)
        while True:
            try:
                reply = link.submit(values, may_wait=False)
                break
            except BlockingIOError:
                await asyncio.sleep(_MOMENT_S)
        try:
            return self._refs(outputs, await asyncio.shield(asyncio.wrap_future(reply)))
        except asyncio.CancelledError:
            reply.add_done_callback(lambda done: _drop(link, outputs, done))
            raise

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        facts = self._facts
        values = arguments_by_key(
            args, kwargs, facts.keys, num_positional=facts.num_positional, keywords=facts.keywords
        )
        return [self._codec.encode(values[key]) for key in facts.keys]

    def _linked(self) -> tuple[_Link, list[_Output]]:
        link = self._link
        if link is not None and link.pid == os.getpid():
            self._forget_dropped(link)
            return link, self._outputs
        with self._linking:
            if self._link is None or self._link.pid != os.getpid():
                outputs = [_Output(channel, i) for i, channel in enumerate(self._facts.outlets)]
                link = _Link(self._facts, outputs)
                self._link, self._outputs = link, outputs
                weakref.finalize(self, link.close).atexit = False
            return self._link, self._outputs

    def _forget_dropped(self, link: _Link) -> None:
        """Let go of results whose refs went away before they were got."""
        self.finished.clear()
        if not any(output.dropped for output in self._outputs):
            return
        with link.changed:
            for output in self._outputs:
                for _ in range(len(output.dropped)):
                    execution = output.dropped.popleft()
                    if output.frames.pop(execution, None) is None:
                        output.dropped.append(execution)  # still to come

    def _refs(self, outputs: list[_Output], execution: int) -> Any:
        listed = [outputs[number] for number in self._facts.outputs]
        refs: Any
        if self._facts.is_multi:
            refs = refs_of(self, listed, execution)
        else:
            refs = CompiledDAGRef(self, listed[0], execution, None)
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
                report=self._report_or_none(),
            )

    def try_fetch(self, ref: CompiledDAGRef, timeout_s: float | None) -> bool:
        """Wait for the result of a ref and fill it; False when the time is up."""
        link, output = self._link_of(ref)
        with link.changed:
            if not link.changed.wait_for(lambda: self._is_settled(ref), timeout_s):
                return False
            if ref.state >= READY:
                return True
            parcel = output.frames.pop(ref.execution, None)
            if parcel is None:
                raise link.raised()
        try:
            value, state = parcel.decode(), READY
            if type(value) is Failure:
                state = FAILED  # an exception when it is raised: see Outlet.fetch
        except Exception as error:  # noqa: BLE001 - what unpickling raised is the result
            value, state = error, FAILED
        except BaseException:
            with link.changed:  # Ctrl-C: the next one decodes it
                output.frames[ref.execution] = parcel
                link.changed.notify_all()
            raise
        with link.changed:
            ref.value, ref.state = value, state
            link.changed.notify_all()
        return True

    def _link_of(self, ref: CompiledDAGRef) -> tuple[_Link, _Output]:
        link = self._link
        if link is None or link.pid != os.getpid():
            raise ExecutionError(
                "this process was forked from the one that executed, and the result goes there"
            )
        return link, self._outputs[ref.outlet.number]

    def _is_settled(self, ref: CompiledDAGRef) -> bool:
        link, output = self._link_of(ref)
        return ref.state >= READY or ref.execution in output.frames or link.error is not None

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""
        return self._is_settled(ref)

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs."""
        link, _ = self._link_of(refs[0])
        with link.changed:
            link.changed.wait_for(lambda: any(map(self._is_settled, refs)), timeout_s)

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref would not wait."""
        link, _ = self._link_of(ref)
        while True:
            with link.changed:
                if self._is_settled(ref):
                    return
                future = link.wake_at_change()
            await future

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self._facts.graph_id

    def report(self) -> str:
        """Return the owner's report: who does what, since when, and who waits for whom.

        Raises:
            ChannelClosed: The graph was torn down.
            ChannelBroken: The process that compiled the graph is gone.
        """
        try:
            with _connect(self._facts, "report") as connection:
                packet, body, fds = packets.receive(connection)
        except (OSError, ValueError):
            packet = None
        if packet is None:
            raise ChannelClosed("Channel closed. Its owner let go of the compiled graph.")
        return str(open_parcel(packet, body, fds)[0].decode(), "utf-8")

    def _report_or_none(self) -> str | None:
        try:
            return self.report()
        except RcgError as error:
            return str(error)

    def __repr__(self) -> str:
        return f"CompiledDAGHandle({self._facts.graph_id}, owner={self._facts.owner_pid})"

    # --- elsewhere, and the end

    def __reduce__(self) -> Any:
        return _handle_from, (self._facts,)

    def close(self) -> None:
        """Hang up: refs that were not got yet raise. The graph goes on; idempotent."""
        if self._link is not None:
            self._link.close()

    def teardown(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: only the process that compiled a graph can tear it down.

        Raises:
            GraphError: Always.
        """
        raise GraphError(
            f"only the process that compiled the graph, {self._facts.owner_pid}, can tear it "
            "down; close() lets go of this handle"
        )


def _drop(link: _Link, outputs: list[_Output], reply: concurrent.futures.Future[int]) -> None:
    """Let go of the results of an execution that nobody has refs of."""
    if reply.exception() is None:
        with link.changed:
            for output in outputs:
                if output.frames.pop(reply.result(), None) is None:
                    output.dropped.append(reply.result())
