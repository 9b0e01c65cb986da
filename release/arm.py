# SPDX-License-Identifier: Apache-2.0
"""The wheel for aarch64, loaded and tested on another machine by an emulator, where there is one.

qemu-user runs a Python of Debian's for aarch64, which lies in a folder and is not installed. It
cannot start Ray's programs, so this tries the native core and what needs no cluster.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from release.environments import TEST_TOOLS, pinned
from release.files import ROOT, WORK, run, tool

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


def load(built: list[Path]) -> str:
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
    quick = ("-q", "-p", "no:logging", "--hypothesis-profile=quick")
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
