# SPDX-License-Identifier: Apache-2.0
"""What users of Ray's compiled graphs suffered with tensors: what a CPU can show of it.

The number in a test's name is the issue, as in ``test_users``. GPUs stand behind most of them; here
tensors travel over Gloo, by the same code.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.comm.gloo import GlooCommunicator
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, GraphError, TensorMismatch
from tests.cluster.faults import Fate, Living, Victims, slay, until_driver_waits
from tests.cluster.stage import in_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")


class Model(Living):
    """An actor as the users had it."""

    def batch(self, i):
        rows = 100 + i  # another shape each time
        return {
            "ids": torch.full((rows, 1024), i),
            "mask": torch.full((300_000,), i % 256, dtype=torch.uint8),
            "layers": [torch.full((500_000,), i + 0.5), torch.tensor(i)],
            "empty": torch.zeros(0, 3),
            "step": i,
        }

    def forward(self, batch):
        """Another batch of the same form."""
        if isinstance(batch, dict):
            return {name: self.forward(part) for name, part in batch.items()}
        if isinstance(batch, list):
            return [self.forward(part) for part in batch]
        return batch + 1

    def eight(self, *tensors):
        return torch.stack([each.sum() for each in tensors])

    def same(self, value):
        return value

    def shaped(self, shape):
        return torch.ones(shape)


Actor = rcg.remote(num_cpus=0)(Model)


@pytest.fixture(scope="module")
def actors(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote() for _ in range(4)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture(scope="module")
def victims(ray_session: None) -> Victims:
    return Victims(has_torch=True)


def over_gloo(node: Any, **hints: Any) -> Any:
    return node.with_tensor_transport(transport="gloo", **hints)


@pytest.mark.full
def test_ray_61309_57587_several_large_tensors_in_dicts_over_a_communicator(actors):
    """An assertion failed, or everything stood still, with more than one tensor in a value."""
    a, b, c, _ = actors
    with InputNode() as inp:
        batch = over_gloo(b.forward.bind(over_gloo(a.batch.bind(inp))))
        dag = c.forward.bind(batch)
    with dag.experimental_compile() as graph:
        assert [each.kind for each in graph.plan.channels].count("tensor") == 2
        refs = [graph.execute(i) for i in range(15)]
        for i, ref in enumerate(refs):
            found = rcg.get(ref)
            expected = Model().forward(Model().forward(Model().batch(i)))
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.full
def test_ray_45307_49461_a_death_in_a_collective_ends_every_wait_and_no_survivor(
    actors, victims, gate
):
    """The survivors of a failed NCCL operation waited for ever, and so did the driver."""
    a, b, _, _ = actors
    victim = victims.take()
    pid = rcg.get(victim.expect.remote(Fate("transfer", "kill -9", gate, 0)))

    def bind(third: Any) -> Any:
        with InputNode() as inp:
            members = (a, third, b)
            found = collective.allreduce.bind([each.full.bind(inp) for each in members])
            return MultiOutputNode(
                [each.sum.bind(value) for each, value in zip(members, found, strict=True)]
            )

    graph = bind(victim).experimental_compile()
    refs = graph.execute(1000)
    waiting = [in_thread(lambda ref=ref: rcg.get(ref)) for ref in refs]
    gate.wait_for()
    until_driver_waits(graph)
    slay("kill -9", victim, pid, gate)
    for each in waiting:
        with pytest.raises(ActorDiedError, match=r"\(Mortal\)"):
            each()
    graph.teardown()
    with bind(victims.take()).experimental_compile() as again:
        assert rcg.get(again.execute(10)) == [30.0] * 3


def test_ray_47943_an_actor_sends_while_others_compute(actors, gate):
    """Transfers and methods took turns; those of later executions overlap with earlier methods."""
    a, b, c, _ = actors
    with InputNode() as inp:
        value = over_gloo(a.full.bind(inp))
        dag = c.pass_gate_when.bind(b.sum.bind(value), 1.0, gate)
    with dag.experimental_compile() as graph:
        refs = [graph.execute(n) for n in range(1, 6)]
        gate.wait_for()
        # The transfers of all executions are over while the first one is in its last method.
        ready: list[Any] = []
        while len(ready) < 2:
            ready = [each for each in graph.report().processes if each.execution >= 4]
        gate.open()
        assert rcg.get(refs) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_ray_45594_48953_49062_sends_and_receives_do_not_deadlock(actors):
    """Each was sending first, or each receiving, and so on for ever."""
    a, b, c, _ = actors
    with InputNode() as inp:
        left, right = a.full.bind(inp), b.full.bind(inp)
        for _ in range(3):
            over_gloo(left), over_gloo(right)
            left, right = a.eight.bind(left, right), b.eight.bind(right, left)
        reduced = collective.allreduce.bind(
            [left, right, c.eight.bind(over_gloo(c.full.bind(inp)), c.full.bind(inp))]
        )
        dag = MultiOutputNode([a.sum.bind(reduced[0]), c.sum.bind(reduced[2])])
    with dag.experimental_compile() as graph:
        refs = [graph.execute(n) for n in (1, 1000, 500_000, 3)]
        for n, ref in zip((1, 1000, 500_000, 3), refs, strict=True):
            assert rcg.get(ref) == [18.0 * n] * 2


class Other(GlooCommunicator):
    """A user's communicator: for another device it would move other tensors."""


