# SPDX-License-Identifier: Apache-2.0
"""The endpoint against peers in processes of their own, and forks of its owner."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rcg.runtime.control import connections
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.joining import join
from rcg.wire import sockets
from rcg.wire.addresses import TcpAddress, connect_tcp
from rcg.wire.liveness import How
from rcg.wire.messages import UseStore
from tests.harness.peers import GUARD_S, is_over, until
from tests.harness.served import Served, control_threads, is_served, together

ROOT = Path(__file__).parents[2]


FLOOD = """
import socket, sys
address = "\\0" + sys.argv[1]
print("going", flush=True)
kept = []
while True:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    try:
        one.connect(address)
        one.send(b'{"type": "stop"}' if len(kept) % 3 else b"nonsense")
    except BlockingIOError:
        pass
    except OSError:
        break
    kept.append(one)
    if len(kept) > 500:
        kept.pop(0).close()
"""


@contextlib.contextmanager
def process_of(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has written its first line, and ends with the block."""
    made = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert made.stdout is not None and made.stdin is not None
    try:
        yield made
    finally:
        made.kill()
        made.wait()
        made.stdout.close()
        made.stdin.close()


def test_graphs_start_while_strangers_flood(graphs):
    first = graphs()
    with process_of(FLOOD, first.control.address[1:]) as flood:
        assert flood.stdout is not None
        flood.stdout.readline()
        second = graphs()
        assert second.control.address == first.control.address

        def join(graph):
            for number in range(10):
                graph.client(f"a{number}").close()

        together(lambda: join(first), lambda: join(second))
        assert flood.poll() is None
        for graph in (first, second):
            until(lambda graph=graph: len(graph.control.lives.pids) == 10)
            assert not set(graph.control.lives.pids) - {f"a{n}" for n in range(10)}


