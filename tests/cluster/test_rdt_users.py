# SPDX-License-Identifier: Apache-2.0
"""What users of Ray's direct transport ran into, as they wrote it: each test is named after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg as ray
from rcg.dag import InputNode
from rcg.experimental.collective import create_collective_group, destroy_all_collective_groups
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

LARGE = 300_000


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    """The actors of a test, which end with it."""
    found: list[Any] = []
    yield found
    destroy_all_collective_groups()
    for each in found:
        ray.kill(each)


def get(refs: Any, **options: Any) -> Any:
    return ray.get(refs, timeout=GUARD_S, **options)


@ray.remote(num_cpus=0)
class InOrder:
    """Makes, adds up, and is asked for something that depends on both."""

    @ray.method(tensor_transport="gloo")
    def create(self, number=1.0):
        return torch.full((LARGE,), number)

    @ray.method(tensor_transport="gloo")
    def create2(self, tensor):
        return tensor * 2

    def sum(self, tensor):
        return float(tensor.sum())

    def final_task(self, number):
        return number + 1


@ray.remote(num_cpus=0, max_concurrency=4)
class OutOfOrder:
    """As ``InOrder``, but whichever call can run first does."""

    @ray.method(tensor_transport="gloo")
    async def create(self, number=1.0):
        return torch.full((LARGE,), number)

    @ray.method(tensor_transport="gloo")
    async def create2(self, tensor):
        return tensor * 2

    async def sum(self, tensor):
        return float(tensor.sum())


def test_ray_60954_a_call_that_waits_for_a_transfer_from_its_own_actor(kept):
    kept += [InOrder.remote(), InOrder.remote()]
    a, b = kept
    create_collective_group(kept, backend="gloo")
    results = []
    for number in range(20):
        rdt_ref = a.create.remote(float(number))
        sum_ref = b.sum.remote(rdt_ref)
        # It blocks all later calls of its actor until the sum is there.
        results.append(a.final_task.remote(sum_ref))
    assert get(results) == [number * LARGE + 1 for number in range(20)]


@pytest.mark.full
def test_ray_56398_a_chain_through_actors_that_run_calls_out_of_order(kept):
    kept += [OutOfOrder.remote() for _ in range(3)]
    a, b, c = kept
    create_collective_group(kept, backend="gloo")
    for _ in range(5):
        a_ref = a.create.remote()
        b_ref = b.create2.remote(a_ref)
        a_ref2 = a.create2.remote(b_ref)  # depends on a transfer from its own actor
        c_ref = c.create2.remote(a_ref2)
        assert get([each.sum.remote(c_ref) for each in (a, b)]) == [8.0 * LARGE] * 2


@ray.remote(num_cpus=0)
class OnlyTakes:
    """No method of it has a transport."""

    def sum(self, tensor):
        return float(tensor.sum())


@pytest.mark.full
def test_ray_66264_a_taker_none_of_whose_methods_has_the_decorator(kept):
    maker = InOrder.options(name="maker-66264", lifetime="detached", namespace="rdt").remote()
    taker = OnlyTakes.options(name="taker-66264", lifetime="detached", namespace="rdt").remote()
    kept += [maker, taker]
    create_collective_group([maker, taker], backend="torch_gloo")
    named = [ray.get_actor(f"{each}-66264", namespace="rdt") for each in ("maker", "taker")]
    assert get(named[1].sum.remote(named[0].create.remote())) == LARGE


@pytest.mark.full
def test_ray_61453_references_are_fetched_together(kept):
    kept += [InOrder.remote(), InOrder.remote()]
    a, b = kept
    create_collective_group(kept, backend="gloo")
    refs = [each.create.remote(float(number)) for number in range(20) for each in (a, b)]
    ray.wait(refs, num_returns=len(refs), timeout=GUARD_S)
    with ray.profile() as profile:
        found = get(refs, _tensor_transport="object_store")
    assert [float(each[0]) for each in found] == [float(n // 2) for n in range(40)]
    # Those of one process come one after the other, those of two at the same time.
    one, other = ([t for t in profile.trace.transfers if t.source == repr(x)] for x in (a, b))
    assert (len(one), len(other)) == (20, 20)
    assert one[0].start_ns < other[-1].end_ns and other[0].start_ns < one[-1].end_ns


@pytest.mark.full
def test_docs_a_task_may_take_tensors_but_not_make_them(kept):
    kept += [InOrder.remote()]
    create_collective_group(kept, backend="gloo")

    @ray.remote(num_cpus=0)
    def total(tensor):
        return float(tensor.sum())

    assert get(total.remote(kept[0].create.remote(3.0))) == 3.0 * LARGE
    for options in ({"tensor_transport": "gloo"}, {"enable_tensor_transport": True}):
        with pytest.raises(ValueError, match="its process may end at any time"):
            total.options(**options)
        with pytest.raises(ValueError, match="its process may end at any time"):
            ray.remote(**options)(lambda: torch.zeros(3))

    @ray.remote(num_cpus=0)
    def put():
        return [ray.put(torch.zeros(3), _tensor_transport="object_store")]

    with pytest.raises(ValueError, match="its process may end at any time"):
        get(put.remote())


@ray.remote(num_cpus=0)
class Learner:
    """Makes weights, and takes others into its own."""

    def __init__(self, is_empty=False):
        self._weights = None if is_empty else torch.zeros(LARGE)
        self._parts = [torch.zeros(10), torch.zeros(LARGE)]
        self._views = None if is_empty else self._weights[:]

    @ray.method(tensor_transport="gloo")
    def make(self, number, size=LARGE):
        return torch.full((size,), number)

    @ray.method(tensor_transport="gloo")
    def make_parts(self):
        return {"small": torch.ones(10), "large": torch.full((LARGE,), 2.0)}

    @ray.method(receive_into={"weights": "_weights"})
    def load(self, step, weights, scale=1.0):
        is_mine = weights is self._weights
        return is_mine, step, scale, float(weights[-1]), (self._weights is None) or is_mine

    @ray.method(receive_into={"weights": "_weights", "others": "_views", "none": "_missing"})
    def load_views(self, weights, others=None, none=None):
        return self._weights._version, float(self._weights[0])

    @ray.method(receive_into={"parts": "_parts"})
    async def load_parts(self, *, parts):
        same = [parts[name].data_ptr() for name in parts]
        return same == [each.data_ptr() for each in self._parts], float(self._parts[1][-1])


@pytest.mark.full
def test_ray_61094_and_64815_arguments_are_received_into_memory_of_the_users(kept):
    kept += [Learner.remote() for _ in range(2)]
    a, b = kept
    create_collective_group(kept, backend="gloo")
    assert get(b.load.remote(1, a.make.remote(3.0))) == (True, 1, 1.0, 3.0, True)
    assert get(b.load.remote(2, weights=a.make.remote(4.0), scale=0.5)) == (
        *(True, 2, 0.5, 4.0),
        True,
    )
    assert get(b.load.remote(3, torch.ones(5))) == (False, 3, 1.0, 1.0, False)
    assert get(b.load_parts.remote(parts=a.make_parts.remote())) == (True, 2.0)
    with pytest.raises(ValueError, match=r"the argument weights, received into _weights .*\[7\]"):
        get(b.load.remote(4, a.make.remote(5.0, 7)))
    assert get(b.load.remote(5, a.make.remote(6.0)))[3] == 6.0
    before, _ = get(b.load_views.remote(a.make.remote(7.0)))
    assert get(b.load_views.remote(a.make.remote(8.0))) == (before + 1, 8.0)  # so does `copy_`
    with pytest.raises(ValueError, match="_views and _weights share memory"):
        get(b.load_views.remote(a.make.remote(9.0), a.make.remote(10.0)))
    with pytest.raises(AttributeError, match="attribute '_missing', which Learner does not have"):
        get(b.load_views.remote(a.make.remote(9.0), none=a.make.remote(10.0)))
    assert get(b.load_views.remote(a.make.remote(11.0)))[1] == 11.0


@pytest.mark.full
def test_an_attribute_that_is_none_has_arguments_received_into_fresh_memory(kept):
    kept += [Learner.remote(), Learner.remote(is_empty=True)]
    a, b = kept
    create_collective_group(kept, backend="gloo")
    assert get(b.load.remote(1, a.make.remote(3.0))) == (False, 1, 1.0, 3.0, True)


@pytest.mark.parametrize(
    ("targets", "error"),
    [
        ({"weihgts": "_weights"}, ValueError),
        ({"self": "_weights"}, ValueError),
        ({"weights": 3}, TypeError),
        ({"weights": "_weights", "others": "_weights"}, ValueError),
        ({"rest": "_weights"}, ValueError),
        ({"named": "_weights"}, ValueError),
        (["weights"], TypeError),
    ],
)
def test_wrong_targets_of_arguments_are_said_where_the_class_is_written(targets, error):
    with pytest.raises(error, match="receive_into"):

        class Wrong:
            @ray.method(receive_into=targets)
            def load(self, weights, others, *rest, **named):
                return weights


@ray.remote(num_cpus=0)
class Sharded:
    """One rank of a model: it has a process group and a mesh of its own."""

    def __init__(self):
        from torch.distributed.device_mesh import init_device_mesh

        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))

    def values(self, number):
        from tensordict import TensorDict
        from torch.distributed.tensor import DTensor, Shard

        local = torch.full((LARGE,), float(number))
        weight = DTensor.from_local(local, self.mesh, [Shard(0)])
        return weight, TensorDict({"of": {"layer": local.view(-1, 2)}}, [LARGE // 2])

    @ray.method(tensor_transport="gloo")
    def held(self, number):
        return self.values(number)

    def seen(self, values):
        weight, layers = values
        return (
            type(weight).__name__,
            weight.device_mesh == self.mesh,
            float(weight.full_tensor().sum()),
            type(layers).__name__,
            tuple(layers.batch_size),
            float(layers["of", "layer"].sum()),
        )


@pytest.mark.full
def test_distributed_tensors_and_dictionaries_of_tensors(kept):
    kept += [Sharded.remote(), Sharded.remote()]
    a, b = kept
    create_collective_group(kept, backend="gloo")
    total = 2.0 * LARGE
    expected = ("DTensor", True, total, "TensorDict", (LARGE // 2,), total)
    ref = a.held.remote(2)
    assert get(b.seen.remote(ref)) == expected
    for hint in ("gloo", "auto"):
        with InputNode() as inp:
            dag = b.seen.bind(a.values.bind(inp).with_tensor_transport(hint))
        with dag.experimental_compile() as graph:
            assert get(graph.execute(2)) == expected
