# SPDX-License-Identifier: Apache-2.0
"""Serving the handles that other processes have on a graph of this process.

Each connection has two threads: one submits the client's executions, in order and under the graph's
own backpressure; the other sends results as they arrive. A client that disconnects only drops its
refs. Neither thread holds a lock: they share a queue, and a waiting thread checks again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import ChannelClosed, ExecutionError, InternalError, OutOfThreads, RcgError
from rcg.ir.signature import ExecutionSignature
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.failure import Origin, capture, capture_own
from rcg.runtime.observe.report import STACKS_TIMEOUT_S
from rcg.runtime.refs import FAILED, CompiledDAGRef
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.runtime.watch import Inquiry
from rcg.serialization import KIND_BYTES, Encoded, Failure, encode_failure
from rcg.threads import start_thread
from rcg.wire import liveness, sockets
from rcg.wire.messages import (
    AskReport,
    Completed,
    Execute,
    Opening,
    Ready,
    Rejected,
    Reported,
    Submitted,
    UnknownGraph,
    Use,
)
from rcg.wire.packets import PacketStream
from rcg.wire.payloads import PreparedPayloads, open_payloads, send_payloads
from rcg.wire.sockets import Connection, Received

_LINGER_S: Final = 5.0  # for a client of another node to read that its graph has ended


class Feed(Protocol):
    """The results of a graph, for the thread that sends them; it does not keep the graph alive."""

    def encode(self, value: Any, /) -> Encoded:
        """Return a value as bytes and buffers."""

    def on_close(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once when the graph is torn down."""

    def forget_close(self, call: Callable[[], None]) -> None:
        """Undo ``on_close``."""

    def places(self) -> list[Any]:
        """Return the position of each output."""

    def wait(self, places: list[Any], seen: int) -> int:
        """Wait until an output has gone on from there, or ``interrupt``."""

    def interrupt(self) -> None:
        """End the waits of this process."""


class ServedGraph(Protocol):
    """A graph of this process, as it is served."""

    @property
    def feed(self) -> Feed:
        """Its results."""

    @property
    def signature(self) -> ExecutionSignature:
        """What an execution takes."""

    def get_id(self) -> str:
        """Return its id."""

    def inquire(self, within_s: float) -> Inquiry:
        """See ``Watched``."""

    def execute_encoded(self, encoded: list[Encoded]) -> list[CompiledDAGRef]:
        """Execute with inputs that another process has encoded."""


def serve_client(
    reference: Callable[[], ServedGraph | None], connection: Connection, opening: Opening
) -> None:
    """Serve one connection of a client on threads of its own; returns at once.

    Raises:
        OSError: There is no descriptor left.
        OutOfThreads: No more threads can be started.
    """
    dag = reference()
    target: Callable[[], None]
    if dag is not None and isinstance(opening, AskReport):
        target = partial(_send_report, connection, dag, opening.within_ms / 1000)
    elif dag is not None and isinstance(opening, Use):
        target = _Connection(connection, dag).run
    else:
        connection.close()
        return
    thread = threading.Thread(target=target, name=f"rcg-serve-{dag.get_id()[:6]}", daemon=True)
    start_thread(thread, "to serve another process that uses its graph")


def _send_report(connection: Connection, dag: ServedGraph, within_s: float) -> None:
    with connection, contextlib.suppress(OSError):
        patience_s = min(STACKS_TIMEOUT_S, within_s / 2)
        inquiry = dag.inquire(patience_s)
        inquiry.wait(patience_s)
        text = (inquiry.text() or "").encode("utf-8", "replace")
        try:
            send_payloads(connection, Reported(), [(KIND_BYTES, text, None, 0)])
        except OSError as error:
            exhausted = out_of_descriptors(error, "to pass a report on")
            if exhausted is not None:
                sockets.send(connection, refusal_of(exhausted))