def test_ray_51032_53128_vllm_21338_any_communicator_and_its_devices(actors):
    """Only NVIDIA's was there, and its name was written into the source."""
    rcg.register_communicator("other", ["cpu"], Other)
    a, b, _, _ = actors
    with InputNode() as inp:
        dag = b.sum.bind(a.full.bind(inp).with_tensor_transport(transport="other"))
    with dag.experimental_compile() as graph:
        assert [each.backend for each in graph.plan.groups] == ["other"]
        assert rcg.get(graph.execute(5)) == 5.0
    with pytest.raises(GraphError) as raised:
        a.full.bind(inp).with_tensor_transport(transport="nowhere")
    assert "other" in str(raised.value) and "gloo" in str(raised.value)


def test_ray_50423_48143_the_driver_at_the_end_of_a_hinted_edge(actors):
    """The program of the documentation failed: "Driver cannot participate in the NCCL group"."""
    a, b, _, _ = actors
    with InputNode() as inp:
        value = over_gloo(a.shaped.bind(inp))
        dag = MultiOutputNode([value, b.sum.bind(value)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = dag.experimental_compile()
    with graph:
        (text,) = [str(each.message) for each in caught]
        assert re.search(r"Model\.shaped.*shared memory.*test_users_tensors\.py:\d+", text)
        tensor, total = rcg.get(graph.execute((2, 3)))
        assert (tuple(tensor.shape), total) == ((2, 3), 6.0)


def test_ray_47983_53625_all_collectives_and_several_groups_in_one_graph(actors):
    """There was allreduce alone, and one group for a graph."""
    a, b, c, d = actors
    with InputNode() as inp:
        values = [each.full.bind(inp) for each in actors]
        first = collective.broadcast.bind(values, root=3)
        second = collective.reduce.bind(first[:2], root=1)
        third = collective.gather.bind(first[2:], root=0)
        fourth = collective.allgather.bind([second[1], first[3]])
        fifth = collective.reducescatter.bind([fourth[0], fourth[1]])
        dag = MultiOutputNode(
            [b.sum.bind(fifth[0]), c.sum.bind(third[0]), d.sum.bind(fifth[1]), a.sum.bind(first[0])]
        )
    with dag.experimental_compile() as graph:
        assert len(graph.plan.groups) == 4
        # [2, 2, 1, 1] of n each at two actors: their sum is 12 n, in halves.
        for n in (2, 6):
            assert rcg.get(graph.execute(n)) == [4.0 * n, 2.0 * n, 2.0 * n, 1.0 * n]


def test_ray_45319_45332_47564_changing_shapes_and_eight_arguments_over_a_communicator(actors):
    """A shape had to be known beforehand, or every message was preceded by a slow one."""
    a, b, _, _ = actors
    with InputNode() as inp:
        values = [over_gloo(a.shaped.bind(inp[i])) for i in range(8)]
        dag = b.eight.bind(*values)
    with dag.experimental_compile() as graph:
        shapes = [[(i + 1, j) for j in range(8)] for i in range(6)]
        refs = [graph.execute(*each) for each in shapes]
        for each, ref in zip(shapes, refs, strict=True):
            assert rcg.get(ref).tolist() == [float(rows * columns) for rows, columns in each]


def test_ray_45319_a_static_shape_that_changes_fails_one_execution(actors):
    """Ray's graph ended there."""
    a, b, _, _ = actors
    with InputNode() as inp:
        dag = b.sum.bind(over_gloo(a.shaped.bind(inp), _static_shape=True))
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute((2, 3))) == 6.0
        with pytest.raises(TensorMismatch, match=r"Expected torch\.Tensors"):
            rcg.get(graph.execute((3, 2)))
        assert rcg.get(graph.execute((2, 3))) == 6.0
