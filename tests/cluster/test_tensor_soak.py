# SPDX-License-Identifier: Apache-2.0
"""Many executions of a graph with a Gloo edge and a collective leave memory and sockets flat.

``SOAK_EXECUTIONS=20000`` runs it for longer.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

EXECUTIONS = int(os.environ.get("SOAK_EXECUTIONS", "1500"))
IN_FLIGHT = 10
# What the allocators of a process may keep; a leak of one small tensor per execution is more.
SLACK_BYTES = 8 << 20
SIZES = (3000, 17, 1000, 3000, 256)


def holdings() -> dict[str, int]:
    """Private memory, sockets of the loopback device, and threads of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    inodes = set()
    count = 0
    tcp = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    inodes = {line[9] for line in tcp if line[1].startswith("0100007F:")}
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # closed since
            continue
        count += name.removeprefix("socket:[").removesuffix("]") in inodes
    return {
        "bytes": int(status.partition("RssAnon:")[2].split()[0]) * 1024,
        "shared bytes": int(status.partition("RssShmem:")[2].split()[0]) * 1024,
        "connections": count,
        "threads": int(status.partition("Threads:")[2].split()[0]),
    }


class Worker:
    """Makes tensors of changing sizes, and adds them up."""

    def full(self, n):
        return torch.ones(n)

    def sum(self, *tensors):
        return float(sum(each.sum() for each in tensors))

    def hold(self):
        return holdings()


@pytest.fixture
def workers(ray_session: None) -> Iterator[list[Any]]:
    actor_class = rcg.remote(num_cpus=0)(Worker)
    made = [actor_class.remote() for _ in range(3)]
    yield made
    for each in made:
        rcg.kill(each)


def run(graph: Any, executions: int) -> None:
    for start in range(0, executions, IN_FLIGHT):
        sizes = [SIZES[(start + i) % len(SIZES)] for i in range(IN_FLIGHT)]
        refs = [graph.execute(n) for n in sizes]
        for n, (one, two) in zip(sizes, refs, strict=True):
            assert rcg.get([one, two]) == [2.0 * n, 3.0 * n]


@pytest.mark.full
def test_many_executions_leave_memory_sockets_and_threads_flat(workers):
    a, b, c = workers
    with InputNode() as inp:
        value = a.full.bind(inp).with_tensor_transport(transport="gloo")
        reduced = collective.allreduce.bind([a.full.bind(inp), c.full.bind(inp)])
        dag = MultiOutputNode([b.sum.bind(value, value), c.sum.bind(reduced[1], c.full.bind(inp))])

    def look() -> list[dict[str, int]]:
        return [holdings(), *rcg.get([each.hold.remote() for each in workers])]

    with rcg.compile(dag) as graph:
        run(graph, 500)
        before = look()
        run(graph, EXECUTIONS)
        after = look()
    for process, (early, late) in enumerate(zip(before, after, strict=True)):
        for name in ("bytes", "shared bytes"):
            assert late[name] <= early[name] + SLACK_BYTES, (process, name, before, after)
        assert late["connections"] == early["connections"], (process, before, after)
        assert late["threads"] <= early["threads"] + 2, (
            process,
            before,
            after,
        )  # Ray's come and go
    print(before, after, sep="\n")
