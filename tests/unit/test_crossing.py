# SPDX-License-Identifier: Apache-2.0
"""What a gate says of a connection that has ended; frames that cross are tests/netns's."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from rcg import _native
from rcg.channels.crossing import Gate, loss_text


@pytest.mark.parametrize(
    ("why", "error", "text"),
    [
        ("CLOSED", 0, "the connection was closed"),
        ("CLOSED", errno.EIO, "the connection was closed within a frame"),
        ("SYSTEM", errno.ECONNRESET, "the connection failed: Connection reset by peer"),
        ("FRAME", 0, "something arrived that is no frame of rcg's"),
        ("CHANNEL", 0, "a frame arrived of a channel that this process does not send (channel c1)"),
        ("ORDER", 0, "frames are missing or came twice (channel c1: execution 7 came, 5 was next)"),
        ("MEMORY", errno.ENOMEM, "this process has no memory left"),
    ],
)
def test_a_loss_says_what_was_expected(why: str, error: int, text: str) -> None:
    assert loss_text(getattr(_native, f"LOST_{why}"), error, "c1", 5, 7) == text


def test_a_gate_that_is_closed_passes_nothing() -> None:
    member: Any = SimpleNamespace()
    gate = Gate.__new__(Gate)
    gate._gate = SimpleNamespace(
        statistics=lambda: (3, 40), stop=lambda: setattr(member, "over", 1)
    )
    assert gate.passed() == (3, 40)
    gate.close()
    gate.close()
    assert gate.passed() == (0, 0) and member.over
