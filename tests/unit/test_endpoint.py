# SPDX-License-Identifier: Apache-2.0
"""The endpoint of a process: one for all graphs, none without a graph, none in a forked child."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from rcg.errors import PlacementError
from rcg.options import Deadline
from rcg.runtime.control import connections, endpoint, joining, registry
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.observe import drivers
from rcg.runtime.observe.report import Report
from rcg.runtime.sleepers import Sleepers
from rcg.wire import messages, proof, sockets
from rcg.wire.codec import Message, message
from rcg.wire.liveness import Ending
from tests.harness.peers import (
    GUARD_S,
    challenge_of,
    ctrl_c_anywhere,
    descriptors,
    enter,
    is_over,
    until,
)
from tests.harness.served import (
    Loop,
    Served,
    control_threads,
    interrupted_at_each_line,
    is_served,
    listening,
    together,
)
from tests.unit.live_reports import chain_that_hangs, does, report_of

MANY = 50


# --- one for all


@pytest.mark.parametrize("count", [2, MANY])
def test_graphs_of_a_process_share_one_socket_and_one_thread(graphs, count):
    made = [graphs() for _ in range(count)]
    assert len({graph.control.address for graph in made}) == 1
    assert len(control_threads()) == 1 and listening(os.getpid()) == 1
    assert all(is_served(graph, "a0") for graph in made)


def test_a_graph_that_closes_leaves_the_others(graphs):
    first, second, third = graphs(), graphs(), graphs()
    members = [graph.client("a0") for graph in (first, second, third)]
    loops = [Loop() for _ in members]
    for member, loop in zip(members, loops, strict=True):
        member.close_descriptors()
        member.watch(loop, "rcg-watch-test")
    before = descriptors()
    second.control.close()
    assert descriptors() < before  # when it returns, its connections are closed
    assert loops[1].ended.wait(GUARD_S)
    for graph, loop in ((first, loops[0]), (third, loops[2])):
        assert graph.control.questions.ask_where(GUARD_S) == {"a0": ["a.py:1 in f"]}
        assert not loop.ended.is_set() and not graph.gone
        assert is_served(graph, "a1")
    for member in members:
        member.close()


def test_the_last_graph_takes_thread_and_socket_with_it(graphs):
    before = descriptors()
    for _ in range(3):
        made = [graphs("a0") for _ in range(3)]
        for number, graph in enumerate(made):
            assert is_served(graph, "a0")
            assert len(control_threads()) == 1
            graph.close()
            assert len(control_threads()) == (number < 2)
        assert not listening(os.getpid()) and descriptors() <= before


class Lingering(Sleepers):
    """Wakes the sleepers, then delays the thread that did it."""

    def wake(self) -> None:
        super().wake()
        threading.Event().wait(0.3)


def test_the_thread_has_ended_when_the_last_graph_is_closed(graphs):
    graph = graphs("a0")
    graph.control._endpoint._sleepers = Lingering()
    graph.close()
    assert not control_threads()


def test_a_graph_whose_members_have_stopped_is_let_go_of_before_it_is_closed(graphs):
    graph = graphs("a0", "a1")
    graph.control.stop()
    graph.control.forget(["a0", "a1"])
    until(lambda: not control_threads())
    assert graph.control.wait_stopped(Deadline(GUARD_S)) == []


def test_graphs_that_threads_make_at_once_share_one_endpoint(graphs):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(30):
            made: list[Served] = []
            gate = threading.Barrier(6)

            def make(gate=gate, made=made):
                gate.wait(GUARD_S)
                made.append(graphs())

            together(*[make] * 6)
            assert len({graph.control.address for graph in made}) == 1
            until(lambda: len(control_threads()) == 1)
            together(*[graph.close for graph in made])
            assert not control_threads()
    finally:
        sys.setswitchinterval(interval)


class Interrupted(dict[Any, Any]):
    """The services of an endpoint: something happens where its thread looks whether any is left."""

    def __init__(self, known: Any, at: int, call: Callable[[], None]) -> None:
        super().__init__(known)
        self._looks = 0
        self._at = at
        self._call = call

    def __len__(self) -> int:
        count = super().__len__()
        if not count and threading.current_thread().name == "rcg-control":
            self._looks += 1
            if self._looks == self._at:
                together(self._call)
        return count


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_graph_that_comes_while_the_endpoint_ends_is_served(graphs, at, monkeypatch):
    """Before the thread has said that it ends, before it looks again, and after that."""
    last, late = graphs("a0"), []
    known = last.control._endpoint

    def come():
        late.append(graphs())

    def close(self, close=connections.Connections.close):
        if self is known._connections:
            together(come)
        close(self)

    if at == 3:
        monkeypatch.setattr(connections.Connections, "close", close)
    monkeypatch.setattr(endpoint, "_CLOSE_TIMEOUT_S", 2 * GUARD_S)
    services = Interrupted(known._services, at, come)
    known._services = known._connections._services = services
    together(last.close)  # waits for nothing but what happens here
    until(lambda: late)
    assert is_served(late[0], "a0")
    # It was taken back, or it was too late for that.
    assert (late[0].control.address == last.control.address) == (at == 1)


# --- who may enter


def answer_to(graph: Served, opening: messages.Opening) -> Message | None:
    with graph.stranger() as stranger:
        sent, body = proof.prove(opening, challenge_of(stranger))
        sockets.send(stranger, sent, body=body)
        with sockets.receive(stranger) as received:
            if not isinstance(received.message, messages.Proven):
                return received.message
        with sockets.receive(stranger, 8) as received:
            return received.message


OPENINGS = {
    "hello": lambda **of: messages.Hello(process="a0", clock="", **of),
    "use": messages.Use,
    "report": messages.AskReport,
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_a_first_message_for_an_unknown_graph_is_answered(graphs, opening):
    one, other = graphs(), graphs()
    for graph_id in ("", "f00d" * 8, one.graph_id.upper(), one.graph_id + "\0"):
        sent = opening(graph=graph_id, secret=one.control.secret)
        assert answer_to(one, sent) == messages.UnknownGraph()
    one.control.close()
    assert answer_to(other, opening(graph=one.graph_id, secret=one.control.secret)) == (
        messages.UnknownGraph()
    )


def test_joining_a_graph_that_has_ended_raises(graphs):
    ended, alive = graphs(), graphs()
    ended.control.close()
    address, secret = alive.control.address, ended.control.secret
    with pytest.raises(PlacementError, match="its graph has ended"):
        ControlClient(address, ended.graph_id, secret, "a0")


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_the_secret_of_one_graph_opens_no_other(graphs, opening):
    one, other = graphs(), graphs()
    for secret in (other.control.secret, "", "é", one.control.secret[:-1]):
        assert answer_to(one, opening(graph=one.graph_id, secret=secret)) is None
    assert not one.control.lives.pids and not one.openings
    assert not other.control.lives.pids and not other.openings
    assert is_served(one, "a0")  # with its own


def test_a_stranger_only_opens_and_a_member_never_does(graphs):
    graph = graphs()
    others = (messages.Stop(), messages.Here(number=0, clock_ns=0, stack=()), messages.Stopped())
    for sent in others:
        with graph.stranger() as stranger:
            sockets.send(stranger, sent)
            assert is_over(stranger)
    with graph.stranger() as member:
        enter(member, graph.hello("a0"))
        with sockets.receive(member, 8) as answer:
            assert isinstance(answer.message, messages.Welcome)
        sockets.send(member, graph.hello("a1"))
        assert is_over(member)
    ((process, ending),) = graph.gone
    assert process == "a0" and "wrong message" in str(ending)
    assert set(graph.control.lives.pids) == {"a0"}


# --- one graph's member is no other graph's trouble


def test_a_member_that_floods_and_never_reads_holds_up_no_other_graph(graphs):
    flooded, other = graphs("a0"), graphs()
    with flooded.stranger() as member:
        enter(member, flooded.hello("a0"))
        with sockets.receive(member, 8):
            pass
        answer = messages.Here(number=0, clock_ns=0, stack=("x" * 30_000,))
        is_over = threading.Event()

        def flood():
            with contextlib.suppress(OSError):
                while not is_over.is_set():
                    sockets.send(member, answer)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for _ in range(300):  # more than the member's buffer holds, unread
                flooded.control.questions.ask_where(1e-9)
            assert all(is_served(other, f"a{n}") for n in range(5))
            assert not flooded.gone
        finally:
            is_over.set()
            thread.join(GUARD_S)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), KeyboardInterrupt()])
def test_a_graph_whose_control_fails_ends_alone(graphs, error):
    failing, other = graphs("a0", "a1", "a2", "has not joined yet"), graphs()
    reported: list[tuple[str, Ending]] = []

    def fail(process, ending):
        reported.append((process, ending))
        raise error

    failing.member_gone = fail
    clients = [failing.client(process) for process in ("a0", "a1", "a2")]
    clients[0].finish("its loop failed")
    assert failing.control.wait_stopped(Deadline(GUARD_S)) == []
    assert {process for process, _ in reported} == {"a0", "a1", "a2"}
    assert "the thread that watches it failed" in str(reported[-1][1])
    assert not other.gone and is_served(other, "a0")
    for client in clients:
        client.close()


# --- other processes that ask for all graphs


class Live:
    """A graph that the registry knows."""

    def __init__(self, report: Report | None) -> None:
        self.found = report
        registry.add(self)

    def get_id(self) -> str:
        return str(id(self))

    def face(self) -> Any:
        return self

    def report(self, timeout: float) -> Report:
        assert timeout == 0, "no actor may be asked"
        if self.found is None:
            raise RuntimeError("it has just ended")
        return self.found


def test_all_live_graphs_are_reported_to_a_process_of_this_user(graphs):
    served = graphs()
    assert drivers.find_drivers(os.getpid()) == []  # no graph that is registered
    large = chain_that_hangs(300, 5, 7.5)  # more than fits a message
    live = [Live(report_of(does("a0", "running"))), Live(None), Live(large)]
    (found,) = drivers.find_drivers(os.getpid())
    assert (found.pid, found.trouble) == (os.getpid(), "")
    assert [each.report for each in found.graphs] == [live[0].found, large]
    for each in live:
        registry.note_ended(each)
    assert drivers.find_drivers(os.getpid()) == []
    assert is_served(served, "a0") and len(control_threads()) == 1


def test_graphs_are_reported_only_to_those_who_know_the_address(graphs):
    served = graphs()
    asked = messages.AskGraphs(graph=messages.GRAPHS, secret=served.control.secret)
    assert answer_to(served, asked) is None
    known = messages.AskGraphs(graph=messages.GRAPHS, secret=served.control.address)
    assert isinstance(answer_to(served, known), messages.Reported)


def test_an_endpoint_of_another_user_is_left_out(graphs, monkeypatch):
    graphs()
    live = Live(report_of(does("a0", "running")))
    monkeypatch.setattr(joining.os, "getuid", lambda: 12345)
    assert drivers.find_drivers(os.getpid()) == []
    registry.note_ended(live)


# --- other services


@message
class Knock(messages.Opening):
    """A first message that graphs do not know."""


@message
class Echo(Message):
    """The answer of a test's service."""

    text: str


