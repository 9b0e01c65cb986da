# SPDX-License-Identifier: Apache-2.0
"""How long a tensor of the device takes between two actors, beside Ray's own graphs and RDT.

A sample is an execution, or a pair of calls, that passes a kept tensor on and gives the driver its
first number. Contestants take turns, each on two actors of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import ray

import rcg
import rcg.dag
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from tests.gpu.workers import Worker

PACE = Pace(calls=60, time_ns=1_000_000_000, warm_up=8)
ROUNDS = 3
WAIT_S = 60.0


def compare(places: list[dict[str, Any]], module: str, device: str, count: int) -> str:
    """Return median and 99th percentile in microseconds of each contestant, for ``count`` float32.

    Args:
        places: Options for two actors of each contestant.
        module: As for ``Worker``.
        device: The type of the device.
        count: How many numbers the tensor has.
    """
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        failed = []
        for name, opened in _contestants(device, count).items():
            try:
                turns[name] = call_turn(stack.enter_context(opened(places, module)))
                turns[name](Pace(1, 0, 1))
            except Exception as error:  # noqa: BLE001 - Ray may not be able to
                turns.pop(name, None)
                failed.append(f"{name}: {type(error).__name__}: {str(error)[-200:]}")
        samples = take_rounds(turns, PACE, ROUNDS, random.Random("gpu"))
    said = []
    for name, found in samples.items():
        ordered = sorted(found)
        p99 = ordered[int(len(ordered) * 0.99)]
        said.append(f"{name} {median(found) / 1e3:.0f} ({p99 / 1e3:.0f})")
    return "us, median (p99): " + ", ".join([*said, *failed])


def _contestants(device: str, count: int) -> dict[str, Callable[..., Any]]:
    is_fake = device == "fake"
    found: dict[str, Callable[..., Any]] = {}
    for name in ("cuda_ipc", "nccl"):
        found[f"graph {name}"] = lambda *at, n=name: _graph(rcg, rcg.dag, n, *at, device, count)
    with contextlib.suppress(ImportError):
        import ray.dag as rays

        name = "shm" if is_fake else "nccl"
        where = "cpu" if is_fake else device
        found[f"Ray's graph {name}"] = lambda *at: _graph(ray, rays, name, *at, where, count)
    found["reference"] = lambda *at: _calls(rcg, "auto", *at, device, count)
    if not is_fake:
        found["Ray's reference CUDA_IPC"] = lambda *at: _calls(ray, "CUDA_IPC", *at, device, count)
    return found


@contextmanager
def _pair(api: Any, places: list[dict[str, Any]], module: str, device: str) -> Iterator[list[Any]]:
    cls = api.remote(Worker)
    made = [cls.options(**each).remote(device, module) for each in places]
    try:
        side = 4096 if device == "cuda" else 512
        api.get([each.prepare.remote(side, 1) for each in made], timeout=WAIT_S)
        yield made
    finally:
        for each in made:
            api.kill(each)


@contextmanager
def _graph(
    api: Any, dags: Any, name: str, places: Any, module: str, device: str, count: int
) -> Iterator[Callable[[], Any]]:
    with _pair(api, places, module, device) as (a, b):
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


@contextmanager
def _calls(
    api: Any, name: str, places: Any, module: str, device: str, count: int
) -> Iterator[Callable[[], Any]]:
    with _pair(api, places, module, device) as (a, b):
        lend = a.lend.options(tensor_transport=name)
        yield lambda: api.get(b.first.remote(lend.remote(count)), timeout=WAIT_S)
