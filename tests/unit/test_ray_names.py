# SPDX-License-Identifier: Apache-2.0
"""Every public name of the modules of Ray that rcg replaces: rcg's, Ray's own, or none on purpose.

As a program it writes the page that lists them: ``python -m tests.unit.test_ray_names``.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeVar

import pytest

from tests.harness.readme import ROOT

PAGE = ROOT / "docs/reference/ray_names.md"
ROOTS = (
    *("ray.dag", "ray.experimental.channel", "ray.experimental.collective"),
    *("ray.experimental.compiled_dag_ref", "ray.experimental.rdt", "ray.experimental.util"),
)
_CONSTANTS = ("ray.dag.constants", "ray.dag.context", "ray.dag.input_node")
_BUILDING = "how Ray builds nodes"
_LOOP = "how Ray's actors run a graph: `print(cdag.plan)` shows what rcg's do"
_CHANNELS = "how Ray moves values; rcg's channels are not public"
WITHOUT = {
    "ray.dag.base": _BUILDING,
    "ray.dag.dag_node_operation": _LOOP,
    "ray.dag.dag_operation_future": _LOOP,
    "ray.dag.experimental": _LOOP,
    "ray.dag.format_utils": _BUILDING,
    "ray.dag.py_obj_scanner": _BUILDING,
    "ray.dag.utils": _LOOP,
    "ray.dag.vis_utils": "`cdag.visualize()` draws a compiled DAG",
    "ray.experimental.channel.auto_transport_type": _CHANNELS,
    "ray.experimental.channel.cached_channel": _CHANNELS,
    "ray.experimental.channel.common": _CHANNELS,
    "ray.experimental.channel.communicator_handle": _CHANNELS,
    "ray.experimental.channel.intra_process_channel": _CHANNELS,
    "ray.experimental.channel.serialization_context": _CHANNELS,
    "ray.experimental.channel.torch_tensor_accelerator_channel": _CHANNELS,
    "ray.experimental.channel.utils": _CHANNELS,
    "ray.experimental.collective.collective": "in `rcg.experimental.collective`",
    "ray.experimental.collective.communicator": "in `rcg.experimental.collective`",
    "ray.experimental.rdt.collective_tensor_transport": "how Ray moves tensors by reference",
    "ray.experimental.rdt.cuda_ipc_transport": "how Ray moves tensors by reference",
    "ray.experimental.rdt.nixl_memory_pool": "how Ray moves tensors by reference",
    "ray.experimental.rdt.nixl_tensor_transport": "how Ray moves tensors by reference",
    "ray.experimental.rdt.rdt_manager": "how Ray moves tensors by reference",
    "ray.experimental.rdt.rdt_store": "how Ray moves tensors by reference",
    "ray.experimental.rdt.tensor_transport_manager": "in `rcg.experimental`",
    "ray.experimental.rdt.util": "in `rcg.experimental`",
    # names
    "ray.dag.DAGOperationFuture": _LOOP,
    "ray.dag.GPUFuture": _LOOP,
    "ray.dag.plot": "`cdag.visualize()` draws a compiled DAG",
    "ray.dag.compiled_dag_node.CompiledTask": _LOOP,
    "ray.dag.compiled_dag_node.ExecutableTask": _LOOP,
    "ray.dag.compiled_dag_node.build_compiled_dag_from_ray_dag": "`rcg.compile(dag)`",
    "ray.dag.compiled_dag_node.do_allocate_channel": _LOOP,
    "ray.dag.compiled_dag_node.do_cancel_executable_tasks": _LOOP,
    "ray.dag.compiled_dag_node.do_exec_tasks": _LOOP,
    "ray.dag.compiled_dag_node.do_profile_tasks": _LOOP,
    "ray.dag.input_node.IN_CONTEXT_MANAGER": _BUILDING,
    **{
        f"{module}.{name}_KEY": _BUILDING
        for module in ("ray.dag", "ray.dag.constants")
        for name in (
            *("PARENT_CLASS_NODE", "PREV_CLASS_METHOD_CALL", "BIND_INDEX", "DAGNODE_TYPE"),
            *("IS_CLASS_METHOD_OUTPUT", "COLLECTIVE_OPERATION"),
        )
    },
    **{
        f"ray.dag.context.DEFAULT_{name}": "`DAGContext()` has the values"
        for name in (
            *("SUBMIT_TIMEOUT_S", "GET_TIMEOUT_S", "TEARDOWN_TIMEOUT_S", "BUFFER_SIZE_BYTES"),
            *("MAX_INFLIGHT_EXECUTIONS", "MAX_BUFFERED_RESULTS", "OVERLAP_GPU_COMMUNICATION"),
            "READ_ITERATION_TIMEOUT_S",
        )
    },
    **{
        f"ray.experimental.collective.operations.{name}Wrapper": "the type of the collectives"
        for name in ("AllGather", "AllReduce", "ReduceScatter")
    },
}
DIFFERS = {
    "ray.dag.ClassMethodNode": "arguments are checked at `bind`",
    "ray.dag.CollectiveOutputNode": "`execute()` of an uncompiled DAG runs it",
    "ray.dag.DAGContext": "read when a DAG is compiled",
    "ray.dag.DAGNode": "also `compile`; a root may be compiled again",
    "ray.dag.InputNode": "works outside of a `with` block, too",
    "ray.dag.compiled_dag_node.CompiledDAG": "see [differences](../differences.md)",
    "ray.experimental.channel.accelerator_context.AcceleratorContext": (
        "only `get`, `set`, `module_name`, `communicator_cls`; `auto` stays rcg's"
    ),
    "ray.experimental.channel.cpu_communicator.CPUCommunicator": "over Gloo",
    "ray.experimental.compiled_dag_ref.CompiledDAGFuture": "may be awaited again",
    "ray.experimental.compiled_dag_ref.CompiledDAGRef": "may be got again",
    "ray.experimental.collective.allreduce": "a call in a method uses the groups of rcg",
}


def modules() -> Iterator[ModuleType]:
    yield importlib.import_module("ray.experimental")
    for root in ROOTS:
        found = importlib.import_module(root)
        yield found
        for each in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{root}."):
            if "conftest" not in each.name and ".tests" not in each.name:
                yield importlib.import_module(each.name)


def names_of(module: ModuleType) -> list[str]:
    """The names that a module of Ray's has for others: what it lists, else what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)

    def is_own(name: str, value: Any) -> bool:
        home = getattr(value, "__module__", None)
        return home == module.__name__ or (name.isupper() and module.__name__ in _CONSTANTS)

    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, TypeVar) and is_own(name, value)
    ]


