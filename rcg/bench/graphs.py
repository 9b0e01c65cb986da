# SPDX-License-Identifier: Apache-2.0
"""The graphs of the rows: the class of the actors, and the DAGs, with the nodes of any library.

This file imports nothing of rcg at the top, because ``visitor`` loads it into a process that may
have another version of rcg.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

__all__ = ["Shape", "Worker", "build", "lent"]

__rcg_user__ = True  # see rcg.frames


Shape = Literal["chain", "scatter", "arguments"]


class Worker:
    """Methods that take almost no time or a given one, so that the time of calling is measured."""

    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def work_10us(self, value: Any) -> Any:
        """Return the argument after 10 us of work."""
        return self._work(value, 10_000)

    def work_50us(self, value: Any) -> Any:
        """Return the argument after 50 us of work."""
        return self._work(value, 50_000)

    def work_200us(self, value: Any) -> Any:
        """Return the argument after 200 us of work."""
        return self._work(value, 200_000)

    @staticmethod
    def _work(value: Any, work_ns: int) -> Any:
        end = time.perf_counter_ns() + work_ns
        while time.perf_counter_ns() < end:
            pass
        return value

    def fresh(self, array: Any) -> Any:
        """Return a new array with the same contents."""
        return array.copy()

    def filled(self, array: Any) -> Any:
        """Return a new array with the same contents, in shared memory if the graph lends it."""
        import numpy as np

        import rcg  # whichever this process finds

        out = getattr(rcg, "empty", np.empty)(array.shape, array.dtype)  # older ones have none
        np.copyto(out, array)
        return out

    def tensor(self, size_bytes: int) -> Any:
        """Return a float32 tensor of a size, the same one each time."""
        import torch

        held: dict[int, Any] = self.__dict__.setdefault("held", {})
        if size_bytes not in held:
            held.clear()
            held[size_bytes] = torch.ones(size_bytes // 4)
        return held[size_bytes]

    def size(self, tensor: Any) -> int:
        """Return the bytes of a tensor."""
        return int(tensor.numel()) * int(tensor.element_size())

    def count(self, *values: Any) -> int:
        """Return the number of arguments."""
        return len(values)

    def hold(self, seconds: float) -> float:
        """Return the argument after that many seconds."""
        time.sleep(seconds)
        return seconds

    def hold_on(self, value: Any, seconds: float) -> Any:
        """Return a value after some seconds."""
        time.sleep(seconds)
        return value

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()


def build(
    shape: Shape,
    methods: Sequence[Any],
    arguments: int,
    input_node: Any,
    multi_output: Any,
    transport: str | None = None,
) -> Any:
    """Return a row's DAG, made of the given node classes; see ``rows.Row`` for what it is."""
    with input_node() as inp:
        match shape:
            case "chain":
                node = inp
                for method in methods:
                    if transport is not None and node is not inp:
                        node = node.with_tensor_transport(transport)
                    node = method.bind(node)
                return node
            case "scatter":
                return multi_output([method.bind(inp) for method in methods])
            case "arguments":
                return methods[0].bind(*(inp[i] for i in range(arguments)))


def lent(graph: Any, payload: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays as arrays in the memory of a graph, or unchanged if it lends none."""
    empty = getattr(graph, "empty", None)
    if empty is None:
        return payload
    arrays = tuple(empty(array.shape, array.dtype) for array in payload)
    for array, value in zip(arrays, payload, strict=True):
        array[:] = value
    return arrays
