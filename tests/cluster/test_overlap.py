# SPDX-License-Identifier: Apache-2.0
"""Transfers that overlap with calls: lanes on real actors over real Gloo."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

import rcg
from rcg.compiler.lanes import LOCAL_SLOTS
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import TensorMismatch, UnpicklableError
from tests.cluster.faults import NOTHING, heard_without, settled
from tests.cluster.nodes import is_spread, on_node
from tests.cluster.stage import GUARD_S, Gate, in_thread, until
from tests.harness.peers import suspend

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

MIB = 1 << 20


class Worker:
    """Makes tensors, keeps some and looks at them."""

    def __init__(self) -> None:
        self.state = torch.zeros(1000)
        self.last: Any = None

    def full(self, n, value):
        return torch.full((n,), float(value))

    def step(self, by):
        """Change what this actor keeps, and return it: the very tensor, each time."""
        self.state += by
        return self.state

    def step_inside(self, by):
        self.state += by
        return {"state": self.state, "first": self.state[:1], "by": by}

    def first(self, value):
        tensor = value["state"] if isinstance(value, dict) else value
        if isinstance(value, dict):
            assert value["first"].data_ptr() == tensor.data_ptr()
        return tensor[0].item(), tensor[-1].item()

    def scale(self, tensor):
        tensor *= 2  # what was received is this actor's own
        return tensor

    def total(self, *tensors):
        return float(sum(each.sum() for each in tensors))

    def held_total(self, tensor, gate):
        """The sum; the first tensor of the value 1 stops at the gate."""
        if tensor[0] == 1:
            gate.pass_through()
        return float(tensor.sum())

    def make(self, spec):
        match spec:
            case "raise":
                raise LookupError("no tensor today")
            case "unpicklable":
                return [torch.ones(3), threading.Lock()]
            case "other shape":
                return torch.ones(2, 2)
        return torch.full((4,), float(spec))

    def where(self, *_):
        return os.getpid()

    def node(self):
        return rcg.cluster.node_id()

    def settled(self, is_hosting=False):
        return settled(is_hosting=is_hosting)


class Awaiting(Worker):
    async def total(self, *tensors):
        return float(sum(each.sum() for each in tensors))


Actor = rcg.remote(num_cpus=0)(Worker)


@pytest.fixture(scope="module")
def workers(ray_session):
    made = [Actor.remote() for _ in range(3)]
    rcg.get([each.where.remote() for each in made])
    yield made
    assert rcg.get([each.settled.remote() for each in made]) == [NOTHING] * 3
    for each in made:
        rcg.kill(each)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


def over_gloo(node: Any, **hints: Any) -> Any:
    return node.with_tensor_transport(transport="gloo", **hints)


def edge(one: Any, two: Any, make: str, use: str, *more: Any) -> Any:
    with InputNode() as inp:
        return getattr(two, use).bind(over_gloo(getattr(one, make).bind(inp)), *more)


def held(workers: list[Any], gate: Gate, n: int) -> Any:
    """Two edges into an actor whose method stops at the gate."""
    one, two, three = workers
    with InputNode() as inp:
        values = [over_gloo(each.full.bind(n, inp)) for each in (one, two)]
        return MultiOutputNode(
            [three.held_total.bind(values[0], gate), three.total.bind(values[1])]
        )


def progress(graph: Any) -> dict[str, int]:
    return {each.process: each.execution for each in graph.report().processes}


def doing(graph: Any, process: str) -> tuple[str, int]:
    """The kind of op that a process or a lane is in, and in which execution."""
    (found,) = [each for each in graph.report().processes if each.process == process]
    return found.op.split()[0], found.execution


# --- what runs when


@pytest.mark.full
def test_later_executions_are_received_while_a_method_runs(workers, gate):
    """As far as the plan says, and not further; what waits is counted."""
    size = 4 * MIB
    with held(workers, gate, size // 4).experimental_compile(overlap=True) as graph:
        assert [get(ref) for ref in graph.execute(2)] == [2.0 * size / 4] * 2
        refs = [graph.execute(n) for n in range(1, 7)]
        gate.wait_for()
        # Of the first edge one value is used and one lies ready, of the second one lies ready and
        # one is in the lane's hands.
        until(lambda: doing(graph, "a2.comm") == ("Write", 2))
        assert doing(graph, "a2") == ("Call", 1)
        ready = [each.channel for each in graph.report().backlogs if each.reader == "a2 (Worker)"]
        assert len(ready) == 2
        gate.open()
        assert [get(ref) for each in refs for ref in each] == [
            n * size / 4 for n in range(1, 7) for _ in range(2)
        ]
        (lane,) = [each for each in graph.report().processes if each.process == "a2.comm"]
        values = graph.plan.held_values["a2.comm"]
        assert values == 2 * LOCAL_SLOTS + 1
        assert lane.shared_bytes <= (values + 1) * size * 1.1  # one more is used by the method


def test_a_stage_in_the_middle_receives_while_it_cannot_send(workers, gate):
    one, two, three = workers
    with InputNode() as inp:
        value = over_gloo(one.full.bind(1000, inp))
        value = over_gloo(two.scale.bind(value))
        dag = three.held_total.bind(value, gate)
    with dag.experimental_compile(overlap=True) as graph:
        assert [lane.id for lane in graph.plan.lanes] == [
            "a0.comm",
            "a1.comm",
            "a1.recv",
            "a2.comm",
        ]
        refs = [graph.execute(n / 2) for n in range(1, 9)]
        gate.wait_for()
        until(lambda: progress(graph)["a1.recv"] > progress(graph)["a1.comm"] > 1)
        gate.open()
        assert [get(ref) for ref in refs] == [n * 1000.0 for n in range(1, 9)]


# --- the same values


@pytest.mark.full
@pytest.mark.parametrize("step", ["step", "step_inside"])
def test_what_is_sent_is_what_the_method_returned(workers, step):
    """The maker changes the tensor in its next call, while it is sent."""
    one, two = Actor.remote(), workers[1]
    with edge(one, two, step, "first").experimental_compile(overlap=True) as graph:
        refs = [graph.execute(1) for _ in range(30)]
        assert [get(ref) for ref in refs] == [(n, n) for n in range(1, 31)]
    rcg.kill(one)


def test_a_value_that_its_actor_uses_on_is_sent_as_it_was(workers):
    one, two, _ = workers
    with InputNode() as inp:
        value = over_gloo(one.full.bind(50_000, inp))
        dag = MultiOutputNode([two.total.bind(value), one.total.bind(one.scale.bind(value))])
    with dag.experimental_compile(overlap=True) as graph:
        refs = [graph.execute(n) for n in range(10)]
        assert [[get(ref) for ref in each] for each in refs] == [
            [50_000.0 * n, 100_000.0 * n] for n in range(10)
        ]


@pytest.mark.full
def test_a_tensor_that_nothing_else_holds_is_not_copied(workers):
    """A copy would lie in the shared memory of the actor."""
    n = MIB
    for make, copies in (("full", False), ("step", True)):
        one = Actor.remote()
        with InputNode() as inp:
            by = (n, inp) if make == "full" else (inp,)
            dag = workers[1].total.bind(over_gloo(getattr(one, make).bind(*by)))
        if make == "step":
            rcg.get(one.__ray_call__.remote(lambda self: setattr(self, "state", torch.zeros(MIB))))
        with dag.experimental_compile(overlap=True) as graph:
            for _ in range(3):
                get(graph.execute(1))
            (maker,) = [each for each in graph.report().processes if each.process == "a0"]
            assert (maker.shared_bytes > 0) == copies
        rcg.kill(one)


# --- failures


BAD = [
    ("raise", LookupError, {}),
    ("unpicklable", UnpicklableError, {}),
    ("unpicklable", TensorMismatch, {"_direct_return": True}),
    ("other shape", TensorMismatch, {"_static_shape": True}),
]


@pytest.mark.parametrize(("spec", "error", "hints"), BAD)
def test_an_error_belongs_to_its_execution(workers, spec, error, hints):
    one, two, three = workers
    with InputNode() as inp:
        value = over_gloo(one.make.bind(inp), **hints)
        dag = MultiOutputNode([two.total.bind(value), three.total.bind(value)])
    inputs = [1, 2, spec, 3, spec, spec, 4]
    with dag.experimental_compile(overlap=True) as graph:
        refs = [graph.execute(each) for each in inputs]
        for each, execution in zip(inputs, refs, strict=True):
            for ref in execution:
                if each == spec:
                    with pytest.raises(error):
                        get(ref)
                else:
                    assert get(ref) == 4.0 * each


@pytest.mark.full
def test_teardown_ends_a_lane_that_is_stuck_in_a_transfer(workers):
    """The sender is stopped in the middle; the receiver and its other graphs are usable."""
    one, two = Actor.remote(), workers[1]
    graph = edge(one, two, "make", "total").experimental_compile(
        overlap=True, teardown_timeout=None
    )
    pid = rcg.get(one.where.remote())
    assert get(graph.execute(1)) == 4.0
    hears = heard_without(one, [two])
    suspend(pid)
    ref = graph.execute(2)
    end = in_thread(graph.teardown)
    with pytest.raises(rcg.errors.ChannelClosed):
        get(ref)
    # A process that hosts its node does so until the loops of all nodes have ended.
    for each in hears:
        assert rcg.get(each.settled.remote(is_hosting=is_spread())) == NOTHING
    os.kill(pid, signal.SIGCONT)
    end()
    assert rcg.get([each.settled.remote() for each in (one, two)]) == [NOTHING] * 2
    with edge(one, two, "make", "total").experimental_compile(overlap=True) as again:
        assert get(again.execute(3)) == 12.0
    rcg.kill(one)


@pytest.mark.full
def test_a_death_says_what_the_actor_and_its_lanes_did_last(workers):
    one, two = Actor.remote(), workers[1]
    graph = edge(one, two, "make", "total").experimental_compile(overlap=True)
    pid = rcg.get(one.where.remote())
    assert get(graph.execute(1)) == 4.0
    os.kill(pid, signal.SIGKILL)
    ref = graph.execute(2)
    with pytest.raises(rcg.errors.ActorDiedError) as raised:
        get(ref)
    assert "The actor a0 (Worker) died unexpectedly" in str(raised.value)
    assert "a0.comm in: " in str(raised.value)
    graph.teardown()


# --- where methods run


@pytest.mark.full
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", ["async", "main", "concurrent"])
def test_methods_run_where_they_are_asked_to(workers, kind, overlap):
    one = rcg.remote(num_cpus=0)(Awaiting if kind == "async" else Worker).remote()
    options: dict[str, Any] = {"main": {"thread": "main"}, "concurrent": {"concurrent": True}}.get(
        kind, {}
    )
    two = Actor.remote()
    graph = edge(two, one, "make", "total").experimental_compile(overlap=overlap, **options)
    refs = [graph.execute(n) for n in range(20)]
    assert [get(ref) for ref in refs] == [4.0 * n for n in range(20)]
    graph.teardown()
    assert rcg.get([each.settled.remote() for each in (one, two)]) == [NOTHING] * 2
    for each in (one, two):
        rcg.kill(each)


def test_many_actors_say_that_their_lanes_count(workers):
    one, two = [on_node(Actor, 0).remote() for _ in range(2)] if is_spread() else workers[:2]
    with InputNode() as inp:
        dag = one.total.bind(over_gloo(two.make.bind(inp)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rcg.compiler.place.MAX_PROCESSES", 4)
        with pytest.raises(rcg.errors.PlacementError, match="the driver, 2 actors, 2 lanes"):
            dag.experimental_compile(overlap=True)
