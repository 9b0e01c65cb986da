# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference between machines that share nothing: every way, freeing, losses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, Transfer
from rcg.experimental.collective import create_collective_group, destroy_collective_group
from rcg.rdt import reach
from rcg.rdt.process import holder_of
from rcg.runtime.control.joining import check_user, join
from rcg.weights import Slice
from rcg.wire.messages import UseTensors
from tests.cluster.stage import GUARD_S
from tests.cluster.trainers import SHAPES, Member
from tests.netns.machines import Cluster, actor_on

torch = pytest.importorskip("torch")

BIG = 3_000_000  # numbers: 12 MB
WAYS = ["object_store", "nixl"]


@rcg.remote(num_cpus=0)
class Keeper:
    """Makes, keeps and takes tensors."""

    @rcg.method(tensor_transport="object_store")
    def make(self, value, count=10):
        return torch.full((count,), float(value))

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

    def is_listening(self):
        from rcg.rdt.process import here

        return bool(here().service._endpoint._listeners)

    def place_of(self, key):
        return reach._places[key]

    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def keepers(cluster: Cluster) -> Iterator[list[Any]]:
    """An actor of each of two machines."""
    made = [actor_on(number, Keeper) for number in (0, 1)]
    rcg.get([each.pid.remote() for each in made], timeout=GUARD_S)
    yield made
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
    keepers: list[Any], fresh: Callable[..., Any]
) -> None:
    near, _ = keepers
    far = fresh(1, Keeper, name="known by its name")
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


def test_a_process_listens_for_other_nodes_once_one_asks(fresh: Callable[..., Any]):
    near, far = fresh(0, Keeper), fresh(1, Keeper)
    ref = near.make.remote(1)
    assert rcg.get(ref, timeout=GUARD_S).sum() == 10
    assert not rcg.get(near.is_listening.remote(), timeout=GUARD_S)
    assert rcg.get(far.total.remote(ref), timeout=GUARD_S) == 10
    assert rcg.get(near.is_listening.remote(), timeout=GUARD_S)


def test_another_node_needs_the_secret(fresh: Callable[..., Any]):
    far, reader = fresh(1, Keeper), fresh(0, Keeper)
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
    cluster: Cluster, fresh: Callable[..., Any], way: str
):
    impatient = {"env_vars": {"RCG_PEER_TIMEOUT": "3"}}
    near, far = (fresh(number, Keeper, runtime_env=impatient) for number in (0, 1))
    ref = far.make.options(tensor_transport=way).remote(1, BIG)
    assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == BIG
    cluster.unplug(1)
    try:
        with pytest.raises((ActorDiedError, Transfer), match="Keeper"):
            rcg.get(near.total.remote(ref), timeout=GUARD_S)
    finally:
        cluster.plug(1)
    assert rcg.get(near.total.remote(ref), timeout=GUARD_S) == BIG


def test_a_name_says_how_tensors_come(keepers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = keepers
    ways = {near: "here by shm, from this node", far: "here by tcp, from another node"}
    for keeper, way in ways.items():
        ref = keeper.make.options(tensor_transport="auto").remote(3, BIG)
        assert f"for auto: {way}" in str(ref.envelope(GUARD_S))
        assert float(rcg.get(ref, timeout=GUARD_S).sum()) == 3 * BIG
    monkeypatch.setenv("RCG_NIXL", "1")
    assert "here by nixl, or by tcp if only this process has it" in str(ref.envelope(GUARD_S))
    with pytest.raises(Transfer, match="is on another node, where there is no shared memory"):
        rcg.get(ref, _tensor_transport="shm", timeout=GUARD_S)
    assert float(rcg.get(ref, _tensor_transport="tcp", timeout=GUARD_S).sum()) == 3 * BIG


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
