# SPDX-License-Identifier: Apache-2.0
"""The newest vLLM has what rcg's executor uses: its names and signatures, read from its wheel.

``tests/vllm`` runs the executor in a real vLLM, of the last version that has wheels for CPUs. The
modules here hold what the Python files of the wheel define, without what that does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rcg.comm.rays import is_communicator
from tests.harness.readme import ROOT

torch = pytest.importorskip("torch")

VERSION = "0.33.0"
FOLDER = ROOT / "build" / f"vllm-{VERSION}"
OURS = "rcg.integrations.vllm"
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux1_x86_64")

# What rcg calls, by its place in vLLM, and what it gives.
CALLS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "v1.executor.ray_env_utils.get_driver_env_vars": ((), ("worker_specific_vars",)),
    "v1.executor.ray_env_utils.update_runtime_env_for_worker_import": ((0,), ()),
    "v1.executor.ray_utils.build_actor_name": ((0,) * 5, ()),
    "v1.executor.ray_utils.get_bundles_for_indices": ((0,) * 3, ()),
    "v1.executor.ray_utils.get_bundles_sorted_by_node": ((0,), ()),
    "v1.executor.ray_utils.initialize_ray_cluster": ((0,), ()),
    "utils.network_utils.get_distributed_init_method": ((0,) * 2, ()),
    "utils.network_utils.get_open_port": ((), ()),
    "v1.serial_utils.run_method": ((0,) * 4, ()),
    "v1.worker.worker_base.WorkerWrapperBase.__init__": ((0,), ("rpc_rank", "global_rank")),
    "v1.worker.worker_base.WorkerWrapperBase.init_worker": ((0,) * 2, ()),
    "v1.worker.worker_base.WorkerWrapperBase.init_device": ((0,), ()),
    "v1.worker.worker_base.WorkerWrapperBase._apply_mm_cache": ((0,) * 2, ()),
    "v1.worker.worker_base.WorkerBase.__init__": (
        (0,),
        ("vllm_config", "local_rank", "rank", "distributed_init_method", "is_driver_worker"),
    ),
    "v1.worker.gpu_worker.Worker.annotate_profile": ((0,) * 2, ()),
    "v1.worker.gpu_worker.Worker.elastic_ep_execute": ((0,) * 2, ()),
    "v1.worker.gpu_worker.Worker.load_model": ((0,), ()),
    "v1.worker.gpu_model_runner.GPUModelRunner.execute_model": ((0,) * 3, ()),
    "v1.worker.gpu_model_runner.GPUModelRunner.sample_tokens": ((0,) * 2, ()),
    "v1.worker.gpu.model_runner.GPUModelRunner.execute_model": ((0,) * 3, ()),
    "v1.worker.gpu.model_runner.GPUModelRunner.sample_tokens": ((0,) * 2, ()),
    "v1.worker.gpu.model_runner.GPUModelRunner.pool": ((0,), ()),
    "v1.core.sched.output.SchedulerOutput.make_empty": ((0,), ()),
    "v1.executor.abstract.Executor.__init__": ((0,) * 2, ()),
    "platforms.interface.Platform.set_device": ((0,) * 2, ()),
    "platforms.interface.Platform.is_cuda_alike": ((0,), ()),
    "platforms.interface.Platform.update_block_size_for_backend": ((0,) * 2, ()),
    "platforms.interface.Platform.device_control_id_to_physical_device_id": ((0,) * 2, ()),
    "distributed.parallel_state.get_pp_group": ((), ()),
    "distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase.send": (
        (0,) * 3,
        (),
    ),
    "distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase.recv": (
        (0,) * 4,
        (),
    ),
}


@pytest.fixture(scope="module")
def sources() -> Path:
    """The Python files of the wheel; fetched once, for the wheel has a third of a gigabyte."""
    if not FOLDER.exists():
        fetched = FOLDER.with_suffix(".part")
        platforms = [f"--platform={each}" for each in _PLATFORMS]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [str(fetched), "--only-binary=:all:", "--python-version=3.12", *platforms]
        if subprocess.run([*command, f"vllm=={VERSION}"], check=False).returncode:
            pytest.skip(f"the wheel of vLLM {VERSION} cannot be fetched here")
        (wheel,) = fetched.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(fetched, [name for name in names if name.startswith("vllm/")])
        wheel.unlink()
        fetched.rename(FOLDER)
    return FOLDER


def file_of(sources: Path, module: str) -> Path | None:
    base = sources.joinpath(*module.split("."))
    found = (each for each in (base.with_suffix(".py"), base / "__init__.py") if each.exists())
    return next(found, None)


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """What statements define: classes and functions without their bodies, other names as stubs."""
    for node in body:
        match node:
            case ast.ClassDef():
                yield node.name, type(node.name, (), dict(defined(node.body)))
            case ast.FunctionDef(name=name, args=args):
                yield name, function_of(name, args)
            case ast.Assign(targets=targets):
                yield from ((each.id, object()) for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, object()
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((each.asname or each.name.split(".")[0], object()) for each in names)
            case ast.If() | ast.Try():
                for field in ("body", "orelse", "finalbody"):
                    yield from defined(getattr(node, field, []))


def function_of(name: str, args: ast.arguments) -> Any:
    """A function that takes the same arguments and does nothing."""
    for each in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if each is not None:
            each.annotation = None
    none = ast.Constant(None)
    args.defaults = [none for _ in args.defaults]
    args.kw_defaults = [each and none for each in args.kw_defaults]
    made: dict[str, Any] = {}
    exec(f"def {name}({ast.unparse(args)}): pass", made)
    return made[name]


class Stubs(MetaPathFinder, Loader):
    """Imports the modules of vLLM as what their files define; ``without`` leaves a name out."""

    def __init__(self, sources: Path, without: str = "") -> None:
        self._sources = sources
        self._without = without

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = file_of(self._sources, fullname) if fullname.split(".")[0] == "vllm" else None
        return file and ModuleSpec(fullname, self, is_package=file.name == "__init__.py")

    def exec_module(self, module: ModuleType) -> None:
        file = file_of(self._sources, module.__name__)
        assert file is not None
        names = dict(defined(ast.parse(file.read_text()).body))
        names.pop(self._without, None)
        vars(module).update(names)


@pytest.fixture
def stubs(sources: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts them in place."""

    def put(without: str = "") -> None:
        monkeypatch.setattr(sys, "meta_path", [Stubs(sources, without), *sys.meta_path])
        vllm = importlib.import_module("vllm")
        vllm.__version__ = VERSION  # type: ignore[attr-defined]

    forget()
    yield put
    forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "vllm" or name.startswith(f"{OURS}."):
            del sys.modules[name]