class _Connection:
    """One connection of a client."""

    def __init__(self, connection: Connection, dag: ServedGraph) -> None:
        self._connection = connection
        self._dag = weakref.ref(dag)
        self._feed = dag.feed
        self._name = f"rcg-results-{dag.get_id()[:6]}"
        self._pending: deque[CompiledDAGRef] = deque()  # whose results have not been sent yet
        self._news = Sleepers()
        self._open = deque([True])
        self._is_over = False
        self._seen = 0
        self._num_inputs = len(dag.signature.keys)
        # What ends the wait for messages: the end of the client, or on another node this process.
        # It is closed with the last reference: a thread that hangs up holds one in the meantime.
        self._ending = (
            Descriptor(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if isinstance(connection, PacketStream)
            else liveness.pidfd_of(sockets.peer_of(connection)[0])
        )

    def run(self) -> None:
        """Submit the client's executions, until it disconnects or the graph is closed."""
        self._feed.on_close(self._hang_up)
        thread = threading.Thread(target=self._send_results, name=self._name, daemon=True)
        try:
            try:
                start_thread(thread, "to send the results of its graph")
            except OutOfThreads as error:
                sockets.send(self._connection, refusal_of(error))
                return
            sockets.send(self._connection, Ready())
            while not self._is_over and sockets.wait_for_message(self._connection, self._ending.fd):
                with sockets.receive(self._connection, 1) as received:
                    if received.message is None:
                        return
                    if not isinstance(received.message, Execute):
                        raise ValueError("a client may only execute")
                    self._submit(received.message.number, received)
        except (OSError, ValueError):
            pass  # it hung up, or sent a wrong message
        finally:
            self._hang_up()
            self._feed.forget_close(self._hang_up)
            if isinstance(self._connection, PacketStream):  # or the client would not learn why
                liveness.ends_within(self._ending.fd, _LINGER_S)  # another thread is saying it
                self._connection.end_within(_LINGER_S)
                if thread.is_alive():
                    thread.join(_LINGER_S)
                self._connection.linger()
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # ends what else waits there
            self._connection.close()

    def _submit(self, number: int, received: Received) -> None:
        """Execute what a message asks for, and answer; ValueError if the message is wrong."""
        dag = self._dag()
        try:
            inputs = [payload.encoded for payload in open_payloads(received)]
        except (OSError, MemoryError) as error:
            self._reject(number, _not_passed(error, "an input"))
            return
        if len(inputs) != self._num_inputs:
            raise ValueError("these are not the inputs of the graph")
        try:
            if dag is None:
                raise ChannelClosed("Channel closed. Its owner dropped the compiled graph.")
            refs = dag.execute_encoded(inputs)
        except Exception as error:  # noqa: BLE001 - the client is to know it
            own = error if isinstance(error, RcgError) else None
            self._reject(number, own or InternalError(f"unexpected: {error!r}"))
            return
        execution = refs[0].execution
        self._pending.extend(refs)
        del refs
        self._news.wake()
        sockets.send(self._connection, Submitted(number=number, execution=execution))

    def _reject(self, number: int, error: RcgError) -> None:
        failure = encode_failure(capture_own(error))
        send_payloads(self._connection, Rejected(number=number), [failure])

    def _hang_up(self) -> None:
        """End both threads. Any thread, also one that must not block."""
        self._is_over = True
        self._news.wake()
        # One thread alone, so that no other ends the connection before this one has said why.
        for _ in take_all(self._open):
            if not isinstance(self._connection, PacketStream):
                with contextlib.suppress(OSError):  # else the client looks whether this one lives
                    sockets.send(self._connection, UnknownGraph(), may_wait=False)
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
                continue
            try:
                # Nothing else says to a process of another node that this one goes on.
                self._connection.end_within(_LINGER_S)
                with contextlib.suppress(OSError):
                    self._connection.post(sockets.pack_message(UnknownGraph()))
            finally:
                os.eventfd_write(self._ending.fd, 1)
        with contextlib.suppress(RuntimeError):
            self._feed.interrupt()

    # --- the other thread

    def _send_results(self) -> None:
        try:
            while self._news.wait(lambda: self._pending or self._is_over, None):
                if self._is_over:
                    break
                self._send_ready()
        except (OSError, RuntimeError):
            pass  # the client hung up, or is about to learn that the graph is closed
        finally:
            self._hang_up()
            self._pending.clear()

    def _send_ready(self) -> None:
        """Send results that are ready, or wait for some. It keeps no ref, and so no graph."""
        # The positions are taken before the check, so that a later result ends the wait.
        places = self._feed.places()
        pending = self._pending
        has_sent = False
        # Only this thread takes out of the queue, and others append: so numbers stay.
        at = 0
        while at < len(pending):
            if pending[at].done():
                self._send_result(pending[at])
                del pending[at]
                has_sent = True
            else:
                at += 1
        if not has_sent:
            self._seen = self._feed.wait(places, self._seen)

    def _send_result(self, ref: CompiledDAGRef) -> None:
        message = Completed(execution=ref.execution, output=ref.buffer.number)
        try:
            prepared = PreparedPayloads(message, [self._encode(ref)])
        except OSError as error:  # no memory or no descriptor for it: this one result is lost
            failure = capture_own(_not_passed(error, "a result", ref.execution))
            prepared = PreparedPayloads(message, [encode_failure(failure)])
        with prepared:
            prepared.send(self._connection)

    def _encode(self, ref: CompiledDAGRef) -> Encoded:
        """Return the result of a ref, encoded for the client."""
        try:
            value = ref.settle()
            if type(value) is Failure:
                return encode_failure(value)
            if ref.state == FAILED:
                raise value
            return self._feed.encode(value)
        except RcgError as error:
            return encode_failure(capture_own(error))
        except BaseException as error:  # noqa: BLE001 - pickling runs users' code
            here = Origin(f"process {os.getpid()}", "", "the graph's owner", os.getpid(), "")
            return encode_failure(capture(error, here, "(passing its result on)", ref.execution))


def _not_passed(error: OSError | MemoryError, what: str, execution: int | None = None) -> RcgError:
    """Return the error that says why a value could not be passed on between processes."""
    exhausted = out_of_descriptors(error, f"to pass {what} on")
    if exhausted is not None:
        return type(exhausted)(exhausted.message, **exhausted.facts, execution=execution)
    text = str(error) or "there is no memory for it"
    return ExecutionError(
        f"the process that compiled the graph could not pass {what} on: {text}",
        execution=execution,
    )
