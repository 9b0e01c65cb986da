# SPDX-License-Identifier: Apache-2.0
"""Real graphs whose processes run out of file descriptors, or receive unwanted ones.

The number of descriptors that are left is swept from none to enough, so each needed one is the
missing one once. Either the graph works, or the error names the process and its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import threading

import pytest

import rcg
from rcg import _native
from rcg.dag import InputNode
from rcg.errors import ChannelBroken, OutOfDescriptors
from rcg.wire import messages, sockets
from rcg.wire.codec import encode
from rcg.wire.payloads import PreparedPayloads
from tests.cluster.nodes import is_spread
from tests.cluster.stage import Plain
from tests.harness.peers import (
    descriptors,
    enter,
    mutants,
    none_left,
    says_what_is_lacking,
    until,
    with_descriptors,
)

pytestmark = pytest.mark.usefixtures("ray_session")

# As many as a process takes for a graph of two actors on one node, and one more.
ENOUGH = 12


def enough():
    """As many on this cluster: a host of a node has its memory, its gate and connections."""
    return ENOUGH * (2 if is_spread() else 1)


@rcg.remote(num_cpus=0)
class Poor(Plain):
    """An actor that leaves itself few descriptors on request."""

    def become_poor(self, spare):
        """Keep so many; this returns before anything else needs one."""
        self.poor = none_left(spare)
        self.poor.__enter__()

    def become_rich(self):
        """Undo it."""
        self.poor.__exit__(None, None, None)

    def files(self):
        return descriptors()

    def use(self, graph):
        self.graph = graph

    def try_run(self, size):
        """Send bytes through another process's graph; return how many came back, or the error.

        They are made here: Ray would need descriptors to pass them.
        """
        try:
            return len(rcg.get(self.graph.execute(bytes(size))))
        except OutOfDescriptors as error:
            return says_what_is_lacking(error) and error


def compile_chain(*actors, **options):
    with InputNode() as inp:
        value = inp
        for actor in actors:
            value = actor.echo.bind(value)
    return value.experimental_compile(**options)


def run_once(*actors, **options):
    """Compile, execute and tear down; a loop on a main thread may fail after the compile."""
    with compile_chain(*actors, **options) as graph:
        assert rcg.get(graph.execute(5)) == 5


def outcome_of(call):
    """Return (what a call returned, the error about descriptors that it raised)."""
    try:
        return call(), None
    except (OutOfDescriptors, ChannelBroken) as error:
        return None, error


DRIVER = """
import gc, os
from tests.cluster.stage import Stage
from tests.harness.peers import descriptors, none_left, says_what_is_lacking
from rcg.errors import OutOfDescriptors

a, b = Stage.remote("a"), Stage.remote("b")
with InputNode() as inp:
    dag = b.echo.bind(a.echo.bind(inp))
dag.experimental_compile().teardown()
outcomes = []
for spare in range(int(sys.argv[1])):
    gc.collect()
    before = descriptors()
    with none_left(spare):
        try:
            graph = dag.experimental_compile()
        except OutOfDescriptors as error:
            assert says_what_is_lacking(error) and error.pid == os.getpid(), (spare, str(error))
            outcomes.append("lacked")
        else:
            assert ray.get(graph.execute(spare)) == spare
            graph.teardown()
            outcomes.append("ran")
            graph = None
    gc.collect()
    assert descriptors() <= before, (spare, outcomes)
say(*outcomes)
with dag.experimental_compile() as graph:
    assert ray.get(graph.execute(7)) == 7
