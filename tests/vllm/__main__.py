# SPDX-License-Identifier: Apache-2.0
"""The tests of rcg in a vLLM, in an environment of their own: what `make vllm` and a part run.

The arguments are pytest's; without any it runs ``tests/vllm``.
"""

from __future__ import annotations

import subprocess
import sys

PYTHON = ".venv-vllm/bin/python"


def main(arguments: list[str]) -> int:
    """Make the environment if it is not there, and run the tests; returns the exit status."""
    made = subprocess.run(["make", "--quiet", ".venv-vllm/.rcg-installed"], check=False)
    if made.returncode:
        return made.returncode
    command = [PYTHON, "-m", "pytest", *(arguments or ["tests/vllm"])]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
