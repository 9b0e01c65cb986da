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
from rcg.collective import ReduceOp
from rcg.errors import CommError, GroupAborted, TensorMismatch
from rcg.experimental.collective import (
    allgather,
    allreduce,
    broadcast,
    create_collective_group,
    destroy_collective_group,
    reduce,
    reducescatter,
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

    def every(self, group: str) -> dict[str, Any]:
        """What each collective gives this rank, beside what it may not touch."""
        found: dict[str, Any] = {}
        tensor = self.numbers(2, 2)
        allreduce(tensor, group_name=group)
        found["allreduce"] = tensor.tolist()
        tensor = self.numbers(2)
        allreduce(tensor, group, ReduceOp.MAX)
        found["max"] = tensor.tolist()
        tensor = self.numbers(2)
        broadcast(tensor, src_rank=1, group_name=group)
        found["broadcast"] = tensor.tolist()
        tensor = self.numbers(2)
        reduce(tensor, dst_rank=2, group_name=group, op=ReduceOp.SUM)
        found["reduce"] = tensor.tolist()
        every = [torch.zeros(2) for _ in range(SIZE)]
        allgather(every, self.numbers(2), group_name=group)
        found["allgather"] = [each.tolist() for each in every]
        part = torch.zeros(2)
        reducescatter(part, [self.numbers(2) + 100 * to for to in range(SIZE)], group)
        found["reducescatter"] = part.tolist()
        return found

    def total(self, group: str, gate: Any = None) -> float:
        if gate is not None:
            gate.announce()
        tensor = self.numbers(1)
        allreduce(tensor, group)
        return float(tensor)

    def sum_of(self, group: str, tensor: Any, op: Any = ReduceOp.SUM) -> Any:
        allreduce(tensor, group, op)
        return tensor

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


def test_each_collective_gives_what_it_should(members, group):
    found = get([each.every.remote(group) for each in members])
    for rank, each in enumerate(found):
        assert each == {
            "allreduce": [[33, 36], [39, 42]],
            "max": [21, 22],
            "broadcast": [11, 12],
            "reduce": [33, 36] if rank == 2 else [1 + 10 * rank, 2 + 10 * rank],
            "allgather": [[1, 2], [11, 12], [21, 22]],
            "reducescatter": [33 + 300 * rank, 36 + 300 * rank],
        }


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


def test_members_that_do_not_do_the_same_all_hear_of_it(members, group):
    whole, short = torch.ones(3), torch.ones(2)
    pairs: list[list[tuple[Any, ...]]] = [
        [(whole,), (short,), (whole,)],
        [(whole,), (whole,), (torch.ones(3, dtype=torch.int64),)],
        [(whole, ReduceOp.MAX), (whole,), (whole,)],
        [(whole,), ("a word",), (whole,)],
    ]
    for given in pairs:
        calls = [a.sum_of.remote(group, *each) for a, each in zip(members, given, strict=True)]
        for call, each in zip(calls, given, strict=True):
            with pytest.raises(TypeError if each == ("a word",) else TensorMismatch):
                get(call)
    with pytest.raises(TensorMismatch, match=r"rank 1: allreduce SUM of 2 elements of torch.float"):
        get([a.sum_of.remote(group, *each) for a, each in zip(members, pairs[0], strict=True)])
    assert get([each.total.remote(group) for each in members]) == [33, 33, 33]


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
