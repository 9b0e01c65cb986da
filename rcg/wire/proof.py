# SPDX-License-Identifier: Apache-2.0
"""Proving to know the secret of a service, without sending it.

Over TCP any process may connect. On one node the kernel says whose process the peer is, but any
process of the same user may connect, or listen at an address that another one has left. So the
listener first sends a ``Challenge`` with a number that it never uses again. The answer is
``Prove``, with the first message (its secret left out) beside it, and an HMAC over the numbers of
both sides and the bytes of that message. ``Proven`` is the listener's own HMAC. Neither side looks
at anything else before it has compared the other's.

A proof cannot be used again, because the next challenge has another number, nor sent back, because
each direction has a label of its own. It proves how a connection begins; what follows is only
encrypted where Ray's certificates are used.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from typing import Final

from rcg.wire.codec import decode, encode
from rcg.wire.messages import Challenge, Opening, Prove, Proven

_NONCE_BYTES: Final = 32
_OPENS: Final = "rcg opens"
_ANSWERS: Final = "rcg answers"


def challenge() -> Challenge:
    """Return the first message of a listener."""
    return Challenge(nonce=secrets.token_hex(_NONCE_BYTES))


def prove(opening: Opening, asked: Challenge) -> tuple[Prove, bytes]:
    """Return the answer to a challenge, and the bytes beside it: the opening without its secret."""
    body = encode(replace(opening, secret=""))
    blank = Prove(graph=opening.graph, nonce=secrets.token_hex(_NONCE_BYTES), proof="")
    return replace(blank, proof=_mac(_OPENS, asked, blank, body, opening.secret)), body


def is_proof(found: Prove, body: bytes | bytearray, secret: str, asked: Challenge) -> bool:
    """Whether an answer to a challenge was made by someone who knows the secret."""
    return _is_same(found.proof, _mac(_OPENS, asked, found, body, secret))


def opening_of(found: Prove, body: bytes | bytearray) -> Opening:
    """Return the first message that came with an accepted proof, or raise ValueError."""
    opening = decode(bytes(body))
    if not isinstance(opening, Opening) or opening.graph != found.graph:
        raise ValueError("a proof came without a first message")
    return opening


def answer(found: Prove, body: bytes | bytearray, secret: str, asked: Challenge) -> Proven:
    """Return the listener's own proof, for one that it has accepted."""
    return Proven(proof=_mac(_ANSWERS, asked, found, body, secret))


def is_answer(
    found: Proven, sent: Prove, body: bytes | bytearray, secret: str, asked: Challenge
) -> bool:
    """Whether the listener knows the secret, too."""
    return _is_same(found.proof, _mac(_ANSWERS, asked, sent, body, secret))


def _mac(label: str, asked: Challenge, sent: Prove, body: bytes | bytearray, secret: str) -> str:
    # No text of a message contains a zero byte, so these cannot be cut in another way.
    head = "\0".join((label, asked.nonce, sent.graph, sent.nonce, ""))
    return hmac.new(secret.encode(), head.encode() + body, "sha256").hexdigest()


def _is_same(found: str, expected: str) -> bool:
    return hmac.compare_digest(found.encode(), expected.encode())
