# SPDX-License-Identifier: Apache-2.0
"""Texts that a person has read and approved: one file each, beside what makes them again.

``RCG_APPROVE=1`` writes what is made now. Then read the difference: it is the test.
"""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).with_name("scenes")


def check_approved(name: str, text: str) -> None:
    """A text is as it was approved."""
    path = _HERE / f"{name}.txt"
    if os.environ.get("RCG_APPROVE"):
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
