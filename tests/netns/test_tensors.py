# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference between machines that share nothing: every way, freeing, losses."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, PlacementError, Transfer
from rcg.experimental import wait_tensor_freed
from rcg.experimental.collective import create_collective_group, destroy_collective_group
from rcg.rdt import reach
from rcg.rdt.process import holder_of
from rcg.runtime.control.joining import check_user, join
from rcg.weights import Slice
from rcg.wire.messages import UseTensors
from tests.cluster.stage import GUARD_S, until
from tests.cluster.trainers import SHAPES, Member
from tests.netns.machines import Cluster, actor_on
from tests.netns.world import address_of

torch = pytest.importorskip("torch")

BIG = 3_000_000  # numbers: 12 MB
WAYS = ["object_store", "nixl"]


@rcg.remote(num_cpus=0)
class Keeper:
    """Makes, keeps and takes tensors."""

    def __init__(self, peer_timeout: str = "") -> None:
        if peer_timeout:
            os.environ["RCG_PEER_TIMEOUT"] = peer_timeout
        self.kept: Any = None

    @rcg.method(tensor_transport="object_store")
    def make(self, value, count=10):
        self.kept = torch.full((count,), float(value))
        return self.kept

    @rcg.method(tensor_transport="gloo")
    def make_for_group(self, value, count=10):
        return torch.full((count,), float(value))

    @rcg.method(tensor_transport="object_store")
    def pair(self, value):
        return {"a": torch.full((BIG,), float(value)), "b": [torch.ones(3), "text"]}

    def total(self, value):
        return float(value.sum())

    def totals(self, value):
        return float(value["a"].sum()), float(value["b"][0].sum()), value["b"][1]

    def inside(self, boxed):
        return float(rcg.get(boxed[0]).sum())

    def wait_freed(self):
        wait_tensor_freed(self.kept, timeout=GUARD_S)
        return True

    def is_listening(self):
        from rcg.rdt.process import here

        return bool(here().service._endpoint._listeners)

    def place_of(self, key):
        return reach._places[key]

    def pid(self):
        return os.getpid()

    def occupy(self, host, port):
        self.occupied = socket.create_server((host, port))

    def release(self):
        self.occupied.close()


