# SPDX-License-Identifier: Apache-2.0
"""What ``rewrite`` makes of import statements, and what it leaves to a person."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rcg
import rcg.dag
import rcg.experimental
from rcg.migrate.moves import exports_of
from rcg.migrate.rewrite import SourceError, rewrite
from tests.harness.documents import ACROSS_ACTORS, ASYNCIO, HELLO, OVERVIEW
from tests.unit.import_stubs import EAGER, MODULES, Thing, run

CASES = {
    # the rule
    "import ray": "import rcg as ray",
    "import ray as r": "import rcg as r",
    "import ray  as  r": "import rcg  as  r",
    "import os, ray, sys": "import os, rcg as ray, sys",
    "import ray, ray": "import rcg as ray",
    "import ray, os.path as ray, ray": "import rcg as ray, os.path as ray, rcg as ray",
    "from ray import get, put as p": "from rcg import get, put as p",
    "from ray import util, serve": "from rcg import util, serve",
    "from ray.dag import InputNode, MultiOutputNode as M": (
        "from rcg.dag import InputNode, MultiOutputNode as M"
    ),
    "from ray.dag import *": "from rcg.dag import *",
    # `import ray.dag` binds `ray`
    "import ray.dag": "import rcg as ray",
    "import ray.dag as d": "import rcg.dag as d",
    "import ray.experimental": "import rcg as ray",
    "import ray\nimport ray.dag\nimport time": "import rcg as ray\nimport time",
    "import ray.dag  # nodes": "import rcg as ray  # nodes",
    "import ray\nimport ray.dag  # nodes": "import rcg as ray\nimport rcg as ray  # nodes",
    "import ray\n\nimport ray.dag": "import rcg as ray\n\nimport rcg as ray",
    # names that rcg has in another place
    "from ray.dag.input_node import InputNode": "from rcg.dag.input_node import InputNode",
    "from ray.experimental.compiled_dag_ref import CompiledDAGRef": (
        "from rcg.experimental.compiled_dag_ref import CompiledDAGRef"
    ),
    # tensors and collectives
    "from ray.experimental.collective import allreduce, create_collective_group": (
        "from rcg.experimental.collective import allreduce, create_collective_group"
    ),
    "from ray.experimental import collective": "from rcg.experimental import collective",
    "import ray.experimental.collective as c": "import rcg.experimental.collective as c",
    "import ray.experimental.collective": (
        "import rcg as ray\nimport rcg.experimental.collective as _rcg_experimental_collective"
    ),
    "from ray.experimental.channel.communicator import Communicator": (
        "from rcg.experimental.channel.communicator import Communicator"
    ),
    "import ray.dag.input_node": (
        "import rcg as ray\nimport rcg.dag.input_node as _rcg_dag_input_node"
    ),
    # other modules of Ray: loaded, but `ray` is not Ray again
    "import ray.util": "import rcg as ray\nimport ray.util as _ray_util",
    "import ray\nimport ray.util": "import rcg as ray\nimport ray.util as _ray_util",
    "import ray\n\n# groups\nimport ray.util  # too": (
        "import rcg as ray\n\n# groups\nimport ray.util as _ray_util  # too"
    ),
    "import rcg as ray\nimport ray.util": "import rcg as ray\nimport ray.util as _ray_util",
    "import ray\nimport ray.util\nimport ray.data": (
        "import rcg as ray\nimport ray.util as _ray_util\nimport ray.data as _ray_data"
    ),
    "import ray\nfrom x import *\nimport ray.data": (
        "import rcg as ray\nfrom x import *\nimport rcg as ray\nimport ray.data as _ray_data"
    ),
    "import ray\nfrom x import ray\nimport ray.dag": (
        "import rcg as ray\nfrom x import ray\nimport rcg as ray"
    ),
    "import ray.util, os": "import rcg as ray, ray.util as _ray_util, os",
    "import ray.util; x = 1": "import rcg as ray, ray.util as _ray_util; x = 1",
    "if x: import ray.util": "if x: import rcg as ray, ray.util as _ray_util",
    # one statement for two modules
    "from ray import get, _private": "from rcg import get\nfrom ray import _private",
    "from ray import _a, get as g, _b as g": (
        "from ray import _a\nfrom rcg import get as g\nfrom ray import _b as g"
    ),
    "from ray import get, __version__; x = 1": (
        "from rcg import get; from ray import __version__; x = 1"
    ),
    "from ray.dag import GPUFuture, InputNode  # both": (
        "from ray.dag import GPUFuture\nfrom rcg.dag import InputNode  # both"
    ),
    "from ray.dag import (\n    InputNode,  # in\n    GPUFuture,  # fn\n    DAGNode\n)": (
        "from rcg.dag import (\n    InputNode,  # in\n    DAGNode\n)\n"
        "from ray.dag import (\n    GPUFuture,  # fn\n)"
    ),
    "from ray.dag import (  # nodes\n    GPUFuture,\n    InputNode,\n)": (
        "from ray.dag import (  # nodes\n    GPUFuture,\n)\n"
        "from rcg.dag import (  # nodes\n    InputNode,\n)"
    ),
    # wherever it stands
    "if TYPE_CHECKING:\n\timport ray.util": (
        "if TYPE_CHECKING:\n\timport rcg as ray\n\timport ray.util as _ray_util"
    ),
    # newlines, continued lines, no newline at the end
    "import ray.util\r\nx\r\n": "import rcg as ray\r\nimport ray.util as _ray_util\r\nx\r\n",
    "from ray \\\n    import get": "from rcg \\\n    import get",
}

SAME = [
    "",
    "\n",
    "# import ray",
    "x = 'import ray'",
    "import os",
    "import rcg as ray",
    "import rcg.dag",
    "from rcg import *",
    "import ray.util as u",
    "import ray.util.queue as ray",
    "from ray.util import queue",
    "from ray.exceptions import RayError",
    "from ray import _private",
    "from ray import __version__",
    "from . import ray",
    "from .ray import dag",
    "import rayon, ray_x.dag",
    "from rayon import ray",
    "ray.dag.InputNode()",
    "import ray_dag as ray",
]


@pytest.mark.parametrize(("before", "after"), CASES.items())
def test_import_statements(before: str, after: str) -> None:
    assert rewrite(before).text == after
    assert rewrite(after).text == after


@pytest.mark.parametrize("source", SAME)
def test_what_is_left_alone(source: str) -> None:
    result = rewrite(source)
    assert (result.text, result.remarks) == (source, ())


def test_only_import_statements_change() -> None:
    source = textwrap.dedent('''\
        #!/usr/bin/env python
        """import ray"""
        from __future__ import annotations
        import   os ; import ray ;  # two


        @ray . remote  (num_cpus = 1)
        class A :
            def f( self ): return  ( ray.get( x ), "import ray" )   # odd  spacing
        \x0c
        if  __name__=="__main__" : ray.init()
    ''')
    assert rewrite(source).text == source.replace("import ray ;", "import rcg as ray ;")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import ray\nx = = 1\n", 2),
        ("print 'a'", 1),
        ("def f(:\n", 1),
        ("import ray\0", 1),
        ("import ray\rimport ray.dag\r", 1),  # newlines that libcst does not keep
        ("x = " + "-" * 3000 + "1", 1),
        ("x = " + "(" * 30_000 + ")" * 30_000, 1),
        ("x = " + "1+" * 30_000 + "1", 1),
        ("x = a" + ".a" * 30_000, 1),
        ("if x: pass\n" + "elif x: pass\n" * 30_000, 1),
    ],
)
def test_what_does_not_parse_is_an_error_with_its_line(source: str, line: int) -> None:
    with pytest.raises(SourceError) as raised:
        rewrite(source)
    assert raised.value.line == line
    assert "\n" not in str(raised.value)


# --- remarks ------------------------------------------------------------------------------------

REMARKS = {
    "from ray.dag import GPUFuture": "no `GPUFuture` of ray.dag",
    "from ray.dag.vis_utils import plot": "no module for ray.dag.vis_utils",
    "import ray.dag.vis_utils": "no module for ray.dag.vis_utils",
    "from ray import *": "`from ray import *` takes Ray's own names",
    "from ray.experimental import *": "takes Ray's own names",
    'importlib.import_module("ray.dag")': 'the string "ray.dag"',
    '__import__("ray.util")': 'the string "ray.util"',
    'sys.modules["ray"]': 'the string "ray"',
    'sys.modules.get("ray")': 'the string "ray"',
    '@patch("ray.get", new=1)\ndef test(get): ...': 'the string "ray.get"',
    'monkeypatch.setattr("ray.get", 1)': 'the string "ray.get"',
    'monkeypatch.setitem(sys.modules, "ray", fake)': 'the string "ray"',
    'pytest.importorskip("ray")': 'the string "ray"',
    "import ray\ndag.apply_recursive(f)": "`.apply_recursive` is internal to Ray's graphs",
    "import ray\nnode._bound_args[0]": "rcg's have none; use node.get_args()",
    "import ray\ndag.execute(1, _ray_cache_refs=True)": "no `_ray_cache_refs`",
    'import ray\nray.init("ray://head:10001")': "do not work over Ray Client",
    "import ray; ray._private.worker": "`from ray import _private`",
    "import ray; ray.__version__": "rcg's version",
    "import ray; ray.dag.GPUFuture": "rcg.dag has no GPUFuture",
    "import ray.dag as d; d.GPUFuture": "rcg.dag has no GPUFuture",
    "import ray\ndef f():\n    x: int = ray.dag.GPUFuture": "rcg.dag has no GPUFuture",
    "import ray\nclass C:\n    x: ray.dag.GPUFuture": "rcg.dag has no GPUFuture",
    "from ray import dag; dag.GPUFuture": "rcg.dag has no GPUFuture",
    "import ray; from x import *": "`from x import *` may bind `ray` to Ray again",
    "import rcg as ray\nfrom x import *": "may bind `ray` to Ray again",
    "import ray; from x import ray": "`from x import ray` may bind `ray` to Ray again",
    "from ray.dag import InputNode; from x import ray": "`from x import ray` may bind `ray`",
    "from x import ray; from ray.dag import InputNode": "`from x import ray` may bind `ray`",
}
NO_REMARKS = [
    "import ray\ndef f(self):\n    self.x: ray.dag.GPUFuture = None",
    "import ray; ray.get(ray.util.x, ray.dag.InputNode, ray.experimental.channel)",
    "import ray; x.ray._private; y.ray.dag.GPUFuture",
    "import ray.dag.input_node; ray.dag.input_node.InputNode",
    "import ray; ray.init('auto'); node.get_args()",
    "tree.apply_recursive(f)",
    "ray.dag.GPUFuture; ray._private",
    "import ray.util",
    "from x import *; import ray",
    "from x import *; from ray.dag import InputNode",
    "from x import ray",
    "from x import ray; from ray.dag import InputNode; import ray",
    "import ray; from x import *; import ray",
    "import ray; from x import y",
    "import ray as r; from x import *",
    'print("ray.get"); sys.modules["rayon"]; import_module("arrayray"); import_module(f"ray")',
    'patch.object(ray, "get")',
]


@pytest.mark.parametrize(("source", "expected"), REMARKS.items())
def test_what_is_left_to_a_person_is_a_remark(source: str, expected: str) -> None:
    (remark,) = rewrite(source).remarks
    assert expected in remark.text
    assert remark.line == source[: source.rfind("\n") + 1].count("\n") + 1 or "@patch" in source
    assert [again.text for again in rewrite(rewrite(source).text).remarks] == [remark.text]


@pytest.mark.parametrize("source", NO_REMARKS)
def test_what_is_fine_gets_no_remark(source: str) -> None:
    assert rewrite(source).remarks == ()


def test_a_star_import_is_judged_by_the_caller() -> None:
    asked = []

    def judge(module: str) -> str | None:
        asked.append(module)
        return "is fine" if module == "a.b" else None

    source = "import ray\nfrom a.b import *\nfrom ..c import *\nfrom d import ray\n"
    assert [(each.line, each.text) for each in rewrite(source, judge=judge).remarks] == [
        (2, "`from a.b import *` is fine")
    ]
    assert asked == ["a.b", "..c", "d"]


# --- it means the same --------------------------------------------------------------------------

RAYS = sorted(name for name in MODULES if name.startswith("ray"))


@st.composite
def statements(draw: st.DrawFn) -> str:
    aliases = st.sampled_from(["", "", "", " as r", " as d", " as ray"])
    plain = st.builds("{}{}".format, st.sampled_from([*RAYS, "os", "os.path"]), aliases)
    if draw(st.booleans()):
        return "import " + ", ".join(draw(st.lists(plain, min_size=1, max_size=3)))
    module = draw(st.sampled_from(RAYS))
    children = {name.rpartition(".")[2] for name in RAYS if name.rpartition(".")[0] == module}
    named = st.builds("{}{}".format, st.sampled_from(sorted(MODULES[module] | children)), aliases)
    names = draw(st.lists(named, min_size=1, max_size=3))
    if draw(st.booleans()):
        return f"from {module} import {', '.join(names)}"
    return f"from {module} import (  # many\n    " + ",  # one\n    ".join(names) + ",\n)"


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Programs of import statements in all places, which keep the names of each place."""
    text = ""
    for number in range(draw(st.integers(1, 5))):
        lines = draw(st.lists(statements(), min_size=1, max_size=3))
        comment = draw(st.sampled_from(["", "  # why", " "]))
        body = "".join(f"{line}{comment}\n" for line in lines)
        match draw(st.integers(0, 6)):
            case 0:
                text += f"if True:\n{textwrap.indent(body, '  ')}"
            case 1:
                text += f"try:\n{textwrap.indent(body, '    ')}except ImportError: raise\n"
            case 2:
                inner = textwrap.indent(body + "return dict(locals())\n", "\t")
                text += f"def f():\n{inner}names{number} = f()\n"
            case 3:
                text += f"class names{number}:\n{textwrap.indent(body, '    ')}"
            case 4 if "\n" not in "".join(lines):
                text += "if True: " + "; ".join(lines) + "\n"
            case _:
                text += body
        if draw(st.booleans()):
            text += "\n"
    return text


