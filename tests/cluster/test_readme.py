# SPDX-License-Identifier: Apache-2.0
"""The blocks of the README and of each page of the guide, run in order, do what the page says."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cluster.nodes import is_spread
from tests.cluster.stage import joining
from tests.harness import readme

BLOCKS = {page: readme.blocks(page) for page in readme.PAGES}
PROGRAMS = [
    page for page, blocks in BLOCKS.items() if any(block.language == "python" for block in blocks)
]

# What a comment behind a `print` promises: a list, a number, or a shape of torch's.
PROMISE = re.compile(r"print\(.*\)  # ([\[\d].*|torch\.Size.*)")


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda page: page.stem)
def run(
    request: pytest.FixtureRequest, ray_session: None, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[readme.Block, str]]:
    """The blocks of a page, and what each printed when they ran in order."""
    blocks = BLOCKS[request.param]
    printed = readme.run(blocks, tmp_path_factory.mktemp("reader"), joining())
    return list(zip(blocks, printed, strict=True))


@pytest.mark.full
def test_all_blocks_run_in_order_as_one_reader_would_run_them(
    run: list[tuple[readme.Block, str]],
) -> None:
    for block, out in run:
        if block.language == "python":
            assert bool(out) >= ("print(" in block.text), block.text


@pytest.mark.full
def test_what_a_comment_promises_is_printed(run: list[tuple[readme.Block, str]]) -> None:
    for block, out in run:
        for promised in PROMISE.findall(block.text):
            assert promised.removesuffix(" ...") in out.splitlines()


@pytest.mark.full
def test_what_is_shown_as_output_is_what_comes(run: list[tuple[readme.Block, str]]) -> None:
    if is_spread():
        pytest.skip("the pages show what one node prints: with more, gates have lines")
    before = ("", "")
    for block, out in run:
        if not block.language:
            assert before[0] == "python", "output stands below the block that printed it"
            came = readme.kinds(before[1])
            shown = [line for line in readme.kinds(block.text) if line and line != "..."]
            assert shown
            for line in shown:
                assert line in came, (line, came)
        before = (block.language, out)


def test_pages_promise_and_show() -> None:
    every = [block for blocks in BLOCKS.values() for block in blocks]
    assert sum(len(PROMISE.findall(block.text)) for block in every) >= 7
    assert sum(len(block.text.splitlines()) for block in every if not block.language) >= 25


@pytest.mark.full
def test_every_command_is_there(tmp_path: Path) -> None:
    project = tomllib.loads((readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [
        command
        for blocks in BLOCKS.values()
        for block in blocks
        if block.language == "sh"
        for command in readme.commands(block)
    ]
    assert {command[0] for command in found} == {"make", "pip", "rcg"}
    for command in found:
        match command:
            case ["make", target]:
                subprocess.run(["make", "-n", target], cwd=readme.ROOT, check=True, timeout=60)
            case ["pip", "install", what]:
                extra = re.fullmatch(r"(?:\.|rcg)(?:\[(\w+)\])?", what)
                assert extra is not None, "only the project can be installed"
                assert extra[1] is None or extra[1] in project["optional-dependencies"]
            case ["rcg", *_]:
                assert "rcg" in project["scripts"]  # what it does is run with the blocks
            case _:
                pytest.fail(f"nobody looks after {command}")


@pytest.mark.full
def test_targets_of_make_in_sentences_are_there() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in readme.PAGES)
    for target in set(re.findall(r"`make ([\w-]+)`", text)):
        subprocess.run(["make", "-n", target], cwd=readme.ROOT, check=True, timeout=60)
