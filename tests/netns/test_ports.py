# SPDX-License-Identifier: Apache-2.0
"""Ports that are used up, and firewalls: compiling fails in bounded time, and names both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rcg
from rcg.errors import PlacementError
from tests.cluster.stage import GUARD_S
from tests.netns.hands import Hands
from tests.netns.machines import Cluster
from tests.netns.test_deaths import assert_nothing_left, chained
from tests.netns.world import address_of

Fresh = Callable[..., Any]
RANGE = "RCG_PORT_RANGE"


@pytest.fixture
def trio(fresh: Fresh) -> list[Any]:
    return [fresh(0), fresh(1), fresh(1)]


def within(actors: list[Any], ports: str | None) -> None:
    """Have actors listen at these ports only."""
    rcg.get([each.set.remote(RANGE, ports) for each in actors])


class Firewall:
    """Refuses what comes to some ports of a machine, by rules of its routing."""

    def __init__(self, hands: Hands, number: int) -> None:
        self._hands, self._number = hands, number
        # A machine that forwards nothing does not say that it forbids something either.
        self._hands.run(number, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        # The rule for a machine's own addresses has to come after those of the firewall.
        self._rule("add", "pref", 100, "lookup", "local")
        self._rule("del", "pref", 0)

    def refuse(self, ports: str, how: str) -> None:
        """Drop packets to ports ("blackhole"), or answer that it is forbidden ("prohibit")."""
        at = ["iif", "out", "ipproto", "tcp", "dport", ports]
        self._rule("add", "pref", 10, *at, how)

    def close(self) -> None:
        self._rule("add", "pref", 0, "lookup", "local")
        self._rule("del", "pref", 100)
        self._rule("del", "pref", 10)

    def _rule(self, *words: object) -> None:
        self._hands.run(self._number, "ip", "rule", *words)


@pytest.fixture
def firewalls(cluster: Cluster) -> Iterator[Callable[[int], Firewall]]:
    made: list[Firewall] = []

    def make(number: int) -> Firewall:
        made.append(Firewall(cluster.hands, number))
        return made[-1]

    yield make
    for each in made:
        each.close()


def assert_works(trio: list[Any]) -> None:
    assert_nothing_left(trio)
    with chained(*trio) as graph:
        assert rcg.get(graph.execute("works"), timeout=GUARD_S) == "works"


def test_the_ports_of_a_host_are_used_up(trio: list[Any]):
    within(trio[1:], "25000-25001")
    rcg.get(trio[2].occupy.remote(address_of(1), [25000, 25001]))
    with pytest.raises(PlacementError, match=r"no port from 25000 to 25001 is free at 10\.97"):
        chained(*trio)
    within(trio[1:], "25000-25002")
    assert_works(trio)


@pytest.mark.parametrize("how", ["prohibit", "blackhole"])
@pytest.mark.parametrize("closed", [1, 0], ids=["gate", "driver"])
def test_a_firewall_in_front_of(
    trio: list[Any],
    firewalls: Callable[[int], Firewall],
    monkeypatch: pytest.MonkeyPatch,
    closed: int,
    how: str,
):
    monkeypatch.setenv(RANGE, "25100-25110")
    within(trio[1:], "25100-25110")
    firewall = firewalls(closed)
    firewall.refuse("25100-25110", how)
    with pytest.raises(PlacementError) as caught:
        chained(*trio, timeout=5)
    text = str(caught.value)
    assert "Traceback" not in text
    assert "ray::" not in text
    assert f"from {address_of(1 - closed)} to {address_of(closed)}:2510" in text
    assert RANGE in text
    assert_nothing_left(trio)
