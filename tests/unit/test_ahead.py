# SPDX-License-Identifier: Apache-2.0
"""What an actor gets before the calls that take it run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rcg.options import prefetch_bytes
from rcg.rdt import ahead
from rcg.rdt.ahead import Ahead, may_come_ahead
from rcg.rdt.envelope import Envelope, Holder, Whole
from rcg.serialization.payloads import LoneTable
from tests.harness.peers import until

torch = pytest.importorskip("torch")

MOST_BYTES = 1000


def envelope(key: str, size: int = 400, transport: str = "auto") -> Envelope:
    holder = Holder("address", "store", "secret", "Actor(A, 1)", "1", "node")
    table = LoneTable.of(torch.zeros(size, dtype=torch.uint8))
    return Envelope(key, holder, transport, Whole(table))


class Source:
    """Gives tensors as it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None

    def pull(self, wanted: Any) -> list[Any]:
        (one,) = wanted
        self.asked.append(one.envelope.key)
        assert self.may_go_on.wait(30)
        return [self.error or [one.envelope.key]]


@pytest.fixture
def source() -> Source:
    return Source()


def test_what_is_announced_is_there_when_it_is_taken(source: Source) -> None:
    found = Ahead(source.pull, MOST_BYTES)
    found.announce(envelope("a"))
    found.announce(envelope("a"))
    until(lambda: found.facts().values == 1)
    assert found.take(envelope("a")) == ["a"]
    assert found.take(envelope("a")) is None
    assert found.take(envelope("never")) is None
    assert (source.asked, found.facts()) == (["a"], (1, 400, 1))


def test_a_call_that_was_quicker_gets_it_itself(source: Source) -> None:
    source.may_go_on.clear()
    found = Ahead(source.pull, MOST_BYTES)
    found.announce(envelope("a"))
    until(lambda: source.asked == ["a"])
    found.announce(envelope("b"))
    assert found.take(envelope("b")) is None  # not begun
    assert found.take(envelope("c")) is None
    found.announce(envelope("c"))  # its call has begun
    source.may_go_on.set()
    assert found.take(envelope("a")) == ["a"]  # waited for
    found.announce(envelope("d"))
    until(lambda: found.facts().values == 2)
    assert found.take(envelope("d")) == ["d"]
    assert source.asked == ["a", "d"]


def test_no_more_than_the_limit_is_held(source: Source) -> None:
    found = Ahead(source.pull, MOST_BYTES)
    for key in "abc":
        found.announce(envelope(key))
    found.announce(envelope("larger", MOST_BYTES + 1))
    until(lambda: found.facts().values == 2)
    assert source.asked == ["a", "b"]
    assert found.take(envelope("a")) == ["a"]
    until(lambda: found.facts().values == 3)
    assert source.asked == ["a", "b", "c"]


def test_what_nobody_takes_makes_room(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_KEPT_S", 0.01)
    found = Ahead(source.pull, MOST_BYTES)
    for key in "abcd":
        found.announce(envelope(key))
    until(lambda: source.asked == ["a", "b", "c", "d"])
    until(lambda: found.take(envelope("a")) is None)


def test_what_cannot_be_had_is_asked_for_again_by_the_call(source: Source) -> None:
    source.error = RuntimeError("its owner is gone")
    found = Ahead(source.pull, MOST_BYTES)
    found.announce(envelope("a"))
    until(lambda: source.asked == ["a"])
    assert found.take(envelope("a")) is None
    source.error = None
    found.announce(envelope("b"))
    until(lambda: found.facts().values == 1)
    assert found.take(envelope("b", 300)) is None  # made again by an actor that was restarted


def test_which_values_come_ahead() -> None:
    large = ahead.LEAST_BYTES
    assert may_come_ahead(envelope("a", large))
    assert not may_come_ahead(envelope("a", large - 1))
    assert not may_come_ahead(envelope("a", large, "gloo"))
    assert not may_come_ahead(torch.zeros(large))


def test_the_limit_of_users() -> None:
    assert prefetch_bytes({}) == 256 << 20
    assert prefetch_bytes({"RCG_PREFETCH_BYTES": " 0 "}) == 0
    with pytest.raises(ValueError, match="`RCG_PREFETCH_BYTES` must be a number of bytes"):
        prefetch_bytes({"RCG_PREFETCH_BYTES": "1 GB"})
