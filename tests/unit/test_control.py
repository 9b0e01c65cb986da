# SPDX-License-Identifier: Apache-2.0
"""The control socket against peers of the same user: strangers, floods, messages that are none.

Real sockets and real threads. A leak is a descriptor more in /proc/self/fd than before.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from rcg.descriptors import Descriptor
from rcg.errors import OutOfDescriptors, PlacementError
from rcg.options import Deadline
from rcg.runtime.control import acceptor
from rcg.runtime.control import client as control_client
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.far_nodes import FarMember, FarNode
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.control.lives import Joined, Life
from rcg.runtime.control.members import Questions
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import Shared
from rcg.runtime.sleepers import Sleepers
from rcg.wire import liveness, messages, sockets
from rcg.wire.liveness import How
from tests.harness.peers import (
    GUARD_S,
    admit,
    challenge_of,
    ctrl_c_anywhere,
    descriptors,
    enter,
    is_over,
    mutants,
    none_left,
    proven,
    says_what_is_lacking,
    until,
    with_descriptors,
)
from tests.harness.served import PROCESSES, Loop, Served, as_json, interrupted_at_each_line


@contextlib.contextmanager
def sent_along(count: int) -> Iterator[list[int]]:
    """Descriptors to send along; in the end there are as many as before."""
    before = descriptors()
    given = [os.memfd_create("x") for _ in range(count)]
    yield given
    for fd in given:
        os.close(fd)
    until(lambda: descriptors() <= before)


def watching(client: ControlClient) -> Loop:
    """Have a member watch its driver; returns its loop."""
    loop = Loop()
    client.close_descriptors()
    client.watch(loop, "rcg-watch-test")
    return loop


# --- messages that are none

OPENINGS = [messages.Hello, messages.Use, messages.AskReport]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
@pytest.mark.parametrize("kind", OPENINGS)
def test_what_a_stranger_sends_leaves_no_descriptor_and_harms_nobody(served, kind, count, dice):
    member = served.client("last")
    fields = {"graph": served.graph_id, "secret": served.control.secret}
    good = served.hello("NAME") if kind is messages.Hello else kind(**fields)
    with sent_along(count) as given:
        for name, data in zip(PROCESSES, mutants(as_json(good), dice, 60), strict=False):
            with served.stranger() as stranger:
                said = data.replace(b"NAME", name.encode())
                body = said.removesuffix(b"\0")  # half of them know the secret
                known = proven(challenge_of(stranger), good, body)
                with_descriptors(stranger, said if len(name) % 2 else known, given)
                stranger.shutdown(socket.SHUT_WR)
                assert is_over(stranger)
    assert "last" not in served.control.lives.over
    assert served.control._endpoint._thread.is_alive()
    served.client("first").close()
    member.finish()
    until(lambda: "last" in served.control.lives.over)
    member.close()


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize(
    "good",
    [
        messages.Here(number=0, stack=("a.py:1 in f",), clock_ns=5),
        messages.Done(),
        messages.Stopped(),
        messages.Failed(text="its loop failed"),
    ],
    ids=lambda good: type(good).__name__,
)
def test_what_a_member_sends_leaves_no_descriptor_and_ends_no_other(served, good, count, dice):
    other = served.client("last")
    with sent_along(count) as given:
        for name, data in zip(PROCESSES, mutants(as_json(good), dice, 40), strict=False):
            with served.stranger() as member:
                enter(member, served.hello(name))
                with sockets.receive(member, 8) as answer:
                    assert isinstance(answer.message, messages.Welcome)
                with_descriptors(member, data, given)
                member.shutdown(socket.SHUT_WR)
                assert is_over(member)
            # In every case no call waits for that member any more.
            until(lambda at=name: at in served.control.lives.over)
    for _, ending in served.gone:
        str(ending).encode()
    assert served.control._endpoint._thread.is_alive() and "last" not in served.control.lives.over
    other.close()


@pytest.fixture
def listener() -> Iterator[tuple[str, socket.socket]]:
    """A listener of the test in place of a driver: (address, socket)."""
    address = f"\0rcg-test-{os.getpid()}-{time.monotonic_ns()}"
    made = sockets.listen(address)
    made.setblocking(True)
    yield address, made
    made.close()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 140])
def test_what_a_driver_answers_to_hello_leaves_no_descriptor_in_a_member(
    listener, count, monkeypatch, dice
):
    monkeypatch.setattr(control_client, "JOIN_TIMEOUT_S", 0.5)
    address, server = listener

    def answer(data: bytes) -> None:
        connection, _ = server.accept()
        with connection:
            admit(connection, "secret")
            with_descriptors(connection, data, given)

    good = messages.Welcome(arenas=(True, False, True), has_bell=True)
    with sent_along(count) as given:
        for data in mutants(as_json(good), dice, 60):
            thread = threading.Thread(target=answer, args=(data,))
            thread.start()
            try:
                client = ControlClient(address, "graph", "secret", "a0")
            except (PlacementError, OutOfDescriptors):
                pass
            else:
                shared = client.shared
                given_fds = {shared.board, shared.bell, *shared.arenas}
                assert shared.board >= 0 and given_fds - {-1} <= set(range(1 << 20))
                client.close()
            thread.join()


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize(
    "good",
    [messages.Where(number=1), messages.CloseGroups(), messages.Stop()],
    ids=lambda good: type(good).__name__,
)
def test_what_a_driver_sends_later_leaves_no_descriptor_in_a_member(listener, good, count, dice):
    address, server = listener
    made: list[ControlClient] = []

    def join() -> None:
        made[:] = [ControlClient(address, "graph", "secret", "a0")]

    with sent_along(count) as given, sent_along(2) as fds:
        for data in mutants(as_json(good), dice, 40):
            thread = threading.Thread(target=join)
            thread.start()
            connection, _ = server.accept()
            admit(connection, "secret")
            sockets.send(connection, messages.Welcome(arenas=(True,), has_bell=False), fds)
            thread.join()
            loop = watching(made[0])
            with_descriptors(connection, data, given)
            connection.close()
            # In every case the loop learns that its driver is gone.
            assert loop.ended.wait(GUARD_S)


def test_descriptors_that_are_received_are_closed_on_exec(served):
    client = served.client()
    shared = client.shared
    given = [shared.board, *(fd for fd in shared.arenas if fd >= 0)]
    assert len(given) == 3
    assert not any(map(os.get_inheritable, given))
    client.close()


def test_ctrl_c_between_any_two_steps_of_receiving_loses_no_descriptor():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = [os.memfd_create("x") for _ in range(3)]

    def receive() -> None:
        with sockets.receive(ours, 3) as received:
            assert len(received.fds) == 3

    before = descriptors()
    sockets.send(theirs, messages.Stop(), given)
    for at in ctrl_c_anywhere(receive, sockets.__name__, Descriptor.__module__):
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sockets.receive(ours, 3).close()  # it was not received yet
        ours.setblocking(True)
        assert descriptors() <= before, at
        sockets.send(theirs, messages.Stop(), given)
    for fd in given:
        os.close(fd)
    ours.close()
    theirs.close()


# --- strangers


def test_strangers_are_limited_in_number_and_members_get_in(served):
    before = descriptors()
    strangers = [served.stranger() for _ in range(3 * acceptor.MAX_PENDING)]
    until(lambda: is_ended_count(strangers) >= 2 * acceptor.MAX_PENDING)
    # Our ends, and theirs of those that are kept.
    assert len(descriptors() - before) <= len(strangers) + acceptor.MAX_PENDING
    first, second = served.client("a0"), served.client("a1")
    until(lambda: set(served.control.lives.pids) == {"a0", "a1"})
    for connection in strangers:
        connection.close()
    first.close()
    second.close()


def is_ended_count(connections: list[socket.socket]) -> int:
    """How many of these the peer has ended."""
    poller = select.poll()
    for each in connections:
        poller.register(each, 0)
    return sum(bool(event & select.POLLHUP) for _, event in poller.poll(0))


def test_the_oldest_silent_stranger_is_ended_first(served):
    strangers = [served.stranger() for _ in range(acceptor.MAX_PENDING + 1)]
    until(lambda: is_ended_count(strangers) == 1)
    assert is_ended_count(strangers[:1]) == 1
    for connection in strangers:
        connection.close()


# --- no descriptors left


def test_a_driver_without_descriptors_keeps_no_processor_busy(served):
    held = [served.stranger() for _ in range(2)]
    until(lambda: len(served.control._endpoint._connections.acceptor) == 2)
    thread_cpu_s = time.clock_gettime(
        time.pthread_getcpuclockid(served.control._endpoint._thread.ident)
    )
    waiting = []
    for _ in range(20):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(GUARD_S)
        waiting.append(connection)
    with none_left():
        # Strangers make room for those that come, and there is always an answer.
        for connection in waiting:
            connection.connect(served.control.address)
        until(lambda: is_ended_count(waiting) >= len(waiting) - 2)
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 0.5:
            time.sleep(0.05)
        spent_s = (
            time.clock_gettime(time.pthread_getcpuclockid(served.control._endpoint._thread.ident))
            - thread_cpu_s
        )
    assert spent_s < 0.25
    for connection in held + waiting:
        connection.close()
    served.client("a0").close()


def test_a_member_that_cannot_begin_says_so(served, monkeypatch):
    def fail(_: object) -> None:
        raise OSError("no such descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(control_client, "_shared_of", fail)
        with pytest.raises(OSError, match="no such descriptor"):
            served.client("a0")
    until(lambda: "a0" in served.control.lives.gone)
    assert "it could not start: no such descriptor" in str(served.control.lives.gone["a0"])


@pytest.mark.parametrize("spare", range(4))
def test_an_endpoint_without_descriptors_is_not_made_and_leaves_none(spare):
    before = descriptors()
    with none_left(spare):
        if spare < 3:
            with pytest.raises(OutOfDescriptors) as caught:
                GraphControl("cafe" * 8, ["a0"], lambda _: Shared(0, []), print, print).open()
            assert says_what_is_lacking(caught.value)
            del caught
        else:
            control = GraphControl("cafe" * 8, ["a0"], lambda _: Shared(0, []), print, print)
            control.open()
            control.close()
    gc.collect()
    assert descriptors() <= before


def test_a_peer_with_a_descriptor_above_1023_is_watched():
    """``select.select`` takes none of these."""
    held = [os.dup(0) for _ in range(1100)]
    try:
        with contextlib.closing(liveness.pidfd_of(os.getppid())) as pidfd:
            assert pidfd.fd > 1023
            assert liveness.how_it_ended(pidfd.fd) is How.LEFT
    finally:
        for fd in held:
            os.close(fd)


# --- no lock


def test_a_signal_handler_may_use_the_control_wherever_the_main_thread_is(served):
    """Each line of what a driver calls is interrupted by a handler that calls the same."""
    watched = GraphControl, Endpoint, Questions, Sleepers
    member = served.client("a0")
    calls: list[Callable[[], object]] = [
        lambda: served.control.questions.ask_where(0.001),
        lambda: served.control.lives.over,
        lambda: served.control.forget([]),
        lambda: served.control.wait_stopped(Deadline(0.001)),
        lambda: served.control.questions.clocks(0.001),
        lambda: served.control.questions.processor_ns(0.001),
    ]

    def call_all() -> None:
        for call in calls:
            call()

    names = [each.__module__ for each in watched]
    assert interrupted_at_each_line(call_all, call_all, *names, each_time=True) > 20
    member.close()


def test_members_hear_of_the_death_of_another_and_the_driver_of_open_groups(served):
    members = [served.client(name) for name in ("a0", "a1")]
    loops = [watching(client) for client in members]
    members[1].report_prepared()
    until(lambda: served.control.lives.prepared == {"a1"})
    members[0].finish("it failed")
    assert loops[1].broken.wait(GUARD_S)
    assert [(*names, ending.how) for *names, ending in served.control.lives.gone.items()] == [
        ("a0", How.FAILED)
    ]
    assert not loops[1].stopped.is_set()
    members[1].finish()


# --- closing groups


class InGroups:
    """Members whose communicator groups are open, each with a thread that would close its own."""

    def __init__(self, served: Served, *names: str) -> None:
        self.closed: list[str] = []
        self.control = served.control
        self.clients = {name: served.client(name) for name in names}
        for client in self.clients.values():
            watching(client)
            client.report_prepared()
        until(lambda: served.control.lives.prepared == set(names))

    def are_done(self, *names: str, timeout_s: float = GUARD_S) -> None:
        """Report members as done; return when they have had the time to close their groups."""
        for name in names:
            threading.Thread(target=self._close, args=(name, timeout_s), daemon=True).start()
        until(lambda: all(self.control.lives.life(name) is Life.DONE for name in names))
        assert self.control.questions.ask_where(GUARD_S)  # the answer comes after that

    def _close(self, name: str, timeout_s: float) -> None:
        self.clients[name].done(timeout_s)
        self.closed.append(name)

    def until_closed(self, *names: str) -> None:
        until(lambda: sorted(self.closed) == sorted(names))

    def finish(self) -> None:
        for client in self.clients.values():
            client.finish()


def test_groups_are_closed_when_every_member_is_done(served):
    members = InGroups(served, "a0", "a1", "a2")
    bystander = served.client("last")  # in no group
    watching(bystander)
    served.control.stop()
    members.are_done("a0", "a1")
    assert members.closed == []
    assert served.control.wait_stopped(Deadline(0))[:3] == ["a10", "a11", "a12"]  # it is not done
    members.are_done("a2")
    members.until_closed("a0", "a1", "a2")
    members.finish()
    bystander.finish()


@pytest.mark.parametrize("how", ["finish", "close", "never"])
def test_groups_are_closed_when_the_last_member_ends_or_takes_long(served, how):
    members = InGroups(served, "a0", "a1", "a2")
    members.are_done("a0", "a1", timeout_s=1.0 if how == "never" else GUARD_S)
    assert members.closed == []
    if how == "finish":
        members.clients["a2"].finish("it failed")
    elif how == "close":
        members.clients["a2"]._socket.shutdown(socket.SHUT_RDWR)
    members.until_closed("a0", "a1")
    members.finish()


def test_groups_are_closed_after_the_time_when_the_driver_has_ended(served):
    """Without a driver, no member learns when the others are done."""
    members = InGroups(served, "a0", "a1")
    members.are_done("a0", timeout_s=1.0)
    served.control.close()
    assert members.closed == []
    members.until_closed("a0")
    members.finish()


# --- connections between nodes


def test_a_member_on_this_node_reports_its_lost_link(served):
    member = served.client("a0")
    loop = watching(member)
    member.link_lost("n1", "Broken pipe")
    until(lambda: served.gone)
    ((process, ending),) = served.gone
    assert (process, ending.how) == ("a0", How.UNREACHABLE)
    assert ending.why == "Broken pipe: a0 -> n1"
    assert not loop.ended.is_set()  # its connection to the driver is as good as before
    member.finish()
    member.close()


def test_a_member_reports_no_links_but_its_own(served):
    member, other = served.client("a0"), served.client("last")
    lost = messages.LinkLost(process="last", node="n1", text="Broken pipe")
    sockets.send(member._socket, lost)
    until(lambda: served.gone)
    ((process, ending),) = served.gone
    assert process == "a0" and "is not on its node" in ending.why
    member.close()
    other.finish()
    other.close()


@pytest.mark.parametrize("has_joined", [False, True])
def test_a_node_that_is_lost_is_its_hosts_doing(has_joined):
    """If the host dies before it has joined as a member, another member is not blamed."""
    layout = Layout("n1", "a0", {"a0": 0, "a1": 1}, {}, {}, {}, {}, {})
    gone = []
    control = GraphControl(
        "graph",
        ["a0", "a1"],
        lambda _: Shared(-1, []),
        lambda process, ending: gone.append((process, ending.how)),
        lambda connection, opening: None,
        [FarNode(layout, ("a0", "a1"))],
    )
    link = SimpleNamespace(name="n1", send=lambda message: None)
    control.nodes.links["n1"] = link
    control.nodes.addresses["n1"] = "tcp://192.0.2.2:1"
    for name in ("a0", "a1")[not has_joined :]:
        control._members[name] = FarMember(name, 1, link)
        control.lives.on(name, Joined(1), 0)
    control.on_lost(link, liveness.Ending(How.LEFT, ""))
    assert gone == [("a0", How.LEFT), ("a1", How.UNREACHABLE)]
    assert control.lives.are_all_over