def test_the_executor_imports_what_it_uses(stubs: Any) -> None:
    stubs()
    executor = importlib.import_module(OURS).RcgExecutor.__module__
    envs = importlib.import_module("vllm.envs")
    platform = importlib.import_module("vllm.platforms.interface").Platform
    for module in (executor, f"{OURS}.worker"):
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
            match node:
                case ast.Attribute(value=ast.Name(id="envs"), attr=name):
                    assert hasattr(envs, name)
                case ast.Attribute(value=ast.Name(id="current_platform"), attr=name):
                    assert hasattr(platform, name)


@pytest.mark.parametrize("place", CALLS)
def test_what_it_calls_takes_what_it_gives(place: str, sources: Path, stubs: Any) -> None:
    stubs()
    parts = place.split(".")
    at = next(
        n for n in range(len(parts), 0, -1) if file_of(sources, ".".join(["vllm", *parts[:n]]))
    )
    found: Any = importlib.import_module(".".join(["vllm", *parts[:at]]))
    for name in parts[at:]:
        found = getattr(found, name)
    args, names = CALLS[place]
    inspect.signature(found).bind(*args, **dict.fromkeys(names))


def test_a_version_without_a_part_is_refused_in_a_sentence_that_names_it(stubs: Any) -> None:
    stubs("build_actor_name")
    with pytest.raises(ImportError, match=r"which lacks a part that it uses: .*build_actor_name"):
        _ = importlib.import_module(OURS).RcgExecutor


def test_stages_send_and_receive_by_the_group_of_vllm(
    stubs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs()
    worker = importlib.import_module(f"{OURS}.worker")
    sent: list[Any] = []
    group = SimpleNamespace(
        send=lambda tensor, peer: sent.append((tensor, peer)),
        recv=lambda size, dtype, peer: torch.full(size, peer, dtype=dtype),
    )
    monkeypatch.setattr(worker, "get_pp_group", lambda: SimpleNamespace(device_communicator=group))
    made = worker.StageCommunicator(["first", "second"])
    assert is_communicator(made)
    made.initialize(1)
    assert (made.get_self_rank(), made.get_world_size()) == (1, 2)
    made.send("a tensor", 0)
    assert sent == [("a tensor", 0)]
    assert made.recv((2,), torch.int64, 1, None).tolist() == [1, 1]
