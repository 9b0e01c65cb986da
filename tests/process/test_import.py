# SPDX-License-Identifier: Apache-2.0
"""What importing rcg's rooms loads: nothing that only some people have, or that takes long."""

from __future__ import annotations

import pytest

import rcg
from tests.harness.files import make
from tests.harness.interpreter import printed

# Imported only on use. (tqdm would be one more, but Ray loads it.)
HEAVY = (
    "torch",
    "cupy",
    "pandas",
    "plotly",
    "matplotlib",
    "graphviz",
    "IPython",
    "ipywidgets",
    "anywidget",
    "jupyterlab",
    "perfetto",
    "rcg_widgets",
)
# What only a process that shows something needs.
SEEING = ("rcg.views", "rcg.trace.analysis", "rcg.trace.export", "rcg.profiling")
# What only a process that compiles a DAG needs: each actor whose module writes one imports rcg.dag.
DRIVING = ("rcg.runtime.driver", "rcg.runtime.actor", "rcg.compiler", "rcg.channels", "rcg.wire")
HELP = """
from rcg.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
"""
EXAMINE = "import rcg.doctor as d; d.transports.try_ping = d.transports.Ping; d.examine()"


def loaded_by(program: str, **options) -> set[str]:
    """Returns the modules that a fresh interpreter has after a program."""
    said = printed(f"{program}\nimport sys; print(*sys.modules)", **options)
    return set(said.splitlines()[-1].split())


def of(loaded: set[str], names: tuple[str, ...]) -> set[str]:
    """Returns those of the modules that are these, or lie in these packages."""
    packages = tuple(f"{name}." for name in names)
    return {each for each in loaded if each in names or each.startswith(packages)}


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import rcg", (*HEAVY, "ray", "numpy")),
        ("import rcg, rcg.dag", (*HEAVY, *SEEING, *DRIVING, "numpy")),
        (
            "import rcg; rcg.remote, rcg.get, rcg.compile, rcg.CompiledDAG, rcg.InputNode",
            (*HEAVY, *SEEING),
        ),
        ("import rcg; rcg.empty(5)", (*HEAVY, *SEEING, "ray")),
        ("import rcg; rcg.span('x')", (*HEAVY, *SEEING, "ray", "numpy")),
        ("import rcg, rcg.comm", (*HEAVY, *SEEING, *DRIVING, "ray")),
        ("from rcg.comm.registry import find_communicator as f; f('gloo'), f('nccl')", HEAVY),
        ("import rcg.runtime.actor.loop", (*HEAVY, *SEEING)),
        ("import rcg.runtime.driver.compiled_dag, rcg.runtime.remote.handle", (*HEAVY, *SEEING)),
        ("import rcg.ipython", SEEING),
        ("import rcg.trace.trace, rcg.trace.measured", HEAVY),
        ("import rcg.views", HEAVY),
        ("import rcg.cli, rcg.doctor, rcg.progress", (*HEAVY, "tqdm")),
        ("import rcg.top", (*HEAVY, "rich", "rcg.views", "rcg.profiling")),
        (HELP, (*HEAVY, "ray", "numpy", "rcg.errors")),
        pytest.param(EXAMINE, (*HEAVY, "ray", "numpy"), marks=pytest.mark.full),
    ],
)
def test_a_process_loads_only_what_it_needs(program, absent):
    loaded = loaded_by(program)
    assert "rcg" in loaded
    assert not of(loaded, absent)


def test_migrating_loads_neither_ray_nor_the_program(tmp_path):
    make(
        tmp_path,
        {"a.py": "import ray\nfrom helpers import *\n", "helpers.py": "raise SystemExit(7)\n"},
    )
    program = "from rcg.cli import main; assert main(['migrate', 'a.py']) == 1"
    loaded = loaded_by(program, cwd=tmp_path)
    assert not of(loaded, ("ray", "numpy", "helpers", "a"))


def test_what_is_shown_loads_the_views_without_the_extension_of_ipython():
    said = printed(
        """
import sys, rcg
from rcg.trace.model import Recording
made = Recording((), 0, 1)
assert "rcg.views.display" not in sys.modules
bundle = made._repr_mimebundle_()
assert "no graph" in bundle["text/plain"]
print("rcg.views.display" in sys.modules)
"""
    )
    assert said == "True"


def test_star_import_gives_what_is_listed():
    names = printed("before = {*dir(), 'before'}; from rcg import *; print(*({*dir()} - before))")
    assert sorted(names.split()) == sorted(rcg.__all__)


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
    assert printed(program).split() == ["True", "False", "True", "True"]
