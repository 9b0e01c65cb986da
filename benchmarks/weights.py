# SPDX-License-Identifier: Apache-2.0
"""Weights by name, compared with Ray's object store and with reading memory as fast as it goes.

A version of 1 GB in 400 tensors goes from one trainer to one and to two generators of its node,
into tensors that they have already. A generator that keeps the old version until all of the new
one is there copies everything once more; one with ``atomic=False`` does not.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Final

import numpy as np
import ray

import rcg
from rcg.bench.contestants import ACTOR_OPTIONS, ending
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import Figure, medians
from rcg.rdt import peer_memory
from rcg.rdt.places import Spans

__all__ = ["measure_weights"]

_TENSORS: Final = 400
_NUMBERS: Final = 655_360  # in each: 2.6 MB
_ROUNDS: Final = 6
_RCG: Final = "rcg"
_DIRECT: Final = "rcg, atomic=False"
_RAW: Final = "raw reads"
_STORE: Final = "object store"
_IDLE_S: Final = 5.0


class Peer:
    """A trainer or a generator."""

    def __init__(self) -> None:
        import torch

        self._state = {f"layer {n}": torch.ones(_NUMBERS) for n in range(_TENSORS)}
        self._ends: dict[str, Any] = {}

    def publish(self, name: str) -> None:
        """Publish the weights."""
        self._ends[name] = rcg.weights.publish(name, self._state)

    def subscribe(self, name: str, atomic: bool) -> None:
        """Read weights into tensors of this process's own, which all names share."""
        self._ends[name] = rcg.weights.subscribe(name, self._state, atomic=atomic)

    def push(self, name: str) -> None:
        """Make a version."""
        self._ends[name].push()

    def update(self, name: str) -> dict[str, float]:
        """Get the newest version; returns the seconds of each phase."""
        return dict(self._ends[name].update().seconds)

    def wait(self, name: str) -> None:
        """Wait for all readers."""
        self._ends[name].wait()

    def close(self, name: str) -> None:
        """Publish or read no more."""
        self._ends.pop(name).close()

    def where(self) -> tuple[int, list[int]]:
        """Return where the tensors lie: the process, and their addresses."""
        return os.getpid(), [each.data_ptr() for each in self._state.values()]

    def read(self, pid: int, there: list[int]) -> None:
        """Read the memory of another process into the tensors."""
        here = np.array([(each.data_ptr(), each.nbytes, 0) for each in self._state.values()])
        source = here.copy()
        source[:, 0] = there
        peer_memory.read(pid, Spans(source, here))

    def put(self) -> list[Any]:
        """Put the weights into Ray's object store."""
        return [ray.put({name: each.numpy() for name, each in self._state.items()})]

    def take(self, refs: list[Any]) -> None:
        """Copy weights from Ray's object store into the tensors."""
        import torch

        for name, each in ray.get(refs[0]).items():
            self._state[name].copy_(torch.from_numpy(each))

    def cpu_s(self) -> float:
        """Return the time that this process has computed."""
        return time.process_time()


def measure_weights() -> tuple[Figure, ...]:
    """Measure all rows, on actors of their own."""
    made = rcg.remote(Peer).options(**ACTOR_OPTIONS)
    trainer, *readers = [made.remote() for _ in range(3)]
    with ending((trainer, *readers)):
        figures = [each for count in (1, 2) for each in _figures(trainer, readers[:count])]
        return (*figures, _idle(trainer, readers))


def _figures(trainer: Any, readers: list[Any]) -> list[Figure]:
    count = len(readers)
    for name in (_RCG, _DIRECT):
        rcg.get(trainer.publish.remote(name))
        rcg.get([each.subscribe.remote(name, name == _RCG) for each in readers])
    pid, there = rcg.get(trainer.where.remote())

    def sync(name: str) -> None:
        rcg.get(trainer.push.remote(name))
        rcg.get([each.update.remote(name) for each in readers])
        rcg.get(trainer.wait.remote(name))

    def store() -> None:
        refs = rcg.get(trainer.put.remote())
        rcg.get([each.take.remote(refs) for each in readers])

    turns: dict[str, Turn] = {
        _RCG: call_turn(lambda: sync(_RCG)),
        _DIRECT: call_turn(lambda: sync(_DIRECT)),
        _RAW: call_turn(lambda: rcg.get([each.read.remote(pid, there) for each in readers])),
        _STORE: call_turn(store),
    }
    seed = random.Random(f"weights {count}")
    samples = take_rounds(turns, Pace(2, int(4e9), 1), _ROUNDS, seed)
    again = _phases_again(trainer, readers[0])
    for name in (_RCG, _DIRECT):
        rcg.get([each.close.remote(name) for each in (*readers, trainer)])
    times = medians(samples, 1e-6)  # from nanoseconds
    title = f"1 GB in {_TENSORS} tensors to {count} reader{'s' if count > 1 else ''}"
    to_raw = {name: times[name] / times[_RAW] for name in (_RCG, _DIRECT)}
    to_store = {name: times[name] / times[_STORE] for name in (_RCG, _DIRECT)}
    return [
        Figure(f"weights-{count}", title, "ms", times),
        Figure(f"weights-{count}-raw", f"{title}, to raw reads", "of the time", to_raw, most=1.18),
        Figure(
            f"weights-{count}-store", f"{title}, to the object store", "of the time", to_store, 0.25
        ),
        Figure(
            f"weights-{count}-again",
            "planning and taking memory, from the second version on",
            "ms",
            {_RCG: again},
            most=0.0,
        ),
    ]


def _phases_again(trainer: Any, reader: Any) -> float:
    rcg.get(trainer.push.remote(_RCG))
    seconds = rcg.get(reader.update.remote(_RCG))
    return float(seconds["plan"] + seconds["register"]) * 1e3


def _idle(trainer: Any, readers: list[Any]) -> Figure:
    """Return what a publisher and its readers compute while nothing is pushed."""
    rcg.get(trainer.publish.remote("idle"))
    rcg.get([each.subscribe.remote("idle", True) for each in readers])
    rcg.get(trainer.push.remote("idle"))
    rcg.get([each.update.remote("idle") for each in readers])
    actors = [trainer, *readers]
    before = rcg.get([each.cpu_s.remote() for each in actors])
    time.sleep(_IDLE_S)
    after = rcg.get([each.cpu_s.remote() for each in actors])
    used_s = sum(after) - sum(before)
    return Figure(
        "weights-idle",
        "CPU of a publisher and two readers that do nothing",
        "of a core",
        {_RCG: used_s / _IDLE_S},
        most=0.03,
    )
