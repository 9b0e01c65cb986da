# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of ``rcg.empty``, which other actors of the node map instead of copying."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest

import rcg
from rcg.experimental import register_nixl_memory, wait_tensor_freed
from tests.cluster.nodes import near_driver
from tests.cluster.stage import GUARD_S, eventually
from tests.harness.circles import core_has
from tests.harness.peers import descriptors

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

BIG = 300_000  # numbers: 1.2 MB


def get(refs: Any, **options: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S, **options)


@rcg.remote(num_cpus=0)
class Worker:
    def __init__(self) -> None:
        self.kept: Any = None

    @rcg.method(tensor_transport="auto")
    def make(self, n, kind="torch"):
        """Keeps the tensor."""
        if kind == "torch":
            self.kept = rcg.empty(BIG, torch.float32)
        else:
            self.kept = torch.from_numpy(rcg.empty(BIG, np.float32))
        if kind == "registered":
            register_nixl_memory(self.kept)
        return self.kept.fill_(n)

    @rcg.method(tensor_transport="auto")
    def mixed(self, n):
        """A block, a view of it, ordinary memory, and small memory."""
        whole = rcg.empty((3, BIG), torch.float32).fill_(n)
        return {
            "row": whole[1],
            "turned": whole.t(),
            "other": torch.ones(BIG),
            "small": torch.ones(3),
        }

    @rcg.method(tensor_transport="auto")
    def again(self):
        return self.kept

    def take(self, value):
        """Keeps the value; returns how much of it was mapped."""
        self.kept = value
        with open("/proc/self/maps") as maps:
            return maps.read().count("rcg-empty")

    def drop(self):
        self.kept = None

    def write(self, n):
        with warnings.catch_warnings(record=True):  # to what readers still need
            self.kept.fill_(n)

    def write_when_freed(self, n):
        wait_tensor_freed(self.kept, GUARD_S)
        self.kept.fill_(n)

    def ends(self, key=None):
        found = self.kept if key is None else self.kept[key]
        return float(found.min()), float(found.max())

    def costs(self):
        return descriptors()

    def fail_to_map_once(self):
        from rcg.rdt import pull

        original = pull.open_block

        def fail(*_):
            pull.open_block = original
            raise OSError(24, "no descriptor is left")

        pull.open_block = fail

    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def workers(ray_session):
    made = [near_driver(Worker).remote() for _ in range(3)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The value of Worker")
@pytest.mark.parametrize("kind", core_has("torch", ["torch", "numpy"]))
def test_readers_map_what_each_may_write_to(workers, kind):
    maker, one, two = workers
    ref = maker.make.remote(1, kind)
    assert get([each.take.remote(ref) for each in (one, two)]) == [1, 1]
    get(maker.write.remote(2))
    get(one.write.remote(3))
    assert get([each.ends.remote() for each in workers]) == [(2, 2), (3, 3), (1, 1)]
    assert get([one.take.remote(ref), one.ends.remote()]) == [0, (2, 2)]  # it is copied by now
    del ref
    get(maker.write_when_freed.remote(4))
    assert get([each.ends.remote() for each in workers]) == [(4, 4), (2, 2), (1, 1)]
    get(maker.make.remote(5, kind))
    for _ in range(2):
        again = maker.again.remote()
        assert get([one.take.remote(again), one.ends.remote()]) == [1, (5, 5)]


@pytest.mark.full
def test_what_was_mapped_outlives_its_maker(workers):
    maker = near_driver(Worker).remote()
    ref = maker.make.remote(1)
    assert get(workers[1].take.remote(ref)) == 1
    os.kill(get(maker.pid.remote()), signal.SIGKILL)
    with pytest.raises(rcg.exceptions.RayActorError):
        get(maker.pid.remote())
    assert get(workers[1].ends.remote()) == (1, 1)


@pytest.mark.full
def test_what_cannot_be_mapped_is_copied(workers):
    maker, one, _ = workers
    assert get(one.take.remote(maker.mixed.remote(5))) == 1
    for key, number in (("row", 5), ("turned", 5), ("other", 1), ("small", 1)):
        assert get(one.ends.remote(key)) == (number, number)
    out = torch.zeros(BIG)
    assert get(maker.make.remote(6), out=out) is out and float(out.sum()) == 6 * BIG
    if pytest.importorskip("nixl_cu12"):
        assert get(one.take.remote(maker.make.remote(7, "registered"))) == 0
        assert get(one.ends.remote()) == (7, 7)


@pytest.mark.full
def test_what_fails_to_be_mapped_is_copied(workers):
    maker = workers[0]
    taker = near_driver(Worker).remote()
    get(taker.fail_to_map_once.remote())
    for number in range(2):
        assert get(taker.take.remote(maker.make.remote(number))) == 0
        assert get(taker.ends.remote()) == (number, number)
    rcg.kill(taker)


@pytest.mark.full
def test_two_hundred_mapped_tensors_leave_nothing_behind(workers):
    maker, one, two = workers
    costs = []
    for count in (20, 180):
        for number in range(count):
            ref = maker.make.remote(number)
            assert get([each.take.remote(ref) for each in (one, two)]) == [1, 1]
        del ref
        get([each.drop.remote() for each in workers])
        eventually(lambda: get([each.take.remote(None) for each in workers]) == [0, 0, 0])
        costs.append(get([each.costs.remote() for each in workers]))
    assert costs[0] == costs[1]
