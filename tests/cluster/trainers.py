# SPDX-License-Identifier: Apache-2.0
"""An actor that publishes weights, or reads them, and knows what they must be."""

from __future__ import annotations

import os
from typing import Any

import pytest

import rcg
from rcg.weights import Slice
from tests.cluster.stage import GUARD_S
from tests.harness.peers import descriptors

torch = pytest.importorskip("torch")

BIG = 500_000  # numbers: 4 MB, which are read where they lie
SHAPES = {"w": (50, 8), "big": (BIG,), "scalar": (), "none": (0, 3)}


def value_of(seed: int, version: int, shape: tuple[int, ...]) -> Any:
    return torch.arange(
        seed + version * 1000, seed + version * 1000 + int(torch.Size(shape).numel())
    ).reshape(shape)


def part(tensor: Any, piece: Slice | None) -> Any:
    if piece is None:
        return tensor
    return tensor.narrow(piece.dim, piece.start, piece.stop - piece.start)


class Member:
    """A trainer or a generator."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def publish(self, name, shapes, shard=None, **options):
        self.shapes, self.shard = shapes, shard
        self.state = {
            key: part(value_of(at, 0, shape), (shard or {}).get(key)).clone()
            for at, (key, shape) in enumerate(shapes.items())
            if shape is not None
        }
        self.publisher = rcg.weights.publish(name, self.state, shard, **options)

    def push(self, version):
        self.write(version)
        return self.publisher.push(version)

    def write(self, version):
        for at, (key, shape) in enumerate(self.shapes.items()):
            if shape is not None:
                self.state[key].copy_(
                    part(value_of(at, version, shape), (self.shard or {}).get(key))
                )

    def wait(self, timeout=GUARD_S):
        self.publisher.wait(timeout=timeout)

    def subscribe(self, name, shapes, shard=None, timeout=GUARD_S, **options):
        self.shapes, self.shard = shapes, shard
        self.state = {
            key: part(torch.zeros(shape, dtype=torch.int64), (shard or {}).get(key)).clone()
            for key, shape in shapes.items()
            if shape is not None
        }
        self.subscriber = rcg.weights.subscribe(name, self.state, shard, timeout=timeout, **options)

    def update(self, timeout=GUARD_S):
        found = self.subscriber.update(timeout)
        return found.version, found.bytes, dict(found.seconds)

    def differs(self, version):
        """The tensors that are not those of a version."""
        return [
            key
            for at, (key, shape) in enumerate(self.shapes.items())
            if shape is not None
            and not torch.equal(
                self.state[key], part(value_of(at, version, shape), (self.shard or {}).get(key))
            )
        ]

    def lag(self):
        return self.subscriber.lag

    def leave(self):
        for each in (getattr(self, "publisher", None), getattr(self, "subscriber", None)):
            if each is not None:
                each.close()
        self.publisher = self.subscriber = None

    def cost(self):
        from rcg.rdt.process import here

        return descriptors(), here().store.facts().held_bytes

    def pid(self):
        return os.getpid()
