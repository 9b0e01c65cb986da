# SPDX-License-Identifier: Apache-2.0
"""Others who use a graph of this process: what answers a ``CompiledDAGHandle`` elsewhere.

Each connection has two threads: one submits what the caller asks for, in order and with the
graph's own backpressure; the other sends results as they come. A caller that goes away just drops
its refs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from rcg import _native
from rcg.channels.shm import Failure
from rcg.errors import ChannelClosed, ExecutionError, InternalError, RcgError
from rcg.runtime import packets
from rcg.runtime.failure import Origin, capture, capture_own
from rcg.runtime.outlet import FAILED
from rcg.runtime.parcels import Prepared, encoded_failure, open_parcel, send_parcel
from rcg.runtime.results import CompiledDAGRef
from rcg.values import Encoded

if TYPE_CHECKING:
    from rcg.runtime.execute import CompiledDAG

__all__ = ["Callers"]


class Callers:
    """Serves callers of one graph.

    Args:
        dag: The graph; gone when its owner has dropped it.
    """

    def __init__(self, dag: weakref.ref[CompiledDAG]) -> None:
        self._dag = dag

    def serve(self, connection: socket.socket, wants: str) -> None:
        """Serve one connection on threads of its own; returns at once.

        Args:
            connection: To the caller; owned from here on.
            wants: "use" or "report".
        """
        dag = self._dag()
        if dag is None:
            connection.close()
            return
        if wants == "report":
            target, args = _send_report, (connection, dag)
        else:
            target, args = _Caller(connection, dag).run, ()  # type: ignore[assignment]
        name = f"rcg-caller-{dag.get_id()[:6]}"
        threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _send_report(connection: socket.socket, dag: CompiledDAG) -> None:
    with connection, contextlib.suppress(OSError):
        text = str(dag.report()).encode()
        send_parcel(connection, {"type": "report"}, [(_native.KIND_BYTES, text, None, 0)])


class _Caller:
    """One connection of a caller."""

    def __init__(self, connection: socket.socket, dag: CompiledDAG) -> None:
        self._connection = connection
        self._dag = weakref.ref(dag)
        self._session = dag.session
        self._outlets = dag.outlets
        self._encode = dag.codec.encode
        self._name = f"rcg-results-{dag.get_id()[:6]}"
        # Refs whose results the caller has not been sent yet.
        self._pending: deque[CompiledDAGRef] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._seen = 0
        self._pidfd = packets.open_pidfd(packets.peer_of(connection)[0])
        dag.session.on_close(self._hang_up)

    def run(self) -> None:
        """Submit what the caller asks for, until it hangs up or the graph is closed."""
        threading.Thread(target=self._send_results, name=self._name, daemon=True).start()
        try:
            packets.send(self._connection, {"type": "ready"})
            while packets.wait_for_packet(self._connection, self._pidfd):
                packet, body, fds = packets.receive(self._connection)
                if packet is None:
                    return
                self._submit(packet["number"], packet, body, fds)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            pass  # it hung up, or is none of ours
        finally:
            self._hang_up()
            self._session.forget_close(self._hang_up)
            self._connection.close()
            packets.close_pidfd(self._pidfd)

    def _submit(self, number: int, packet: packets.Packet, body: bytes, fds: list[int]) -> None:
        dag = self._dag()
        try:
            try:
                inputs = [parcel.encoded for parcel in open_parcel(packet, body, fds)]
            except OSError as error:
                raise ExecutionError(f"at the process that compiled the graph, {error}") from None
            if dag is None:
                raise ChannelClosed("Channel closed. Its owner let go of the compiled graph.")
            refs = dag.execute_encoded(inputs)
        except Exception as error:  # noqa: BLE001 - the caller is to know it
            if not isinstance(error, RcgError):
                error = InternalError(f"unexpected: {error!r}")
            refusal = encoded_failure(capture_own(error))
            send_parcel(self._connection, {"type": "refused", "number": number}, [refusal])
            return
        with self._changed:
            self._pending.extend(refs)
            self._changed.notify_all()
        accepted = {"type": "submitted", "number": number, "execution": refs[0].execution}
        packets.send(self._connection, accepted)

    def _hang_up(self) -> None:
        """End both threads. Any thread, also one that must not block."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
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
            with self._changed:
                self._pending.clear()

    def _wait_for_pending(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_over)
            return not self._is_over

    def _send_ready(self) -> None:
        """Send what is ready, or wait until something may be. Keeps no ref, nor so the graph."""
        # Where each ring stands before we look: what comes from then on ends the wait.
        seqs = [(outlet.end, outlet.arrived) for outlet in self._outlets]
        with self._changed:
            ready = [ref for ref in self._pending if ref.done()]
        for ref in ready:
            self._send_result(ref)
            with self._changed:
                self._pending.remove(ref)
        if not ready:
            with contextlib.suppress(_native.Poisoned):
                self._seen = self._session.member.wait_any(seqs, -1, self._seen)
            for outlet in self._outlets:
                outlet.take_pending()

    def _send_result(self, ref: CompiledDAGRef) -> None:
        packet = {"type": "result", "execution": ref.execution, "output": ref.outlet.number}
        try:
            prepared = Prepared(packet, [self._encoded(ref)])
        except OSError as error:  # no memory or no descriptor for it: this one result is lost
            text = f"the result could not be passed on: {error}"
            failure = capture_own(ExecutionError(text, execution=ref.execution))
            prepared = Prepared(packet, [encoded_failure(failure)])
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
