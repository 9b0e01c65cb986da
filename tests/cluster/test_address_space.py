# SPDX-License-Identifier: Apache-2.0
"""Graphs in processes that may not have many addresses (``ulimit -v``, RLIMIT_AS)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("ray_session")

MB = 1 << 20

PROGRAM = """
import gc, resource
import numpy as np

MB = 1 << 20

def addresses():
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()

def allow(more):
    resource.setrlimit(resource.RLIMIT_AS, (addresses() + more, -1))

@ray.remote(num_cpus=0)
class Stage:
    def double(self, x):
        return 2 * x

    def allow(self, more):
        allow(more)

    def addresses(self):
        return addresses()

a, b = Stage.remote(), Stage.remote()
with InputNode() as inp:
    dag = b.double.bind(a.double.bind(inp))

def run(graph, size):
    for i in range(12):
        found = ray.get(graph.execute(np.full(size // 8, i)))
        assert found[0] == found[-1] == 4 * i

options = {"memory_cap_bytes": int(sys.argv[1])} if sys.argv[1] != "None" else {}
"""

LIMITED = """
room = int(sys.argv[2]) * MB
ray.get([stage.allow.remote(room) for stage in (a, b)])
allow(room)
for _ in range(3):
    with dag.experimental_compile(**options) as graph:
        run(graph, 8 * MB)
        del graph
    gc.collect()
say("done")
"""

COUNTED = """
ray.get(dag.experimental_compile(**options).execute(1))  # what comes only once
before = [addresses(), *ray.get([stage.addresses.remote() for stage in (a, b)])]
graph = dag.experimental_compile(**options)
run(graph, 8 * MB)
after = [addresses(), *ray.get([stage.addresses.remote() for stage in (a, b)])]
say(max(now - then for now, then in zip(after, before)) // MB)
"""


@pytest.mark.full
@pytest.mark.parametrize("cap", [64 * MB, None], ids=["a small cap", "the default cap"])
def test_a_graph_runs_where_addresses_are_limited(driver, cap):
    """Of 2 GiB, which is less than the default cap of most machines."""
    program = driver(PROGRAM + LIMITED, cap, 2048)
    program.expect("done")
    program.finish()


@pytest.mark.full
def test_a_graph_takes_addresses_by_its_cap(driver):
    program = driver(PROGRAM + COUNTED, 64 * MB)
    taken = int(program.line())
    assert taken <= 8 * 64  # 3 arenas, each of twice the cap, and what else there is
    program.finish()
