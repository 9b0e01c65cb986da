# SPDX-License-Identifier: Apache-2.0
"""Locked memory in a child that is forked: what its parent has locked is not the child's."""

from __future__ import annotations

import os

import pytest

from rcg.serialization import pinned
from rcg.serialization.pinned import Pins


class Lease(bytes):
    punches = 0

    def block(self) -> tuple[int, int, int, int]:
        return 0, 1 << 40, len(self), self.punches


class Calls:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def register(self, address: int, size: int) -> None:
        self.seen.append("lock")

    def unregister(self, address: int) -> None:
        self.seen.append("unlock")


@pytest.mark.parametrize("what", ["close", "release", "lock"])
def test_a_forked_child_neither_locks_nor_unlocks(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    monkeypatch.setitem(pinned.REGISTRARS, "some", lambda: calls)
    pins, given = Pins("some", (Lease,)), Lease(1 << 20)
    pins.lock([given])
    child = os.fork()
    if not child:
        given.punches = 1  # what was locked is out of date
        _ = pins.lock([given]) if what == "lock" else getattr(pins, what)()
        os._exit(len(calls.seen) - 1)
    assert os.waitpid(child, 0)[1] == 0
    pins.close()
    assert calls.seen == ["lock", "unlock"]