MEMBER = """
import os, sys
sys.modules["ray"] = None  # which takes seconds to import, and is not needed here
from rcg.runtime.control.client import ControlClient
address, graph, secret, *processes = sys.argv[1:]
clients = [ControlClient("\\0" + address, graph, secret, process) for process in processes]
print("joined", flush=True)
sys.stdin.readline()
for client in clients:
    client._joined.close()
print("hung up", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("lives", [True, False])
def test_members_that_hang_up_hold_up_no_other_graph(graphs, monkeypatch, lives):
    """The thread learns later whether their process has ended, and does not wait for that."""
    monkeypatch.setattr(connections, "EXIT_TIMEOUT_S", 1.0 if lives else 2 * GUARD_S)
    hung, other = graphs(), graphs()
    processes = [f"a{n}" for n in range(20)]
    address = hung.control.address[1:]
    with process_of(MEMBER, address, hung.graph_id, hung.control.secret, *processes) as member:
        assert member.stdout is not None and member.stdin is not None
        assert member.stdout.readline() == "joined\n"
        until(lambda: len(hung.control.lives.pids) == 20)
        print(file=member.stdin, flush=True)
        assert member.stdout.readline() == "hung up\n"
        if lives:
            until(lambda: len(hung.gone) == 20)
            assert {ending.how for _, ending in hung.gone} == {How.LEFT}
            return
        assert is_served(other, "a0")
        assert not hung.gone and not hung.control.lives.over
        member.kill()
        until(lambda: len(hung.gone) == 20)
        assert {ending.how for _, ending in hung.gone} == {How.DIED}


def in_child(call: Callable[[], object]) -> str:
    """The result of a call in a forked child, as text, or its error."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ours)
            os.write(theirs, repr(call()).encode())
        except BaseException as problem:  # noqa: BLE001 - the parent looks at it
            os.write(theirs, repr(problem).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as said:
        assert select.select([said], [], [], GUARD_S)[0]
        found = said.read()
    os.waitpid(child, 0)
    return found


def test_a_forked_child_has_no_endpoint_and_disturbs_that_of_its_parent(graphs):
    """It has none; a graph of its own starts one; whatever it closes stays open in the parent."""
    graph = graphs()
    client = graph.client("a0")
    inodes = {
        row.split()[6]
        for row in Path("/proc/net/unix").read_text().splitlines()[1:]
        if f"@rcg-{os.getpid()}-" in row
    }
    assert len(inodes) == 2  # the listening socket and the connection

    def in_fork():
        held = {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        }
        inherited = {inode for inode in inodes if f"socket:[{inode}]" in held}
        asked = graph.control.questions.ask_where(GUARD_S)
        graph.control.stop()
        graph.control.close()
        own = Served("a0")
        is_own = own.control.address != graph.control.address
        served = is_served(own, "a0")
        own.close()
        return inherited, asked, is_own, served, len(control_threads())

    assert in_child(in_fork) == repr((set(), {}, True, True, 0))
    assert not graph.gone
    client.finish()
    until(lambda: "a0" in graph.control.lives.over)
    assert is_served(graph, "a1")
    client.close()


FORKING = """
import ctypes, os, sys, time
sys.modules["ray"] = None
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.node.memory import Shared
fds = [os.memfd_create("x") for _ in range(2)]
control = GraphControl("cafe", ["a0"], lambda _: Shared(fds[0], fds[1:]), print, print)
control.open()
if sys.argv[1] == "closes in C":  # nothing of Python's hears of this fork
    child = ctypes.PyDLL(None).fork() or ctypes.PyDLL(None).pause()
else:
    child = os.fork()
    while not child:
        time.sleep(1000)
print(child, control.address[1:], control.secret, flush=True)
if sys.argv[1].startswith("closes"):
    sys.stdin.readline()
    control.close()
    print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["closes", "closes in C", "dies"])
def test_a_fork_of_the_owner_does_not_answer_for_it(how):
    with process_of(FORKING, how) as owner:
        assert owner.stdout is not None and owner.stdin is not None
        child, address, secret = owner.stdout.readline().split()
        try:
            client = ControlClient("\0" + address, "cafe", secret, "a0")
            waiting = sockets.connect("\0" + address, GUARD_S)
            if how.startswith("closes"):
                print(file=owner.stdin, flush=True)
                assert owner.stdout.readline() == "closed\n"
            else:
                owner.kill()
                owner.wait()
            assert is_over(waiting)
            with pytest.raises(ConnectionRefusedError):
                sockets.connect("\0" + address, GUARD_S)
            assert is_over(client._socket)
            waiting.close()
            client.close()
        finally:
            os.kill(int(child), signal.SIGKILL)


FORKING_TCP = """
import os, sys, time
sys.modules["ray"] = None
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.node.memory import Shared
control = GraphControl("cafe", ["a0"], lambda _: Shared(0, []), print, lambda *_: None)
control.open()
print(control.listen_tcp("127.0.0.1"), control.secret, flush=True)
sys.stdin.readline()  # until somebody is connected
child = os.fork()
while not child:
    time.sleep(1000)
print(child, flush=True)
sys.stdin.readline()
"""


def is_refused(address: str) -> bool:
    """Whether no process listens at an address of TCP."""
    try:
        connect_tcp(TcpAddress.parse(address), GUARD_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_fork_of_the_owner_keeps_no_port_and_no_connection_of_it():
    """Between nodes only the end of the connection reports the end of the process."""
    with process_of(FORKING_TCP) as owner:
        assert owner.stdout is not None and owner.stdin is not None
        address, secret = owner.stdout.readline().split()
        opening = UseStore(graph="cafe", secret=secret, group="g")
        joined = join(address, opening, GUARD_S, lambda *_: None)
        silent = connect_tcp(TcpAddress.parse(address), GUARD_S)
        print(file=owner.stdin, flush=True)
        child = int(owner.stdout.readline())
        try:
            owner.kill()
            owner.wait()
            joined.connection.settimeout(GUARD_S)
            with sockets.receive(joined.connection) as received:
                assert received.message is None
            silent.settimeout(GUARD_S)
            assert is_over(silent)
            until(lambda: is_refused(address))  # the child closes one after the other
            os.kill(child, 0)  # it goes on
        finally:
            os.kill(child, signal.SIGKILL)
            joined.close()
            silent.close()
