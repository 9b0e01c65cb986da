# SPDX-License-Identifier: Apache-2.0
"""The DAGs of the rows, bound with any library's nodes.

It imports nothing of rcg, because the driver of another version loads it, too (``visitor``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Shape = Literal["chain", "scatter", "arguments"]


def build(
    shape: Shape, methods: Sequence[Any], arguments: int, input_node: Any, multi_output: Any
) -> Any:
    """Binds a row's DAG, by whichever library the node classes are from.

    Args:
        shape: As in ``rows.Row``.
        methods: The method of each actor that the row needs.
        arguments: How many arguments an execution takes.
        input_node: The class of the input node.
        multi_output: The class of the node that gathers several outputs.
    """
    with input_node() as inp:
        match shape:
            case "chain":
                node = inp
                for method in methods:
                    node = method.bind(node)
                return node
            case "scatter":
                return multi_output([method.bind(inp) for method in methods])
            case "arguments":
                return methods[0].bind(*(inp[i] for i in range(arguments)))


def lent(graph: Any, payload: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a payload of arrays as arrays in a graph's memory; as they are if it lends none."""
    empty = getattr(graph, "empty", None)
    if empty is None:
        return payload
    arrays = tuple(empty(array.shape, array.dtype) for array in payload)
    for array, value in zip(arrays, payload, strict=True):
        array[:] = value
    return arrays
