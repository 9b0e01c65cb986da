# SPDX-License-Identifier: Apache-2.0
"""What a user does with what was built: install it where there is no compiler, and use it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

from release.environments import Environment, quickstart
from release.files import WORK, run, tool

_WITH_A_COMPILER: Final = "import rcg, rcg._native; print(rcg.__version__)"


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
