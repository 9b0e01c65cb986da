# SPDX-License-Identifier: Apache-2.0
"""Which versions of Python and Ray rcg works with: the wheel is installed and tried with each.

Every environment gets the wheel from ``dist/``, that Ray and the newest NumPy for that Python, and
runs the quickstart and a share of the tests. The page says only what was run.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from release.environments import SHARE, Environment, quickstart
from release.files import DIST, ROOT, WORK, Failure, version

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
RAYS: Final = ("2.60.0", "2.59.0", "2.58.1", "2.44.1")  # the newest, two before, the oldest
PAGE: Final = ROOT / "docs" / "compatibility.md"

# The newest Ray with each Python, and each Ray with the oldest Python.
PAIRS: Final = (
    *((python, RAYS[0]) for python in PYTHONS),
    *((PYTHONS[0], ray) for ray in RAYS[1:]),
)

_PAGE: Final = """\
# Compatibility

rcg needs Linux on x86-64 or aarch64, Python 3.11 or newer and Ray {oldest} or newer. One wheel is
for every Python from 3.11 on. Wheels need glibc 2.17 or newer (manylinux2014), as Ray's do.

`make compat` installs the wheel into a fresh environment without a compiler, with Ray and NumPy
alone (no torch), then runs the program of the README and {files} files of tests. It ran on {date}
with rcg {version}, on {machine}:

| Python | Ray | NumPy | tests |
|---|---|---|---|
{rows}

Other combinations were not tried. PyTorch, notebooks and GPUs are tested with Python 3.11 and the
versions in `constraints.txt`.

`make wheels` builds the wheel for aarch64 beside the one for x86-64, with the same compiler, and
checks its tags, symbols and machine code. Where qemu-user is installed it loads the wheel in
Debian's Python 3.11 and runs tests of the native core. It has not run on real hardware, and not
with a Ray cluster, whose programs an emulator of one process cannot start.
"""


@dataclass(frozen=True)
class Outcome:
    """What one environment gave.

    Attributes:
        python: The version of Python that was there.
        ray: The version of Ray.
        numpy: The version of NumPy, "" if nothing could be installed.
        said: The last line of pytest, or why there is none.
        is_good: Whether everything passed.
    """

    python: str
    ray: str
    numpy: str
    said: str
    is_good: bool


def try_all(pairs: Sequence[tuple[str, str]] = PAIRS) -> Iterator[Outcome]:
    """Try the pairs of Python and Ray one after the other."""
    for python, ray in pairs:
        yield _try(python, ray)


def _try(python: str, ray: str) -> Outcome:
    [wheel] = DIST.glob(f"*_{platform.machine()}.whl")
    found, numpy = python, ""
    try:
        environment = Environment(WORK / "environments" / f"{python}-{ray}", python)
        found = environment.python_version()
        environment.install(wheel, f"ray=={ray}")
        numpy = environment.version_of("numpy")
        environment.run("-c", quickstart())
        said = environment.run_tests()
    except Failure as failure:
        lines = str(failure).strip().splitlines()
        (WORK / f"{python}-{ray}.log").write_text("\n".join(lines))
        return Outcome(found, ray, numpy, f"failed: {lines[-1]}", is_good=False)
    return Outcome(found, ray, numpy, said, is_good=True)


def write_page(outcomes: Sequence[Outcome]) -> None:
    """Write the page of the documentation that says what was tried."""
    rows = [
        f"| {o.python} | {o.ray} | {o.numpy} | {o.said.partition(' in ')[0]} |" for o in outcomes
    ]
    text = _PAGE.format(
        oldest=".".join(RAYS[-1].split(".")[:2]),
        files=len(SHARE),
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        version=version(),
        machine=f"{platform.machine()} with {' '.join(platform.libc_ver())}",
        rows="\n".join(rows),
    )
    PAGE.write_text(text)
