# SPDX-License-Identifier: Apache-2.0
"""The costs of a graph's calls and transfers: what the user gives, or declared, or measured.

| where | what it is about |
|---|---|
| ``compile(costs=profile)`` | each method of each actor, and each transfer, as it was measured |
| ``compile(costs={"Stage.fwd": 0.02})`` | the methods that are named |
| ``actor.fwd.options(cost_s=0.02).bind(x)`` | this call |
| ``@rcg.method(cost_s=0.02)`` | the method, on every actor of the class |

What stands higher wins. Where nothing is known, the compiler assumes that every call takes as long
as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from rcg.ir.costs import CALL, MOVE, CallCosts, Cost, Transfer
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    CollectiveCall,
    MethodCall,
    Node,
    Part,
    is_communicator,
    remote_readers,
)
from rcg.option_kinds import check_cost_s

_NS_PER_S: Final = 1e9


@runtime_checkable
class Measured(Protocol):
    """What tells measured costs: a profile."""

    def call_costs(self) -> CallCosts:
        """Return what the methods and transfers of the recorded actors took."""


class GivenCosts:
    """What the user gave as ``costs``.

    Args:
        given: A profile, a mapping from names of methods to seconds, or None.

    Raises:
        TypeError: It is something else.
        ValueError: A cost is negative.
        TraceError: The profile is not complete.
    """

    def __init__(self, given: object) -> None:
        self._measured = CallCosts({}, {})
        self._named: dict[str, float] = {}
        match given:
            case None:
                pass
            case Measured():
                self._measured = given.call_costs()
            case Mapping():
                self._named = {
                    str(name): check_cost_s(each, f"costs[{name!r}]")
                    for name, each in given.items()
                }
            case _:
                raise TypeError(
                    "costs must be a profile (`with rcg.profile() as p`) or a mapping such as "
                    f"{{'Stage.forward': 0.02}}, found {given!r}"
                )

    def check(self, graph: Graph) -> None:
        """Check that what the user gave is about calls of the graph.

        Raises:
            ValueError: A name is that of no call, or a profile is about none of the actors.
        """
        calls = [node for node in graph.nodes if isinstance(node, MethodCall)]
        measured = self._measured.calls
        if measured and not any(_identity(graph, node) in measured for node in calls):
            raise ValueError(
                "the profile given as costs= has none of the calls of this DAG: it knows actors by "
                "their ids in Ray, so profile these actors, or give costs by name, such as "
                "{'Stage.forward': 0.02}"
            )
        known = {name for node in calls for name in _names(graph, node)}
        for name in self._named:
            if name not in known:
                raise ValueError(
                    f"costs has {name!r}, but the DAG has no such call: it has "
                    f"{', '.join(sorted(known))}"
                )

    def of_call(self, graph: Graph, node: MethodCall | CollectiveCall) -> float | None:
        """Return what the user gave for a call or a rank of a collective, in ns, if anything."""
        if isinstance(node, MethodCall):
            for name in _names(graph, node):
                if name in self._named:
                    return self._named[name] * _NS_PER_S
        return self._measured.calls.get(_identity(graph, node))

    def of_transfer(self, graph: Graph, maker: Node, readers: tuple[str, ...]) -> float | None:
        """Return what a value's transfer was measured to take, in ns: to the slowest reader."""
        if not isinstance(maker, MethodCall | CollectiveCall):
            return None
        actor, method = _identity(graph, maker)
        transfers = [Transfer(actor, method, _key(graph, each)) for each in readers]
        found = [self._measured.transfers.get(each) for each in transfers]
        return max((each for each in found if each is not None), default=None)


def costs_of_graph(
    graph: Graph, given: GivenCosts, declared: Mapping[str, Mapping[str, Any]]
) -> list[Cost]:
    """Return the costs that are known of a graph's calls and transfers, in the order of its nodes.

    Args:
        graph: The graph.
        given: What the user gave to ``compile``.
        declared: What ``rcg.method(cost_s=)`` says of the methods of each actor, in seconds.
    """
    found: list[Cost] = []
    readers = remote_readers(graph)
    for node in graph.nodes:
        cost_ns: float | None = None
        if isinstance(node, MethodCall | CollectiveCall):
            cost_ns = given.of_call(graph, node)
        if isinstance(node, MethodCall) and cost_ns is None:
            cost_s = declared.get(node.actor, {}).get(node.method)
            cost_s = cost_s if node.cost_s is None else node.cost_s
            cost_ns = None if cost_s is None else cost_s * _NS_PER_S
        if cost_ns is not None:
            found.append(Cost(CALL, node.id, round(cost_ns)))
        if is_communicator(node.hint) and readers[node.id]:
            maker = graph.nodes[node.call] if isinstance(node, Part) else node
            moved_ns = given.of_transfer(graph, maker, readers[node.id])
            if moved_ns is not None:
                found.append(Cost(MOVE, node.id, round(moved_ns)))
    # Transfers alone say nothing about calls.
    return found if any(cost.kind == CALL for cost in found) else []


def _key(graph: Graph, actor: str) -> str:
    return next((each.key or each.id for each in graph.actors if each.id == actor), actor)


def _identity(graph: Graph, node: MethodCall | CollectiveCall) -> tuple[str, str]:
    """Return what identifies a call in a profile: the actor, and the method or the collective."""
    return _key(graph, node.actor), node.method if isinstance(node, MethodCall) else node.kind


def _names(graph: Graph, node: MethodCall) -> tuple[str, ...]:
    """Return the names of a call, the most specific first: ``a0.fwd``, ``Stage.fwd``, ``fwd``."""
    label = next(each.label for each in graph.actors if each.id == node.actor)
    return f"{node.actor}.{node.method}", f"{label}.{node.method}", node.method
