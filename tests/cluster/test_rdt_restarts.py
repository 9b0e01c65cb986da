# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference when actors restart, and when the maker of their group has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rcg
from rcg.experimental.collective import (
    create_collective_group,
    destroy_all_collective_groups,
    destroy_collective_group,
    get_collective_groups,
)
from tests.cluster.stage import GUARD_S
from tests.harness.peers import until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

BIG = 300_000


def get(refs: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S)


@rcg.remote(num_cpus=0, max_restarts=-1)
class Worker:
    """Makes and takes tensors, and can be made to end."""

    @rcg.method(tensor_transport="gloo")
    def make(self, n):
        return torch.full((BIG,), float(n))

    @rcg.method(tensor_transport="object_store")
    def copy(self, n):
        return torch.full((BIG,), float(n))

    @rcg.method(tensor_transport="object_store")
    def end_first(self, n, mark):
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((BIG,), float(n))

    def total(self, tensor):
        return float(tensor.sum())

    def pid(self):
        return os.getpid()


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    made = [Worker.remote() for _ in range(2)]
    get([each.pid.remote() for each in made])
    yield made
    destroy_all_collective_groups()
    for each in made:
        rcg.kill(each)


def run_again(actor: Any) -> None:
    """Kill an actor, and wait until it runs again."""
    before = get(actor.pid.remote())
    rcg.kill(actor, no_restart=False)
    while True:
        try:
            if get(actor.pid.remote()) != before:
                return
        except ray.exceptions.ActorUnavailableError:
            continue


@pytest.mark.full
def test_a_value_that_is_made_again_is_got_from_the_process_that_runs_now(pair, tmp_path):
    a, b = pair
    assert get(b.total.remote(a.copy.remote(1))) == BIG  # b is connected to a
    again = a.end_first.options(max_task_retries=-1)
    assert get(b.total.remote(again.remote(2, str(tmp_path / "mark")))) == 2.0 * BIG


@pytest.mark.full
def test_a_group_whose_member_runs_again_is_replaced_by_a_new_one(pair):
    a, b = pair
    create_collective_group(pair, backend="torch_gloo")
    assert get(b.total.remote(a.make.remote(1))) == BIG
    run_again(a)
    create_collective_group(pair, backend="torch_gloo")
    for maker, taker in ((b, a), (a, b), (b, a)):
        assert get(taker.total.remote(maker.make.remote(2))) == 2.0 * BIG


@pytest.mark.full
def test_a_group_is_made_of_actors_that_are_starting_again(pair):
    a, b = pair
    first = get(a.pid.remote())
    os.kill(first, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{first}").exists())
    create_collective_group(pair, backend="torch_gloo")
    assert get(b.total.remote(a.make.remote(3))) == 3.0 * BIG


MAKES_A_GROUP_AND_GOES = """
import rcg
from rcg.experimental.collective import create_collective_group

members = [rcg.get_actor(name, "rdt") for name in sys.argv[1:3]]
create_collective_group(members, "gloo", "of-another")
say("made")
"""


@pytest.mark.full
def test_a_group_of_a_driver_that_has_gone_can_be_found_and_closed(driver):
    names = ["left-a", "left-b"]
    made = [Worker.options(name=name, namespace="rdt").remote() for name in names]
    a, b = made
    assert driver(MAKES_A_GROUP_AND_GOES, *names).line() == "made"
    assert get(b.total.remote(a.make.remote(1))) == BIG
    assert get_collective_groups([a]) == []
    (theirs,) = get_collective_groups([b, a], "torch_gloo")
    assert (theirs.name, theirs.backend, theirs.actors) == ("of-another", "gloo", (a, b))

    create_collective_group(made, "gloo", "ours")
    with pytest.raises(ValueError, match="2 possible communicators"):
        get(b.total.remote(a.make.remote(1)))
    destroy_collective_group(theirs)
    assert get(b.total.remote(a.make.remote(2))) == 2.0 * BIG
    with pytest.raises(ValueError, match="No group with name of-another found"):
        destroy_collective_group(theirs)
    destroy_collective_group("ours")
    for each in made:
        rcg.kill(each)
