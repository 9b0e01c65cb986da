# SPDX-License-Identifier: Apache-2.0
"""The wheel and the sdist: each is built, installed into an empty environment, used from elsewhere.

To save minutes, what rcg depends on is not fetched: links lead to it in the environment that runs
the tests, to Ray, NumPy and what they need, and to nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import files as files_of
from pathlib import Path

import pytest

from tests.harness.circles import core_has

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    ".clang-format",
    ".github",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "rcg",
    "widgets",
    "benchmarks",
    "docs",
    "release",
    "tests",
    "notebooks",
)

PROGRAM = """
import pathlib, sys
import rcg as ray
import rcg._native
from rcg.dag import InputNode

for module in (ray, ray._native):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__

@ray.remote
class Adder:
    def add(self, value):
        return value + 1

ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
actor = Adder.remote()
with InputNode() as inp:
    dag = actor.add.bind(inp)
with dag.experimental_compile() as graph:
    print("found", ray.get(graph.execute(41)))
ray.shutdown()
"""


LACKING = """
import contextlib, io, re, sys
import ray
import rcg.cli, rcg.comm.registry, rcg.testing
from rcg.comm import Membership

class Actor:
    def value(self):
        return 1

def to_pandas():
    from rcg.trace.export.frame import to_pandas
    from rcg.trace.trace import Trace
    to_pandas(Trace((), 0, 0))

def gloo():
    store = rcg.testing.LocalStore()
    rcg.comm.registry.find_communicator("gloo").open(Membership("g", 0, ("a",), store))

def nixl():
    from rcg.rdt.nixl_agent import make_agent
    make_agent("a")

def widgets():
    import rcg_widgets

def migrate():
    with contextlib.redirect_stderr(io.StringIO()) as said:
        rcg.cli.main(["migrate", "."])
    raise ImportError(said.getvalue())

uses = gloo, nixl, widgets, to_pandas, migrate
for use in uses:
    try:
        use()
    except Exception as error:
        print(*re.findall(r"pip install 'rcg.(\\w+).'", str(error)))
assert not {"torch", "pandas", "anywidget", "libcst"} & set(sys.modules)
"""


def run(*command: str, cwd: Path, **variables: str) -> str:
    """Runs a command and returns what it printed; a failure tells everything that it said."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "PIP_REQUIRE_VIRTUALENV"}
    environment = {key: text for key, text in os.environ.items() if key not in unwanted}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the sources."""
    tree = tmp_path_factory.mktemp("tree")
    built = tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", ".*")
            )
        elif source.exists():
            shutil.copy(source, tree / name)
    # `build` makes the wheel from the sdist, so the sdist is shown to be complete as well.
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(tree), cwd=tree
    )
    return built


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def needed_by(*packages: str) -> set[str]:
    """Returns these packages and all that they require here, extras aside."""
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        try:
            required = requires(name) or []
        except PackageNotFoundError:
            continue  # of another platform
        if name not in found:
            found.add(name)
            plain = [line for line in required if "extra ==" not in line]
            waiting += [re.match(r"[\w.-]+", line)[0] for line in plain]
    return found


def make_empty_environment(folder: Path) -> tuple[Path, Path]:
    """Returns the interpreter of a new environment, and the folder of its packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return python, Path(run(str(python), "-c", program, cwd=folder).strip())


def make_small_environment(folder: Path) -> Path:
    """Returns the interpreter of a new environment with Ray, NumPy and what builds rcg."""
    python, there = make_empty_environment(folder)
    for name in needed_by("ray", "numpy", "setuptools", "wheel"):
        for path in {each.parts[0] for each in files_of(name) or []} - {"..", "__pycache__"}:
            link = there / path
            if not link.exists():
                link.symlink_to(Path(sysconfig.get_path("purelib"), path))
    return python


def make_environment(folder: Path) -> Path:
    """Returns the interpreter of a new environment that sees what is installed here but rcg."""
    python, there = make_empty_environment(folder)
    # Path files beside the packages are not read this way: an editable rcg stays out of sight.
    (there / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('rcg') is not None)"
    run(str(python), "-c", program, cwd=folder)
    return python


@pytest.mark.full
@pytest.mark.parametrize("pattern", core_has("*.whl", ["*.whl", "*.tar.gz"]))
def test_what_is_built_installs_and_works_elsewhere(
    pattern: str, distributions: Path, tmp_path: Path
) -> None:
    python = make_small_environment(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    alone = ("--quiet", "--no-deps", "--force-reinstall", "--no-build-isolation")
    run(*pip, "install", *alone, str(only(distributions, pattern)), cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM)
    assert "found 42" in run(str(python), "program.py", cwd=elsewhere).splitlines()
    # What an extra would bring is not there, and each use of it says which.
    (elsewhere / "lacking.py").write_text(LACKING)
    said = run(str(python), "lacking.py", cwd=elsewhere).splitlines()
    assert said == ["torch", "nixl", "notebook", "notebook", "migrate"]
    examined = run(str(python.parent / "rcg"), "doctor", cwd=elsewhere)
    [torch] = re.findall(r"^.*only for tensors: (.*)$", examined, re.MULTILINE)
    assert torch == "pip install 'rcg[torch]'"


def test_the_wheel_is_for_every_python_from_3_11_on_and_holds_no_tests(distributions: Path) -> None:
    wheel = only(distributions, "*.whl")
    assert "-cp311-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"rcg/_native.abi3.so", "rcg/bench/_limits.abi3.so"} <= set(names)
    assert "rcg/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops <= {"rcg", "rcg_widgets"}
    assert not [name for name in names if name.endswith((".c", ".h"))]


@pytest.mark.full
def test_the_sdist_holds_what_it_takes_to_build_and_to_test(distributions: Path) -> None:
    sdist = only(distributions, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "setup.py",
        "rcg/native/module.c",
        "rcg/native/layout.h",
        "rcg/bench/_limits.c",
        "benchmarks/__main__.py",
        "tests/packaging/test_install.py",
    } <= names
    assert not [name for name in names if name.endswith(".so")]
