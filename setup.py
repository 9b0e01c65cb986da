# SPDX-License-Identifier: Apache-2.0
"""The extension modules, which pyproject.toml cannot describe; everything else is there."""

import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LIMITED_API = "0x030B0000"  # the buffer protocol is in the limited API from 3.11 on

compile_args = ["-std=c11", "-O2"]
if os.environ.get("RCG_WERROR") == "1":
    compile_args += ["-Wall", "-Wextra", "-Werror"]


class BuildOnLinux(build_ext):
    """Says in one sentence why there is nothing to build elsewhere."""

    def run(self) -> None:
        """Builds, on Linux."""
        if not sys.platform.startswith("linux"):
            raise SystemExit(
                "rcg needs Linux (x86-64 or aarch64): its channels are made of futexes, memory "
                f"files and pidfds, which {sys.platform} does not have."
            )
        super().run()


def extension(name: str, source: str, headers: str = "") -> Extension:
    """Returns a module of one translation unit, for every Python from 3.11 on."""
    return Extension(
        name,
        sources=[source],
        depends=sorted(glob(headers)),
        define_macros=[("Py_LIMITED_API", LIMITED_API)],
        extra_compile_args=compile_args,
        py_limited_api=True,
    )


setup(
    ext_modules=[
        extension("rcg._native", "rcg/native/module.c", "rcg/native/*.h"),
        extension("rcg.bench._limits", "rcg/bench/_limits.c"),
    ],
    cmdclass={"build_ext": BuildOnLinux},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
