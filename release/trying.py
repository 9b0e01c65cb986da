# SPDX-License-Identifier: Apache-2.0
"""What a user does with what was built: install it where there is no compiler, and use it.

The wheel for aarch64 is loaded by an emulator, where there is one: qemu-user runs a Python of
Debian's, which lies in a folder and is not installed. It cannot start Ray's programs, so this tries
the native core and what needs no cluster.
"""

from __future__ import annotations

import itertools
import json
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from release.environments import TEST_TOOLS, Environment, pinned, quickstart
from release.files import DIST, ROOT, WORK, Failure, run, tool

_WITH_A_COMPILER: Final = "import rcg, rcg._native; print(rcg.__version__)"
_EMULATOR: Final = "qemu-aarch64"
_DEBIAN: Final = "deb http://deb.debian.org/debian bookworm main\n"
_PACKAGES: Final = (
    "libc6 libgcc-s1 libstdc++6 libcrypt1 libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 "
    "libuuid1 python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib"
)
_TESTS: Final = ("test_native_memory", "test_native_loan")  # minutes in an emulator
_LOAD: Final = """
import platform
import rcg, rcg._native, rcg.bench._limits
assert platform.machine() == "aarch64" and rcg._native.ABI_VERSION
"""
_CELLS: Final = (
    "import rcg as ray\nfrom rcg.dag import InputNode",
    "@ray.remote\nclass Stage:\n    def work(self, text):\n        return text + '!'",
    "a, b = Stage.remote(), Stage.remote()\n"
    "with InputNode() as inp:\n"
    "    dag = b.work.bind(a.work.bind(inp))\n"
    "graph = dag.experimental_compile()\n"
    "ray.get(graph.execute('one'))",
    "graph",
)


def try_wheel(built: list[Path]) -> str:
    """Install this machine's wheel without a compiler; run the quickstart and a share of tests."""
    [wheel] = (path for path in built if path.name.endswith(f"{platform.machine()}.whl"))
    environment = Environment(WORK / "wheel")
    environment.install(wheel)
    environment.run("-c", quickstart())
    return f"installed without a compiler, the quickstart ran, {environment.run_tests()}"


def try_sdist(built: list[Path]) -> str:
    """Build and install the sdist with this machine's compiler, and load the native core."""
    [sdist] = (path for path in built if path.name.endswith(".tar.gz"))
    environment = Environment(WORK / "sdist")
    run(tool("uv"), "pip", "install", "--python", environment.python, sdist)
    return f"built and installed as {environment.run('-c', _WITH_A_COMPILER).strip()}"


def try_for_arm(built: list[Path]) -> str:
    """Load the wheel for aarch64 and run some tests of the core; says what was done."""
    if shutil.which(_EMULATOR) is None or shutil.which("apt-get") is None:
        return f"checked, not loaded: that needs {_EMULATOR} and apt-get"
    [wheel] = (path for path in built if path.name.endswith("aarch64.whl"))
    place = WORK / "arm"
    root, packages, tests = place / "root", place / "packages", place / "tests"
    _unpack_debian(place, root)
    run(
        *(tool("uv"), "pip", "install", "--target", packages, "--no-build"),
        *("--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11"),
        *(wheel, *pinned(TEST_TOOLS)),
    )
    shutil.copytree(ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tests)
    python = (_EMULATOR, "-L", root, "-E", f"PYTHONPATH={packages}", root / "usr/bin/python3.11")
    run(*python, "-c", _LOAD, cwd=tests)
    files = [f"tests/unit/{name}.py" for name in _TESTS]
    quick = ("-q", "-p", "no:logging", "--hypothesis-profile=quick", "--any-skip")
    said = run(*python, "-m", "pytest", *quick, *files, cwd=tests)
    return f"loaded by {_EMULATOR}, {said.strip().splitlines()[-1].strip('= ')}"


def _unpack_debian(place: Path, root: Path) -> None:
    """Unpack Debian's Python for aarch64, with what it needs, into a folder."""
    shutil.rmtree(place, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "debs"):
        (place / folder).mkdir(parents=True)
    (place / "sources.list").write_text(_DEBIAN)
    chosen = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": place / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": place / "cache",
    }
    apt = ["apt-get", *(word for key, value in chosen.items() for word in ("-o", f"{key}={value}"))]
    run(*apt, "update")
    run(*apt, "download", *(f"{name}:arm64" for name in _PACKAGES.split()), cwd=place / "debs")
    for path in sorted((place / "debs").glob("*.deb")):
        run("dpkg", "-x", path, root)


def try_as_newcomer() -> str:
    """Install the wheel with its extra ``notebook`` by pip and run a notebook; says the times."""
    place = WORK / "newcomer"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    [wheel] = DIST.glob(f"*{platform.machine()}.whl")
    _write_notebook(place / "first.ipynb")
    times = [time.monotonic()]
    run(sys.executable, "-m", "venv", place / "venv")
    times.append(time.monotonic())
    python = place / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"rcg[notebook] @ {wheel.as_uri()}")
    times.append(time.monotonic())
    run(
        *(python, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook"),
        *("--output", "done.ipynb", "first.ipynb"),
        cwd=place,
        variables={
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "RAY_ADDRESS": "local",
            "RAY_raylet_start_wait_time_s": "180",  # a busy machine takes long to start Ray
        },
    )
    times.append(time.monotonic())
    if "image/svg+xml" not in (place / "done.ipynb").read_text():
        raise Failure("the notebook has no picture of the graph")
    steps = [after - before for before, after in itertools.pairwise(times)]
    return (
        f"{sum(steps):.0f} s from nothing to the first picture: environment {steps[0]:.0f} s, "
        f"pip install {steps[1]:.0f} s, notebook {steps[2]:.0f} s"
    )


def _write_notebook(path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(_CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}}
    path.write_text(json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}))
