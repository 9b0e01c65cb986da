# SPDX-License-Identifier: Apache-2.0
"""The connection of a handle against an owner that sends nonsense, and without descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg import _native
from rcg.errors import ChannelClosed, OutOfDescriptors, OutOfThreads, RcgError
from rcg.runtime.control.acceptor import refusal_of
from rcg.runtime.remote.client import Client, HandleFacts, ask_report
from rcg.runtime.remote.handle import CompiledDAGHandle
from rcg.serialization import Failure, encode_failure
from rcg.wire import messages, sockets
from rcg.wire.codec import encode
from rcg.wire.payloads import PreparedPayloads, open_payloads
from tests.harness.peers import (
    GUARD_S,
    admit,
    ctrl_c_anywhere,
    descriptors,
    mutants,
    none_left,
    says_what_is_lacking,
    until,
    with_descriptors,
)
from tests.harness.places import closing
from tests.harness.served import as_json, handle_facts, interrupted_at_each_line

SMALL = (_native.KIND_PICKLE, pickle.dumps(7), None, 0)
LARGE = (_native.KIND_PICKLE, pickle.dumps(bytes(100_000)), None, 0)
ARRAYS = (_native.KIND_PICKLE, b"x" * 10, [bytearray(50), b"y" * 40_000], 1)


class Owner:
    """A process that compiled a graph, as far as a handle sees it: the test says what it answers.

    Args:
        answers: Called with each connection, after ``Ready`` has been sent.
    """

    def __init__(self, answers: Callable[[socket.socket], None], ready: bool = True) -> None:
        address = f"\0rcg-owner-{os.getpid()}-{time.monotonic_ns()}"
        self._listener = sockets.listen(address)
        self._listener.setblocking(True)
        self._answers = answers
        self._ready = ready
        self._is_closing = False
        self.facts = handle_facts(
            address,
            "secret",
            graph_id="cafe" * 8,
            buffers=("c1", "c2"),
            outputs=(0, 1),
            is_multi=True,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if self._is_closing:
                    return
                with contextlib.suppress(OSError, AssertionError):  # it went before its proof
                    admit(connection, self.facts.secret)
                    if self._ready:
                        sockets.send(connection, messages.Ready())
                    self._answers(connection)

    def close(self) -> None:
        self._is_closing = True
        sockets.connect(self.facts.address, GUARD_S).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def owners() -> Iterator[Callable[..., Owner]]:
    yield from closing(Owner)


def payload_message(message: messages.Carrying, *values: Any) -> tuple[Any, bytes, int]:
    """A message with values as it goes over the wire: (message, body, descriptor or -1)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, PreparedPayloads(message, values) as prepared:
        prepared.send(ours)
        with sockets.receive(theirs, 1) as received:
            fds = [os.dup(fd) for fd in received.fds]
            assert received.message is not None
            return received.message, received.body, fds[0] if fds else -1


def connected(facts: HandleFacts) -> Client:
    """A client that uses itself."""
    client = Client(facts)
    client.join(client)
    client.open()
    return client


COMPLETED = messages.Completed(execution=0, output=0)
MESSAGES: dict[str, tuple[Any, Any]] = {
    "small result": (COMPLETED, SMALL),
    "large result": (COMPLETED, LARGE),
    "result with buffers": (COMPLETED, ARRAYS),
    "rejected": (messages.Rejected(number=0), encode_failure(Failure(b"no pickle"))),
    "submitted": (messages.Submitted(number=0, execution=3), None),
}


@pytest.mark.parametrize("count", [0, 1, 2, 100])
@pytest.mark.parametrize("name", MESSAGES)
def test_what_an_owner_sends_leaves_no_descriptor_and_nobody_waiting(owners, name, count, dice):
    message, value = MESSAGES[name]
    good, body, fd = (message, b"", -1) if value is None else payload_message(message, value)
    given = [os.dup(0 if fd < 0 else fd) for _ in range(count)]
    todo = [data.partition(b"\0")[0] + b"\0" + body for data in mutants(as_json(good), dice, 60)]
    asked = iter(todo)

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)  # what is to be executed
        with_descriptors(connection, next(asked), given)

    owner = owners(answer)
    before = descriptors()
    for _ in todo:
        client = connected(owner.facts)
        with PreparedPayloads(messages.Execute(), [SMALL]) as prepared:
            reply = client.try_submit(prepared)
        assert client.wait(lambda: reply.is_done or client.error is not None, GUARD_S)  # noqa: B023
        assert client.wait(lambda: client.error is not None, GUARD_S)  # noqa: B023
        with contextlib.suppress(Exception):
            raise reply.error or client.end_error()
    until(lambda: descriptors() <= before)
    for each in given:
        os.close(each)
    if fd >= 0:
        os.close(fd)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_an_owner_sends_as_a_report_leaves_no_descriptor(owners, count, dice):
    report = (_native.KIND_BYTES, b"all is well", None, 0)
    good, body, _ = payload_message(messages.Reported(), report)
    given = [os.dup(0) for _ in range(count)]
    todo = [data.partition(b"\0")[0] + b"\0" + body for data in mutants(as_json(good), dice, 60)]
    asked = iter(todo)
    owner = owners(lambda c: with_descriptors(c, next(asked), given), ready=False)
    before = descriptors()
    for _ in todo:
        with contextlib.suppress(RcgError):
            assert isinstance(ask_report(owner.facts, 0.5), str)
    until(lambda: descriptors() <= before)
    for each in given:
        os.close(each)


