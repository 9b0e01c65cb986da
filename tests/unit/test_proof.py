# SPDX-License-Identifier: Apache-2.0
"""Proofs of knowing a secret: they hold for one connection, one message and one direction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.wire import proof
from rcg.wire.codec import encode
from rcg.wire.messages import Challenge, Stop, Use, UseStore

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