@pytest.fixture(scope="module")
def keepers(cluster: Cluster) -> Iterator[list[Any]]:
    """An actor of each of two machines."""
    made = [actor_on(number, Keeper) for number in (0, 1)]
    rcg.get([each.pid.remote() for each in made], timeout=GUARD_S)
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture
def keeper_on(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Makes actors that are killed when the test ends."""
    made: list[Any] = []

    def make(number: int, *args: Any, **options: Any) -> Any:
        placed = Keeper.options(resources={f"machine{number}": 0.001}, **options)
        made.append(placed.remote(*args))
        return made[-1]

    yield make
    for each in made:
        rcg.kill(each)


@rcg.remote(num_cpus=0, resources={"machine1": 0.001})
def total_on_1(value):
    return float(value.sum())


@ray.remote(num_cpus=0, resources={"machine1": 0.001})
def given_back(value):
    return value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [10, BIG])
def test_every_way_between_machines(keepers: list[Any], count: int, way: str):
    a, b = keepers
    for maker, taker in ((a, b), (b, a)):
        ref = maker.make.options(tensor_transport=way).remote(2, count)
        assert rcg.get(taker.total.remote(ref), timeout=GUARD_S) == 2 * count
        assert rcg.get(taker.inside.remote([ref]), timeout=GUARD_S) == 2 * count
        assert rcg.get(ref, timeout=GUARD_S).sum() == 2 * count
        assert rcg.get(total_on_1.remote(ref), timeout=GUARD_S) == 2 * count
        out = torch.zeros(count)
        assert rcg.get(ref, timeout=GUARD_S, out=out) is out
        assert out.sum() == 2 * count
        taken = taker.totals.remote(maker.pair.options(tensor_transport=way).remote(3))
        assert rcg.get(taken, timeout=GUARD_S) == (3 * BIG, 3, "text")
    put = rcg.put(torch.full((count,), 4.0), _tensor_transport=way)
    assert rcg.get(b.total.remote(put), timeout=GUARD_S) == 4 * count
    assert rcg.get(total_on_1.remote(put), timeout=GUARD_S) == 4 * count


def test_handles_keep_their_transports_however_they_came(
    keepers: list[Any], keeper_on: Callable[..., Any]
) -> None:
    near, _ = keepers
    far = keeper_on(1, name="known by its name")
    rcg.get(far.pid.remote(), timeout=GUARD_S)
    named = rcg.get_actor("known by its name")
    passed = rcg.get(ray.put([far]), timeout=GUARD_S)[0]
    returned = rcg.get(given_back.remote([far]), timeout=GUARD_S)[0]
    for handle in (named, passed, returned):
        ref = handle.make.remote(2, BIG)
        assert isinstance(ref, rcg.TensorRef)
        assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == 2 * BIG
        assert rcg.get(handle.total.remote(near.make.remote(3)), timeout=GUARD_S) == 30


@pytest.mark.parametrize("count", [10, BIG])
def test_a_group_over_machines(keepers: list[Any], count: int):
    a, b = keepers
    group = create_collective_group([a, b], backend="gloo")
    try:
        for maker, taker in ((a, b), (b, a)):
            ref = maker.make_for_group.remote(5, count)
            assert rcg.get(taker.total.remote(ref), timeout=GUARD_S) == 5 * count
    finally:
        destroy_collective_group(group)


def test_a_process_listens_for_other_nodes_once_one_asks(keeper_on: Callable[..., Any]):
    near, far = keeper_on(0), keeper_on(1)
    ref = near.make.remote(1)
    assert rcg.get(ref, timeout=GUARD_S).sum() == 10
    assert not rcg.get(near.is_listening.remote(), timeout=GUARD_S)
    assert rcg.get(far.total.remote(ref), timeout=GUARD_S) == 10
    assert rcg.get(near.is_listening.remote(), timeout=GUARD_S)


def test_another_node_needs_the_secret(keeper_on: Callable[..., Any]):
    far, reader = keeper_on(1), keeper_on(0)
    ref = far.make.remote(1)
    assert rcg.get(reader.total.remote(ref), timeout=GUARD_S) == 10
    holder = holder_of(far)
    place = rcg.get(reader.place_of.remote(holder.key), timeout=GUARD_S)
    for secret in ("", "0" * len(holder.secret)):
        asked = UseTensors(graph=holder.key, secret=secret, key="", pid=1)
        with pytest.raises(ConnectionAbortedError, match="has another secret"):
            join(place, asked, GUARD_S, check_user)
    right = UseTensors(graph=holder.key, secret=holder.secret, key="", pid=1)
    join(place, right, GUARD_S, check_user).close()
    (owner,) = [each for each in rcg.report().tensors.owners if each.label == repr(far)]
    assert "2 wrong secret" in owner.refused


def test_tensors_of_another_machine_are_freed(keepers: list[Any]):
    a, b = keepers
    ref = b.make.remote(1, BIG)
    assert rcg.get(a.total.remote(ref), timeout=GUARD_S) == BIG
    waiting = b.wait_freed.remote()
    ready, _ = ray.wait([waiting], timeout=1)
    assert not ready  # this process holds it
    del ref
    assert rcg.get(waiting, timeout=GUARD_S)


def test_a_profile_has_the_transfers_of_other_clocks(keepers: list[Any]):
    a, b = keepers
    rcg.get(b.total.remote(a.make.remote(1)), timeout=GUARD_S)  # this process knows both
    with rcg.profile() as profile:
        rcg.get(b.total.remote(a.make.remote(1, BIG)), timeout=GUARD_S)
        rcg.get(b.make.remote(1, BIG), timeout=GUARD_S)
    first, second = profile.trace.transfers
    assert (first.source, first.target, first.bytes) == (repr(a), repr(b), 4 * BIG)
    assert (second.source, second.bytes) == (repr(b), 4 * BIG)
    assert profile.trace.start_ns <= first.start_ns < first.end_ns <= second.start_ns
    assert second.end_ns <= profile.trace.end_ns


def test_a_report_asks_other_machines(keepers: list[Any], keeper_on: Callable[..., Any]):
    a, b = keepers
    ref = b.make.remote(1, BIG)
    rcg.get(a.total.remote(ref), timeout=GUARD_S)
    never_asked = keeper_on(1)
    second = never_asked.make.remote(1, BIG)
    ray.wait([second.inner])
    found = {each.owner: each for each in rcg.report().tensors.refs}
    for owner in (b, never_asked):
        assert (found[repr(owner)].state, found[repr(owner)].bytes) == ("held", 4 * BIG)


@pytest.mark.parametrize("way", WAYS)
def test_a_maker_that_is_killed(cluster: Cluster, keeper_on: Callable[..., Any], way: str):
    near, far = keeper_on(0), keeper_on(1)
    ref = far.make.options(tensor_transport=way).remote(1, BIG)
    assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == BIG
    cluster.kill(1, rcg.get(far.pid.remote(), timeout=GUARD_S))
    began = time.monotonic()
    with pytest.raises(ActorDiedError, match=r"Keeper, .* which held the tensors, has ended"):
        rcg.get(ref, timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match=r"Keeper, .* which held the tensors, has ended"):
        rcg.get(near.total.remote(ref), timeout=GUARD_S)
    print(f"both after {time.monotonic() - began:.2f} s")


@pytest.mark.parametrize("way", WAYS)
def test_an_actor_that_runs_again(cluster: Cluster, keeper_on: Callable[..., Any], way: str):
    near, far = keeper_on(0), keeper_on(1, max_restarts=1, max_task_retries=3)
    make = far.make.options(tensor_transport=way)
    lost = make.remote(1, BIG)
    assert rcg.get(near.total.remote(lost), timeout=GUARD_S) == BIG
    pid = rcg.get(far.pid.remote(), timeout=GUARD_S)
    cluster.kill(1, pid)
    until(lambda: rcg.get(far.pid.remote(), timeout=GUARD_S) != pid)
    again = make.remote(2, BIG)
    assert rcg.get(near.total.remote(again), timeout=GUARD_S) == 2 * BIG
    assert rcg.get(again, timeout=GUARD_S).sum() == 2 * BIG
    with pytest.raises(Transfer):
        rcg.get(lost, timeout=GUARD_S)


@pytest.mark.parametrize("way", WAYS)
def test_a_cable_that_is_out_for_a_moment(cluster: Cluster, keepers: list[Any], way: str):
    a, b = keepers
    ref = b.make.options(tensor_transport=way).remote(1, BIG)
    assert rcg.get(a.total.remote(ref), timeout=GUARD_S) == BIG
    cluster.unplug(1)
    taken = a.total.remote(ref)
    ready, _ = ray.wait([taken], timeout=2)
    cluster.plug(1)
    assert not ready
    assert rcg.get(taken, timeout=GUARD_S) == BIG


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_that_cannot_be_reached_any_more(
    cluster: Cluster, keeper_on: Callable[..., Any], way: str
):
    near, far = keeper_on(0, "3"), keeper_on(1, "3")
    ref = far.make.options(tensor_transport=way).remote(1, BIG)
    assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == BIG
    cluster.unplug(1)
    try:
        began = time.monotonic()
        with pytest.raises((ActorDiedError, Transfer), match="Keeper"):
            rcg.get(near.total.remote(ref), timeout=GUARD_S)
        print(f"after {time.monotonic() - began:.2f} s")
    finally:
        cluster.plug(1)
    assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == BIG


def test_no_port_is_free(keeper_on: Callable[..., Any]):
    environment = {"env_vars": {"RCG_PORT_RANGE": "21000-21000"}}
    near, far = keeper_on(0, runtime_env=environment), keeper_on(1)
    ref = near.make.remote(1)
    rcg.get(near.occupy.remote(address_of(0), 21000), timeout=GUARD_S)
    with pytest.raises(PlacementError, match="no port from 21000 to 21000 is free at"):
        rcg.get(far.total.remote(ref), timeout=GUARD_S)
    rcg.get(near.release.remote(), timeout=GUARD_S)
    assert rcg.get(far.total.remote(ref), timeout=GUARD_S) == 10


def test_a_name_says_how_tensors_come(keepers: list[Any]) -> None:
    near, far = keepers
    ways = {near: "here by shm, from this node", far: "here by tcp, from another node"}
    for keeper, way in ways.items():
        ref = keeper.make.options(tensor_transport="auto").remote(3, BIG)
        assert f"for auto: {way}" in str(ref.envelope(GUARD_S))
        assert float(rcg.get(ref, timeout=GUARD_S).sum()) == 3 * BIG
    with pytest.raises(Transfer, match="is on another node, where there is no shared memory"):
        rcg.get(ref, _tensor_transport="shm", timeout=GUARD_S)
    assert float(rcg.get(ref, _tensor_transport="tcp", timeout=GUARD_S).sum()) == 3 * BIG


def test_auto_takes_nixl_where_both_ends_want_it(
    monkeypatch: pytest.MonkeyPatch, keeper_on: Callable[..., Any]
) -> None:
    keeper = keeper_on(1, runtime_env={"env_vars": {"RCG_NIXL": "1"}})
    ways = []
    for choice, way in (("1", "nixl, or by tcp if only this process has it"), ("0", "tcp")):
        monkeypatch.setenv("RCG_NIXL", choice)
        ref = keeper.make.options(tensor_transport="auto").remote(3, BIG)
        assert f"for auto: here by {way}, from another node" in str(ref.envelope(GUARD_S))
        with rcg.profile() as profile:
            assert float(rcg.get(ref, timeout=GUARD_S).sum()) == 3 * BIG
        ways.append({each.transport for each in profile.trace.transfers})
    assert ways == [{"nixl: register", "nixl"}, {"tcp"}]


@pytest.fixture
def members(cluster: Cluster) -> Iterator[list[Any]]:
    """A trainer on one machine, and generators on both."""
    made = [actor_on(number, rcg.remote(num_cpus=0)(Member)) for number in (1, 0, 1)]
    yield made
    for each in made:
        rcg.kill(each)


def test_weights_go_between_machines(members: list[Any]) -> None:
    trainer, *generators = members
    shapes = SHAPES | {"columns": (300, 700)}
    rcg.get(trainer.publish.remote("far", shapes), timeout=GUARD_S)
    shard = {"columns": Slice(1, 100, 450, 700)}
    rcg.get([each.subscribe.remote("far", shapes, shard) for each in generators], timeout=GUARD_S)
    for version in (1, 2):
        rcg.get(trainer.push.remote(version), timeout=GUARD_S)
        rcg.get([each.update.remote() for each in generators], timeout=GUARD_S)
        rcg.get(trainer.wait.remote(), timeout=GUARD_S)
        found = [each.differs.remote(version) for each in generators]
        assert rcg.get(found, timeout=GUARD_S) == [[], []]
    rcg.kill(generators[0])
    rcg.get(trainer.push.remote(3), timeout=GUARD_S)
    rcg.get(generators[1].update.remote(), timeout=GUARD_S)
    rcg.get(trainer.wait.remote(), timeout=GUARD_S)  # on another machine one has died
    rcg.kill(trainer)
    with pytest.raises(ActorDiedError, match=r"has died\. This process keeps version 3"):
        rcg.get(generators[1].update.remote(), timeout=GUARD_S)