def test_a_connection_that_is_over_does_not_hold_up_an_event_loop(owners, monkeypatch):
    """Sending fails before the listening thread knows why: who may not wait tries again."""
    is_over = threading.Event()
    client = connected(owners(lambda _: is_over.wait(GUARD_S)).facts)
    client._socket.shutdown(socket.SHUT_WR)
    with PreparedPayloads(messages.Execute(), [SMALL]) as prepared:
        with monkeypatch.context() as patched:
            patched.setattr(client, "wait", lambda *_: pytest.fail("it waits"))
            with pytest.raises(BlockingIOError):
                client.try_submit(prepared)
        is_over.set()
        assert client.wait(lambda: client.error is not None, GUARD_S)
        with pytest.raises(ChannelClosed):
            client.try_submit(prepared)


# --- payloads


def opened(size_bytes: Any, table_bytes: Any, body: bytes, fds: list[int]) -> Any:
    head = {"type": "reported", "size_bytes": size_bytes, "table_bytes": table_bytes}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with_descriptors(ours, json.dumps(head).encode() + b"\0" + body, fds)
        with sockets.receive(theirs, 1) as received:
            return open_payloads(received)


GOOD_ROW = [_native.KIND_PICKLE, 0, 5, None, 0]
BAD_TABLES = [
    None,
    7,
    {},
    [7],
    [[]],
    [[*GOOD_ROW, 1]],
    *(
        [[*GOOD_ROW[:at], wrong, *GOOD_ROW[at + 1 :]]]
        for at in range(3)
        for wrong in (-1, 1 << 70, None, "1", True, 1.0, [])
    ),
    [[0, 0, 5, None, 0]],
    [[4, 0, 5, None, 0]],
    [[1, 0, 5, 7, 0]],
    [[1, 0, 5, None, 1]],
    [[1, 0, 5, None, [True]]],
    *([[1, 0, 5, [span], 0]] for span in (7, [], [1], [0, -1], [-1, 2], [0, 1 << 62], [True, 1])),
    *([[1, 0, 5, [[0, 1]], flags]] for flags in (-1, 2, 1 << 80, None, [], [1], [True, True], "1")),
]


@pytest.mark.parametrize("table", BAD_TABLES, ids=str)
def test_a_table_that_is_wrong_is_no_payload(table):
    text = json.dumps(table).encode()
    body = text + bytes(-len(text) % 64) + b"hello"
    with pytest.raises(ValueError, match="payload"):
        opened(len(body), len(text), body, [])


def test_a_table_that_is_right_is_a_payload():
    """So that the others fail for the reason that they are about."""
    text = json.dumps([GOOD_ROW, [1, 0, 5, [[1, 3]], [True]]]).encode()
    body = text + bytes(-len(text) % 64) + b"hello"
    first, second = opened(len(body), len(text), body, [])
    assert bytes(first.encoded[1]) == b"hello"
    assert bytes(second.encoded[2][0]) == b"ell"


@pytest.mark.parametrize("size", [-1, 1 << 30, 1 << 46, 1 << 80, None, "7", True])
@pytest.mark.parametrize("kind", ["nothing", "small", "sparse", "pipe", "folder", "device"])
def test_a_size_takes_no_memory_that_was_not_sent(size, kind):
    """Also where a file says that it is so large and is empty; and nothing waits for a pipe."""
    before = descriptors()
    fds: list[int] = []
    match kind:
        case "small" | "sparse":
            fds = [os.memfd_create("x")]
            if kind == "sparse":
                os.truncate(fds[0], 1 << 46)
        case "pipe":
            fds = list(os.pipe())
        case "folder":
            fds = [os.open("/", os.O_RDONLY)]
        case "device":
            fds = [os.open("/dev/zero", os.O_RDONLY)]
    with pytest.raises(ValueError):
        opened(size, 2, b"[]", fds[:1])
    for fd in fds:
        os.close(fd)
    assert descriptors() <= before


