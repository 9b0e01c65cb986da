# SPDX-License-Identifier: Apache-2.0
"""Hints for tensors: what nodes take, what reaches the graph, and everything that is wrong."""

from __future__ import annotations

import enum
import inspect
import warnings
from typing import Any

import pytest

import rcg
from rcg.collective import allreduce
from rcg.comm import registry
from rcg.comm.base import Communicator
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.communicators import CREATE, DefaultCommunicator
from rcg.dag.compile import warn_of_fallbacks
from rcg.dag.hints import TorchTensorType
from rcg.dag.lower import lower
from rcg.errors import GraphError
from rcg.ir.graph import Graph
from rcg.ir.nodes import TensorHint
from rcg.testing import LocalCommunicator
from tests.unit.fake_actors import FakeActor, FakeCommunicator, Half, refusing

A, B, C = (FakeActor(label, number) for number, label in enumerate(("Left", "Right", "Third")))


class Device(enum.Enum):
    """As Ray's."""

    CPU = "cpu"
    GPU = "gpu"


def graph_of(node: Any, default: DefaultCommunicator = CREATE) -> Graph:
    return lower(node._record, default)[0]


def hint_of(node: Any) -> TensorHint:
    """The hint of a node in the graph that it is the output of."""
    graph = graph_of(node)
    hint = graph.nodes[graph.outputs[0]].hint
    assert hint is not None
    return hint


def call() -> Any:
    return A.bind("f", InputNode())


# --- what nodes take


def test_the_node_itself_is_returned_and_changed() -> None:
    inp = InputNode()
    whole = A.bind("f", inp)
    part = A.bind("split", inp, num_returns=2)[1]
    for node in (inp, InputNode()[0], InputNode().x, whole, part):
        assert node.with_tensor_transport() is node
        assert node.with_type_hint(TorchTensorType()) is node
    whole.with_tensor_transport("gloo")
    assert hint_of(whole).transport == "gloo"


def test_all_that_can_be_said() -> None:
    node = call().with_tensor_transport("gloo", "gpu", _static_shape=True, _direct_return=True)
    line = inspect.currentframe().f_lineno - 1
    hint = hint_of(node)
    assert hint == TensorHint("gloo", hint.site, "cuda", True, True, None)
    assert str(hint.site) == f"test_hints.py:{line}"


def test_the_signature_is_rays() -> None:
    rays = {
        "transport": "auto",
        "device": "default",
        "_static_shape": False,
        "_direct_return": False,
    }
    for function, defaults in (
        (call().with_tensor_transport, rays | {"keep": False}),  # rcg's own
        (TorchTensorType, rays),
    ):
        parameters = inspect.signature(function).parameters
        assert [(name, each.default) for name, each in parameters.items()] == [*defaults.items()]


def test_without_a_hint_there_is_none() -> None:
    assert [node.hint for node in graph_of(call()).nodes] == [None, None]


@pytest.mark.parametrize("transport", ["auto", "shm", "gloo"])
@pytest.mark.parametrize(
    ("device", "arrives"),
    [
        ("default", "default"),
        ("cpu", "cpu"),
        ("gpu", "cuda"),
        ("cuda", "cuda"),
        (Device.CPU, "cpu"),
        (Device.GPU, "cuda"),
    ],
)
def test_transports_and_devices(transport: str, device: Any, arrives: str) -> None:
    for node in (
        call().with_tensor_transport(transport, device),
        call().with_type_hint(TorchTensorType(transport, device)),
    ):
        assert (hint_of(node).transport, hint_of(node).device) == (transport, arrives)


def test_registered_types_of_devices_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link(LocalCommunicator):
        devices = frozenset({"npu", "cpu"})

    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(ValueError, match="Invalid device 'npu'"):
        call().with_tensor_transport(device="npu")
    rcg.register_communicator("link", ["npu", "cpu"], Link)
    hint = hint_of(call().with_tensor_transport("link", "npu"))
    assert (hint.transport, hint.device) == ("link", "npu")
    assert hint_of(call().with_tensor_transport(device="npu")).device == "npu"
    with pytest.raises(ValueError, match=r"are: 'default', 'cpu', 'gpu', 'cuda', 'npu'\."):
        call().with_tensor_transport(device="tpu")


def test_a_later_hint_replaces_an_earlier_one() -> None:
    node = call().with_tensor_transport("gloo", _static_shape=True)
    node.with_tensor_transport("shm")
    assert (hint_of(node).transport, hint_of(node).is_static_shape) == ("shm", False)


def test_an_input_covers_its_parts() -> None:
    inp = InputNode().with_tensor_transport(device="cuda")
    inp.x.with_tensor_transport("shm")
    graph = graph_of(A.bind("f", inp[0], inp.x))
    assert {node.key: (node.hint.transport, node.hint.device) for node in graph.nodes[:2]} == {
        0: ("auto", "cuda"),
        "x": ("shm", "default"),
    }
    late = InputNode()
    dag = A.bind("f", late)
    late.with_tensor_transport("shm")
    assert graph_of(dag).nodes[0].hint.transport == "shm"


