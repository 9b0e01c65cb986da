# SPDX-License-Identifier: Apache-2.0
"""What rcg says to install is what an extra of it brings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from rcg.doctor import software

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_USERS = ("torch", "notebook", "nixl", "gpu", "migrate")


def packages(extra: str) -> set[str]:
    """Returns the names of the packages of an extra."""
    return {re.match(r"[\w-]+", each)[0] for each in EXTRAS[extra]}


def test_rcg_itself_is_small():
    assert {re.match(r"\w+", each)[0] for each in PROJECT["dependencies"]} == {"ray", "numpy"}


def test_all_is_every_extra_for_users():
    [line] = EXTRAS["all"]
    assert line == f"rcg[{','.join(FOR_USERS)}]"
    assert set(EXTRAS) == {*FOR_USERS, "all", "docs", "dev"}


def test_each_line_to_install_names_an_extra_that_there_is():
    """Only Ray and NumPy, which are required, are named themselves."""
    found = 0
    for path in (*(ROOT / "rcg").rglob("*.py"), *(ROOT / "widgets").rglob("*.py")):
        for said in re.findall(r"pip install ([^\"`,;]*)", path.read_text()):
            extra = re.match(r"'rcg\[(\w+|\{extra\})\]'", said)
            if extra is None:
                assert re.fullmatch(r"(--upgrade )?(ray|\{name\})", said), f"{path}: {said}"
            else:
                assert extra[1] in {*FOR_USERS, "{extra}"}, f"{path}: {said}"
                found += 1
    assert found > 15


def test_the_doctor_says_of_each_package_the_extra_that_has_it():
    named = {name: extra for name, (_, extra) in software._OPTIONAL.items()}
    assert {name for name, extra in named.items() if name not in packages(extra)} == set()
    # CuPy, NCCL and NIXL are looked for as transports.
    transports = {"cupy-cuda12x", "nvidia-nccl-cu12", "nixl"}
    assert set.union(*map(packages, FOR_USERS)) - transports == set(named)


def test_the_oldest_ray_of_the_doctor_is_the_one_required():
    oldest = ".".join(map(str, software.OLDEST_RAY))
    assert f"ray>={oldest}" in PROJECT["dependencies"]
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, software.OLDEST_PYTHON))}"
