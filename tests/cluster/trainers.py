# SPDX-License-Identifier: Apache-2.0
"""An actor that publishes weights, or reads them, and knows what they must be."""

from __future__ import annotations

import os
from typing import Any

import pytest

import rcg
from rcg.weights import Slice
from tests.cluster.stage import GUARD_S

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

    def right(self, version):
        """What the tensors of a version are."""
        return {
            key: part(value_of(at, version, shape), (self.shard or {}).get(key))
            for at, (key, shape) in enumerate(self.shapes.items())
        }

    def publish(self, name, shapes, shard=None, **options):
        self.shapes, self.shard = shapes, shard
        self.state = {key: each.clone() for key, each in self.right(0).items()}
        self.publisher = rcg.weights.publish(name, self.state, shard, **options)

    def push(self, version):
        self.write(version)
        return self.publisher.push(version)

    def write(self, version):
        for key, value in self.right(version).items():
            self.state[key].copy_(value)

    def wait(self, timeout=GUARD_S):
        self.publisher.wait(timeout=timeout)

    def subscribe(self, name, shapes, shard=None, timeout=GUARD_S, **options):
        self.shapes, self.shard = shapes, shard
        self.state = {key: torch.zeros_like(each) for key, each in self.right(0).items()}
        self.subscriber = rcg.weights.subscribe(name, self.state, shard, timeout=timeout, **options)

    def update(self, timeout=GUARD_S):
        found = self.subscriber.update(timeout)
        return found.version, found.bytes, dict(found.seconds)

    def differs(self, version):
        """The tensors that are not those of a version."""
        right = self.right(version)
        return [key for key, value in right.items() if not torch.equal(self.state[key], value)]

    def lag(self):
        return self.subscriber.lag

    def leave(self):
        for each in (getattr(self, "publisher", None), getattr(self, "subscriber", None)):
            if each is not None:
                each.close()
        self.publisher = self.subscriber = None

    def pid(self):
        return os.getpid()