class Echoing:
    """A service that is no graph."""

    def __init__(self) -> None:
        self.service_id, self.secret, self.is_over = "echo", "secret", False
        self.news: list[object] = []

    def look(self) -> None:
        pass

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        self.news.append(ending.how)

    def fail(self, why: str) -> None:
        self.news.append(why)

    def on_released(self) -> None:
        self.news.append("released")

    def _knock(self, peer: Peer, knock: Knock) -> bool:
        sockets.send(peer.connection, Echo(text="come in"))
        return True

    def _echo(self, peer: Peer, sent: Echo) -> bool:
        sockets.send(peer.connection, sent)
        return sent.text != "go"

    handlers: ClassVar[Mapping[type[Message], Handler]] = {Knock: _knock, Echo: _echo}


def test_a_service_of_another_kind_has_messages_of_its_own(graphs):
    graph, service = graphs(), Echoing()
    served_by = endpoint.serve(service)
    assert served_by.address == graph.control.address
    with graph.stranger() as stranger:
        enter(stranger, Knock(graph="echo", secret="secret"))
        for text in ("come in", "x", "go"):
            with sockets.receive(stranger) as received:
                assert received.message == Echo(text=text)
            if text != "go":
                sockets.send(stranger, Echo(text={"come in": "x", "x": "go"}[text]))
        assert is_over(stranger)
    # Neither kind of service understands what belongs to the other.
    for wrong in (
        Knock(graph=graph.graph_id, secret=graph.control.secret),
        messages.Use(graph="echo", secret="secret"),
    ):
        assert answer_to(graph, wrong) is None
    service.is_over = True
    served_by.close(service)
    assert service.news == ["released"]
    assert is_served(graph, "a0")


