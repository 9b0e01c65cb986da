# SPDX-License-Identifier: Apache-2.0
"""The tests of rcg in a vLLM, in an environment of their own: what `make vllm` and a part run.

The arguments are pytest's; without any it runs ``tests/vllm`` and the notebook.
"""

from __future__ import annotations

import subprocess
import sys

PYTHON = ".venv-vllm/bin/python"
ALL = [
    "tests/vllm",
    "notebooks/vllm_inside.ipynb",
    "--nbval",
    "--nbval-current-env",
    "--nbval-cell-timeout=300",
    "--nbval-sanitize-with=notebooks/sanitize.cfg",
]


def main(arguments: list[str]) -> int:
    """Make the environment if it is not there, and run the tests; returns the exit status."""
    made = subprocess.run(["make", "--quiet", ".venv-vllm/.rcg-installed"], check=False)
    if made.returncode:
        return made.returncode
    command = [PYTHON, "-m", "pytest", *(arguments or ALL)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
