# SPDX-License-Identifier: Apache-2.0
"""The extension module, which pyproject.toml cannot describe; everything else is there."""

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


setup(
    ext_modules=[
        Extension(
            "rcg._native",
            sources=["rcg/native/module.c"],
            depends=sorted(glob("rcg/native/*.h")),
            define_macros=[("Py_LIMITED_API", LIMITED_API)],
            extra_compile_args=compile_args,
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildOnLinux},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