# --- Ctrl-C


@pytest.mark.parametrize("then", ["closed", "used"])
def test_ctrl_c_while_a_handle_connects_leaves_no_thread_and_no_descriptor(owners, then):
    """It can be closed, and it can be used again."""
    owner = owners(lambda connection: connection.recv(1 << 16))
    before = descriptors()
    handles = [CompiledDAGHandle(owner.facts)]
    names = "rcg.runtime.remote", "rcg.descriptors", "threading.Thread.start"
    for _ in ctrl_c_anywhere(lambda: handles[-1]._connect(), *names):
        if then == "used":
            client = handles[-1]._connect()
            until(lambda: len(threads_named("rcg-handle")) == 1)
            assert client.error is None
        handles[-1].close()
        until(lambda: not threads_named("rcg-handle") and descriptors() <= before)
        handles.append(CompiledDAGHandle(owner.facts))  # and the others are not dropped


# --- no descriptors left


def test_a_handle_without_descriptors_says_so(owners):
    """Whichever is missing: the socket, or the file of a large input."""
    owner = owners(lambda connection: connection.recv(1 << 16))
    handle = CompiledDAGHandle(owner.facts)
    with none_left(), pytest.raises(OutOfDescriptors) as caught:
        Client(owner.facts)
    assert says_what_is_lacking(caught.value)
    client = handle._connect()
    with none_left(), pytest.raises(OutOfDescriptors) as caught:
        handle.execute(bytes(100_000))
    assert says_what_is_lacking(caught.value)
    assert client.error is None  # nothing was submitted, and it goes on
    with none_left(), pytest.raises(OutOfDescriptors) as caught:
        ask_report(owner.facts)
    assert says_what_is_lacking(caught.value)
    handle.close()


def test_a_result_for_which_there_is_no_descriptor_is_lost_alone(owners):
    """The handle says why, and the connection goes on."""
    good, body, fd = payload_message(messages.Completed(execution=0, output=1), LARGE)
    small, small_body, _ = payload_message(messages.Completed(execution=1, output=1), SMALL)
    go = threading.Event()

    def answer(connection: socket.socket) -> None:
        go.wait(GUARD_S)
        with_descriptors(connection, encode(good) + b"\0" + body, [fd])
        sockets.send(connection, small, body=small_body)
        connection.recv(1 << 16)

    owner = owners(answer)
    client = connected(owner.facts)
    output = client.outputs[1]
    with none_left():
        go.set()
        assert client.wait(lambda: 1 in output.frames, GUARD_S)
    lost, _ = output.frames[0].settle()
    assert isinstance(lost, OutOfDescriptors) and says_what_is_lacking(lost) and lost.execution == 0
    assert output.frames[1].settle()[0] == 7
    assert client.error is None
    client.leave(client)
    os.close(fd)


@pytest.mark.parametrize("kind", [OutOfDescriptors, OutOfThreads])
def test_handles_raise_what_their_owner_lacks(owners, kind):
    def answer(connection: socket.socket) -> None:
        sockets.send(connection, refusal_of(kind("process 5 has none", pid=5, limit=77)))

    owner = owners(answer, ready=False)
    for call in (lambda: Client(owner.facts), lambda: ask_report(owner.facts)):
        with pytest.raises(kind, match="process 5 has none") as caught:
            call()
        assert (caught.value.pid, caught.value.limit) == (5, 77)


# --- no lock


def test_a_handle_may_be_used_in_the_middle_of_its_own_calls(owners):
    """By a signal handler or ``__del__``, and by threads that those wait for."""
    going = []

    def answer(connection: socket.socket) -> None:
        threading.Thread(target=serve, args=(connection.dup(),)).start()

    def serve(connection: socket.socket) -> None:
        with connection:
            while True:
                with sockets.receive(connection, 1) as received:
                    if not isinstance(received.message, messages.Execute):
                        return
                    number = received.message.number
                going.append(number)
                accepted = messages.Submitted(number=number, execution=number)
                sockets.send(connection, accepted)

    owner = owners(answer)
    handle = CompiledDAGHandle(owner.facts)
    names = "rcg.runtime.remote.handle", "rcg.runtime.remote.client", "rcg.runtime.sleepers"
    handled = interrupted_at_each_line(lambda: handle.execute(1), lambda: handle.execute(2), *names)
    assert handled > 20
    assert len(going) == 2 * handled + 1
    handle.close()
    until(lambda: not threads_named("rcg-handle"))


def threads_named(prefix: str) -> list[threading.Thread]:
    """The threads that run; Python's own list keeps a thread whose start Ctrl-C interrupted."""
    found = [each for each in threading.enumerate() if each.name.startswith(prefix)]
    return [each for each in found if each.is_alive()]
