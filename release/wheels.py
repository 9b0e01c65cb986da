# SPDX-License-Identifier: Apache-2.0
"""The sdist, and from it the wheels of both machines, for every Python from 3.11 on.

Zig's C compiler links against the symbols of a chosen glibc, for this machine and for another, so
both wheels are built on one machine without a container. auditwheel names the oldest manylinux
that a wheel fits and abi3audit looks for symbols that are not in Python's limited API.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.utils import parse_wheel_filename

from release.files import DIST, ROOT, WORK, Failure, commit_time, run, tool, version
from release.sbom import write_sbom

GLIBC: Final = "2.17"  # manylinux2014, what Ray's own wheels need
MACHINES: Final = {"x86_64": 62, "aarch64": 183}  # the number of the machine in an ELF header
EXTENSIONS: Final = ("rcg/_native.abi3.so", "rcg/bench/_limits.abi3.so")
# The widgets' sources, which a browser loads as they are, and the marker of type annotations.
DATA: Final = ("rcg/py.typed", "rcg/_native.pyi", "rcg_widgets/page.js", "rcg_widgets/widgets.css")


def build() -> list[Path]:
    """Build the sdist and the wheels into ``dist/`` and check each file; returns the files."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(WORK, ignore_errors=True)
    DIST.mkdir()
    epoch = {"SOURCE_DATE_EPOCH": commit_time()}
    run(
        sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST,
        variables=epoch,
    )  # fmt: skip
    [sdist] = DIST.glob("*.tar.gz")
    check_sdist(sdist)
    built = [sdist]
    for machine in MACHINES:
        wheel = _wheel(sdist, machine, epoch)
        check_wheel(wheel, machine)
        built.append(wheel)
    return built


def _wheel(sdist: Path, machine: str, epoch: dict[str, str]) -> Path:
    """Build the wheel of a machine from the sdist, and return it in ``dist/``."""
    place = WORK / machine
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    [tree] = place.iterdir()
    compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
    variables = {
        **epoch,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "LDFLAGS": "-Wl,-s",  # no symbols but those that Python looks for
        "RCG_WERROR": "1",
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig"),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }
    raw, repaired = place / "raw", place / "repaired"
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", raw, tree,
        variables=variables,
    )  # fmt: skip
    [wheel] = raw.glob("*.whl")
    path = {"PATH": f"{tool('')}:/usr/bin:/bin"}  # where auditwheel finds patchelf
    run(tool("auditwheel"), "repair", "--plat", "auto", "-w", repaired, wheel, variables=path)
    [wheel] = repaired.glob("*.whl")
    run(sys.executable, "-m", "wheel", "unpack", "--dest", place / "unpacked", wheel)
    [content] = (place / "unpacked").iterdir()
    [info] = content.glob("*.dist-info")
    write_sbom(info / "sboms" / "rcg.cdx.json", info / "METADATA")
    run(
        sys.executable, "-m", "wheel", "pack", "--dest-dir", DIST, content, variables=epoch
    )  # fmt: skip
    [wheel] = DIST.glob(f"*{machine}.whl")
    return wheel


def check_sdist(sdist: Path) -> None:
    """Check that the sdist holds what builds and tests rcg, and nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "setup.py", "rcg/native/module.c", "tests/conftest.py", "Makefile"}
    _expect(needed <= names, f"{sdist.name} lacks {sorted(needed - names)}")
    binary = sorted(name for name in names if name.endswith((".so", ".pyc")))
    _expect(not binary, f"{sdist.name} holds {binary}")


def check_wheel(wheel: Path, machine: str) -> None:
    """Check a wheel's tags, its content, its machine code and its use of Python and glibc."""
    tags = {str(tag) for tag in parse_wheel_filename(wheel.name)[3]}
    _expect(f"cp311-abi3-manylinux_2_17_{machine}" in tags, f"tags of {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        code = {name: archive.read(name) for name in names if name.endswith(".so")}
    sbom = f"rcg-{version()}.dist-info/sboms/rcg.cdx.json"
    needed = {*EXTENSIONS, *DATA, sbom}
    _expect(needed <= names, f"{wheel.name} lacks {sorted(needed - names)}")
    unwanted = sorted(name for name in names if _is_unwanted(name))
    _expect(not unwanted, f"{wheel.name} holds {unwanted[:5]}")
    for name, content in code.items():
        magic, number = content[:4], struct.unpack_from("<H", content, 18)[0]
        _expect(
            magic == b"\x7fELF" and number == MACHINES[machine], f"{name} is of machine {number}"
        )
    said = run(tool("auditwheel"), "show", wheel)
    _expect(f"manylinux_2_17_{machine}" in " ".join(said.split()), said)
    run(tool("abi3audit"), "--strict", wheel)
    run(tool("twine"), "check", "--strict", wheel)


def _is_unwanted(name: str) -> bool:
    """Whether a wheel should not hold this file: tests, experiments, sources in C."""
    top = name.partition("/")[0]
    is_ours = top in {"rcg", "rcg_widgets"} or top.endswith(".dist-info")
    return not is_ours or name.endswith((".c", ".h", ".pyc", "_test.py"))


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Failure(otherwise)


def sizes(built: list[Path]) -> Iterator[str]:
    """Return a line for each file: its size, packed and unpacked."""
    for path in built:
        packed = path.stat().st_size
        line = f"{path.relative_to(ROOT)}  {packed / 1e6:.2f} MB"
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                whole = sum(each.file_size for each in archive.infolist())
                line += f", {whole / 1e6:.2f} MB in {len(archive.namelist())} files installed"
        yield line
