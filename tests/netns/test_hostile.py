# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of a running graph: it goes on undisturbed, and counts what it refuses.

Garbage, scans and floods are about the endpoint alone: ``tests/unit/test_tcp_endpoint.py``. What a
stranger may send to the gate needs the secret: ``tests/process/test_native_gate.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import rcg
from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.control.joining import check_user, join
from rcg.wire.addresses import TcpAddress
from rcg.wire.messages import JoinNode, Opening, OpenLink
from tests.cluster.stage import GUARD_S, in_thread, until
from tests.netns.test_deaths import chained
from tests.netns.test_links import stream


class Target:
    """A graph in use, and the ports of its driver and of the host of machine 1."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        control = graph._engine.session.control
        self.secret = control.secret
        self.is_broken = False  # by the test
        self.addresses = [
            control.tcp_address,
            *map(TcpAddress.parse, control.nodes.addresses.values()),
        ]

    def refused(self, at: int) -> Refusals:
        """What a node's host has refused, read from the report."""
        text = self.graph.report().refused[f"n{at}"]
        counts = [each.split(" ", 1) for each in text.split(", ") if each != "none"]
        return Refusals(**{reason.replace(" ", "_"): int(count) for count, reason in counts})


@pytest.fixture
def target(workers: list[Any]) -> Iterator[Target]:
    with chained(workers[0], workers[2], workers[3]) as graph:
        made = Target(graph)
        yield made
        if not made.is_broken:
            stream(graph, 0.3)
            assert graph.report().state == "running"


def in_use(target: Target, attack: Callable[[], None]) -> None:
    """Attack while the graph is in use; all its results are right."""
    using = in_thread(lambda: stream(target.graph, 2.0, 10_000))
    attack()
    using()


@pytest.mark.parametrize("at", [0, 1], ids=["driver", "host"])
@pytest.mark.parametrize("what", ["link", "node"])
def test_a_wrong_secret(target: Target, at: int, what: str):
    opening: Opening
    facts = {"graph": target.graph.get_id(), "secret": secrets.token_hex(16)}
    if what == "link":
        opening = OpenLink(**facts, process="a0", node="n0")
    else:
        opening = JoinNode(**facts, node="n1", pid=1, clock="", address="")
    before = target.refused(at)

    def knock() -> None:
        for _ in range(20):
            with pytest.raises((ConnectionAbortedError, PermissionError)):
                join(target.addresses[at], opening, GUARD_S, check_user)
        wrong_graph = replace(opening, graph="0" * 32, secret=target.secret)
        with pytest.raises(ConnectionAbortedError):
            join(target.addresses[at], wrong_graph, GUARD_S, check_user)

    in_use(target, knock)
    until(lambda: target.refused(at).wrong_secret >= before.wrong_secret + 20)
    until(lambda: target.refused(at).unknown_graph >= before.unknown_graph + 1)
    assert "connections that were refused: node n0: " in str(target.graph.report())


@pytest.mark.parametrize("at", [0, 1], ids=["driver", "host"])
def test_what_knows_the_secret_but_is_none_of_the_graph(target: Target, at: int):
    """A second host of a node, and a link of what sends nothing there."""
    facts = {"graph": target.graph.get_id(), "secret": target.secret}
    node = JoinNode(**facts, node="n1", pid=1, clock="", address="")
    stranger = OpenLink(**facts, process="nobody", node=f"n{at}")

    def knock() -> None:
        for opening in (node, stranger):
            with pytest.raises((ConnectionAbortedError, OSError)):
                join(target.addresses[at], opening, GUARD_S, check_user).close()

    in_use(target, knock)


def test_frames_that_are_none_after_a_handshake_name_the_connection(target: Target):
    """A peer with the secret may break the graph; it then reports what arrived, and ends."""
    facts = {"graph": target.graph.get_id(), "secret": target.secret}
    joined = join(
        target.addresses[1], OpenLink(**facts, process="driver", node="n1"), GUARD_S, check_user
    )
    joined.connection.send(b"GET / HTTP/1.1\r\n" * 20)
    with pytest.raises(rcg.errors.ChannelBroken, match="no frame of rcg's"):
        stream(target.graph, GUARD_S)
    target.is_broken = True