def test_a_hint_changes_no_identity() -> None:
    """A node bound before and after its hint is one node."""
    node = call()
    first = B.bind("take", node)
    node.with_tensor_transport("gloo")
    graph = graph_of(MultiOutputNode([first, C.bind("take", node)]))
    assert len([each for each in graph.nodes if each.hint is not None]) == 1


def test_registered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    rcg.register_communicator("mine", ["cpu"], LocalCommunicator)
    assert hint_of(call().with_tensor_transport("mine")).transport == "mine"
    inp = InputNode()
    results = allreduce.bind([A.bind("f", inp), B.bind("f", inp)], transport="mine")
    graph = graph_of(results[0])
    assert graph.nodes[graph.outputs[0]].communicates.transport == "mine"
    with refusing("Left.f", "'auto', 'shm', 'cuda_ipc', 'gloo', 'mine', 'nccl' or an instance"):
        call().with_tensor_transport("yours")
    with pytest.raises(ValueError, match="has no custom communicator specified"):
        graph_of(results[0], DefaultCommunicator.of(None))


@pytest.mark.parametrize("is_type", [False, True])
def test_a_communicator_of_the_users(is_type: bool) -> None:
    communicator = FakeCommunicator([B, A])
    node = call()
    if is_type:
        node.with_type_hint(TorchTensorType(communicator))
    else:
        node.with_tensor_transport(communicator)
    graph, bindings = lower(B.bind("take", node)._record)
    hint = graph.nodes[1].hint
    assert hint.transport == "FakeCommunicator"
    assert bindings.constants[hint.communicator] is communicator
    (spec,) = graph.communicators
    assert (spec.const, spec.members) == (hint.communicator, ("a1", "a0"))


def test_a_communicator_on_cpus_passes_tensors_through_shared_memory_as_in_ray() -> None:
    node = call().with_tensor_transport(FakeCommunicator([A, B], name="cpu"))
    graph = graph_of(B.bind("take", node))
    assert (graph.nodes[1].hint.transport, graph.communicators) == ("shm", ())
    assert hint_of(call().with_type_hint(TorchTensorType("cpu"))).transport == "shm"


# --- what is wrong


def nodes() -> list[tuple[Any, str]]:
    """A node of every kind that has a value, and its name."""
    inp = InputNode()
    return [
        (call(), "Left.f"),
        (A.bind("split", inp, num_returns=2)[1], "Left.split[1]"),
        (inp, "InputNode"),
        (inp[0], "InputNode[0]"),
        (inp.x, "InputNode['x']"),
    ]


class Own(Communicator):
    """A class of rcg's communicators."""


@pytest.mark.parametrize("is_type", [False, True])
@pytest.mark.parametrize(("node", "name"), nodes(), ids=str)
@pytest.mark.parametrize(
    ("transport", "words"),
    [
        (
            "mpi",
            "Invalid transport type: mpi. Transport must be one of 'auto', 'shm', 'cuda_ipc', ",
        ),
        ("", "or an instance of Communicator type."),
        ("GLOO", "Invalid transport type: GLOO."),
        (None, "Invalid transport type: None."),
        (3, "Invalid transport type: 3."),
        (b"gloo", "Invalid transport type: b'gloo'."),
        (Half(), "Half lacks allreduce, reducescatter, destroy"),
        (FakeCommunicator, "Invalid transport type: <class"),
        (Own, "register it with rcg.register_communicator(name, devices, cls)"),
    ],
    ids=str,
)
def test_invalid_transports(
    node: Any, name: str, transport: object, words: str, is_type: bool
) -> None:
    give = node.with_type_hint if is_type else node.with_tensor_transport
    with refusing(name, "Invalid transport type: ", words):
        give(TorchTensorType(transport) if is_type else transport)


@pytest.mark.parametrize(("node", "name"), nodes(), ids=str)
@pytest.mark.parametrize("device", ["tpu", "", "CPU", None, 0, "cuda:0", b"cpu"], ids=repr)
def test_invalid_devices(node: Any, name: str, device: object) -> None:
    words = f"Invalid device '{device}'. Valid options are: 'default', 'cpu', 'gpu', 'cuda'."
    with refusing(name, words):
        node.with_tensor_transport(device=device)


@pytest.mark.parametrize("transport", ["nccl", "accelerator"])
def test_an_accelerator_does_not_reach_a_cpu(transport: str) -> None:
    for node, name in nodes():
        with refusing(name, "accelerator transport is not supported with CPU target device"):
            node.with_tensor_transport(transport, "cpu")


