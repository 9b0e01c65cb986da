# SPDX-License-Identifier: Apache-2.0
"""The DAGs of the rows, with the nodes of any library.

This file imports nothing of rcg, because ``visitor`` loads it into a process that may have another
version of rcg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Shape = Literal["chain", "scatter", "arguments"]


def build(
    shape: Shape,
    methods: Sequence[Any],
    arguments: int,
    input_node: Any,
    multi_output: Any,
    transport: str | None = None,
) -> Any:
    """Return a row's DAG, made of the given node classes.

    Args:
        shape: As in ``rows.Row``.
        methods: The method of each actor.
        arguments: Number of arguments of an execution.
        input_node: The class of the input node.
        multi_output: The class of the node that gathers several outputs.
        transport: The tensor transport of the values between the actors of a chain, if any.
    """
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
