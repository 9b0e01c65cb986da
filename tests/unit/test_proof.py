# SPDX-License-Identifier: Apache-2.0
"""Proofs of knowing a secret: they hold for one connection, one message and one direction.

And that nothing of a peer is unpickled, or reaches a service, before its proof: at both ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import RcgError
from rcg.rdt.connection import Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.groups import MemberGroups
from rcg.rdt.service import Service
from rcg.rdt.store import Store
from rcg.runtime.control import endpoint
from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.control.stores import ControlStore
from rcg.runtime.remote.client import Client, ask_report
from rcg.wire import messages, proof, sockets
from rcg.wire.codec import Message, encode
from rcg.wire.liveness import Ending
from rcg.wire.messages import Challenge, Opening, Stop, Use, UseStore
from tests.harness.peers import GUARD_S, challenge_of, enter, is_over, until
from tests.harness.served import handle_facts

SECRET = "5ec4e7"
OPENING = UseStore(graph="cafe", secret=SECRET, group="g0")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(TEXTS, TEXTS, TEXTS)
def test_a_proof_is_accepted_by_whom_it_is_for(graph, secret, group):
    opening = UseStore(graph=graph, secret=secret, group=group)
    asked = proof.challenge()
    sent, body = proof.prove(opening, asked)
    assert proof.is_proof(sent, body, secret, asked)
    assert proof.opening_of(sent, body) == replace(opening, secret="")
    answered = proof.answer(sent, body, secret, asked)
    assert proof.is_answer(answered, sent, body, secret, asked)
    other = secret + "x"
    assert not proof.is_proof(sent, body, other, asked)
    assert not proof.is_answer(answered, sent, body, other, asked)


def test_the_secret_is_not_sent():
    sent, body = proof.prove(OPENING, proof.challenge())
    assert SECRET.encode() not in encode(sent) + body


def test_a_proof_holds_once():
    asked, later = proof.challenge(), proof.challenge()
    assert asked != later
    sent, body = proof.prove(OPENING, asked)
    assert not proof.is_proof(sent, body, SECRET, later)
    again, _ = proof.prove(OPENING, asked)
    assert sent.nonce != again.nonce and sent.proof != again.proof


def test_a_proof_is_of_every_byte():
    asked = proof.challenge()
    sent, body = proof.prove(OPENING, asked)
    for wrong in (
        replace(sent, graph="caf"),
        replace(sent, nonce=sent.nonce[:-1]),
        replace(sent, nonce=""),
        replace(sent, proof=""),
        replace(sent, proof=sent.proof[:-1]),
        replace(sent, proof="é" * 64),
    ):
        assert not proof.is_proof(wrong, body, SECRET, asked)
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 1
        assert not proof.is_proof(sent, damaged, SECRET, asked)
    assert not proof.is_proof(sent, body, SECRET, Challenge(nonce=""))


def test_what_a_listener_is_sent_does_not_answer_for_it():
    asked = proof.challenge()
    sent, body = proof.prove(OPENING, asked)
    answered = proof.answer(sent, body, SECRET, asked)
    assert answered.proof != sent.proof
    assert not proof.is_answer(replace(answered, proof=sent.proof), sent, body, SECRET, asked)
    assert not proof.is_proof(replace(sent, proof=answered.proof), body, SECRET, asked)


def test_only_an_opening_of_the_same_graph_comes_with_a_proof():
    sent, _ = proof.prove(OPENING, proof.challenge())
    for wrong in (encode(Stop()), encode(Use(graph="other", secret="")), b"", b"x", b"\x80\x04N."):
        with pytest.raises(ValueError):
            proof.opening_of(sent, wrong)


# --- before the proof: a service


def ran() -> None:
    """A hostile pickle calls this where it is unpickled."""
    Hostile.count += 1


class Hostile:
    """Runs code where it is unpickled."""

    count: ClassVar[int] = 0

    def __reduce__(self) -> Any:
        return ran, ()


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    Hostile.count = 0
    yield
    assert Hostile.count == 0


HOSTILE = pickle.dumps(Hostile())
JOIN = messages.JoinGroup(
    number=1, group="g", token="", backend="gloo", rank=0, labels=(), keys=(), secrets=()
)
ASKED = [JOIN, messages.SendTensors(number=2, key="k"), messages.Execute(number=3)]
KINDS = [each for each in vars(messages).values() if isinstance(each, type)]
OF_NAME = {"pid": 0, "within_ms": 0, "torch": False}  # any other field is a text
OPENINGS = [
    kind(**{each.name: OF_NAME.get(each.name, "x") for each in fields(kind)})
    for kind in KINDS
    if issubclass(kind, Opening) and kind is not Opening
]


def ways_in(opening: Opening, asked: Challenge) -> Iterator[bytes]:
    """What is no proof, with a pickle beside it; the opening has the right secret."""
    sent, body = proof.prove(opening, asked)
    yield sockets.pack_message(opening, HOSTILE)  # in the clear
    for wrong in ("", opening.graph, opening.secret[:-1]):
        yield sockets.pack_message(*proof.prove(replace(opening, secret=wrong), asked))
    yield sockets.pack_message(*proof.prove(opening, proof.challenge()))
    yield sockets.pack_message(sent, HOSTILE)
    yield sockets.pack_message(sent, body + b" ")
    yield sockets.pack_message(replace(sent, proof=""), HOSTILE)
    for each in ASKED:
        yield sockets.pack_message(each, HOSTILE)
    yield HOSTILE


class Spy:
    """A service that notes what reaches it."""

    def __init__(self) -> None:
        self.service_id, self.secret, self.is_over = "spied", SECRET, False
        self.reached: list[Message] = []

    def look(self) -> None:
        pass

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        pass

    def fail(self, why: str) -> None:
        raise AssertionError(why)

    def on_released(self) -> None:
        pass

    def _reached(self, peer: Peer, message: Message) -> bool:
        self.reached.append(message)
        return False

    handlers: ClassVar[Mapping[type[Message], Handler]] = dict.fromkeys(
        map(type, (*OPENINGS, *ASKED)), _reached
    )


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged; the unit tests run without pytest's own."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


@contextlib.contextmanager
def serving(service: Any, address: str = "") -> Iterator[Endpoint]:
    made = endpoint.serve(service, service.address if isinstance(service, Service) else address)
    try:
        yield made
    finally:
        made.abandon_service(service)
        made._thread.join(GUARD_S)


def test_nothing_reaches_a_service_without_a_proof(logged):
    """Of no kind of first message, in no way; each is counted, and not each is logged."""
    spy = Spy()
    count = 0
    with serving(spy) as served:
        for each in OPENINGS:
            opening = replace(each, graph=spy.service_id, secret=SECRET)
            with sockets.connect(served.address, GUARD_S) as stranger:
                known = list(ways_in(opening, challenge_of(stranger)))
            for at in range(len(known)):
                with sockets.connect(served.address, GUARD_S) as stranger:
                    said = list(ways_in(opening, challenge_of(stranger)))[at]
                    stranger.send(said)
                    assert is_over(stranger)
                count += 1
        until(lambda: served.refusals().total >= count)
        found = served.refusals()
        assert found.wrong_secret + found.garbage == count and not spy.reached
        with sockets.connect(served.address, GUARD_S) as known_one:  # and with one, it does
            enter(known_one, replace(OPENINGS[0], graph=spy.service_id, secret=SECRET))
            assert is_over(known_one)
        assert len(spy.reached) == 1 and served.refusals() == found
    texts = [each.getMessage() for each in logged]
    assert f"rcg: refused a connection from process {os.getpid()}: it did not prove" in texts[0]
    assert 4 < len(texts) < count / 2


@pytest.fixture
def holder() -> Iterator[Holder]:
    """A process that holds tensors."""
    key, address = "tensors-cafe", f"\0rcg-actor-of-a-test-{os.getpid()}"
    service = Service(Store(key), MemberGroups(key, print), deque(), SECRET, address)
    with serving(service):
        yield Holder(service.address, key, SECRET, "Actor(Maker, cafe)", "cafe", "")


def test_the_service_of_tensors_unpickles_nothing_without_a_proof(holder):
    opening = messages.UseTensors(graph=holder.key, secret=SECRET, key="", pid=1)
    with sockets.connect(holder.address, GUARD_S) as stranger:
        count = len(list(ways_in(opening, challenge_of(stranger))))
    for at in range(count):
        with sockets.connect(holder.address, GUARD_S) as stranger:
            said = list(ways_in(opening, challenge_of(stranger)))[at]
            with contextlib.suppress(ConnectionError):
                for each in (said, *(sockets.pack_message(message, HOSTILE) for message in ASKED)):
                    stranger.send(each)
            assert is_over(stranger)
    assert Hostile.count == 0
    with sockets.connect(holder.address, GUARD_S) as known:
        enter(known, opening)
        sockets.send(known, JOIN, body=HOSTILE)
        for expected in (messages.Ready, messages.GroupChanged):
            with sockets.receive(known) as received:
                assert isinstance(received.message, expected)
    assert Hostile.count == 1  # so what has a proof is trusted, and the above could fail
    Hostile.count = 0


def test_a_wrong_message_to_the_service_of_tensors_is_logged(holder, logged):
    with sockets.connect(holder.address, GUARD_S) as known:
        enter(known, messages.UseTensors(graph=holder.key, secret=SECRET, key="", pid=1))
        sockets.send(known, Stop())
        assert is_over(known)
    until(lambda: logged)
    assert f"process {os.getpid()} sent a wrong message: " in logged[0].getMessage()


def test_another_user_is_refused_and_counted(monkeypatch):
    spy = Spy()
    with serving(spy) as served:
        monkeypatch.setattr(os, "getuid", lambda: -2)
        with sockets.connect(served.address, GUARD_S) as stranger:
            assert stranger.recv(1 << 16) == b""  # not even a challenge
        until(lambda: served.refusals() == Refusals(other_user=1))


# --- before the proof: who connects to something else


CLIENTS: dict[str, Callable[[str], object]] = {
    "member": lambda address: ControlClient(address, "cafe", SECRET, "a0"),
    "rank": lambda address: ControlStore(address, "cafe", SECRET, "g"),
    "handle": lambda address: Client(handle_facts(address, SECRET)),
    "report": lambda address: ask_report(handle_facts(address, SECRET)),
    "taker of tensors": lambda address: Connection(
        Holder(address, "tensors-cafe", SECRET, "Actor(Maker, cafe)", "cafe", ""), ""
    ),
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_what_listens_at_an_address_without_the_secret_gets_nothing_and_is_not_heard(client):
    """A process that took the address of one that has ended, for instance."""
    address = f"\0rcg-squatted-{os.getpid()}-{id(client)}"
    got: list[bytes] = []

    def answer(connection: socket.socket, how: str) -> None:
        if how:
            sockets.send(connection, proof.challenge(), body=HOSTILE)
            got.append(connection.recv(1 << 16))
            sent = got[-1].partition(b'"proof": "')[2][:64].decode()
            found = {"its own": sent, "wrong": "0" * 64}.get(how)
            if found is not None:
                sockets.send(connection, messages.Proven(proof=found), body=HOSTILE)
        with contextlib.suppress(ConnectionError):
            for each in (
                messages.Ready(),
                messages.Welcome(arenas=(), has_bell=False),
                messages.Reported(),
            ):
                sockets.send(connection, each, body=HOSTILE)
            got.append(connection.recv(1 << 16))

    for how in ("", "none", "wrong", "its own"):
        with sockets.listen(address) as listener:
            listener.setblocking(True)

            def squat(listener=listener, how=how) -> None:
                with listener.accept()[0] as connection:
                    answer(connection, how)

            thread = threading.Thread(target=squat)
            thread.start()
            with pytest.raises(RcgError):
                client(address)
            thread.join(GUARD_S)
            assert not thread.is_alive()
    assert any(got) and not any(SECRET.encode() in each for each in got)


def test_the_secret_of_a_holder_is_not_printed():
    found = Holder("\0address", "key", "the secret", "Actor(Worker, 1)", "1", "node")
    for text in (str(found), repr(found), f"{found}", repr([found])):
        assert "Actor(Worker, 1)" in text and "the secret" not in text
