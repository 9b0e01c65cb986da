# SPDX-License-Identifier: Apache-2.0
"""Reports of processes that exchange tensors; every process is a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.channels import open_reader, open_writer
from rcg.channels.base import GraphEnded
from rcg.ir.plan import Plan
from rcg.runtime.actor.collectives import collective_step
from rcg.runtime.failure import Origin
from rcg.runtime.node.memory import Segments
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import Report, activities, backlogs
from rcg.trace.recorder import State
from rcg.views.html.report import report_of
from tests.harness.board import until
from tests.harness.places import place_of
from tests.unit.tensors_by_hand import PLAN

torch = pytest.importorskip("torch")

TENSOR_WRITE, EARLY_READ, LATE_READ, ALLREDUCE = 2, 0, 2, 2  # in a0, a1, a2 and a1


class _Groups:
    """Groups whose exchanges last until the test lets them go on."""

    def __init__(self, plan: Plan, gate: Callable[[], None]) -> None:
        self._plan = plan
        self._communicator = SimpleNamespace(broadcast=lambda *_: gate())

    def members(self, group: str) -> tuple[str, ...]:
        return next(each.members for each in self._plan.groups if each.id == group)

    labels = members

    def communicator(self, group: str) -> Any:
        return self._communicator

    def devices(self, group: str) -> frozenset[str]:
        return frozenset({"cpu"})


class Actors:
    """The memory of the plan, and the place of each actor in it."""

    def __init__(self) -> None:
        self.plan = Plan.from_text(PLAN)
        self.segments = Segments(self.plan, cap_bytes=1 << 26)
        self.threads = ThreadPoolExecutor(4)
        self.is_open = False
        groups = _Groups(self.plan, lambda: until(lambda: self.is_open))
        self.channels = self.plan.channels_by_id()
        self.nodes = {
            name: place_of(self.segments, name, groups=groups) for name in ("a0", "a1", "a2")
        }

    def write(self, value: Any) -> None:
        node = self.nodes["a0"]
        writer = open_writer(self.channels["c1"], TENSOR_WRITE, node)
        node.member.mark(TENSOR_WRITE, 0)
        self._start(lambda: writer.write(value))

    def read(self, name: str, op: int) -> None:
        node = self.nodes[name]
        reader = open_reader(self.channels["c1"], op, node)
        node.member.mark(op, 0)
        self._start(reader.read)

    def allreduce(self) -> None:
        op = self.plan.program("a1").ops[ALLREDUCE]
        loop = SimpleNamespace(execution=0, origin=Origin("a1 (Stage)", "", "Stage()", 1, ""))
        slots = [None, torch.ones(3), None]
        node = self.nodes["a1"]
        self._start(collective_step(ALLREDUCE, op, slots, loop, node, self.channels))

    def _start(self, work: Callable[[], Any]) -> None:
        def run() -> None:
            with suppress(GraphEnded):
                work()

        self.threads.submit(run)

    def until_state(self, name: str, state: State, op: int) -> Activity:
        """Wait until an actor is in a state; return what the report says about it."""
        node = self.nodes["a0"]
        until(lambda: node.now(name).state is state and node.now(name).op == op)
        return next(each for each in activities([node], self.plan) if each.process == name)

    def close(self) -> None:
        self.is_open = True
        self.nodes["a0"].end_closed()
        self.threads.shutdown()
        self.segments.close()


@pytest.fixture
def actors() -> Iterator[Actors]:
    made = Actors()
    yield made
    made.close()


def test_a_reader_of_tensors_waits_for_the_writer_over_a_group(actors: Actors) -> None:
    actors.read("a1", EARLY_READ)
    found = actors.until_state("a1", State.WAITING, EARLY_READ)
    assert found.waiting_text == "a0 (Stage) to receive tensors over gloo"


def test_a_writer_of_tensors_waits_for_those_that_have_not_taken_the_frame(actors: Actors) -> None:
    actors.read("a1", EARLY_READ)
    actors.until_state("a1", State.WAITING, EARLY_READ)
    actors.write(torch.ones(3))
    found = actors.until_state("a0", State.WAITING, TENSOR_WRITE)
    until(lambda: actors.nodes["a0"].unread("c1") == [0, 1])
    found = actors.until_state("a0", State.WAITING, TENSOR_WRITE)
    assert (found.waiting_for, found.exchange) == ("a2 (Stage)", "to send tensors over gloo")
    # The early reader has the frame, and is in the communicator.
    found = actors.until_state("a1", State.RUNNING, EARLY_READ)
    assert (found.waiting_for, found.exchange) == ("", "with a0 (Stage), a2 (Stage) over gloo")


def test_a_rank_waits_for_another_in_a_collective(actors: Actors) -> None:
    actors.allreduce()
    found = actors.until_state("a1", State.WAITING, ALLREDUCE)
    assert found.waiting_text == "a2 (Stage) for allreduce over gloo"
    report = Report("5f1c", "running", (found,), (), 0, 0)
    assert "a2 (Stage) for allreduce over gloo" in str(report)
    assert "a2 (Stage) for allreduce over gloo" in report_of(report)


def test_a_status_is_no_backlog_and_a_frame_of_tensors_is_one(actors: Actors) -> None:
    actors.allreduce()
    actors.until_state("a1", State.WAITING, ALLREDUCE)
    assert actors.nodes["a0"].unread("c2") == [1]
    actors.write(torch.ones(3))
    actors.until_state("a0", State.WAITING, TENSOR_WRITE)
    found = backlogs([actors.nodes["a0"]], actors.plan)
    assert [(each.channel, each.reader) for each in found] == [
        ("c1", "a1 (Stage)"),
        ("c1", "a2 (Stage)"),
    ]
