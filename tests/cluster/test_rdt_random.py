# SPDX-License-Identifier: Apache-2.0
"""Random calls with random references among four actors, against plain Python; and with kills."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

import rcg
from rcg.experimental.collective import create_collective_group, destroy_all_collective_groups
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings("ignore:RDT ObjectRef"),
]

COUNT = 4
SIZES = (0, 1, 7, 1_000, 100_000)
TRANSPORTS = ("gloo", "auto", "nixl", "object_store")


@rcg.remote(num_cpus=0)
class Worker:
    """Makes tensors full of one number, and others of them."""

    @rcg.method(tensor_transport="gloo")
    def make(self, number, size):
        return torch.full((size,), number, dtype=torch.int64)

    @rcg.method(tensor_transport="gloo")
    def joined(self, number, *tensors):
        return {"all": list(tensors), "own": torch.full((3,), number, dtype=torch.int64)}

    @rcg.method(tensor_transport="object_store")
    def added(self, number, *values):
        return torch.full((5,), number + sum(map(total_of, values)), dtype=torch.int64)

    @rcg.method(tensor_transport="gloo", num_returns=2)
    def two(self, number, value):
        return torch.tensor([number]), value

    def total(self, *values):
        return sum(map(total_of, values))

    def total_of_refs(self, refs):
        return sum(map(total_of, rcg.get(refs, _tensor_transport="object_store")))

    def held(self):
        from rcg.rdt.process import here

        return here().store.facts().held

    def pid(self):
        return os.getpid()


def total_of(value: Any) -> int:
    """Return the sum of a value; check that each tensor is still full of one number."""
    if isinstance(value, dict):
        return total_of(value["own"]) + sum(map(total_of, value["all"]))
    assert value.numel() < 2 or bool((value == value[0]).all())
    return int(value.sum())


@dataclass
class Known:
    """A reference and what its value adds up to."""

    ref: Any
    total: int
    is_whole: bool = True  # exactly one tensor


class Play:
    """Random calls, and what they must give."""

    def __init__(self, dice: random.Random) -> None:
        self.random = dice
        self.actors = [Worker.remote() for _ in range(COUNT)]
        create_collective_group(self.actors, backend="gloo")
        self.known: list[Known] = []
        self.expected: list[tuple[Any, int]] = []
        rcg.get([each.pid.remote() for each in self.actors])

    def step(self) -> None:
        rand = self.random
        actor = rand.choice(self.actors)
        number = rand.randrange(1000)
        some = rand.sample(self.known, min(len(self.known), rand.randrange(1, 4)))
        refs, total = [each.ref for each in some], sum(each.total for each in some)
        match rand.randrange(8) if some else 0:
            case 0 | 1:
                size = rand.choice(SIZES)
                make = actor.make.options(tensor_transport=rand.choice(TRANSPORTS))
                self.known.append(Known(make.remote(number, size), number * size))
            case 2:
                made = actor.joined.remote(number, *[x.ref for x in some if x.is_whole])
                whole = sum(x.total for x in some if x.is_whole)
                self.known.append(Known(made, whole + 3 * number, is_whole=False))
            case 3:
                made = actor.added.remote(number, *refs)
                self.known.append(Known(made, 5 * (number + total)))
            case 4:
                one, other = actor.two.remote(number, refs[0])
                self.known.append(Known(one, number))
                self.known.append(Known(other, some[0].total, is_whole=some[0].is_whole))
            case 5:
                self.expected.append((actor.total.remote(*refs), total))
            case 6:
                self.expected.append((actor.total_of_refs.remote(refs), total))
            case 7:
                self.known.remove(rand.choice(self.known))
        if len(self.known) > 25:
            del self.known[: rand.randrange(10)]

    def replace(self, place: int) -> None:
        """Kill an actor in the middle of whatever it does, and put another in its place."""
        os.kill(rcg.get(self.actors[place].pid.remote(), timeout=GUARD_S), signal.SIGKILL)
        self.actors[place] = Worker.remote()
        create_collective_group(self.actors, backend="gloo")

    def end(self) -> None:
        """Check that nothing is left, and end the actors."""
        self.known.clear()
        self.expected.clear()
        until = time.monotonic() + 30
        while any(rcg.get([each.held.remote() for each in self.actors], timeout=GUARD_S)):
            assert time.monotonic() < until, f"tensors are left that nobody needs\n{rcg.report()}"
            time.sleep(0.05)
        destroy_all_collective_groups()
        for each in self.actors:
            rcg.kill(each)


@pytest.mark.full
def test_random_calls_give_what_plain_python_gives(dice):
    play = Play(dice)
    for _ in range(250):
        play.step()
        if len(play.expected) > 20:
            ref, total = play.expected.pop(0)
            assert rcg.get(ref, timeout=GUARD_S) == total
    for ref, total in play.expected:
        assert rcg.get(ref, timeout=GUARD_S) == total
    for each in play.known:
        assert total_of(rcg.get(each.ref, _tensor_transport="object_store")) == each.total
    del ref, each
    play.end()


@pytest.mark.full
def test_random_calls_with_random_kills_are_right_or_say_why(dice):
    play = Play(dice)
    failures: list[str] = []
    refused: list[str] = []

    def check(ref: Any, total: int) -> None:
        try:
            assert rcg.get(ref, timeout=GUARD_S) == total
        except (rcg.exceptions.GetTimeoutError, AssertionError):
            raise
        except Exception as error:  # noqa: BLE001 - one of an actor's death, checked below
            failures.append(str(error))

    for turn in range(240):
        if turn % 60 == 40:
            play.replace(play.random.randrange(COUNT))
        try:
            play.step()
        except ValueError as error:
            refused.append(str(error))
        if len(play.expected) > 15:
            check(*play.expected.pop(0))
    for ref, total in play.expected:
        check(ref, total)
    assert failures, "no kill was noticed: the test shows nothing"
    for text in failures:
        assert any(
            words in text
            for words in (
                "died",
                "has ended",
                "is dead",
                "not there any more",
                "was closed",
            )
        ), text
    assert all("communicator" in each for each in refused)  # a maker is in no group any more
    # What was usable is usable.
    fresh = [each.make.remote(7, 100_000) for each in play.actors]
    totals = [each.total.remote(*fresh) for each in play.actors]
    assert rcg.get(totals, timeout=GUARD_S) == [4 * 700_000] * COUNT
    del ref, fresh, totals
    play.end()
    assert threading.active_count() < 60
