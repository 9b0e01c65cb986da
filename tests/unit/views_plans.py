# SPDX-License-Identifier: Apache-2.0
"""Plans for tests of views, written as one would bind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcg.ir.channels import ActorSpec
from rcg.ir.nodes import ConstArg, NestedArg, Node, Part
from rcg.ir.plan import Plan
from rcg.views.data.topology import Topology, topology_of
from tests.unit.graphs_by_hand import call, graph, input_value, planned, rank, site


class Builder:
    """Numbers are nodes, lists of them containers, anything else a constant."""

    def __init__(self, keys: tuple[int | str | None, ...] = (None,)) -> None:
        self._nodes: list[Node] = [input_value(at, key) for at, key in enumerate(keys)]
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
        made = len(self._nodes)
        given, named = map(_argument, args), {each: _argument(kwargs[each]) for each in kwargs}
        self._nodes.append(
            call(made, actor, *given, method=method, num_returns=num_returns, **named)
        )
        if num_returns == 1:
            return made
        for index in range(num_returns):
            self._nodes.append(Part(len(self._nodes), made, index, site(1)))
        return list(range(made + 1, made + 1 + num_returns))

    def plan(self, *outputs: int) -> Plan:
        actors = tuple(
            ActorSpec(f"a{at}", self._labels[f"a{at}"], f"{at:x}54777d" + "0" * 24)
            for at in range(len(self._labels))
        )
        is_multi = len(outputs) > 1
        return planned(graph(*self._nodes, outputs=outputs, is_multi=is_multi, actors=actors))


def _argument(value: Any) -> Any:
    match value:
        case int():
            return value
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


def steps_around_allreduces(ranks: int, steps: int = 1) -> Plan:
    """Each rank calls ``fwd``, meets the others, and calls ``step``; so several times in a row."""
    nodes: list[Node] = [input_value(0)]
    values = [0] * ranks

    def add(make: Callable[[int, int], Node]) -> list[int]:
        first = len(nodes)
        nodes.extend(make(first + each, each) for each in range(ranks))
        return list(range(first, len(nodes)))

    for step in range(steps):
        given = values
        made = add(lambda id, each: call(id, f"a{each}", given[each]))  # noqa: B023
        met = add(lambda id, each: rank(id, each, made[each], collective=step))  # noqa: B023
        values = add(lambda id, each: call(id, f"a{each}", met[each], method="step"))  # noqa: B023
    return planned(graph(*nodes, outputs=tuple(values)))


def all_to_all(actors: int) -> Plan:
    """Each actor splits its value among all, and merges what it gets."""
    build = Builder()
    parts = [build.call(f"a{i}", "split", 0, num_returns=actors) for i in range(actors)]
    merged = [build.call(f"a{i}", "merge", [each[i] for each in parts]) for i in range(actors)]
    return build.plan(*merged)


def two_parts() -> Topology:
    build = Builder()
    one, two = build.call("a0", "return_two", 0, num_returns=2, label="Splitter")
    return topology_of(build.plan(build.call("a1", "echo", one), build.call("a1", "echo", two)))


def wicked() -> Topology:
    build = Builder()
    value = build.call("a0", 'say "hi"\\', 0, label='A"];}\n\\')
    return topology_of(build.plan(value))
