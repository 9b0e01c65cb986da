# SPDX-License-Identifier: Apache-2.0
"""How long a tensor of the device takes between two actors, beside Ray's own graphs and RDT.

A sample is an execution, or a pair of calls, that passes a kept tensor on and gives the driver its
first number. Contestants take turns, each on two actors of its own. A graph lives during its turn
only: an idle graph of Ray's keeps a kernel of NCCL on the GPU, which delays all other processes.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import Any

import ray

import rcg
import rcg.dag
from rcg.bench.measure import Pace, call_turn, take_rounds
from tests.gpu.workers import Worker

PACE = Pace(calls=60, time_ns=1_000_000_000, warm_up=8)
ROUNDS = 2
WAIT_S = 60.0
SIDE = 4096  # of the kept tensor, on a GPU
IDLE_S = 1.5  # nvidia-smi tells the share of the last second or less

Ready = Callable[[int], AbstractContextManager[Callable[[], Any]]]


def compare(places: list[dict[str, Any]], module: str, device: str, counts: list[int]) -> str:
    """Return a line for each size: median and 99th percentile of each contestant in microseconds.

    Args:
        places: Options for two actors of each contestant.
        module: As for ``Worker``.
        device: The type of the device.
        counts: How many numbers (float32) the tensors have.
    """
    said = []
    idle: dict[str, int] = {}
    with ExitStack() as stack:
        ready = {}
        for name, opened in _contestants(places, module, device).items():
            try:
                ready[name] = each = stack.enter_context(opened)
                with each(counts[0]) as call:
                    call()
                    if device == "cuda":
                        time.sleep(IDLE_S)
                        idle[name] = _used()
            except Exception as error:  # noqa: BLE001 - Ray may not be able to
                ready.pop(name, None)
                said.append(f"{name}: {type(error).__name__}: {str(error)[-300:]}")
        for count in counts:

            def turn(pace: Pace, ready: Ready, count: int = count) -> Any:
                with ready(count) as call:
                    return call_turn(call)(pace)

            turns = {name: lambda pace, at=at: turn(pace, at) for name, at in ready.items()}
            found = take_rounds(turns, PACE, ROUNDS, random.Random("gpu"))
            times = [
                f"{name} {median(each) / 1e3:.0f} ({sorted(each)[int(len(each) * 0.99)] / 1e3:.0f})"
                for name, each in found.items()
            ]
            said.append(f"{count * 4} B, us, median (p99): " + ", ".join(times))
    if idle:
        said.append("GPU used while idle, %: " + ", ".join(f"{n} {u}" for n, u in idle.items()))
    return "\n  ".join(["", *said])


def _used() -> int:
    query = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    ]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def _contestants(
    places: list[dict[str, Any]], module: str, device: str
) -> dict[str, AbstractContextManager[Ready]]:
    def pair(api: Any, where: str = device, **options: Any) -> Any:
        cls = api.remote(**options)(Worker) if options else api.remote(Worker)
        return _pair(api, [cls.options(**each) for each in places], module, where)

    is_fake = device == "fake"
    found = {
        f"graph {name}": _graphs(pair(rcg), rcg, rcg.dag, name) for name in ("cuda_ipc", "nccl")
    }
    with contextlib.suppress(ImportError):
        import ray.dag as rays

        name, where = ("auto", "cpu") if is_fake else ("nccl", device)
        found[f"Ray's graph {name}"] = _graphs(pair(ray, where), ray, rays, name)
    found["two calls"] = _calls(pair(ray), ray, None)
    found["reference auto"] = _calls(pair(rcg), rcg, "auto")
    if not is_fake:
        found["Ray's reference CUDA_IPC"] = _calls(
            pair(ray, enable_tensor_transport=True), ray, "CUDA_IPC"
        )
    return found


@contextmanager
def _pair(api: Any, classes: list[Any], module: str, device: str) -> Iterator[list[Any]]:
    made = [each.remote(device, module) for each in classes]
    try:
        api.get([each.prepare.remote(SIDE, 1) for each in made], timeout=WAIT_S)
        yield made
    finally:
        for each in made:
            api.kill(each)


@contextmanager
def _graphs(pair: Any, api: Any, dags: Any, name: str) -> Iterator[Ready]:
    with pair as (a, b):

        @contextmanager
        def ready(count: int) -> Iterator[Callable[[], Any]]:
            with dags.InputNode() as inp:
                edge = a.lend.bind(inp).with_tensor_transport(
                    transport=name, _static_shape=True, _direct_return=True
                )
                dag = b.first.bind(edge)
            compiled = dag.experimental_compile()
            try:
                yield lambda: api.get(compiled.execute(count), timeout=WAIT_S)
            finally:
                compiled.teardown()

        yield ready


@contextmanager
def _calls(pair: Any, api: Any, name: str | None) -> Iterator[Ready]:
    with pair as (a, b):
        # without a transport: what two calls take that pass a number on
        first, second = (a.echo, b.echo) if name is None else (a.lend, b.first)
        if name is not None:
            first = first.options(tensor_transport=name)

        @contextmanager
        def ready(count: int) -> Iterator[Callable[[], Any]]:
            yield lambda: api.get(second.remote(first.remote(count)), timeout=WAIT_S)

        yield ready
