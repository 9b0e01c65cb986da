# SPDX-License-Identifier: Apache-2.0
"""Actors with GPUs that only Ray and rcg believe in: what is chosen and refused at compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rcg
from rcg.comm import registry
from rcg.dag import InputNode
from rcg.errors import CompileError
from tests.cluster.stage import GUARD_S, own_output

torch = pytest.importorskip("torch")
fake_cuda = pytest.importorskip("tests.harness.fake_cuda", exc_type=ImportError)

PROGRAM = """
import json, sys, warnings
import rcg as ray
from rcg.dag import InputNode
from rcg.errors import RcgError

class Worker:
    def __init__(self, believes, has_cupy, has_torch=True):
        import importlib.util
        import rcg.runtime.actor.start as start
        if believes:
            start._DRIVERS = ("/dev/null",)
        if has_cupy:
            util, find = importlib.util, importlib.util.find_spec
            util.find_spec = lambda name, *where: (
                None if name == "torch" and not has_torch
                else name == "cupy" or find(name, *where)
            )
    def make(self, n): return n
    def read(self, value): return value
    def loaded(self, *_): return [name in sys.modules for name in ("torch", "cupy")]

ray.init(num_cpus=2, num_gpus=2, logging_level="ERROR", log_to_driver=False)
a, b = [ray.remote(num_gpus=1, num_cpus=0)(Worker).remote(False, False) for _ in range(2)]
with InputNode() as inp:
    dag = b.loaded.bind(a.loaded.bind(inp).with_tensor_transport("auto"), a.read.bind(inp))
with ray.compile(dag, overlap=True) as graph:
    print(json.dumps([ray.get(graph.execute(3)), ray.get(a.loaded.remote()), Worker.loaded(None)]))
for each in (a, b):
    ray.kill(each)
for transport, shares, *has in json.loads(sys.argv[1]):
    options = has.pop() if isinstance(has[-1], dict) else {}
    a, b = [ray.remote(num_gpus=share, num_cpus=0)(Worker).remote(*has) for share in shares]
    with InputNode() as inp:
        dag = b.read.bind(a.make.bind(inp).with_tensor_transport(transport))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with ray.compile(dag, **options) as graph:
                found = [group.backend for group in graph.plan.groups], ray.get(graph.execute(3))
        except RcgError as error:
            found = type(error).__name__, error.message
    print(json.dumps([found, [str(each.message) for each in told]]))
    for each in (a, b):
        ray.kill(each)
"""


@pytest.mark.full
def test_what_actors_with_gpus_get(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cases = [
        ("auto", [1, 1], True, True),
        ("auto", [0.4, 0.4], True, True),
        ("auto", [1, 1], True, False),
        ("auto", [1, 1], False, True),
        ("nccl", [1, 0], True, True),
        ("nccl", [0.4, 0.4], True, True),
        ("accelerator", [1, 1], False, True),
        ("auto", [1, 1], True, True, False),
        ("auto", [1, 1], True, True, {"_default_communicator": None}),
        ("auto", [1, 0], True, True, {"_default_communicator": None}),
    ]
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(cases)],
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    loaded, *found = map(json.loads, own_output(done.stdout).splitlines())
    assert loaded == [[False, False]] * 3  # where no tensor is used
    both, share, without, blind, one, shared, none, no_torch, no_default, needless = found
    # The transport is chosen, and only the GPU is missing then.
    assert "the transport nccl needs" in both[0][1]
    assert "the transport cuda_ipc needs" in share[0][1]
    assert without[0] == [[], 3]
    assert "of a0 (Worker)" in without[1][0]
    assert "have no CuPy: pip install 'rcg[gpu]'" in without[1][0]
    assert blind == [[[], 3], []]
    assert one[0][0] == "PlacementError" and "has no GPU: create it with num_gpus=1" in one[0][1]
    assert shared[0][0] == "PlacementError" and "are on one GPU" in shared[0][1]
    assert none[0][0] == "PlacementError"
    assert no_torch == [[[], 3], []]
    assert no_default[0][0] == "GraphError" and "it is nccl" in no_default[0][1]
    assert needless == [[[], 3], []]


class Worker:
    def make(self, n):
        return torch.full((4,), float(n), device="fake")

    def total(self, tensor):
        return float(tensor.cpu().sum())


@pytest.fixture
def workers(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    monkeypatch.setattr(registry, "_registered", {})
    rcg.register_communicator("queued", ["fake"], fake_cuda.NcclOnFake)
    rcg.register_communicator("direct", ["fake"], fake_cuda.IpcOnFake)
    made = [rcg.remote(num_cpus=0)(Worker).remote() for _ in range(3)]
    yield made
    for each in made:
        rcg.kill(each)


def edge(writer: Any, reader: Any, transport: str = "queued") -> Any:
    with InputNode() as inp:
        return reader.total.bind(writer.make.bind(inp).with_tensor_transport(transport))


@pytest.mark.full
def test_two_graphs_that_queue_among_the_same_actors(workers):
    a, b, c = workers
    first = rcg.compile(edge(a, b))
    with pytest.raises(CompileError, match="concurrent=True") as caught:
        rcg.compile(edge(b, a))
    assert f"CompiledDAG({first.get_id()[:8]})" in str(caught.value)
    # One actor in common, a transport that queues nothing, or the user's word.
    with (
        rcg.compile(edge(a, c)) as other,
        rcg.compile(edge(a, b, "direct")) as direct,
        rcg.compile(edge(a, b), concurrent=True) as beside,
    ):
        for graph in (first, other, direct, beside):
            assert rcg.get(graph.execute(2), timeout=GUARD_S) == 8.0
    first.teardown()
    with rcg.compile(edge(b, a)) as graph:
        assert rcg.get(graph.execute(2), timeout=GUARD_S) == 8.0
