# SPDX-License-Identifier: Apache-2.0
"""The README's blocks, run in order, do what the README says."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import readme
from tests.cluster.nodes import is_spread
from tests.cluster.stage import joining

README = readme.README.read_text(encoding="utf-8")
BLOCKS = readme.blocks()

# A reader's program that shows the report of a hang.
HANG = """
import threading, time

@ray.remote
class Stuck(object):
    def __init__(self):
        self.ready = threading.Event()

    def work(self, text):
        self.ready.wait()
        return text

a, b = Stuck.remote(), Stuck.remote()
with InputNode() as inp:
    dag = b.work.bind(a.work.bind(inp))
graph = dag.experimental_compile()
refs = [graph.execute(i) for i in range(4)]
try:
    refs[0].get(timeout=1)
except ray.exceptions.RayChannelTimeoutError as error:
    print(error)
graph.teardown(kill_actors=True)
"""


def kinds(text: str) -> list[str]:
    """What lines look like without their numbers, ids, paths, and who is meant."""
    text = re.sub(r"CompiledDAG\(\w+(\.\.\.)?\)|\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"/\S+?:\d+ in \w+", "PLACE", text)
    text = re.sub(r"\d[\d,.]*( (?:[mnµ]?s|KiB|MiB|GiB|B|/s)\b)?", "N", text)
    text = re.sub(r"\bN (?:%|under)", "N", text)
    op = r"(?: (?:read|write) cN|\.work|: (?:your code )?between its ops)?"
    text = re.sub(rf"(?:driver|aN \(\w+\)){op}", "N", text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return [re.sub(r"\bN(?:,? N)+", "N", line) for line in lines]  # a cell may be empty


@pytest.fixture(scope="module")
def printed(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each block of the README printed, run in order, and what a hang did after them."""
    folder = tmp_path_factory.mktemp("reader")
    return readme.run([*BLOCKS, readme.Block("python", HANG)], folder, joining())


@pytest.mark.full
def test_all_blocks_run_in_order_as_one_reader_would_run_them(printed: list[str]) -> None:
    assert len(printed) == len(BLOCKS) + 1
    for block, out in zip(BLOCKS, printed, strict=False):
        if block.language == "python":
            assert bool(out) >= ("print(" in block.text), block.text


@pytest.mark.full
def test_what_a_comment_promises_is_printed(printed: list[str]) -> None:
    promises = 0
    for block, out in zip(BLOCKS, printed, strict=False):
        for promised in re.findall(r"print\(.*\)  # (\[.*)", block.text):
            assert promised.removesuffix(" ...") in out.splitlines()
            promises += 1
    assert promises


@pytest.mark.full
def test_what_is_shown_as_output_is_what_comes(printed: list[str]) -> None:
    if is_spread():
        pytest.skip("the README shows what one node prints: with more, gates have lines")
    shown = 0
    for at, block in enumerate(BLOCKS):
        if block.language:
            continue
        if BLOCKS[at - 1].language == "python" and "print(p)" in BLOCKS[at - 1].text:
            out = printed[at - 1]
        else:
            assert block.text.startswith("CompiledDAG(")
            out = printed[-1]
        came = kinds(out)
        for line in filter(None, kinds(block.text)):
            if line not in ("...", "self.ready.wait()"):
                assert line in came, (line, came)
                shown += 1
    assert shown > 15


@pytest.mark.full
def test_every_command_is_there(tmp_path: Path) -> None:
    project = tomllib.loads((readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [
        command for block in BLOCKS if block.language == "sh" for command in readme.commands(block)
    ]
    assert {command[0] for command in found} == {"make", "pip", "rcg"}
    for command in found:
        match command:
            case ["make", target]:
                subprocess.run(["make", "-n", target], cwd=readme.ROOT, check=True, timeout=60)
            case ["pip", "install", what]:
                extra = re.fullmatch(r"\.(?:\[(\w+)\])?", what)
                assert extra is not None, "only the folder of the project can be installed"
                assert extra[1] is None or extra[1] in project["optional-dependencies"]
            case ["rcg", *_]:
                assert "rcg" in project["scripts"]  # what it does is run with the blocks
            case _:
                pytest.fail(f"nobody looks after {command}")


@pytest.mark.full
def test_targets_of_make_in_sentences_are_there() -> None:
    for target in set(re.findall(r"`make (\w+)`", README)):
        subprocess.run(["make", "-n", target], cwd=readme.ROOT, check=True, timeout=60)
