# SPDX-License-Identifier: Apache-2.0
"""Collectives that methods call by themselves, over groups of real actors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

import rcg
from rcg.errors import CommError, GroupAborted
from rcg.experimental.collective import (
    allreduce,
    create_collective_group,
    destroy_collective_group,
)
from tests.cluster.stage import GUARD_S, eventually
from tests.harness.circles import core_where

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

SIZE = 3


@rcg.remote
class Member:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def pid(self) -> int:
        return os.getpid()

    def numbers(self, *shape: int) -> Any:
        return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) + 10 * self.rank

    def total(self, group: str, gate: Any = None) -> float:
        if gate is not None:
            gate.announce()
        tensor = self.numbers(1)
        allreduce(tensor, group)
        return float(tensor)

    def threads(self) -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "rcg-group-watch"]


@pytest.fixture(scope="module")
def members(ray_session: None) -> list[Any]:
    return [Member.remote(rank) for rank in range(SIZE)]


@pytest.fixture
def group(members: list[Any]) -> Iterator[str]:
    made = create_collective_group(members, backend="gloo")
    yield made.name
    destroy_collective_group(made)


def get(refs: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S)


def test_actors_may_be_in_several_groups(members, group):
    pair = create_collective_group(members[1:], backend="gloo", name="default")
    wanted = [each.total.remote(group) for each in members]
    wanted += [each.total.remote("default") for each in members[1:]]
    assert get(wanted) == [33, 33, 33, 32, 32]
    with pytest.raises(CommError, match="group default: this process is not a member"):
        get(members[0].total.remote("default"))
    destroy_collective_group(pair)
    with pytest.raises(CommError, match="group default was closed: it was destroyed"):
        get(members[1].total.remote("default"))


def test_who_is_no_actor_of_rcgs_is_told(ray_session):
    text = "this process is not an actor of rcg's, so it is not in|this process is not a member"
    with pytest.raises(CommError, match=text):
        allreduce(torch.zeros(1), group_name="nowhere")


def test_a_group_that_is_destroyed_leaves_nothing(members):
    for _ in range(3):
        group = create_collective_group(members, backend="gloo")
        assert get([each.total.remote(group.name) for each in members]) == [33, 33, 33]
        destroy_collective_group(group)
    eventually(lambda: get([each.threads.remote() for each in members]) == [[], [], []])


@pytest.mark.parametrize(
    ("when", "dead"),
    core_where(lambda case: case == ("later", 2), product(("before the first", "later"), (0, 2))),
)
def test_a_death_ends_what_waits_for_the_dead(gate, when, dead):
    actors = [Member.remote(rank) for rank in range(SIZE)]
    group = create_collective_group(actors, backend="gloo").name
    if when == "later":
        assert get([each.total.remote(group) for each in actors]) == [33, 33, 33]
    pid = get(actors[dead].pid.remote())
    others = [each for at, each in enumerate(actors) if at != dead]
    waiting = [each.total.remote(group, gate) for each in others]
    gate.wait_for(2)
    os.kill(pid, signal.SIGKILL)
    for each in waiting:
        with pytest.raises(GroupAborted, match="has died") as raised:
            get(each)
        assert actors[dead]._ray_handle._actor_id.hex() in str(raised.value)
    again = create_collective_group(others, backend="gloo").name
    assert (
        get([each.total.remote(again) for each in others])
        == [sum(1 + 10 * rank for rank in range(SIZE) if rank != dead)] * 2
    )
    for each in others:
        rcg.kill(each)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_group_that_is_destroyed_ends_what_waits(members, gate, is_first):
    group = create_collective_group(members, backend="gloo")
    if not is_first:
        assert get([each.total.remote(group.name) for each in members]) == [33, 33, 33]
    waiting = [each.total.remote(group.name, gate) for each in members[1:]]
    gate.wait_for(2)
    destroy_collective_group(group)
    for each in waiting:
        with pytest.raises(CommError, match=r"it was destroyed|has died or left it"):
            get(each)
