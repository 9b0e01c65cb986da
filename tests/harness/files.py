# SPDX-License-Identifier: Apache-2.0
"""Files for tests."""

from __future__ import annotations

from pathlib import Path


def make(folder: Path, contents: dict[str, str]) -> None:
    """Write files."""
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
