# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of pages and stores what they print: ``python -m docs.pictures.outputs PAGE``.

A block without a language is the output of the program above it. Its lines are replaced by the
lines of the same kind that come now; an empty block gets everything. ``...`` stands for lines that
are left out. `make pictures` does it for the pages on troubles.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.harness import readme

_PAGES: Final = ("docs/troubleshooting.md",)
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_PROGRAM: Final = re.compile(r"\bblock_\d+\.py")


def main(names: list[str]) -> None:
    """Store the outputs of these pages."""
    for name in names:
        page = readme.ROOT / name
        read = readme.blocks(page)
        with tempfile.TemporaryDirectory() as folder:
            printed = readme.run(read, Path(folder))
        places = {folder: "/home/me", sys.base_prefix: "/usr"}
        printed = [_PROGRAM.sub("program.py", replaced(out, places)) for out in printed]
        outputs = iter(zip(read, ["", *printed], strict=False))  # each with what came before it
        text = page.read_text(encoding="utf-8")
        text = readme.FENCE.sub(lambda found: _shown(*next(outputs)) or found[0], text)  # noqa: B023
        page.write_text(text, encoding="utf-8")


def _shown(block: readme.Block, out: str) -> str:
    """Return the block of an output, as it is now; nothing for another block."""
    if block.language:
        return ""
    return f"```\n{renewed(block.text, _COLOURS.sub('', out))}```"


def replaced(text: str, places: dict[str, str]) -> str:
    """Return a text with other paths."""
    for here, there in places.items():
        text = text.replace(here, there)
    return text


def renewed(shown: str, out: str) -> str:
    """Return what is shown with the lines that came now.

    Raises:
        ValueError: A line that is shown has not come.
    """
    came = out.splitlines()
    if not shown.strip():
        return "".join(f"{line.rstrip()}\n" for line in came)
    kinds = [readme.kinds(line)[0] if line else "" for line in came]
    lines, at = [], 0
    for line in shown.splitlines():
        if line and line != "...":
            at = kinds.index(readme.kinds(line)[0], at) + 1
            line = came[at - 1].rstrip()
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:] or list(_PAGES))
