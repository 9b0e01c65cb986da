# SPDX-License-Identifier: Apache-2.0
"""A connection that a process of another node opens to a gate: taken over, or reported as lost."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator

import pytest

from rcg.channels.crossing import Gate, Passage
from rcg.runtime.control.members import accept_link
from rcg.runtime.control.services import Peer
from rcg.wire import sockets
from rcg.wire.messages import OpenLink, Ready
from tests.harness.board import Board, Ring
from tests.harness.peers import is_over, none_left
from tests.unit.test_endpoint import Echoing

Lost = list[tuple[str, str]]


@pytest.fixture
def lost() -> Lost:
    """The process and the reason of each lost connection."""
    return []


@pytest.fixture
def gate(lost: Lost, boards: Callable[..., Board]) -> Iterator[Gate]:
    member = boards(2, [Ring(0, (1,))]).member(0)
    passages = [Passage("c0", number=0, ring=0, op=0, writer="a0")]
    made = Gate(member, passages, lambda *loss: lost.append(loss), lambda *_: b"")
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[Peer, socket.socket]]:
    """A connection: the host's end, and that of the process which sends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer = Peer(ours, Echoing())
    yield peer, theirs
    peer.close()
    theirs.close()


def link_of(process: str, node: str = "n1") -> OpenLink:
    return OpenLink(graph="cafe", secret="", process=process, node=node)


def heard_ready(theirs: socket.socket) -> bool:
    with sockets.receive(theirs) as received:
        return received.message == Ready()


def test_a_gate_takes_a_connection_over_without_another_descriptor(gate, ends, lost):
    peer, theirs = ends
    with none_left():
        accept_link(peer, link_of("a0"), "n1", gate, ["a0"], lambda *loss: lost.append(loss))
    peer.close()
    assert heard_ready(theirs) and not lost
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)  # it is open


def test_a_connection_that_the_gate_cannot_take_over_is_lost(gate, ends, lost, monkeypatch):
    """The gate has answered the process at its other end, which may send already."""

    class Full:
        def add(self, *_: object) -> None:
            raise OSError(errno.ENOMEM, "no memory")

        def stop(self) -> None:
            pass

    peer, theirs = ends
    with monkeypatch.context() as patch:
        patch.setattr(gate, "_gate", Full())
        with pytest.raises(OSError, match="no memory"):
            accept_link(peer, link_of("a0"), "n1", gate, ["a0"], lambda *loss: lost.append(loss))
    peer.close()
    assert heard_ready(theirs) and is_over(theirs)
    ((process, text),) = lost
    assert process == "a0" and "could not be taken over" in text and "no memory" in text


@pytest.mark.parametrize(
    "opening", [link_of("a7"), link_of("a0", node="n2")], ids=["other", "astray"]
)
def test_a_process_that_sends_nothing_here_is_not_answered(gate, ends, lost, opening):
    peer, theirs = ends
    assert not accept_link(peer, opening, "n1", gate, ["a0"], lambda *loss: lost.append(loss))
    peer.close()
    assert is_over(theirs) and not lost