@pytest.mark.parametrize("transport", ["nccl", "accelerator"])
def test_inputs_cannot_use_an_accelerator(transport: str) -> None:
    words = (
        "DAG inputs cannot be transferred via acc",
        "because the driver cannot participate in the communicator group",
    )
    for node, name in nodes()[2:]:
        with refusing(name, *words):
            node.with_tensor_transport(transport)


@pytest.mark.parametrize("transport", ["nccl", "accelerator", "cuda_ipc"])
def test_transports_of_gpus(transport: str) -> None:
    node = call().with_tensor_transport(transport)
    assert hint_of(node).transport == ("cuda_ipc" if transport == "cuda_ipc" else "nccl")


def test_a_refused_hint_leaves_the_earlier_one() -> None:
    node = call().with_tensor_transport("gloo")
    with pytest.raises(ValueError, match="Invalid"):
        node.with_tensor_transport("shm", device="tpu")
    assert hint_of(node).transport == "gloo"


def test_type_hints_that_are_none() -> None:
    for node, name in nodes():
        with refusing(name, "takes a TorchTensorType", "'gloo'"):
            node.with_type_hint("gloo")


@pytest.mark.parametrize("method", ["with_tensor_transport", "with_type_hint"])
def test_the_end_of_a_dag_has_no_tensors(method: str) -> None:
    with pytest.raises(AttributeError, match="the end of a DAG and not a value"):
        getattr(MultiOutputNode([call()]), method)


# --- what only the whole graph tells


def test_a_communicator_must_have_both_ends() -> None:
    inp = InputNode()
    node = A.bind("f", inp).with_tensor_transport(FakeCommunicator([A, C]))
    dag = MultiOutputNode([B.bind("take", node), C.bind("take", inp)])
    with pytest.raises(
        ValueError, match="must include all of the actors used in the P2P"
    ) as caught:
        graph_of(dag)
    assert isinstance(caught.value, GraphError)
    assert caught.value.node == "Left.f"
    assert "a0 (Left), a1 (Right)" in str(caught.value)
    assert "fake_actors.py:" in str(caught.value)


def test_a_communicator_that_nobody_else_needs_may_have_any_actors() -> None:
    inp = InputNode()
    node = A.bind("f", inp).with_tensor_transport(FakeCommunicator([B, C]))
    dag = [A.bind("take", node), *(actor.bind("take", inp) for actor in (B, C))]
    assert len(graph_of(MultiOutputNode(dag)).communicators) == 1


def test_a_communicator_with_actors_that_are_not_in_the_dag() -> None:
    node = call().with_tensor_transport(FakeCommunicator([A, B, C]))
    with refusing("Left.f", "has actors that the DAG does not use", repr(C), "FakeCommunicator"):
        graph_of(B.bind("take", node))


def test_a_communicator_with_ranks_that_are_none() -> None:
    node = call().with_tensor_transport(FakeCommunicator([A, B], ranks=[1, 2]))
    with refusing("Left.f", "the ranks from 0 to 1", "[1, 2]"):
        graph_of(B.bind("take", node))


def test_without_a_default_communicator_a_hint_must_name_one() -> None:
    default = DefaultCommunicator.of(None)
    node = call().with_tensor_transport("gloo")
    words = "DAGNode Left.f (fake_actors.py:", "has no custom communicator specified"
    with refusing("Left.f", *words, "_default_comm"):
        graph_of(B.bind("take", node), default)
    # Where no tensor goes from actor to actor, none is needed.
    graph_of(A.bind("take", node), default)
    graph_of(node, default)
    graph_of(B.bind("take", call().with_tensor_transport("auto")), default)
    graph_of(B.bind("take", call().with_tensor_transport("shm")), default)
    own = call().with_tensor_transport(FakeCommunicator([A, B]))
    graph_of(B.bind("take", own), default)
    graph_of(B.bind("take", node), DefaultCommunicator.of(FakeCommunicator([A, B])))


def fallback_warnings(node: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_fallbacks(graph_of(node))
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_edges_of_the_driver_say_once_that_they_use_shared_memory() -> None:
    inp = InputNode().with_tensor_transport("gloo")
    made = A.bind("f", inp).with_tensor_transport("gloo")
    line = inspect.currentframe().f_lineno - 1
    texts = fallback_warnings(MultiOutputNode([made, made, B.bind("take", made)]))
    assert len(texts) == 2
    assert texts[0].startswith("InputNode (test_hints.py:")
    assert texts[1].startswith("Left.f (fake_actors.py:")
    assert f"with_tensor_transport('gloo') at test_hints.py:{line}" in texts[1]
    assert "shared memory" in texts[1]


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_other_edges_need_no_warning(transport: str) -> None:
    inp = InputNode().with_tensor_transport(transport)
    between = A.bind("f", inp).with_tensor_transport("gloo")
    assert fallback_warnings(B.bind("take", between).with_tensor_transport(transport)) == []
