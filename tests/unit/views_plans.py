# SPDX-License-Identifier: Apache-2.0
"""Plans for tests of views, written as one would bind them."""

from __future__ import annotations

from typing import Any

from rcg.compiler import compile_graph
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    Argument,
    ConstArg,
    InputValue,
    MethodCall,
    NestedArg,
    Node,
    NodeArg,
    Part,
    Site,
)
from rcg.ir.plan import Plan
from rcg.views.data.topology import Topology, topology_of

_SITE = Site("/home/me/pipeline.py", 1)


def planned(graph: Graph) -> Plan:
    return compile_graph(graph, {actor.id: "here" for actor in graph.actors}, "here", 10).plan


class Builder:
    """Numbers are nodes, lists of them containers, anything else a constant."""

    def __init__(self, keys: tuple[int | str | None, ...] = (None,)) -> None:
        self._nodes: list[Node] = [InputValue(i, key, _SITE) for i, key in enumerate(keys)]
        self._keys = keys
        self._labels: dict[str, str] = {}

    def call(
        self,
        actor: str,
        method: str,
        *args: Any,
        num_returns: int = 1,
        label: str = "Stage",
        **kwargs: Any,
    ) -> Any:
        """The value of a call, or the list of its parts."""
        self._labels.setdefault(actor, label)
        call = len(self._nodes)
        arguments = tuple(_argument(value) for value in args)
        named = tuple((name, _argument(value)) for name, value in kwargs.items())
        self._nodes.append(MethodCall(call, actor, method, arguments, named, num_returns, _SITE))
        if num_returns == 1:
            return call
        for index in range(num_returns):
            self._nodes.append(Part(len(self._nodes), call, index, _SITE))
        return list(range(call + 1, call + 1 + num_returns))

    def plan(self, *outputs: int) -> Plan:
        positions = [key + 1 for key in self._keys if isinstance(key, int)]
        return planned(
            Graph(
                nodes=tuple(self._nodes),
                outputs=outputs,
                is_multi=len(outputs) > 1,
                actors=tuple(
                    ActorSpec(f"a{i}", self._labels[f"a{i}"], f"{i:x}54777d" + "0" * 24)
                    for i in range(len(self._labels))
                ),
                num_positional=1 if None in self._keys else max(positions, default=0),
                keywords=tuple(key for key in self._keys if isinstance(key, str)),
            )
        )


def _argument(value: Any) -> Argument:
    match value:
        case int():
            return NodeArg(value)
        case list():
            return NestedArg("k1", tuple(value))
        case _:
            return ConstArg("k0")


def scatter_gather(width: int) -> Plan:
    build = Builder()
    values = [build.call(f"a{i}", "work", 0, label="Worker") for i in range(width)]
    return build.plan(build.call(f"a{width}", "reduce", values, label="Reducer"))


def ring_of_stages(actors: int, layers: int) -> Plan:
    """Every stage takes its own value and its neighbour's, layer after layer."""
    build = Builder()
    values = [build.call(f"a{i}", "step", 0) for i in range(actors)]
    for _ in range(layers - 1):
        values = [
            build.call(f"a{i}", "step", values[i], values[(i + 1) % actors]) for i in range(actors)
        ]
    return build.plan(*values)


def two_parts() -> Topology:
    build = Builder()
    one, two = build.call("a0", "return_two", 0, num_returns=2, label="Splitter")
    return topology_of(build.plan(build.call("a1", "echo", one), build.call("a1", "echo", two)))


def wicked() -> Topology:
    build = Builder()
    value = build.call("a0", 'say "hi"\\', 0, label='A"];}\n\\')
    return topology_of(build.plan(value))