def counterpart(module: ModuleType, name: str) -> str:
    """What ``rcg`` has in place of a name: a cell of the table; "none" if it has nothing."""
    own = f"rcg{module.__name__.removeprefix('ray')}"
    try:
        found = getattr(importlib.import_module(own), name)
    except (ImportError, AttributeError):
        return "none"
    is_rays = found is getattr(module, name) and not isinstance(found, bool)
    return "Ray's own" if is_rays else f"`{own}.{name}`"


def rows() -> list[tuple[str, str, str]]:
    """Name of Ray, what rcg has, and how that differs."""
    found = []
    for module in modules():
        if module.__name__ in WITHOUT:
            found.append((f"{module.__name__}.*", "none", WITHOUT[module.__name__]))
            continue
        for name in names_of(module):
            place = f"{module.__name__}.{name}"
            own = counterpart(module, name)
            differs = WITHOUT[place] if own == "none" else DIFFERS.get(place, "")
            found.append((place, own, differs))
    return sorted(found)


def page() -> str:
    table = "".join(f"| `{place}` | {own} | {differs} |\n" for place, own, differs in rows())
    return f"""# Ray's names in rcg

Every public name of the modules of Ray 2.60 that rcg replaces. A name of the second column is
imported by writing `rcg` for `ray` in the import line. `Ray's own` is passed on by rcg: the same
object, where this Ray has it. `none` is not there, for the reason in the third column;
`rcg migrate` leaves such imports to Ray, and says so.

| Ray | rcg | differs how |
|---|---|---|
{table}"""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray, about its own modules
        yield


def test_what_has_no_counterpart_is_listed_with_the_reason() -> None:
    names = {
        f"{module.__name__}.{name}"
        for module in modules()
        for name in names_of(module)
        if module.__name__ not in WITHOUT and counterpart(module, name) == "none"
    }
    listed = {name for name in WITHOUT if name not in {each.__name__ for each in modules()}}
    assert names == listed


def test_reasons_and_differences_are_about_what_is_there() -> None:
    places = {place.removesuffix(".*"): own for place, own, _ in rows()}
    assert WITHOUT.keys() <= places.keys()
    assert all(places[name] == f"`rcg{name.removeprefix('ray')}`" for name in DIFFERS)


def test_the_page_lists_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
