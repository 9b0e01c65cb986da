# SPDX-License-Identifier: Apache-2.0
"""Graphs written out as data, with what follows from their nodes filled in."""

from __future__ import annotations

from typing import Any

from rcg.compiler import compile_graph
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, InputValue, MethodCall, NodeArg, Site, TensorHint
from rcg.ir.plan import Plan

HERE = "node-1"


def site(line: int) -> Site:
    return Site("/home/me/pipeline.py", line)


def input_value(id: int, key: Any = None) -> InputValue:
    return InputValue(id, key, site(id + 1))


def stages(*labels: str) -> tuple[ActorSpec, ...]:
    return tuple(ActorSpec(f"a{at}", label, "") for at, label in enumerate(labels))


def call(
    id: int,
    actor: str,
    *args: Any,
    method: str = "fwd",
    num_returns: int = 1,
    hint: TensorHint | None = None,
    **kwargs: Any,
) -> MethodCall:
    """A call; numbers among its arguments are the nodes whose values it takes."""

    def argument(value: Any) -> Any:
        return NodeArg(value) if isinstance(value, int) else value

    given = tuple(map(argument, args))
    named = tuple((name, argument(value)) for name, value in kwargs.items())
    return MethodCall(id, actor, method, given, named, num_returns, site(id + 1), hint)


def rank(id: int, rank: int, *args: int, **changes: Any) -> CollectiveCall:
    """A rank of a collective, of the actor with its number unless that is changed."""
    fields: dict[str, Any] = {
        "collective": 0,
        "actor": f"a{rank}",
        "kind": "allreduce",
        "num_returns": 1,
        "reduction": "sum",
        "root": None,
        "communicates": TensorHint("gloo", site(4)),
        "site": site(4),
    }
    return CollectiveCall(id=id, rank=rank, args=args, **{**fields, **changes})


def graph(*nodes: Any, outputs: Any = None, **changes: Any) -> Graph:
    keys = [node.key for node in nodes if isinstance(node, InputValue)]
    calls = [node for node in nodes if isinstance(node, MethodCall | CollectiveCall)]
    actors = sorted({node.actor for node in calls}, key=lambda actor: int(actor[1:]))
    is_whole = None in keys
    fields: dict[str, Any] = {
        "nodes": nodes,
        "outputs": (len(nodes) - 1,) if outputs is None else outputs,
        "is_multi": outputs is not None,
        "actors": tuple(ActorSpec(actor, "Stage", "") for actor in actors),
        "num_positional": 1
        if is_whole
        else max((key + 1 for key in keys if type(key) is int), default=0),
        "keywords": tuple(key for key in keys if isinstance(key, str)),
    }
    return Graph(**{**fields, **changes})


def planned(graph: Graph, channel_slots: int = 10) -> Plan:
    """The plan of a graph whose actors are all on the driver's node."""
    return compile_graph(graph, here(graph), HERE, channel_slots).plan


def here(graph: Graph) -> dict[str, str]:
    return {actor.id: HERE for actor in graph.actors}
