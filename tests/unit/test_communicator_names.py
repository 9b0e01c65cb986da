# SPDX-License-Identifier: Apache-2.0
"""The names of communicators, and objects with the methods of Ray's ``Communicator``."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any

import pytest

import rcg
from rcg.comm import Communicator, Membership, ReduceOp, rays
from rcg.comm import registry as registry_module
from rcg.comm.local_store import LocalStore
from rcg.comm.nccl import NcclCommunicator
from rcg.comm.rays import METHODS, RaysOpener, is_communicator, missing_methods
from rcg.comm.registry import communicator_names, device_types, find_communicator
from rcg.errors import CommError, GroupAborted, Unavailable
from rcg.experimental.channel.communicator import Communicator as RaysShape
from rcg.testing import LocalCommunicator
from tests.harness.peers import no_threads
from tests.harness.rays_style import RaysStyle

OWN = ["cuda_ipc", "gloo", "nccl"]


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_registered", {})


def test_gloo_has_its_name_without_being_registered():
    pytest.importorskip("torch")
    found = find_communicator("gloo")
    assert (found.name, found.devices, found.is_tagged) == ("gloo", frozenset({"cpu"}), True)


def test_a_registered_class_is_found_and_opened():
    rcg.register_communicator("mine", ["cpu"], LocalCommunicator)
    found = find_communicator("mine")
    assert found.cls is LocalCommunicator and found.devices == {"cpu"}
    opened = found.open(Membership("g", 0, ("a",), LocalStore()))
    assert isinstance(opened, LocalCommunicator) and opened.size == 1
    assert communicator_names() == sorted([*OWN, "mine"])


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("gloo", "GlooCommunicator"),
        ("nccl", "NcclCommunicator"),
        ("accelerator", "NcclCommunicator"),
        ("cuda_ipc", "CudaIpcCommunicator"),
    ],
)
def test_names_of_rcgs_own(name, cls):
    assert find_communicator(name).cls.__name__ == cls


@pytest.mark.parametrize("name", ["nccl", "cuda_ipc"])
def test_what_needs_a_gpu_says_so_where_there_is_none(name, monkeypatch):
    monkeypatch.setattr(NcclCommunicator, "library", lambda: None)
    membership = Membership("g", 0, ("Worker",), LocalStore())
    with pytest.raises(
        Unavailable, match=rf"transport {name} needs a GPU.*rank 0 .Worker"
    ) as caught:
        find_communicator(name).open(membership)
    assert caught.value.transport == name


def test_nccl_says_what_to_install(monkeypatch):
    membership = Membership("g", 0, ("Worker",), LocalStore())
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    with pytest.raises(Unavailable, match=r"needs CuPy.*pip install 'rcg\[gpu\]'"):
        NcclCommunicator.open(membership)
    without = types.SimpleNamespace(available=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", without)
    monkeypatch.setattr(importlib, "import_module", lambda name: without)
    with pytest.raises(Unavailable, match="needs libnccl"):
        NcclCommunicator.open(membership)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no communicator 'glue': known are cuda_ipc, gloo, nccl"):
        find_communicator("glue")


class Again(LocalCommunicator):
    """Made twice, as by a cell of a notebook."""


class Other(LocalCommunicator):
    """Another class."""


def test_a_class_made_again_replaces_the_earlier_one_and_no_other_does():
    again = type("Again", (LocalCommunicator,), {"__module__": Again.__module__})
    rcg.register_communicator("mine", ["cpu"], Again)
    rcg.register_communicator("mine", ["cpu"], again)
    assert find_communicator("mine").cls is again
    with pytest.raises(ValueError, match=r"already the name of .*Again"):
        rcg.register_communicator("mine", ["cpu"], Other)


class Half(Communicator):
    """Lacks nearly everything."""

    is_tagged = True
    devices = frozenset({"cpu"})


@pytest.mark.parametrize(
    ("name", "devices", "cls", "error", "text"),
    [
        (7, ["cpu"], Again, TypeError, "must be a string"),
        ("", ["cpu"], Again, ValueError, "must be an identifier"),
        ("a b", ["cpu"], Again, ValueError, "must be an identifier"),
        ("gloo", ["cpu"], Again, ValueError, "'gloo' is a transport of rcg"),
        ("nccl", ["cpu"], Again, ValueError, "'nccl' is a transport of rcg"),
        ("auto", ["cpu"], Again, ValueError, "'auto' is a transport of rcg"),
        ("mine", "cpu", Again, TypeError, r"such as \['cpu'\]"),
        ("mine", [], Again, ValueError, "found none"),
        ("mine", ["tpu"], Again, ValueError, "Again does not serve tpu"),
        ("mine", ["cuda:0"], Again, ValueError, "found 'cuda:0'"),
        ("mine", ["CPU"], Again, ValueError, "found 'CPU'"),
        ("mine", ["cpu", "gpu"], Again, ValueError, "found 'gpu'"),
        ("mine", ["default"], Again, ValueError, "found 'default'"),
        ("mine", [1], Again, ValueError, "found 1"),
        ("mine", ["cuda"], Half, TypeError, "abstract: it lacks abort, allgather"),
        ("mine", ["cpu"], object, TypeError, "no subclass of rcg.comm.Communicator"),
        ("mine", ["cpu"], RaysStyle, TypeError, "passed as transport=, without a name"),
        ("mine", ["cpu"], object(), TypeError, "must be a class"),
    ],
)
def test_what_cannot_be_registered(name: Any, devices: Any, cls: Any, error: Any, text: str):
    with pytest.raises(error, match=text):
        rcg.register_communicator(name, devices, cls)
    assert communicator_names() == OWN


@pytest.mark.parametrize("device", ["npu", "xpu", "privateuseone", "a_new_one2"])
def test_a_type_of_devices_that_nobody_knows_is_known_when_it_is_registered(device):
    assert device_types() == ["cpu", "cuda"]
    link = type("Link", (LocalCommunicator,), {"devices": frozenset({device, "cpu"})})
    rcg.register_communicator("link", [device, "cpu"], link)
    assert find_communicator("link").devices == {device, "cpu"}
    assert device_types() == ["cpu", "cuda", device]


# --- of Ray's signature


def test_an_object_with_the_methods_is_a_communicator_and_else_it_says_what_is_missing():
    good = RaysStyle(1, LocalStore())
    assert is_communicator(good) and not is_communicator(RaysStyle)
    for name in METHODS:
        lacking = type("Lacking", (RaysStyle,), {name: None})(1, LocalStore())
        assert missing_methods(lacking) == (name,) and not is_communicator(lacking)
        with pytest.raises(TypeError, match=f"it lacks {name}"):
            RaysOpener(lacking)
    assert missing_methods(object()) == METHODS
    with pytest.raises(TypeError, match="is a class"):
        RaysOpener(RaysStyle)


def test_the_abstract_class_has_the_methods_of_rays_with_its_arguments():
    assert not missing_methods(RaysShape)
    assert set(METHODS) - {"get_world_size"} <= RaysShape.__abstractmethods__
    theirs = pytest.importorskip("ray.experimental.channel.communicator").Communicator
    for name in METHODS:
        ours, wanted = (inspect.signature(getattr(cls, name)) for cls in (RaysShape, theirs))
        assert list(ours.parameters) == list(wanted.parameters), name
    assert issubclass(theirs, object) and not missing_methods(theirs)


def test_the_old_import_path_is_rcgs():
    from rcg.experimental.channel import communicator

    assert rcg.experimental.channel.communicator is communicator
    assert communicator.Communicator is RaysShape and communicator.ReduceOp is ReduceOp
    assert "communicator" in dir(rcg.experimental.channel) and "channel" in dir(rcg.experimental)


def opened(communicator: Any, rank: int = 0, size: int = 1) -> Any:
    labels = tuple(map(str, range(size)))
    return RaysOpener(communicator).open(Membership("g", rank, labels, LocalStore(), 0.01))


class Wrong(RaysStyle):
    """Takes another rank, or fails."""

    destroyed = 0
    rank = 0
    error: BaseException | None = None

    def get_self_rank(self) -> int | None:
        return self.rank

    def initialize(self, rank: int) -> None:
        if self.error is not None:
            raise self.error

    def destroy(self) -> None:
        self.destroyed += 1


def test_an_object_that_does_not_fit_the_group_is_refused_and_destroyed():
    wrong = Wrong(2, LocalStore())
    with pytest.raises(ValueError, match="has 2 ranks, but group g has 1"):
        opened(wrong)
    wrong = Wrong(1, LocalStore())
    wrong.rank = 3
    with pytest.raises(ValueError, match="has rank 3, not 0"):
        opened(wrong)
    assert wrong.destroyed == 1
    wrong = Wrong(1, LocalStore())
    wrong.error = KeyError("key")
    with pytest.raises(CommError, match="initialize of Wrong failed: KeyError: 'key'") as caught:
        opened(wrong)
    assert caught.value.__cause__ is wrong.error and wrong.destroyed == 1
    wrong = Wrong(2, LocalStore())
    with pytest.raises(TimeoutError, match="group g: 1 did not come"):
        opened(wrong, size=2)
    assert wrong.destroyed == 1


@pytest.mark.parametrize("after", [0, 1], ids=["without a thread", "on a thread"])
def test_abort_destroys_the_object_once_and_without_waiting(after):
    made = Wrong(1, LocalStore())
    comm = opened(made)
    with no_threads(after):
        comm.abort("for the test")
        comm.abort("again")
    comm.destroy()
    with pytest.raises(GroupAborted, match="for the test"):
        comm.barrier()
    assert made.destroyed == 1


def test_devices_follow_from_the_name_of_the_transport():
    assert RaysOpener(RaysStyle(1, LocalStore())).own_devices == {"cpu"}
    on_gpu = type("OnGpu", (RaysStyle,), {"get_transport_name": lambda self: "accelerator"})
    assert RaysOpener(on_gpu(1, LocalStore())).own_devices == {"cuda"}
    assert not rays.RaysCommunicator.is_tagged
