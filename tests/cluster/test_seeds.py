# SPDX-License-Identifier: Apache-2.0
"""What the documents that rcg started from show, as programs in which only imports are rewritten.

The rule of the README is applied to the import lines of these programs and to nothing else; then
they run as a notebook would: block by block, in one namespace, with `await` at the top level, and
they end without any clean-up that the document does not do. One of them runs on a Ray that starts
by itself, the others join that of the tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cluster.stage import joining, own_output
from tests.harness.documents import (
    ACROSS_ACTORS,
    ASYNCIO,
    DIRECT_TRANSPORT,
    HELLO,
    OVERLAP,
    OVERVIEW,
    TENSORS,
)

pytestmark = pytest.mark.usefixtures("ray_session")

# Runs the blocks of a file (parted by lines `# %%`) as a notebook runs its cells.
NOTEBOOK = """
import ast, asyncio, inspect, sys

async def main(blocks):
    namespace = sys.modules["__main__"].__dict__
    for block in blocks:
        code = compile(block, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, namespace)
        if inspect.iscoroutine(result):
            await result

asyncio.run(main(open(sys.argv[1]).read().split("# %%\\n")))
"""

IMPORT_LINE = re.compile(r"^(?P<verb>\s*(?:import|from)\s+)ray\b(?P<rest>.*)$", re.MULTILINE)


def rewrite(source: str) -> str:
    """Applies the README's one rule: `ray` becomes `rcg` in import lines.

    >>> print(rewrite('''
    ... import ray
    ... import ray.dag
    ... from ray.dag import InputNode
    ... ray.get(ray)'''))
    <BLANKLINE>
    import rcg as ray
    import rcg.dag
    from rcg.dag import InputNode
    ray.get(ray)
    """

    def replace(line: re.Match[str]) -> str:
        verb, rest = line["verb"], line["rest"]
        if verb.strip() == "import" and not rest.strip():
            return f"{verb}rcg as ray"
        return f"{verb}rcg{rest}"

    return IMPORT_LINE.sub(replace, source)


def run(blocks: str, folder: Path, *, starts_ray: bool = False, **variables: str) -> list[str]:
    """Runs a program as it stands after the rule, and returns the lines that it printed.

    Anything that is wrong on the way, at exit included, fails the test with all that it said.

    Args:
        blocks: The program.
        folder: Where to run it.
        starts_ray: Whether the program starts a Ray of its own; otherwise it joins this session.
        **variables: Of its environment.
    """
    program, cells = folder / "notebook.py", folder / "cells.py"
    program.write_text(NOTEBOOK)
    cells.write_text(rewrite(blocks))
    done = subprocess.run(
        [sys.executable, str(program), str(cells)],
        cwd=folder,
        # There may be a Ray on this machine that other programs join; for this one there is none.
        env={**joining(), **({"RAY_ADDRESS": "local"} if starts_ray else {}), **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr, said
    assert "Exception ignored" not in done.stderr, said
    return own_output(done.stdout).splitlines()


@pytest.mark.full
def test_hello_world_with_ray_core_then_uncompiled_then_compiled(tmp_path: Path) -> None:
    lines = run(HELLO, tmp_path)
    assert lines[:3] == ["hello", "hello", "world"]
    took = [line for line in lines if re.fullmatch(r"took \d\.\d+(e-\d+)?", line)]
    assert len(took) == 20
    assert [line for line in lines if re.fullmatch(r"\w+ \([0-9a-f]{8}\)", line)]
    assert lines[-1] == "done"


@pytest.mark.full
def test_several_actors_at_once_then_one_after_the_other(tmp_path: Path) -> None:
    """The second graph is compiled on live actors, and nothing is torn down before the exit.

    The program starts no Ray itself, and ends none.
    """
    lines = run(ACROSS_ACTORS, tmp_path, starts_ray=True)
    assert lines == ["['hello', 'hello', 'hello']", "['hello0', 'hello1', 'hello2']"]


@pytest.mark.full
def test_asyncio(tmp_path: Path) -> None:
    assert run(ASYNCIO, tmp_path) == ["hello"]


def test_the_overviews_call_and_its_compiled_form(tmp_path: Path) -> None:
    assert run(OVERVIEW, tmp_path) == ["6", "6"]


@pytest.mark.full
def test_tensors_between_devices_as_far_as_a_cpu_goes(tmp_path: Path) -> None:
    """Ray believes in two GPUs; the device that is not there is an error of that execution."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    resources = json.dumps({"CPU": 4, "GPU": 2})
    lines = run(TENSORS, tmp_path, starts_ray=True, RAY_OVERRIDE_RESOURCES=resources)
    assert lines[0] == "cpu"
    assert "No CUDA GPUs are available" in lines[1]
    assert lines[-1] == "done"


@pytest.mark.full
def test_communication_beside_computation_at_the_size_of_a_cpu(tmp_path: Path) -> None:
    lines = run(OVERLAP, tmp_path)
    expected = [rf"overlap_gpu_communication={on}, duration=[\d.]+" for on in (False, True)]
    assert all(map(re.fullmatch, expected, lines)) and len(lines) == 2, lines


def test_a_program_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("print(1)\n# %%\n1 / 0\n", tmp_path)


@pytest.mark.full
def test_tensors_go_from_actor_to_actor_without_a_graph(tmp_path: Path) -> None:
    """Its two examples of what can go wrong do, and the third, which is the remedy, does not."""
    lines = run(DIRECT_TRANSPORT, tmp_path)
    assert [line for line in lines if line.startswith("AssertionError")] == [
        "AssertionError: sender and receiver returned different sums."
    ] * 2
