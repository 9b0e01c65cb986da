# SPDX-License-Identifier: Apache-2.0
"""Weights beside the graphs of a soak: a publisher, and two readers of which one dies at times.

One reader keeps the old version until all of the new one is there. The other one is written to as a
version comes, into slices and a tensor that is not contiguous, with as little memory as possible.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from ray.exceptions import RayActorError

import rcg
from tests.cluster.stage import GUARD_S
from tests.soak.callers import SoakFailure
from tests.soak.performer import inspect_process

__all__ = ["Weights"]

NAME = "soak"
SHAPES = {"rows": (3000, 100), "long": (200_000,), "turned": (500, 300), "scalar": ()}
MOST_VERSIONS = 6  # in a round
KILL_EVERY = 25  # versions, about
LOOKAHEAD = 4 << 20


class Agent:
    """Publishes, or reads and looks whether everything is right."""

    def publish(self) -> None:
        self._state = {name: _value(name, 0) for name in SHAPES}
        self._client: Any = rcg.weights.publish(NAME, self._state)

    def push(self, version: int) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(_value(name, version))
        self._client.push(version)

    def wait(self) -> None:
        self._client.wait(timeout=GUARD_S)

    def subscribe(self, atomic: bool) -> None:
        import torch

        self._state = {name: torch.zeros_like(_value(name, 0)) for name in SHAPES}
        shard: dict[str, rcg.weights.Slice] = {}
        more: dict[str, Any] = {}
        if not atomic:
            shard["rows"] = rcg.weights.Slice(1, 20, 70, 100)
            self._state["rows"] = torch.zeros(3000, 50, dtype=torch.int64)
            self._state["turned"] = torch.zeros(300, 500, dtype=torch.int64).T
            more["lookahead"] = LOOKAHEAD
        self._shard = shard
        self._client = rcg.weights.subscribe(
            NAME, self._state, shard, atomic=atomic, timeout=GUARD_S, **more
        )

    def update(self) -> tuple[int, list[str]]:
        """Get the newest version; returns its number, and which tensors are not those of it."""
        import torch

        version = self._client.update(GUARD_S).version
        wrong = []
        for name, tensor in self._state.items():
            expected = _value(name, version)
            if name in self._shard:
                expected = expected[:, 20:70]
            if not torch.equal(tensor, expected):
                wrong.append(name)
        return version, wrong

    def inspect(self) -> tuple[dict[str, int], int]:
        """What this process has, and how many versions others can read here."""
        from rcg.rdt.process import here

        return inspect_process(), here().store.facts().held

    def leave(self) -> None:
        self._client.close()


def _value(name: str, version: int) -> Any:
    import torch

    shape = SHAPES[name]
    size = int(torch.Size(shape).numel())
    return torch.arange(version * 31, version * 31 + size).reshape(shape)


class Weights:
    """The publisher and the readers.

    Args:
        nodes: Of the cluster; they are dealt out to these.
        accounts: Counts versions and deaths.
    """

    def __init__(self, nodes: int, accounts: Counter[str]) -> None:
        self._nodes = nodes
        self._accounts = accounts
        self._version = 0
        self._publisher = self._make(0)
        rcg.get(self._publisher.publish.remote(), timeout=GUARD_S)
        self._readers = [self._make_reader(number) for number in range(2)]

    def _make(self, node: int) -> Any:
        options: dict[str, Any] = {"num_cpus": 0}
        if self._nodes > 1:
            options["resources"] = {f"node{node % self._nodes}": 0.001}
        return rcg.remote(**options)(Agent).remote()

    def _make_reader(self, number: int) -> Any:
        reader = self._make(number)
        rcg.get(reader.subscribe.remote(atomic=number == 0), timeout=GUARD_S)
        return reader

    def run(self, rng: random.Random) -> None:
        """Publish and read some versions, each of which must be right; a reader may die."""
        for _ in range(rng.randint(1, MOST_VERSIONS)):
            self._version += 1
            victim = 1 if rng.randrange(KILL_EVERY) == 0 else None
            rcg.get(self._publisher.push.remote(self._version), timeout=GUARD_S)
            updates = [each.update.remote() for each in self._readers]
            waiting = self._publisher.wait.remote()
            if victim is not None:
                time.sleep(rng.random() / 50)  # somewhere in the update
                rcg.kill(self._readers[victim])
            rcg.get(waiting, timeout=GUARD_S)
            for number, update in enumerate(updates):
                try:
                    found = rcg.get(update, timeout=GUARD_S)
                except RayActorError:
                    if number != victim:
                        raise
                    continue
                if found != (self._version, []):
                    raise SoakFailure(f"reader {number} has {found}, not version {self._version}")
            self._accounts["versions of weights"] += 1
            if victim is not None:
                self._accounts["kills of readers"] += 1
                self._readers[victim] = self._make_reader(victim)

    def inspect(self) -> dict[str, dict[str, int]]:
        """Return what each process has; nobody but the atomic reader may keep a version."""
        states: dict[str, dict[str, int]] = {}
        for who, each, kept in (
            ("the publisher", self._publisher, 0),
            ("the atomic reader", self._readers[0], int(self._version > 0)),
            (f"the other reader {self._accounts['kills of readers']}", self._readers[1], 0),
        ):
            state, held = rcg.get(each.inspect.remote(), timeout=GUARD_S)
            if held != kept:
                raise SoakFailure(f"{who} of weights keeps {held} versions, not {kept}")
            states[f"{who} of weights"] = state
        return states

    def close(self) -> None:
        """End them."""
        everybody = [self._publisher, *self._readers]
        rcg.get([each.leave.remote() for each in everybody], timeout=GUARD_S)
        left = [each.label for each in rcg.weights.report().parties if each.weights == NAME]
        if left:
            raise SoakFailure(f"the owner of the names of weights still knows {left}")
