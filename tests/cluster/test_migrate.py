# SPDX-License-Identifier: Apache-2.0
"""A program for Ray's own compiled graphs runs on rcg once `rcg migrate` has been over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rcg import cli
from tests.cluster.stage import ROOT, own_output, session_address

HELPERS = """\
import ray


def fetch(refs):
    return ray.get(refs)
"""

PROGRAM = """\
import sys

import ray
import ray.dag
import ray.util
import ray.util.queue  # loads more than ray does by itself
from helpers import *
from ray import ObjectRef, job_submission
from ray.dag import MultiOutputNode
from ray.dag.input_node import InputNode

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")


@ray.remote(num_cpus=0)
class Stage:
    def shout(self, text):
        return text.upper()

    def mark(self, text):
        return text + "!"


a, b = Stage.remote(), Stage.remote()
with ray.dag.InputNode() as inp:
    loud = a.shout.bind(inp)
    dag = MultiOutputNode([loud, b.mark.bind(loud)])
graph = dag.experimental_compile()
print(ray.get(graph.execute("one")))
print(fetch(graph.execute("two")))


def later():
    import ray.util.queue

    with InputNode() as inp:
        dag = b.mark.bind(inp)
    with dag.experimental_compile() as other:
        return ray.get(other.execute("three"))


print(later())
queue = ray.util.queue.Queue(actor_options={"num_cpus": 0})
queue.put("four")
print(queue.get(), isinstance(a.mark.remote("five"), ObjectRef))
print(ray.__name__, "ray.job_submission" in sys.modules)
graph.teardown()
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "program.py"), session_address()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(ray_session: None, tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


@pytest.mark.full
def test_a_migrated_program_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", "--write", str(folder)]) == 0
    printed = capsys.readouterr().err
    assert "`from helpers import *` binds `ray` again" in printed
    assert "changed 2 of 2 files, 1 remark" in printed
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert own_output(done.stdout).splitlines() == [
        "['ONE', 'ONE!']",
        "['TWO', 'TWO!']",
        "three!",
        "four True",
        "rcg True",
    ]


TRAPPED = """\
import sys
import rcg as ray
from rcg import InputNode

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")


@ray.remote(num_cpus=0)
class Stage:
    def shout(self, text):
        return text.upper()


with InputNode() as inp:
    graph = Stage.remote().shout.bind(inp).experimental_compile()
import ray.util

try:
    ray.get(graph.execute("one"))
except ValueError as error:
    print(error)
graph.teardown()
"""


@pytest.mark.full
def test_the_trap_of_a_rewrite_by_hand_and_the_way_out(folder: Path) -> None:
    """The README's warning is true, and the command fixes the program."""
    program = folder / "program.py"
    program.write_text(TRAPPED)
    assert "Invalid type of object refs" in run(folder).stdout
    assert cli.main(["migrate", "--write", str(program)]) == 0
    done = run(folder)
    assert (done.returncode, own_output(done.stdout)) == (0, ""), done.stderr