say("goes on")
"""


@pytest.mark.full
def test_a_driver_without_descriptors_raises_and_goes_on(driver):
    program = driver(DRIVER, 2 * enough())
    outcomes = program.line().split()
    # In between Ray, too, opens some and closes some.
    assert outcomes[0] == "lacked" and outcomes[-1] == "ran"
    assert outcomes.count("lacked") > 5
    program.expect("goes on")
    program.finish()


@pytest.mark.full
@pytest.mark.parametrize("thread", ["own", "main"])
def test_an_actor_without_descriptors_is_named(thread):
    poor, other = Poor.remote(), Poor.remote()
    compile_chain(other, poor).teardown()
    outcomes = []
    before = rcg.get(poor.files.remote())
    for spare in range(enough()):
        rcg.get(poor.become_poor.remote(spare))
        _, error = outcome_of(lambda: run_once(other, poor, thread=thread))
        if error is not None:
            assert "no file descriptor left" in str(error) and "Poor" in str(error)
            # With the loop on its main thread, the actor may report a loop that failed.
            assert thread == "main" or (says_what_is_lacking(error) and error.pid != os.getpid())
        outcomes.append("lacked" if error else "ran")
        rcg.get(poor.become_rich.remote())
    # In between Ray opens a few for itself, and keeps them.
    until(lambda: rcg.get(poor.files.remote()) <= before + ENOUGH // 2)
    assert outcomes[0] == "lacked" and outcomes[-1] == "ran"
    assert outcomes.count("lacked") > 2
    with compile_chain(other, poor) as graph:
        assert rcg.get(graph.execute(7)) == 7
    rcg.kill(poor)
    rcg.kill(other)


def test_a_caller_without_descriptors_raises_and_goes_on(stages):
    caller = Poor.remote()
    size = 200_000
    with compile_chain(*stages(1)) as graph:
        rcg.get(caller.use.remote(graph))
        outcomes = []
        for spare in range(4):  # the connection, its pidfd, the file of the input, of the result
            rcg.get(caller.become_poor.remote(spare))
            found = rcg.get(caller.try_run.remote(size))
            rcg.get(caller.become_rich.remote())
            outcomes.append("ran" if found == size else "lacked" if found else "wrong")
        assert "wrong" not in outcomes and outcomes[0] == "lacked"
        assert rcg.get(caller.try_run.remote(size)) == size
    rcg.kill(caller)


def test_callers_of_an_owner_without_descriptors_raise_its_error(stages):
    """When one connects, when an input comes, and when a result is to go out."""
    first, late = Poor.remote(), Poor.remote()
    size = 200_000
    with compile_chain(*stages(1)) as graph:
        for caller in (first, late):
            rcg.get(caller.use.remote(graph))
        assert rcg.get(first.try_run.remote(size)) == size
        asked = [first.pid.remote(), late.pid.remote()]  # so that Ray is connected to both
        rcg.get(asked)
        with none_left():
            refs = [caller.try_run.remote(size) for caller in (first, late)]
            done, _ = rcg.wait(refs, num_returns=2)
        assert len(done) == 2
        for error in rcg.get(refs):
            assert isinstance(error, OutOfDescriptors) and error.pid == os.getpid()
        assert rcg.get(graph.execute(1)) == 1
        for caller in (first, late):
            assert rcg.get(caller.try_run.remote(size)) == size
    rcg.kill(first)
    rcg.kill(late)


# --- what a caller sends

SMALL = (_native.KIND_PICKLE, pickle.dumps(7), None, 0)
LARGE = (_native.KIND_PICKLE, pickle.dumps(bytes(100_000)), None, 0)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_what_a_caller_sends_leaves_no_descriptor_and_harms_no_other(stages, value, count, dice):
    with compile_chain(*stages(2)) as graph:
        assert rcg.get(graph.execute(0)) == 0
        control = graph._engine.session.control
        good, body, fd = as_sent(messages.Execute(), value)
        given = [os.dup(fd if fd >= 0 else 0) for _ in range(count)]
        threads_before = serving_threads()
        before = descriptors()
        for data in mutants(json.loads(encode(good)), dice, 30):
            connection = sockets.connect(control.address, 60)
            use = messages.Use(graph=graph.get_id(), secret=control.secret)
            enter(connection, use)
            with sockets.receive(connection) as ready:
                assert ready.message == messages.Ready()
            with_descriptors(connection, data.partition(b"\0")[0] + b"\0" + body, given)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
            connection.close()
        until(lambda: serving_threads() == threads_before and descriptors() <= before)
        for each in given:
            os.close(each)
        if fd >= 0:
            os.close(fd)
        assert rcg.get(graph.execute(1)) == 1


def as_sent(message, value):
    """A message with a value as it goes over the wire: (message, body, descriptor or -1)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, PreparedPayloads(message, [value]) as prepared:
        prepared.send(ours, number=5)
        with sockets.receive(theirs, 1) as received:
            fds = [os.dup(fd) for fd in received.fds]
            return received.message, received.body, fds[0] if fds else -1


def serving_threads():
    return sum(t.name.startswith(("rcg-serve", "rcg-results")) for t in threading.enumerate())
