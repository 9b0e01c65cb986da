# SPDX-License-Identifier: Apache-2.0
"""What ``auto`` is, which groups GPUs allow, and what is refused before anything starts."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.collective import allgather, allreduce
from rcg.compiler import compile_graph
from rcg.compiler.transports import with_transports
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.communicators import CREATE, DefaultCommunicator
from rcg.dag.compile import warn_of_lacking_cupy
from rcg.dag.lower import lower
from rcg.errors import CompileError, GraphError, PlacementError
from rcg.ir.channels import TENSOR
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Bindings, Plan
from rcg.runtime.driver.group_checks import Owned, check_gpus, check_queues
from rcg.runtime.driver.lifecycle import Located
from tests.unit.fake_actors import FakeActor

COUNT = 5
ACTORS = [FakeActor(f"Worker{number}", number) for number in range(COUNT)]
NONE: dict[str, Sequence[str]] = {}


def graph_of(root: Any, default: DefaultCommunicator = CREATE) -> Graph:
    return lower(root._record, default)[0]


def plan_of(root: Any, gpus: dict[str, Sequence[str]] = NONE, **options: Any) -> Plan:
    graph = graph_of(root)
    here = {actor.id: "here" for actor in graph.actors}
    return compile_graph(graph, here, "here", 4, gpus=gpus, **options).plan


def edge(
    transport: str = "auto", readers: int = 1, *, to_driver: bool = False, device: str = "default"
) -> Any:
    """A value of the first actor that the next ones read."""
    with InputNode() as inp:
        value = ACTORS[0].bind("make", inp).with_tensor_transport(transport, device=device)
        read = [ACTORS[1 + number].bind("read", value) for number in range(readers)]
        return MultiOutputNode([*read, value] if to_driver else read)


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_shared_memory_is_tcp_for_readers_on_other_nodes(transport: str):
    plan = compile_graph(
        graph_of(edge(transport, readers=2)), {"a0": "here", "a1": "here", "a2": "there"}, "here", 4
    ).plan
    assert str(plan.channels[1]) == "channel c1 a0 -> a1 a2 ring node=1 slots=4"
    assert plan.crossings()["c1"] == ("n1",)
    assert plan.groups == ()


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


@pytest.mark.parametrize("gpus", [ONE, EACH], ids=["one", "each"])
def test_what_arrives_elsewhere_than_on_a_gpu_uses_shared_memory(gpus):
    """As with "nccl", which a hint cannot have together with the device "cpu"."""
    assert backends(plan_of(edge(device="cpu"), gpus)) == []
    assert len(backends(plan_of(edge(device="cuda"), gpus))) == 1
    assert backends(plan_of(edge("gloo", device="cpu"), gpus)) == ["gloo"]


def test_a_device_of_another_maker_is_never_auto(monkeypatch):
    monkeypatch.setattr("rcg.dag.hints.device_types", lambda: ["cpu", "cuda", "npu"])
    assert backends(plan_of(edge(device="npu"), EACH)) == []


def test_without_a_default_communicator_auto_makes_none():
    graph = graph_of(edge(), DefaultCommunicator.of(None))
    DefaultCommunicator.of(None).check_auto(graph, with_transports(graph, NONE))
    CREATE.check_auto(graph, with_transports(graph, EACH))
    with pytest.raises(GraphError, match="requires specifying a default communicator") as caught:
        DefaultCommunicator.of(None).check_auto(graph, with_transports(graph, EACH))
    hint = graph.nodes[1].hint
    for word in (str(hint.site), "Worker0.make", "nccl", "'shm'"):
        assert word in str(caught.value)


@pytest.mark.parametrize("transport", ["nccl", "cuda_ipc"])
@pytest.mark.parametrize("gpus", [(), ("node/0", "node/1")], ids=["none", "two"])
def test_gpus_that_nobody_knows_keep_no_two_edges_apart(gpus, transport):
    with InputNode() as inp:
        first = ACTORS[0].bind("make", inp).with_tensor_transport(transport)
        second = ACTORS[1].bind("make", first).with_tensor_transport(transport)
        root = ACTORS[2].bind("read", second)
    (group,) = plan_of(root, dict.fromkeys(EACH, gpus)).groups
    assert group.members == ("a0", "a1", "a2")


@pytest.mark.parametrize("transport", ["auto", "nccl"])
def test_edges_whose_ends_cannot_be_in_one_group_have_several(transport):
    gpus = {"a0": ("node/0",), "a1": ("node/0",), "a2": ("node/1",), "a3": ("node/1",)}
    with InputNode() as inp:
        made = [ACTORS[at].bind("make", inp).with_tensor_transport(transport) for at in (0, 1)]
        root = MultiOutputNode([ACTORS[2].bind("read", made[0]), ACTORS[3].bind("read", made[1])])
    assert [group.members for group in plan_of(root, gpus).groups] == [("a0", "a2"), ("a1", "a3")]


@pytest.mark.parametrize("transport", ["shm", "gloo", "nccl", "cuda_ipc"])
def test_what_was_chosen_stays(transport):
    chosen = [] if transport == "shm" else [transport]
    assert backends(plan_of(edge(transport), EACH)) == chosen


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


class Opens:
    """As much of an opener as is looked at."""

    def __init__(self, *devices: str, is_queued: bool = False) -> None:
        self.devices = frozenset(devices)
        self.is_queued = is_queued


OPENS = {"gloo": Opens("cpu"), "nccl": Opens("cuda"), "cuda_ipc": Opens("cuda")}
NAMES = {f"a{number}": f"Actor(Worker{number})" for number in range(COUNT)}


@st.composite
def placements(draw: st.DrawFn) -> dict[str, Sequence[str]]:
    """The GPUs of all actors: mostly one of four on two nodes, some have none and some have two."""
    names = [f"{node}/{number}" for node in ("left", "right") for number in range(2)]
    count = st.sampled_from((1, 1, 1, 1, 0, 2))
    owned = [draw(st.permutations(names))[: draw(count)] for _ in ACTORS]
    return {f"a{number}": tuple(each) for number, each in enumerate(owned)}


@given(st.integers(0, 10_000), placements())
def test_no_group_has_members_that_its_transport_cannot_join(seed, gpus):
    """Whatever the edges are: a GPU for each rank of NCCL, one for all of CUDA IPC."""
    rng = random.Random(seed)
    with InputNode() as inp:
        taken = inp.with_tensor_transport("auto") if rng.random() < 0.3 else inp
        values = [
            actor.bind("make", taken).with_tensor_transport(
                "auto", device=rng.choice(["default", "default", "cuda", "cpu"])
            )
            for actor in ACTORS
        ]
        bare = [actor.bind("make", inp) for actor in ACTORS]
        read = [
            actor.bind("read", *rng.sample(values, rng.randint(1, 3)), *rng.sample(bare, 2))
            for actor in ACTORS
        ]
        ranks = rng.sample(bare, rng.randint(2, COUNT))
        combined = rng.choice([allreduce, allgather]).bind(ranks)
    root = MultiOutputNode([*read, *combined, *rng.sample(values, rng.randint(0, 2))])
    graph, plan = graph_of(root), plan_of(root, gpus, overlap=bool(seed % 2))
    for group in plan.groups:
        owned = [gpus[plan.host_of(member)] for member in group.members]
        match group.backend:
            case "gloo":  # of the collective, whose ranks have not what the others need
                assert len(owned) == len(ranks)
                places = {each[0] for each in owned if len(each) == 1}
                assert any(len(each) != 1 for each in owned) or 1 < len(places) < len(owned)
                continue
            case "nccl":
                different = len(owned)
            case "cuda_ipc":
                different = 1
            case other:
                raise AssertionError(other)
        assert all(len(each) == 1 for each in owned)
        assert len(set(owned)) == different
    for channel in plan.channels:
        if channel.group is not None:
            assert DRIVER not in (channel.writer, *channel.readers)
            for value in channel.nodes:
                hint = graph.nodes[value].hint
                assert hint is not None and hint.device != "cpu"
                assert value not in graph.outputs
    # It passes the check that an explicit choice passes, and every member has its reason there.
    openers = {group.id: OPENS[group.backend] for group in plan.groups}
    owned_by = {actor: Owned(each) for actor, each in gpus.items()}
    check_gpus(plan, graph, openers, owned_by, NAMES)
    for group in plan.groups:
        for member in group.members if group.backend != "gloo" else ():
            actor = plan.host_of(member)
            with pytest.raises(PlacementError, match=f"Worker{actor[1:]}\\) takes part in "):
                check_gpus(plan, graph, openers, {**owned_by, actor: Owned()}, NAMES)


# --- refused before anything starts


def check_root(root: Any, owned: dict[str, Owned]) -> None:
    gpus = {actor: each.gpus for actor, each in owned.items()}
    plan = plan_of(root, gpus)
    everyone = {**dict.fromkeys(NAMES, Owned()), **owned}
    openers = {group.id: OPENS[group.backend] for group in plan.groups}
    check_gpus(plan, graph_of(root), openers, everyone, NAMES)


def check(transport: str, owned: dict[str, Owned], *, readers: int = 1) -> None:
    check_root(edge(transport, readers=readers), owned)


LEFT, RIGHT = Owned(("node/0",)), Owned(("node/1",))
SHARED = Owned(("node/0",), shares_gpus=True)
WITHOUT_CUPY = Owned(("node/1",), lacks_cupy=True)


@pytest.mark.parametrize(
    ("transport", "ends", "why"),
    [
        ("nccl", (LEFT, Owned()), r"Worker1\) takes part in Worker0.make.*no GPU.*num_gpus=1"),
        ("cuda_ipc", (LEFT, Owned()), r"Worker1\) takes part .*no GPU.*num_gpus=0.5"),
        ("nccl", (LEFT, WITHOUT_CUPY), r"process has no CuPy: `pip install 'rcg\[gpu\]'`"),
        ("nccl", (LEFT, LEFT), r"are on one GPU \(node/0\).*cuda_ipc"),
        ("cuda_ipc", (LEFT, RIGHT), r"on different GPUs \(node/0, node/1\).*nccl"),
        ("cuda_ipc", (LEFT, LEFT), None),
        ("nccl", (SHARED, SHARED), None),
        ("nccl", (LEFT, RIGHT), None),
        ("nccl", (Owned(("node/0", "node/1")), LEFT), None),  # which it uses is not known
        ("nccl", (Owned(may_have_others=True),) * 2, None),
    ],
)
def test_gpus_that_a_transport_cannot_join_are_refused(transport, ends, why):
    owned = dict(zip(NAMES, ends, strict=False))
    if why is None:
        check(transport, owned)
        return
    with pytest.raises(PlacementError, match=why) as caught:
        check(transport, owned)
    assert transport in str(caught.value).lower() and "test_transports.py:" in str(caught.value)


def test_cuda_ipc_serves_one_node():
    """Also if the GPUs of the actors are unknown."""
    root = edge("cuda_ipc")
    graph = graph_of(root)
    plan = compile_graph(graph, {"a0": "5f2c", "a1": "83d0"}, "5f2c", 4).plan
    openers = {group.id: OPENS[group.backend] for group in plan.groups}
    with pytest.raises(PlacementError, match="serves actors on one GPU of one node") as caught:
        check_gpus(plan, graph, openers, dict.fromkeys(NAMES, Owned(may_have_others=True)), NAMES)
    for word in (NAMES["a0"], "5f2c", NAMES["a1"], "83d0", "nccl", "test_transports.py:"):
        assert word in str(caught.value)


def test_a_refusal_names_the_value_and_the_line_of_its_hint():
    """Not another value of the same actor, which travels otherwise or between others."""
    with InputNode() as inp:
        calm = ACTORS[0].bind("calm", inp).with_tensor_transport("gloo")
        fine = ACTORS[0].bind("fine", inp).with_tensor_transport("nccl")
        wrong = ACTORS[1].bind("wrong", inp)
        wrong = wrong.with_tensor_transport("nccl")
        line = inspect.currentframe().f_lineno - 1
        root = [ACTORS[1].bind("read", calm), ACTORS[2].bind("read", fine)]
        root.append(ACTORS[3].bind("read", calm, wrong))
        read = MultiOutputNode(root)
    gpus = ("node/0",), ("node/1",), ("node/2",), ("node/1",)
    owned = {f"a{number}": Owned(each) for number, each in enumerate(gpus)}
    with pytest.raises(PlacementError, match="are on one GPU") as caught:
        check_root(read, owned)
    assert caught.value.node == "Worker1.wrong"
    assert str(caught.value.site).endswith(f"{Path(__file__).name}:{line}")
    del owned["a2"]
    with pytest.raises(PlacementError, match=r"Worker2\) takes part in Worker0.fine,.*no GPU"):
        check_root(read, owned)


def test_a_refusal_of_a_collective_names_it():
    with InputNode() as inp:
        made = [actor.bind("make", inp) for actor in ACTORS[:2]]
    root = MultiOutputNode(allreduce.bind(made, transport="nccl"))
    line = inspect.currentframe().f_lineno - 1
    with pytest.raises(PlacementError, match=r"part in allreduce of Worker0,.*no GPU") as caught:
        check_root(root, {})
    assert str(caught.value.site).endswith(f"{Path(__file__).name}:{line}")


def located(owned: dict[str, Owned]) -> Located:
    return Located({}, "here", {}, {**dict.fromkeys(NAMES, Owned()), **owned}, {})


def test_the_warning_of_missing_cupy_names_the_actors_that_lack_it():
    graph = graph_of(edge())
    bindings = Bindings(dict(zip(NAMES, ACTORS, strict=True)), {})
    both = {"a0": Owned(("node/0",)), "a1": Owned(("node/1",), lacks_cupy=True)}
    other = {"a2": Owned(("node/2",), lacks_cupy=True)}
    with pytest.warns(UserWarning, match="have no CuPy: pip install") as caught:
        warn_of_lacking_cupy(graph, bindings, located({**both, **other}))
    assert "a1 (Worker1)" in str(caught[0].message)
    for number in (0, 2):  # has it, and takes no part
        assert f"a{number} (" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_lacking_cupy(graph, bindings, located(other))


def test_an_actor_without_torch_is_no_end_of_auto():
    lacking = located({"a0": Owned(("node/0",)), "a1": Owned(("node/1",), lacks_torch=True)})
    assert backends(plan_of(edge(), lacking.gpus)) == []


def test_two_edges_between_two_actors_on_one_gpu_are_one_group():
    """Their edges cannot join a group with others, and still need no two of their own."""
    with InputNode() as inp:
        made = [ACTORS[0].bind(name, inp).with_tensor_transport("nccl") for name in ("one", "two")]
        root = ACTORS[1].bind("read", *made)
    plan = plan_of(root, {"a0": ("node/0",), "a1": ("node/0",)})
    assert [group.members for group in plan.groups] == [("a0", "a1")]


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
    with pytest.raises(CompileError, match=r"CompiledDAG\(feed\).*concurrent=True") as caught:
        check_queues(plan, openers, owned, NAMES, is_concurrent=False)
    assert "Actor(Worker0) and Actor(Worker1)" in str(caught.value)
