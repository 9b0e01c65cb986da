# SPDX-License-Identifier: Apache-2.0
"""``import rcg as ray``: a session from ``init`` to ``shutdown``, and the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rcg
from tests.cluster.stage import Driver, own_output, session_address

PROGRAM = """
import sys
import rcg as ray
import rcg.dag

@ray.remote
class Echo:
    def echo(self, x):
        return x

def session(**options):
    ray.init(log_to_driver=False, logging_level="error", **options)
    with ray.dag.InputNode() as inp:
        dag = Echo.remote().echo.bind(inp)
    graph = dag.experimental_compile()
    ref = graph.execute("hello")
    print(ray.get(ref))
    late = graph.execute("late")
    ray.shutdown()
    print(graph.is_teardown, ray.is_initialized(), ray.get(ref))
    for call in (lambda: ray.get(late), lambda: graph.execute("again")):
        try:
            call()
        except ray.exceptions.RayChannelError as error:
            print(type(error).__name__)

session(address=sys.argv[1])
session(address="local", num_cpus=1, include_dashboard=False)
"""


@pytest.mark.full
def test_two_sessions_in_one_program(ray_session):
    """The first joins a Ray that is there, the second starts one."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, session_address()],
        capture_output=True,
        text=True,
        cwd=Path(rcg.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    one = ["hello", "True False hello", "ChannelClosed", "ChannelClosed"]
    assert own_output(done.stdout).splitlines() == [*one, *one], done.stderr


RAYS_LINES = """
from ray._private import worker

lines = {"pid": "raylet", "lines": ["WARNING: 12 PYTHON worker processes have been started"]}
for word in ("one", "two", "three"):
    worker.print_worker_logs(lines, sys.stdout)
    say(word)
    worker.print_worker_logs(lines, sys.stdout)
"""


def test_what_ray_prints_is_no_output_of_a_program(tmp_path):
    program = Driver(RAYS_LINES, tmp_path, joins=False)
    try:
        assert program.line() == "one"
        program.expect("two")
        assert program.finish() == "three\n"
    finally:
        program.end()