def moved(thing: Any) -> set[str]:
    """What a name that meant a thing of Ray's may mean after the rewrite, as dotted names."""
    place = thing.place if isinstance(thing, Thing) else thing.__name__
    if isinstance(thing, ModuleType):
        own = f"rcg{place.removeprefix('ray')}"
        return {own, place} if place.startswith("ray.") and own in MODULES else {place, own}
    last = place.rpartition(".")[2]
    own = f"rcg{place.removeprefix('ray')}"
    return {own} if own in OWN and not last.startswith("_") else {place}


OWN = {f"{module}.{name}" for module, names in MODULES.items() for name in names}


def check(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, thing in before.items():
        if isinstance(thing, ModuleType | Thing):
            now = after[name]
            place = now.place if isinstance(now, Thing) else now.__name__
            assert place in (moved(thing) if place[0] == "r" else {place}), name
        elif isinstance(thing, dict):
            check(thing, after[name])
        elif isinstance(thing, type):
            check(dict(vars(thing)), dict(vars(after[name])))
    for name, thing in after.items():
        assert not (isinstance(thing, ModuleType) and thing.__name__ == "ray"), name
        assert name in before or name.startswith(("_ray_", "_rcg_")), name


@settings(max_examples=2 * settings.default.max_examples)
@given(programs())
def test_every_name_stays_bound_and_none_to_ray(source: str) -> None:
    result = rewrite(source).text
    ast.parse(result)
    assert rewrite(result).text == result
    before, loaded = run(source)
    after, loaded_now = run(result)
    check(before, after)
    # What was imported for its effects still is. The real rcg, too, loads Ray when it is used.
    replaced = ("ray.dag", "ray.experimental")
    kept = {name for name in loaded if not name.startswith(replaced)}
    assert kept - {"ray", *EAGER} <= loaded_now
    # What is reached through `ray` is still there.
    if isinstance(before.get("ray"), ModuleType) and before["ray"].__name__ == "ray":
        for name in loaded:
            if name.startswith(("ray.util", "ray.data", "ray.experimental")):
                assert eval(name, after).__name__ in (name, f"rcg{name[3:]}")


# --- what the documents show --------------------------------------------------------------------


@pytest.mark.parametrize("document", [HELLO, ACROSS_ACTORS, ASYNCIO, OVERVIEW])
def test_documents_become_programs_for_rcg(document: str) -> None:
    """`tests/cluster/test_seeds.py` runs them, rewritten by hand."""
    expected = document.replace("from ray.dag import", "from rcg.dag import")
    expected = re.sub(r"^import ray(\.dag)?$", "import rcg as ray", expected, flags=re.MULTILINE)
    assert expected != document
    result = rewrite(document)
    assert (result.text, result.remarks) == (expected, ())


# --- what rcg has -------------------------------------------------------------------------------


OLD_PATHS = tuple(
    importlib.import_module(f"rcg.experimental{name}")
    for name in (
        *("", ".channel", ".channel.accelerator_context", ".channel.communicator"),
        *(".channel.cpu_communicator", ".channel.nccl_group", ".channel.shared_memory_channel"),
        *(".channel.torch_tensor_type", ".collective", ".rdt", ".util", ".util.types"),
    )
)


@pytest.mark.parametrize("module", [rcg, rcg.collective, rcg.dag, *OLD_PATHS])
def test_exports_are_read_as_they_are(module: ModuleType) -> None:
    exports = exports_of(module.__name__)
    assert exports is not None
    assert exports.names == set(module.__all__)
    assert exports.is_open is hasattr(module, "__getattr__")


def test_names_of_the_old_paths_are_rcgs_or_else_rays() -> None:
    from rcg.experimental.channel import Communicator, TorchTensorType
    from rcg.experimental.collective import allreduce
    from rcg.experimental.util.types import AllReduceOp, Device, ReduceOp

    assert rcg.experimental.collective.allreduce is allreduce is rcg.collective.allreduce
    assert ReduceOp is rcg.collective.ReduceOp
    assert rcg.experimental.channel.torch_tensor_type.TorchTensorType is TorchTensorType
    assert rcg.experimental.channel.communicator.Communicator is Communicator
    assert set(map(str, Device)) == {"default", "cpu", "gpu", "cuda"}
    assert AllReduceOp.__module__.startswith("ray.experimental.")
    for module in OLD_PATHS:
        assert set(module.__all__) <= set(dir(module)), module
        with pytest.raises(AttributeError):
            _ = module.no_such_name
        with pytest.raises(AttributeError):
            _ = module.__no_such_name__


def test_no_other_module_is_rcgs() -> None:
    assert exports_of("rcg.no_such") is None
    assert exports_of("ray") is None
