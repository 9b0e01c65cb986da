# SPDX-License-Identifier: Apache-2.0
"""What works without a package that is not installed, and what is said where it is needed."""

from __future__ import annotations

import re
import shutil

from tests.harness.interpreter import ROOT, printed, run


def test_the_tree_of_errors_stands_without_ray():
    program = """
import sys
sys.modules["ray"] = None
import pickle
from rcg import errors
timeout = pickle.loads(pickle.dumps(errors.ChannelTimeout("late", timeout_s=1)))
assert isinstance(timeout, TimeoutError) and str(timeout) == "late [timeout s: 1]"
assert isinstance(timeout, errors.ChannelError)
assert pickle.loads(pickle.dumps(errors.ActorDiedError("dead"))).preempted is False
print("ok")
"""
    assert printed(program) == "ok"


def test_sources_without_the_native_core_say_from_where_to_run(tmp_path):
    """A program beside the sources gets these, and not what `pip install .` has installed."""
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "rcg", tmp_path / "rcg", ignore=unbuilt)
    program = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each)]
import rcg
rcg.remote
"""
    done = run(program, cwd=tmp_path)
    assert f"{tmp_path / 'rcg'} are sources of rcg whose native core is not built" in done.stderr


def test_without_pandas_a_sentence_says_what_to_install():
    program = """
import sys
sys.modules["pandas"] = None
from rcg.trace.export.frame import to_pandas
from rcg.trace.trace import Trace
try:
    to_pandas(Trace((), 0, 0))
except ImportError as error:
    print(error)
"""
    assert "pip install 'rcg[notebook]'" in printed(program)


def test_without_anywidget_the_import_says_what_to_install():
    program = "import sys; sys.modules['anywidget'] = None; import rcg_widgets"
    done = run(program, cwd=ROOT / "widgets")
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: the widgets need anywidget and ipywidgets: pip install 'rcg[notebook]'"
    )


def test_a_module_of_ray_that_lacks_something_says_what(tmp_path):
    program = """
import sys, ray
ray.__path__.append(sys.argv[1])
from rcg import needy
"""
    (tmp_path / "needy.py").write_text("import rcg_needs_this")
    assert run(program, str(tmp_path)).stderr.endswith("No module named 'rcg_needs_this'\n")


def test_experimental_of_a_ray_without_it():
    program = """
import sys
import rcg.cluster
sys.modules["ray.experimental"] = None
print(rcg.cluster.attribute_names(of="ray.experimental"))
try:
    rcg.experimental.dynamic_resources
except AttributeError as error:
    print(error)
assert rcg.experimental.collective.__name__ == "rcg.experimental.collective"
from rcg.experimental.channel.torch_tensor_type import TorchTensorType
from rcg.experimental.collective import allreduce
from rcg.experimental.util.types import ReduceOp
try:
    rcg.experimental.collective.operations
except AttributeError as error:
    print(error)
"""
    expected = (
        r"\[\]\nthis Ray \(.*\) has no ray\.experimental\.dynamic_resources"
        r"\nthis Ray \(.*\) has no ray\.experimental\.collective\.operations"
    )
    assert re.fullmatch(expected, printed(program))


def test_communicators_and_their_fakes_work_without_ray():
    program = """
import sys
sys.modules["ray"] = None
import threading, torch
from rcg.comm import Membership, ReduceOp
from rcg.comm.registry import find_communicator
from rcg.testing import LocalCommunicator, LocalStore
import rcg.comm.rays
for opener in (LocalCommunicator.open, find_communicator("gloo").open):
    store = LocalStore()
    found = {}
    def run(rank):
        comm = opener(Membership("g", rank, ("a", "b"), store, 60))
        found[rank] = torch.ones(2)
        comm.allreduce(found[rank], ReduceOp.SUM)
        comm.destroy()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(*(tensor.tolist() for tensor in found.values()))
assert sys.modules["ray"] is None
"""
    assert printed(program) == "[2.0, 2.0] [2.0, 2.0]\n[2.0, 2.0] [2.0, 2.0]"


def test_without_torch_the_transport_gloo_says_what_to_install():
    program = """
import sys
sys.modules["torch"] = None
import rcg.comm.gloo, rcg.testing
from rcg.comm import Membership
from rcg.comm.registry import find_communicator
from rcg.errors import Unavailable
try:
    find_communicator("gloo").open(Membership("g", 0, ("a",), rcg.testing.LocalStore()))
except Unavailable as error:
    print(error)
"""
    assert printed(program) == "the transport gloo needs PyTorch: pip install 'rcg[torch]'"


def test_communicators_are_named_without_ray_torch_or_cupy():
    program = """
import sys
absent = ("ray", "torch", "cupy")
sys.modules.update(dict.fromkeys(absent))
import rcg.comm, rcg.comm.registry
from rcg.comm.registry import communicator_names, find_communicator
for name in (*communicator_names(), "accelerator"):
    print(name, *sorted(find_communicator(name).devices))
assert all(sys.modules[name] is None for name in absent)
"""
    assert printed(program) == "cuda_ipc cuda\ngloo cpu\nnccl cuda\naccelerator cuda"
