# SPDX-License-Identifier: Apache-2.0
"""The face of the package: what it lists, what it leaves to Ray, and what it does not load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rcg
import rcg.dag
import rcg.experimental

PACKAGE = Path(rcg.__file__).parent


def run(program: str) -> str:
    """Runs a program in a fresh interpreter and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("module", [rcg, rcg.dag])
def test_everything_listed_is_there(module):
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_star_import_gives_what_is_listed():
    names = run("before = {*dir(), 'before'}; from rcg import *; print(*({*dir()} - before))")
    assert sorted(names.split()) == sorted(rcg.__all__)


def test_a_name_is_the_same_object_each_time():
    assert rcg.get is rcg.get
    assert rcg.dag is sys.modules["rcg.dag"]


def test_other_names_are_rays():
    import ray

    assert rcg.init is ray.init
    assert rcg.is_initialized is ray.is_initialized
    assert rcg.util is ray.util
    assert rcg.exceptions is ray.exceptions
    assert rcg.ObjectRef is ray.ObjectRef


def test_nodes_can_be_imported_from_rcg_itself():
    from rcg import InputNode, MultiOutputNode

    assert InputNode is rcg.dag.InputNode
    assert MultiOutputNode is rcg.dag.MultiOutputNode


def test_modules_that_ray_does_not_load_by_itself_are_imported():
    program = """
import sys, rcg
rcg.init
print("ray.job_config" in sys.modules, "ray.cluster_utils" in sys.modules)
from rcg import cluster_utils
from rcg.experimental import shuffle
print(cluster_utils is sys.modules["ray.cluster_utils"])
print(shuffle is sys.modules["ray.experimental.shuffle"])
"""
    assert run(program).split() == ["True", "False", "True", "True"]


def test_a_module_that_lacks_something_says_what(tmp_path):
    program = """
import sys, ray
ray.__path__.append(sys.argv[1])
from rcg import needy
"""
    (tmp_path / "needy.py").write_text("import rcg_needs_this")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            cwd=PACKAGE.parent,
        )
    assert raised.value.stderr.endswith("No module named 'rcg_needs_this'\n")


def test_names_of_nobody_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rcg.no_such_name
    with pytest.raises(AttributeError, match="__no_such__"):
        _ = rcg.__no_such__
    with pytest.raises(ImportError):
        exec("from rcg import no_such_name")


def test_dir_lists_both():
    names = dir(rcg)
    assert {"remote", "wrap_actor", "init", "nodes"} <= set(names)
    assert names == sorted(names)


def test_experimental_is_rays():
    import ray

    assert rcg.experimental.tqdm_ray is ray.experimental.tqdm_ray
    assert "dynamic_resources" in dir(rcg.experimental)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rcg.experimental.no_such_name


def test_experimental_of_a_ray_without_it():
    program = """
import sys
import rcg.cluster
sys.modules["ray.experimental"] = None
print(rcg.cluster.attribute_names(of="ray.experimental"))
try:
    rcg.experimental.channel
except AttributeError as error:
    print(error)
"""
    assert re.fullmatch(r"\[\]\nthis Ray \(.*\) has no ray\.experimental\.channel", run(program))


HEAVY = ("torch", "plotly", "IPython", "ipywidgets", "graphviz", "cupy", "matplotlib", "pandas")


def test_importing_rcg_is_light():
    loaded = run("import sys, rcg; print(*sorted(sys.modules))").split()
    assert not set(loaded) & {*HEAVY, "ray", "numpy"}


def test_using_rcg_loads_nothing_heavy():
    program = "import sys, rcg, rcg.dag; rcg.remote; rcg.get; rcg.compile; print(*sys.modules)"
    assert not set(run(program).split()) & set(HEAVY)


def test_no_private_part_of_ray_is_imported():
    # What ruff enforces line by line, once more over the text: also inside strings and functions.
    banned = re.compile(r"\b(?:import|from)\s+ray\.(?:_\w+|dag|experimental|util\.collective)\b")
    importer = re.compile(r"^\s*(?:import|from)\s+ray\b", re.MULTILINE)
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE)
        text = path.read_text()
        if room.parts[0] != "bench":
            assert not banned.search(text), room
            if importer.search(text):
                importers.add(str(room))
    assert importers == {"cluster.py", "errors.py"}


def test_only_interop_names_ray_dag():
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"import_module\([\"']ray\.dag", path.read_text())
    }
    assert named == {"interop.py"}


def test_type_information_is_shipped():
    assert (PACKAGE / "py.typed").exists()
