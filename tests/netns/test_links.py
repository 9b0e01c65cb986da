# SPDX-License-Identifier: Apache-2.0
"""Cables that are pulled, processes that are suspended, and roads with faults."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rcg
from rcg.errors import ActorDiedError, ChannelBroken
from tests.cluster.stage import GUARD_S, Gate, compile_echo, in_thread
from tests.netns.machines import Cluster
from tests.netns.test_deaths import assert_nothing_left, chained, gated

Fresh = Callable[..., Any]
PEER_TIMEOUT = "RCG_PEER_TIMEOUT"
SHORT_S = 3


@pytest.fixture
def trio(fresh: Fresh) -> list[Any]:
    """Actors of machine 0 and 1 and 1."""
    return [fresh(0), fresh(1), fresh(1)]


@pytest.fixture
def impatient(trio: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The same, where a peer that is unreachable for 3 s is given up."""
    monkeypatch.setenv(PEER_TIMEOUT, str(SHORT_S))
    rcg.get([each.set.remote(PEER_TIMEOUT, str(SHORT_S)) for each in trio])
    return trio


@pytest.fixture
def cable(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose cables are all plugged in again afterwards."""
    yield cluster
    cluster.plug(1)


def stream(graph: Any, seconds: float, size: int = 0) -> tuple[int, float]:
    """Use a graph for so long; returns how many executions, and the longest of them."""
    count, longest_s = 0, 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        sent = np.full(size, count % 251, np.uint8) if size else count
        got = rcg.get(graph.execute(sent), timeout=GUARD_S)
        assert (got == sent).all() if size else got == sent
        count += 1
        longest_s = max(longest_s, time.monotonic() - begun)
    return count, longest_s


@pytest.mark.parametrize("size", [0, 3_000_000])
def test_a_cable_that_is_out_for_5_s_is_survived(cable: Cluster, trio: list[Any], size: int):
    with chained(*trio) as graph:
        stream(graph, 0.2, size)
        using = in_thread(lambda: stream(graph, 7.0, size))
        time.sleep(0.5)
        cable.unplug(1)
        time.sleep(5.0)
        cable.plug(1)
        _, longest_s = using()
        assert longest_s > 4.0
        stream(graph, 0.2, size)


@pytest.mark.parametrize("moment", ["idle", "executing"])
def test_a_cable_that_stays_out_is_noticed(
    cable: Cluster, impatient: list[Any], gate: Gate, moment: str
):
    a, b, c = impatient
    graph = gated(a, b, c, gate, 1)
    assert rcg.get(graph.execute(1), timeout=GUARD_S) == 1
    waiting = graph.execute(0 if moment == "executing" else 1)
    if moment == "executing":
        gate.wait_for()
    else:
        rcg.get(waiting, timeout=GUARD_S)
    cable.unplug(1)
    with pytest.raises((ChannelBroken, ActorDiedError)) as caught:
        rcg.get(waiting if moment == "executing" else graph.execute(2), timeout=GUARD_S)
    # The error of a cut cable does not call the process dead: it may be alive.
    assert re.search(r"a[01] \(Tenant\) cannot be reached any more", str(caught.value))
    seen = re.search(r"([\d.]+) s before that", str(caught.value))
    assert float(seen[1]) < GUARD_S if seen else "had reported nothing yet" in str(caught.value)
    graph.teardown()
    with compile_echo(a) as again:
        assert rcg.get(again.execute("still"), timeout=GUARD_S) == "still"
    gate.open()
    cable.plug(1)
    assert_nothing_left([a, b, c])
    with chained(a, b, c) as again:
        assert rcg.get(again.execute("again"), timeout=GUARD_S) == "again"


@pytest.mark.parametrize("which", [1, 2, 0], ids=["host", "member", "near"])
def test_a_suspended_actor_is_not_dead(cluster: Cluster, impatient: list[Any], which: int):
    pid = rcg.get(impatient[which].pid.remote())
    machine = min(which, 1)
    with chained(*impatient) as graph:
        assert rcg.get(graph.execute(1), timeout=GUARD_S) == 1
        cluster.kill(machine, pid, how=signal.SIGSTOP)
        try:
            refs = [graph.execute(bytes(1_000_000)) for _ in range(4)]
            time.sleep(3 * SHORT_S)
            assert graph.report().state == "running"
        finally:
            cluster.kill(machine, pid, how=signal.SIGCONT)
        assert rcg.get(refs, timeout=GUARD_S) == [bytes(1_000_000)] * 4


def test_a_road_with_faults(cluster: Cluster, trio: list[Any]):
    """Late, lost, doubled or overtaken packets change nothing but the time it takes."""
    with chained(*trio) as graph:
        stream(graph, 0.1)
        cluster.hands.bad_road([0, 1])
        try:
            stream(graph, 3.0)
            stream(graph, 3.0, 1_000_000)
            with chained(*trio) as other:  # starts over it, too
                stream(other, 1.0)
        finally:
            cluster.hands.good_road()
        stream(graph, 0.5, 100_000)
