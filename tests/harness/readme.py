# SPDX-License-Identifier: Apache-2.0
"""The README and the guide as readers meet them: the blocks of a page, in order, in one session.

As a program it runs the blocks of a page: it reads them as JSON and writes what each printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
OPTIONS_PAGE: Final = ROOT / "docs/reference/options.md"

PAGES: Final = (
    README,
    *sorted(ROOT.glob("docs/start/*.md")),
    *sorted(ROOT.glob("docs/guide/*.md")),
    ROOT / "docs/troubleshooting.md",
    OPTIONS_PAGE,
    ROOT / "docs/performance.md",
)
"""What users read."""

FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code or of output.

    Attributes:
        language: ``python``, ``sh``, or nothing for output.
        text: What is in it.
    """

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, body) for language, body in found]


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a shell block."""
    lines = (line for line in block.text.splitlines() if line.strip())
    return [shlex.split(line, comments=True) for line in lines]


def kinds(text: str) -> list[str]:
    """What lines look like without their numbers, ids, paths, and who is meant."""
    text = re.sub(r"CompiledDAG\(\w+(\.\.\.)?\)|\b[0-9a-f]{8,}\b", "ID", text)
    text = re.sub(r"/\S+?:\d+ in \w+|\b\w+\.py:\d+", "PLACE", text)
    text = re.sub(r"\d[\d,.]*( (?:[mnµ]?s|kB|MB|GB|B|/s)\b)?", "N", text)
    text = re.sub(r"\bN (?:%|under)", "N", text)
    op = r"(?: (?:read|write) cN|\.work|: (?:your code )?between its ops)?"
    text = re.sub(rf"(?:driver|aN \(\w+\)){op}", "N", text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return [re.sub(r"\bN(?:,? N)+", "N", line) for line in lines]  # a cell may be empty


def run(read: list[Block], folder: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Run blocks in a process of their own, in this folder; returns what each printed."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps([asdict(block) for block in read]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    from tests.cluster.stage import own_output  # which the program does not have

    printed = json.loads(own_output(done.stdout).splitlines()[-1])
    return [own_output(each) for each in printed]


def _run_here(read: list[Block]) -> list[str]:
    """Run blocks in this process; of shell commands those of ``rcg`` itself."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    printed = []
    for number, block in enumerate(read):
        if block.language == "python":
            file = Path(f"block_{number}.py").absolute()  # what actors quote lines of
            file.write_text(block.text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, str(file), "exec"), names)
            printed.append(out.getvalue())
        elif block.language == "sh":
            ours = [command[1:] for command in commands(block) if command[0] == "rcg"]
            printed.append("".join(_rcg(command) for command in ours))
        else:
            printed.append("")
    return printed


def _rcg(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rcg", *arguments], capture_output=True, text=True, timeout=200
    )
    if done.returncode:
        raise RuntimeError(f"rcg {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(_run_here([Block(**each) for each in json.load(sys.stdin)])))
