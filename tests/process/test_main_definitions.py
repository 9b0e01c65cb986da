# SPDX-License-Identifier: Apache-2.0
"""Definitions of a user's main module in another process."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.board import ROOT


def test_definitions_of_main_keep_their_identity_in_another_process() -> None:
    out = subprocess.run(
        [sys.executable, ROOT / "tests/process/main_definitions.py"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.stderr == ""
    kinds = "Plain Plain Plain Derived Namesake Dictionary Mistake Point Colour Pair"
    assert out.stdout.splitlines() == [
        *(f"{name} True True True" for name in kinds.split()),
        "ndarray True True True",
        "made there [True, True, True, True, True]",
        "attributes of the script",
        "equal True",
        "members True",
        "method 5",
        "closure 42",
        "function 120",
        "functions [6, 4, -3] [24, 5, -4]",
        "inside True",
        "array True",
    ]
