# SPDX-License-Identifier: Apache-2.0
"""The control of a graph without the graph: members are threads of the test, or its sockets."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from rcg.ir.signature import ExecutionSignature
from rcg.options import Deadline
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.node.memory import Shared
from rcg.runtime.remote.client import HandleFacts
from rcg.wire import messages
from rcg.wire.codec import encode
from rcg.wire.liveness import Ending
from tests.harness.peers import GUARD_S, until

PROCESSES = [*(f"a{i}" for i in range(100)), "first", "last"]


class Served:
    """The control of a graph of these processes, with three segments of shared memory."""

    def __init__(self, *processes: str) -> None:
        self.segments = [os.memfd_create(f"segment{i}") for i in range(3)]
        self.gone: list[tuple[str, Ending]] = []
        self.openings: list[messages.Opening] = []
        self.control = GraphControl(
            uuid.uuid4().hex,
            processes or PROCESSES,
            lambda _: Shared(self.segments[0], [self.segments[1], -1, self.segments[2]]),
            lambda process, ending: self.member_gone(process, ending),
            lambda connection, opening: self.client_came(connection, opening),
        )
        self.control.open()

    def member_gone(self, process: str, ending: Ending) -> None:
        self.gone.append((process, ending))

    def client_came(self, connection: socket.socket, opening: messages.Opening) -> None:
        connection.close()
        self.openings.append(opening)

    @property
    def graph_id(self) -> str:
        return self.control.service_id

    def hello(self, process: str = "a0", **changes: Any) -> messages.Hello:
        fields = {"graph": self.graph_id, "secret": self.control.secret, **changes}
        return messages.Hello(process=process, clock="", **fields)

    def stranger(self) -> socket.socket:
        """Return a connection to the endpoint that has said nothing yet."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(GUARD_S)
        deadline = Deadline(GUARD_S)
        while True:
            try:
                connection.connect(self.control.address)
                return connection
            except BlockingIOError:
                assert not deadline.expired
                time.sleep(0.001)

    def client(self, process: str = "a0") -> ControlClient:
        return ControlClient(self.control.address, self.graph_id, self.control.secret, process)

    def close(self) -> None:
        self.control.close()
        for fd in self.segments:
            os.close(fd)
        self.segments.clear()


class Loop:
    """A loop that a client watches for."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.broken = threading.Event()

    def on_stop(self) -> None:
        self.stopped.set()

    def on_broken(self) -> None:
        self.broken.set()

    def on_owner_gone(self) -> None:
        self.ended.set()

    def where(self) -> list[str]:
        return ["a.py:1 in f"]

    def processor_ns(self) -> tuple[int, int]:
        return 3, 5


def handle_facts(address: str, secret: str, **changes: Any) -> HandleFacts:
    """What a handle knows of a graph of this process, with one argument."""
    facts: dict[str, Any] = {
        "graph_id": "cafe",
        "owner_pid": os.getpid(),
        "node": None,
        "signature": ExecutionSignature.of([None]),
        "buffers": (),
        "outputs": (),
        "is_multi": False,
        "max_inflight_executions": 10,
        "get_timeout_s": None,
        "submit_timeout_s": None,
    }
    return HandleFacts(address=address, secret=secret, **{**facts, **changes})


def as_json(message: messages.Message) -> dict[str, Any]:
    """A message as the JSON that stands for it."""
    found: dict[str, Any] = json.loads(encode(message))
    return found


def control_threads() -> list[threading.Thread]:
    """The threads that run; Python's own list keeps a thread whose start Ctrl-C interrupted."""
    found = [each for each in threading.enumerate() if each.name == "rcg-control"]
    return [each for each in found if each.is_alive()]


def listening(pid: int) -> int:
    """How many sockets of rcg a process listens on."""
    rows = Path("/proc/net/unix").read_text().splitlines()
    return sum(f"@rcg-{pid}-" in row and row.split()[3] == "00010000" for row in rows)


def is_served(graph: Served, process: str) -> bool:
    """Whether a member joins, answers, and is heard when it leaves."""
    client, loop = graph.client(process), Loop()
    client.close_descriptors()
    client.watch(loop, "rcg-watch-test")
    until(lambda: process in graph.control.lives.pids)
    stack = graph.control.questions.ask_where(GUARD_S).get(process)
    client.finish()
    until(lambda: process in graph.control.lives.over)
    client.close()
    return stack == ["a.py:1 in f"]


def together(*calls: Callable[[], object]) -> None:
    """Run each of these on a thread; raise the error of one in the test."""
    problems: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as problem:  # noqa: BLE001 - it is raised below
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
        assert not thread.is_alive()
    for problem in problems:
        raise problem


def interrupted_at_each_line(
    call: Callable[[], object], inside: Callable[[], object], *modules: str, each_time: bool = False
) -> int:
    """Make a call that is interrupted, as by a signal handler, at each of its lines in modules.

    There ``inside`` is called, after a thread has called it for which the call waits. Returns how
    often that was.

    Args:
        call: What is interrupted.
        inside: What the handler does.
        modules: Where the call is interrupted.
        each_time: Interrupt it wherever it comes by again, too.
    """
    places: list[tuple[object, int]] = []

    def handle() -> None:
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join(GUARD_S)
        assert not thread.is_alive(), "another thread waits for a lock that is held here"
        inside()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_globals.get("__name__") not in modules:
            return None
        place = frame.f_code, frame.f_lineno
        if event == "line" and (each_time or place not in places):
            places.append(place)
            sys.settrace(None)
            handle()
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return len(places)
