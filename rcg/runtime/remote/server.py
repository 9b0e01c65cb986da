# SPDX-License-Identifier: Apache-2.0
"""Others who use a graph of this process: what answers a ``CompiledDAGHandle`` elsewhere.

Each connection has two threads: one submits what the caller asks for, in order and with the
graph's own backpressure; the other sends results as they come. A caller that goes away just drops
its refs. Neither thread holds a lock: what they share is a queue, and who waits looks again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

from rcg import _native
from rcg.channels.shm import Failure
from rcg.descriptors import out_of_descriptors
from rcg.errors import (
    ChannelClosed,
    ExecutionError,
    InternalError,
    OutOfDescriptors,
    RcgError,
)
from rcg.runtime.control.reception import refusal_of
from rcg.runtime.driver.output import FAILED
from rcg.runtime.failure import Origin, capture, capture_own
from rcg.runtime.refs import CompiledDAGRef
from rcg.runtime.sleepers import Sleepers
from rcg.serialization import Encoded
from rcg.wire import liveness, messages
from rcg.wire.messages import Received, natural_of
from rcg.wire.payloads import PreparedPayloads, encoded_failure, open_payloads, send_payloads

if TYPE_CHECKING:
    from rcg.runtime.driver.compiled_dag import CompiledDAG

__all__ = ["HandleServer"]

_MAX_NUMBER: Final = (1 << 63) - 1


class HandleServer:
    """Serves callers of one graph.

    Args:
        dag: The graph; gone when its owner has dropped it.
    """

    def __init__(self, dag: weakref.ref[CompiledDAG]) -> None:
        self._dag = dag

    def serve(self, connection: socket.socket, wants: str) -> None:
        """Serve one connection on threads of its own; returns at once.

        Args:
            connection: To the caller; owned from here on, unless it raises.
            wants: "use" or "report".

        Raises:
            OSError: There is no descriptor left.
            RuntimeError: There is no thread left.
        """
        dag = self._dag()
        if dag is None:
            connection.close()
            return
        if wants == "report":
            target, args = _send_report, (connection, dag)
        elif wants == "use":
            target, args = _Connection(connection, dag).run, ()  # type: ignore[assignment]
        else:
            connection.close()
            return
        name = f"rcg-caller-{dag.get_id()[:6]}"
        threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _send_report(connection: socket.socket, dag: CompiledDAG) -> None:
    with connection, contextlib.suppress(OSError):
        text = str(dag.report()).encode("utf-8", "replace")
        try:
            send_payloads(connection, {"type": "report"}, [(_native.KIND_BYTES, text, None, 0)])
        except OSError as error:
            told = out_of_descriptors(error, "to pass a report on")
            if told is not None:
                messages.send(connection, refusal_of(told))


class _Connection:
    """One connection of a caller."""

    def __init__(self, connection: socket.socket, dag: CompiledDAG) -> None:
        self._connection = connection
        self._dag = weakref.ref(dag)
        self._session = dag.session
        self._buffers = dag.buffers
        self._encode = dag.codec.encode
        self._name = f"rcg-results-{dag.get_id()[:6]}"
        # Refs whose results the caller has not been sent yet.
        self._pending: deque[CompiledDAGRef] = deque()
        self._news = Sleepers()
        self._is_over = False
        self._seen = 0
        self._num_inputs = len(dag.signature.keys)
        self._pidfd = liveness.pidfd_of(messages.peer_of(connection)[0])

    def run(self) -> None:
        """Submit what the caller asks for, until it hangs up or the graph is closed."""
        self._session.on_close(self._hang_up)
        try:
            threading.Thread(target=self._send_results, name=self._name, daemon=True).start()
            messages.send(self._connection, {"type": "ready"})
            while messages.wait_for_message(self._connection, self._pidfd.fd):
                with messages.receive(self._connection, 1) as received:
                    if received.message is None:
                        return
                    self._submit(natural_of(received.message, "number", _MAX_NUMBER), received)
        except (OSError, ValueError, RuntimeError):
            pass  # it hung up, or is none of ours, or there is no thread left
        finally:
            self._hang_up()
            self._session.forget_close(self._hang_up)
            self._connection.close()
            self._pidfd.close()

    def _submit(self, number: int, received: Received) -> None:
        """Execute what a message asks for, and answer.

        Raises:
            OSError: The caller hung up.
            ValueError: It is no message of ours.
        """
        if (received.message or {}).get("type") != "execute":
            raise ValueError("a caller only executes")
        dag = self._dag()
        try:
            inputs = [payload.encoded for payload in open_payloads(received)]
        except (OSError, MemoryError) as error:
            self._refuse(number, _not_passed(error, "an input"))
            return
        if len(inputs) != self._num_inputs:
            raise ValueError("these are not the inputs of the graph")
        try:
            if dag is None:
                raise ChannelClosed("Channel closed. Its owner let go of the compiled graph.")
            refs = dag.execute_encoded(inputs)
        except Exception as error:  # noqa: BLE001 - the caller is to know it
            own = error if isinstance(error, RcgError) else None
            self._refuse(number, own or InternalError(f"unexpected: {error!r}"))
            return
        execution = refs[0].execution
        self._pending.extend(refs)
        del refs
        self._news.wake()
        accepted = {"type": "submitted", "number": number, "execution": execution}
        messages.send(self._connection, accepted)

    def _refuse(self, number: int, error: RcgError) -> None:
        refusal = encoded_failure(capture_own(error))
        send_payloads(self._connection, {"type": "refused", "number": number}, [refusal])

    def _hang_up(self) -> None:
        """End both threads. Any thread, also one that must not block."""
        self._is_over = True
        self._news.wake()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):
            self._session.member.interrupt()

    # --- the other thread

    def _send_results(self) -> None:
        try:
            while self._wait_for_pending():
                self._send_ready()
        except (OSError, RuntimeError):
            pass  # the caller hung up, or is about to be told that the graph is closed
        finally:
            self._hang_up()
            self._pending.clear()

    def _wait_for_pending(self) -> bool:
        self._news.wait(lambda: self._pending or self._is_over, None)
        return not self._is_over

    def _send_ready(self) -> None:
        """Send what is ready, or wait until something may be. Keeps no ref, nor so the graph."""
        # Where each ring stands before we look: what comes from then on ends the wait.
        seqs = [(buffer.end, buffer.arrived) for buffer in self._buffers]
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
            with contextlib.suppress(_native.Poisoned):
                self._seen = self._session.member.wait_any(seqs, -1, self._seen)
            for buffer in self._buffers:
                buffer.take_pending()

    def _send_result(self, ref: CompiledDAGRef) -> None:
        message = {"type": "result", "execution": ref.execution, "output": ref.buffer.number}
        try:
            prepared = PreparedPayloads(message, [self._encoded(ref)])
        except OSError as error:  # no memory or no descriptor for it: this one result is lost
            failure = capture_own(_not_passed(error, "a result", ref.execution))
            prepared = PreparedPayloads(message, [encoded_failure(failure)])
        with prepared:
            prepared.send(self._connection)

    def _encoded(self, ref: CompiledDAGRef) -> Encoded:
        """Return what a ref stands for, as it goes to the caller."""
        try:
            value = ref.settle()
            if type(value) is Failure:
                return encoded_failure(value)
            if ref.state == FAILED:
                raise value
            return self._encode(value)
        except RcgError as error:
            return encoded_failure(capture_own(error))
        except BaseException as error:  # noqa: BLE001 - pickling runs users' code
            here = Origin(f"process {os.getpid()}", "", "the graph's owner", os.getpid(), "")
            return encoded_failure(capture(error, here, "(passing its result on)", ref.execution))


def _not_passed(error: OSError | MemoryError, what: str, execution: int | None = None) -> RcgError:
    """Return the error that says why a value could not be passed on between processes."""
    told = out_of_descriptors(error, f"to pass {what} on")
    if told is not None:
        return OutOfDescriptors(told.message, **told.facts, execution=execution)
    text = str(error) or "there is no memory for it"
    return ExecutionError(
        f"the process that compiled the graph could not pass {what} on: {text}",
        execution=execution,
    )
