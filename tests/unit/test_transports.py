# SPDX-License-Identifier: Apache-2.0
"""What ``auto`` is, which groups GPUs allow, and what is refused before anything starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.collective import allreduce
from rcg.compiler import compile_graph
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.default_communicator import CREATE
from rcg.dag.lower import lower
from rcg.errors import CompileError, PlacementError
from rcg.ir.channels import TENSOR
from rcg.ir.nodes import Site
from rcg.ir.plan import Plan
from rcg.runtime.driver.group_checks import Owned, check_gpus, check_queues
from tests.unit.fake_actors import FakeActor

COUNT = 5
ACTORS = [FakeActor(f"Worker{number}", number) for number in range(COUNT)]
NONE: dict[str, Sequence[str]] = {}


def plan_of(root: Any, gpus: dict[str, Sequence[str]] = NONE, **options: Any) -> Plan:
    graph = lower(root._record, CREATE)[0]
    here = {actor.id: "here" for actor in graph.actors}
    return compile_graph(graph, here, "here", 4, gpus=gpus, **options).plan


def edge(transport: str = "auto", readers: int = 1, *, to_driver: bool = False) -> Any:
    """A value of the first actor that the next ones read."""
    with InputNode() as inp:
        value = ACTORS[0].bind("make", inp).with_tensor_transport(transport)
        read = [ACTORS[1 + number].bind("read", value) for number in range(readers)]
        return MultiOutputNode([*read, value] if to_driver else read)


def backends(plan: Plan) -> list[str]:
    return [group.backend for group in plan.groups]


ONE = {f"a{number}": ("node/0",) for number in range(COUNT)}
EACH = {f"a{number}": (f"node/{number}",) for number in range(COUNT)}


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (NONE, []),
        (ONE, ["cuda_ipc"]),
        (EACH, ["nccl"]),
        ({**EACH, "a1": ()}, []),
        ({**EACH, "a0": ("node/0", "node/1")}, []),
    ],
    ids=["none", "one", "each", "a reader without", "a writer with two"],
)
def test_a_value_goes_from_gpu_to_gpu_if_all_its_ends_have_one(gpus, found, readers):
    plan = plan_of(edge(readers=readers), gpus)
    assert backends(plan) == found
    assert sum(each.kind == TENSOR for each in plan.channels) == len(found)


def test_readers_of_which_only_some_share_the_writers_gpu_use_shared_memory():
    assert backends(plan_of(edge(readers=2), {**EACH, "a1": ("node/0",)})) == []


@pytest.mark.parametrize("gpus", [ONE, EACH], ids=["one", "each"])
def test_what_the_driver_reads_uses_shared_memory(gpus):
    assert backends(plan_of(edge(to_driver=True), gpus)) == []
    with InputNode() as inp:
        root = ACTORS[0].bind("read", inp.with_tensor_transport("auto"))
    assert backends(plan_of(root, gpus)) == []


@pytest.mark.parametrize("transport", ["shm", "gloo", "nccl", "cuda_ipc"])
def test_what_was_chosen_stays(transport):
    chosen = [] if transport == "shm" else [transport]
    assert backends(plan_of(edge(transport), EACH)) == chosen


def test_a_value_without_a_hint_uses_shared_memory():
    with InputNode() as inp:
        root = ACTORS[1].bind("read", ACTORS[0].bind("make", inp))
    assert backends(plan_of(root, EACH)) == []


@pytest.mark.parametrize(
    ("gpus", "found"),
    [(NONE, "gloo"), (ONE, "cuda_ipc"), (EACH, "nccl"), ({**EACH, "a1": ("node/0",)}, "gloo")],
    ids=["none", "one", "each", "some"],
)
def test_collectives(gpus, found):
    with InputNode() as inp:
        made = [actor.bind("make", inp) for actor in ACTORS[:3]]
    assert backends(plan_of(MultiOutputNode(allreduce.bind(made)), gpus)) == [found]
    assert backends(plan_of(MultiOutputNode(allreduce.bind(made, transport="gloo")), gpus)) == [
        "gloo"
    ]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT))
def test_no_group_has_members_that_its_transport_cannot_join(seed, places):
    """Whatever the edges are: a GPU for each rank of NCCL, one for all of CUDA IPC."""
    rng = random.Random(seed)
    gpus = {f"a{number}": (f"node/{place}",) for number, place in enumerate(places)}
    with InputNode() as inp:
        values = [actor.bind("make", inp).with_tensor_transport("auto") for actor in ACTORS]
        read = [actor.bind("read", *rng.sample(values, rng.randint(1, 3))) for actor in ACTORS]
    plan = plan_of(MultiOutputNode(read), gpus, overlap=bool(seed % 2))
    for group in plan.groups:
        own = [gpus[plan.host_of(member)][0] for member in group.members]
        assert len(set(own)) == (len(own) if group.backend == "nccl" else 1)
        assert group.backend in ("nccl", "cuda_ipc")
    for channel in plan.channels:
        if channel.group is not None:
            assert "driver" not in (channel.writer, *channel.readers)


# --- refused before anything starts


class Opens:
    """As much of an opener as is looked at."""

    def __init__(self, *devices: str, is_queued: bool = False) -> None:
        self.devices = frozenset(devices)
        self.is_queued = is_queued


NAMES = {f"a{number}": f"Actor(Worker{number})" for number in range(COUNT)}
REASONS = {f"a{number}": ("Worker.make", Site("mine.py", 7)) for number in range(COUNT)}


def check(transport: str, owned: dict[str, Owned], *, readers: int = 1) -> None:
    plan = plan_of(edge(transport, readers=readers))
    everyone = {**dict.fromkeys(NAMES, Owned()), **owned}
    openers = {group.id: Opens("cuda") for group in plan.groups}
    check_gpus(plan, openers, everyone, NAMES, REASONS)


@pytest.mark.parametrize(
    ("transport", "share"), [("nccl", "num_gpus=1"), ("cuda_ipc", "num_gpus=0.5")]
)
def test_an_actor_without_a_gpu(transport, share):
    with pytest.raises(
        PlacementError, match=r"Worker1\) takes part in Worker.make.*no GPU"
    ) as told:
        check(transport, {"a0": Owned(("node/0",))})
    for word in (transport, share, "auto", "mine.py:7", "Worker.make"):
        assert word in str(told.value)


def test_an_actor_without_cupy():
    with pytest.raises(PlacementError, match=r"process has no CuPy: `pip install rcg\[gpu\]`"):
        check("nccl", {"a0": Owned(("node/0",)), "a1": Owned(("node/1",), lacks_cupy=True)})


def test_a_process_that_may_see_a_gpu_is_not_refused():
    check("nccl", dict.fromkeys(NAMES, Owned(may_have_others=True)))


def test_two_ranks_of_nccl_on_one_gpu():
    shared = {"a0": Owned(("node/0",)), "a1": Owned(("node/0",))}
    with pytest.raises(PlacementError, match=r"are on one GPU \(node/0\).*cuda_ipc"):
        check("nccl", shared)
    check("cuda_ipc", shared)
    both = Owned(("node/0",), shares_gpus=True)
    check("nccl", {"a0": both, "a1": both})


def test_cuda_ipc_between_gpus():
    apart = {"a0": Owned(("node/0",)), "a1": Owned(("node/1",))}
    with pytest.raises(PlacementError, match=r"on different GPUs \(node/0, node/1\).*nccl"):
        check("cuda_ipc", apart)
    check("nccl", apart)


def test_which_of_several_gpus_is_used_nobody_knows():
    check("nccl", {"a0": Owned(("node/0", "node/1")), "a1": Owned(("node/0",))})


@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("shared", [0, 1, 2, 3])
def test_graphs_that_queue_on_the_same_devices(shared, is_queued):
    plan = plan_of(edge("nccl", readers=2))
    openers = {group.id: Opens("cuda", is_queued=is_queued) for group in plan.groups}
    owned = {
        name: Owned(queued=("feed", "other")[: 1 + number] if number < shared else ())
        for number, name in enumerate(NAMES)
    }
    check_queues(plan, openers, owned, NAMES, is_concurrent=True)
    if not is_queued or shared < 2:
        check_queues(plan, openers, owned, NAMES, is_concurrent=False)
        return
    with pytest.raises(CompileError, match=r"CompiledDAG\(feed\).*concurrent=True") as told:
        check_queues(plan, openers, owned, NAMES, is_concurrent=False)
    assert "Actor(Worker0) and Actor(Worker1)" in str(told.value)
