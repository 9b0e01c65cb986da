# SPDX-License-Identifier: Apache-2.0
"""The README's example does what the README says, and its options are those there are."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from rcg.dag.compile import CompileKeywords
from rcg.options import Options

README = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_its_comment_says(tmp_path: Path) -> None:
    [example] = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "@ray.remote" in block
    ]
    [promised] = re.findall(r"print\(.*\)  # (.*)", example)
    program = tmp_path / "example.py"
    program.write_text(example)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [promised]


def test_the_table_lists_every_option_and_no_other() -> None:
    section = README.partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(RCG_\w+)` \| `?([^`|]+?)`? \|", section, re.MULTILINE)
    keywords = set(CompileKeywords.__annotations__)
    listed = {keyword for keyword, _, _ in rows}
    assert listed <= keywords
    hidden = {"enable_asyncio", "overlap_communication"}  # accepted, without effect so far
    assert listed == {name for name in keywords if name[0] != "_"} - hidden


def test_the_variables_and_defaults_of_the_table_are_true() -> None:
    section = README.partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(RCG_\w+)` \| `?([^`|]+?)`? \|", section, re.MULTILINE)
    renamed = {"timeout": "compile_timeout"}
    defaults = Options()
    names = {field.name for field in fields(Options)}
    samples = {"wait": "futex", "thread": "main", "concurrent": "1", "record": "0"}
    for keyword, variable, shown in rows:
        name = renamed.get(keyword, keyword)
        name = name if name in names else f"{name}_s"
        changed = Options.from_environment({variable: samples.get(keyword, "7")})
        assert getattr(changed, name) != getattr(defaults, name), variable
        default = getattr(defaults, name)
        if default is not None:
            said = {True: "yes", False: "no"}.get(default, str(default))
            assert shown == said.removesuffix(".0"), keyword