def test_an_endpoint_that_has_ended_keeps_no_service():
    """Its thread may see the end of a service before the closing thread reports it."""
    service = Echoing()
    served_by = endpoint.serve(service)
    service.is_over = True
    served_by.close(service)
    served_by.close(service)
    kept = weakref.ref(service)
    del service
    assert kept() is None


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "beside another"])
def test_ctrl_c_while_a_service_is_served_leaves_no_thread_and_no_descriptor(graphs, is_shared):
    """Nor does a thread that runs already lose its descriptors."""
    others = [graphs("a0")] if is_shared else []
    names = ["rcg.runtime.control"]
    if not is_shared:
        names += ["rcg.descriptors", "threading.Thread.start"]
    service, served_by = Echoing(), []
    threads, before = len(control_threads()), descriptors()
    for _ in ctrl_c_anywhere(lambda: served_by.append(endpoint.serve(service)), *names):
        if not served_by:
            until(lambda: len(control_threads()) == threads and descriptors() <= before)
    service.is_over = True
    served_by[0].close(service)
    assert service.news == ["released"]  # otherwise the thread lost a descriptor
    assert all(is_served(graph, "a0") for graph in others)


# --- no lock


def test_an_endpoint_may_be_used_in_the_middle_of_its_own_use(graphs):
    """By a signal handler or ``__del__``, and by threads that those wait for."""

    def use() -> None:
        graph = graphs("a0")
        graph.client("a0").close()
        graph.close()

    for is_there in (False, True):
        if is_there:
            graphs()  # keeps the endpoint
        assert interrupted_at_each_line(use, use, endpoint.__name__) > 15


def test_the_endpoints_thread_may_close_and_make_graphs(graphs, monkeypatch):
    """As a ``__del__`` may that the garbage collector runs there."""
    monkeypatch.setattr(endpoint, "_CLOSE_TIMEOUT_S", 2 * GUARD_S)  # it never waits for itself
    first, second, third = graphs(), graphs(), graphs("a0")
    outcome: list[object] = []

    def serve(connection: socket.socket, opening: messages.Opening) -> None:
        connection.close()
        assert second.control.serves_here
        second.control.close()  # does not wait for this thread
        made = Served("a0")  # is served although this thread waits
        outcome.append(is_served(made, "a0"))
        made.close()

    first.client_came = serve
    opening = messages.Use(graph=first.graph_id, secret=first.control.secret)
    assert answer_to(first, opening) is None
    until(lambda: outcome)
    assert outcome == [True]
    assert answer_to(first, second.hello()) == messages.UnknownGraph()
    assert is_served(third, "a0")
