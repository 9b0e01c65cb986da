# SPDX-License-Identifier: Apache-2.0
"""The service that shows the graphs of this process to others of this user on this node.

``rcg top`` asks for the reports of all graphs, and the endpoint answers at once. ``rcg attach``
asks for more of one graph: a report for which the actors are asked, or a profile. A thread of its
own makes these, because the endpoint must not wait.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar

from rcg.error_text import describe_error, shielding
from rcg.errors import OutOfThreads, RcgError
from rcg.runtime.control import registry
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.control.services import Handler, Peer
from rcg.serialization import KIND_BYTES
from rcg.threads import start_thread
from rcg.version import __version__
from rcg.wire import liveness, sockets
from rcg.wire.liveness import Ending
from rcg.wire.messages import (
    GRAPHS,
    AskGraph,
    AskGraphs,
    EndProfile,
    Failed,
    Message,
    ProfileGraph,
    Ready,
    Reported,
    UnknownGraph,
)
from rcg.wire.payloads import PreparedPayloads, send_payloads
from rcg.wire.sockets import Connection


class Graphs:
    """The service.

    Every user's processes see the address, which is its secret, so it proves nothing: the listener
    for this node refuses other users, and this service is not offered to other nodes.

    Args:
        address: Where the endpoint listens.
    """

    is_over = False
    service_id = GRAPHS

    def __init__(self, address: str) -> None:
        self.secret = address

    def _tell_all(self, peer: Peer, _: AskGraphs) -> bool:
        found: list[dict[str, Any]] = []
        for graph in registry.faces():
            with shielding():  # it may end meanwhile
                at_s = time.monotonic()
                found.append({"at_s": at_s, "report": asdict(graph.report(timeout=0))})
        text = json.dumps({"version": __version__, "graphs": found}).encode()
        with PreparedPayloads(Reported(), [(KIND_BYTES, text, None, 0)]) as prepared:
            prepared.send(peer.connection, may_wait=False)
        return False

    def _tell(self, peer: Peer, asked: AskGraph | ProfileGraph) -> bool:
        graph = next((each for each in registry.faces() if each.get_id() == asked.graph_id), None)
        if graph is None:
            peer.send(UnknownGraph())
            return False
        make: Callable[[Connection], bytes | None] = partial(_report, graph)
        if isinstance(asked, ProfileGraph):  # its profiler does not keep a graph that is dropped
            make = partial(_profile, graph.profile(torch=asked.torch))
        connection = peer.hand_over_messages()
        thread = threading.Thread(
            target=_answer, args=(make, connection), name="rcg-attached", daemon=True
        )
        try:
            start_thread(thread, "to show its graph to another process")
        except OutOfThreads as error:
            peer.take_back()
            peer.send(refusal_of(error))
        return False

    handlers: ClassVar[Mapping[type[Message], Handler]] = {
        AskGraphs: _tell_all,
        AskGraph: _tell,
        ProfileGraph: _tell,
    }

    def look(self) -> None:
        """See ``Service``; there is never pending work."""

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        """See ``Service``; no peer is kept."""

    def fail(self, why: str) -> None:
        """See ``Service``; the next question may be answered."""

    def on_released(self) -> None:
        """See ``Service``; it is never released."""


def _answer(make: Callable[[Connection], bytes | None], connection: Connection) -> None:
    """Send what ``make`` returns, or why there is nothing."""
    with connection, contextlib.suppress(OSError):  # it hung up
        try:
            found = make(connection)
            if found is not None:
                send_payloads(connection, Reported(), [(KIND_BYTES, found, None, 0)])
        except Exception as error:  # noqa: BLE001 - whatever it was, the other process has to know
            text = str(error) if isinstance(error, RcgError) else describe_error(error)
            sockets.send(connection, Failed(text=text))


def _report(graph: Any, _: Connection) -> bytes:
    return json.dumps(asdict(graph.report())).encode()


def _profile(profiler: Any, connection: Connection) -> bytes | None:
    """Record until the other process has enough; None if it died."""
    pidfd = liveness.pidfd_of(sockets.peer_of(connection)[0])
    with profiler as profile:
        sockets.send(connection, Ready())
        is_here = sockets.wait_for_message(connection, pidfd.fd)
    if not is_here:
        return None
    with sockets.receive(connection) as received:
        if not isinstance(received.message, EndProfile):
            raise RcgError(f"expected the end of the profile, found {received.message!r}")
    file = io.BytesIO()
    profile.trace.save(file)
    return file.getvalue()
