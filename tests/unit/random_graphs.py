# SPDX-License-Identifier: Apache-2.0
"""Random graphs for hypothesis, and two ways to run one in plain Python.

``evaluate`` computes a graph node by node; ``interpret`` runs the programs of a plan against each
other over queues, as processes would. That both give the same is what the compiler promises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from rcg.ir.channels import ActorSpec
from rcg.ir.containers import Template
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
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
    upstream_of,
)
from rcg.ir.operands import Const, Slot
from rcg.ir.ops import Build, Call, Free, Input, Op, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program


@dataclass
class Hole:
    """Stands for a node in an argument."""

    node: int


@dataclass
class Case:
    graph: Graph
    constants: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn, max_calls: int = 12, max_actors: int = 4) -> Case:
    """A graph that passes all checks, with its constants."""
    nodes: list[Node] = []
    values: list[int] = []  # ids of nodes that are values
    constants: dict[str, Any] = {}

    def add(node: Node) -> None:
        nodes.append(node)
        if not (isinstance(node, MethodCall) and node.num_returns > 1):
            values.append(node.id)

    def constant(value: Any) -> str:
        name = f"k{len(constants)}"
        constants[name] = value
        return name

    def site() -> Site:
        return Site("case.py", len(nodes) + 1)

    keys: list[Any] = draw(
        st.one_of(
            st.just([None]),
            st.lists(st.sampled_from([0, 1, 2, "x", "a b", "ü'"]), min_size=1, unique=True),
        )
    )
    for key in keys:
        add(InputValue(len(nodes), key, site()))

    def argument() -> Argument:
        value = st.sampled_from(values)
        match draw(st.integers(0, 5)):
            case 0:
                return ConstArg(constant(draw(st.integers(-9, 9))))
            case 1:
                holes = [Hole(node) for node in draw(st.lists(value, min_size=1, max_size=3))]
                shaped = draw(st.sampled_from([holes, {"v": holes, "c": 1}, [(0, tuple(holes))]]))
                template, found = Template.of(shaped, lambda item: isinstance(item, Hole))
                return NestedArg(constant(template), tuple(hole.node for hole in found))
            case _:
                return NodeArg(draw(value))

    for _ in range(draw(st.integers(1, max_calls))):
        actor = f"a{draw(st.integers(0, max_actors - 1))}"
        first: Argument = NodeArg(draw(st.sampled_from(values)))
        args = (first, *[argument() for _ in range(draw(st.integers(0, 2)))])
        kwargs = tuple((name, argument()) for name in draw(st.sets(st.sampled_from(["u", "a-b"]))))
        num_returns = draw(st.sampled_from([1, 1, 1, 2, 3]))
        call = MethodCall(len(nodes), actor, "f", args, kwargs, num_returns, site())
        add(call)
        if num_returns > 1:
            for index in draw(st.lists(st.integers(0, num_returns - 1), min_size=1, unique=True)):
                add(Part(len(nodes), call.id, index, call.site))

    made = [node for node in values if not isinstance(nodes[node], InputValue)]
    is_multi = draw(st.booleans())
    outputs = (
        draw(st.lists(st.sampled_from(made), min_size=1, max_size=4))
        if is_multi
        else [draw(st.sampled_from(made))]
    )
    return Case(_keep_reached(nodes, outputs, is_multi), constants)


def _keep_reached(nodes: list[Node], outputs: list[int], is_multi: bool) -> Graph:
    reached: set[int] = set()
    stack = list(outputs)
    while stack:
        current = stack.pop()
        if current not in reached:
            reached.add(current)
            stack += upstream_of(nodes[current])
    kept = [node for node in nodes if node.id in reached]
    number = {node.id: position for position, node in enumerate(kept)}
    calls = [node for node in kept if isinstance(node, MethodCall)]
    actors = {actor: f"a{n}" for n, actor in enumerate(dict.fromkeys(c.actor for c in calls))}

    def moved(argument: Argument) -> Argument:
        match argument:
            case NodeArg(node=node):
                return NodeArg(number[node])
            case NestedArg(template=template, nodes=nested):
                return NestedArg(template, tuple(number[node] for node in nested))
            case ConstArg():
                return argument

    renumbered: list[Node] = []
    for node in kept:
        match node:
            case InputValue():
                renumbered.append(InputValue(number[node.id], node.key, node.site))
            case Part():
                renumbered.append(Part(number[node.id], number[node.call], node.index, node.site))
            case MethodCall():
                renumbered.append(
                    MethodCall(
                        number[node.id],
                        actors[node.actor],
                        node.method,
                        tuple(moved(argument) for argument in node.args),
                        tuple((name, moved(argument)) for name, argument in node.kwargs),
                        node.num_returns,
                        node.site,
                    )
                )
    keys = [node.key for node in kept if isinstance(node, InputValue)]
    positions = [key + 1 for key in keys if isinstance(key, int)]
    return Graph(
        nodes=tuple(renumbered),
        outputs=tuple(number[output] for output in outputs),
        is_multi=is_multi,
        actors=tuple(ActorSpec(actor, f"Class {actor}", "") for actor in actors.values()),
        num_positional=1 if keys == [None] else max(positions, default=0),
        keywords=tuple(key for key in keys if isinstance(key, str)),
    )


# --- running one --------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """Any value of a case as a hashable one."""
    if isinstance(value, dict):
        return ("dict", *((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(frozen(item) for item in value))
    return value


def call_method(node: int, num_returns: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What every method of a case returns: where it was called and what with, as a number."""
    # A hash of numbers and tuples would do, but strings are salted.
    seen = repr((node, frozen(args), frozen(kwargs)))
    total = 0
    for character in seen:
        total = (total * 31 + ord(character)) % 1_000_003
    return total if num_returns == 1 else [total + part for part in range(num_returns)]


def arguments_of(
    case: Case, call: MethodCall, results: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What a call is given, if these are the results of the nodes so far."""

    def value(argument: Argument) -> Any:
        match argument:
            case NodeArg(node=node):
                return results[node]
            case ConstArg(const=const):
                return case.constants[const]
            case NestedArg(template=template, nodes=nodes):
                return case.constants[template].fill([results[node] for node in nodes])

    return (
        [value(argument) for argument in call.args],
        {name: value(argument) for name, argument in call.kwargs},
    )


def evaluate(case: Case, inputs: dict[Any, Any]) -> list[Any]:
    """The outputs of one execution, computed node by node."""
    results: list[Any] = []
    for node in case.graph.nodes:
        match node:
            case InputValue(key=key):
                results.append(inputs[key])
            case Part(call=call, index=index):
                results.append(results[call][index])
            case MethodCall():
                args, kwargs = arguments_of(case, node, results)
                results.append(call_method(node.id, node.num_returns, args, kwargs))
    return [results[output] for output in case.graph.outputs]


class StuckError(Exception):
    """The programs wait for each other."""


def interpret(
    plan: Plan, constants: dict[str, Any], executions: list[dict[Any, Any]], window: int = 1
) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """Run several executions over bounded queues, one op of one process at a time.

    The driver submits ``window`` executions before it takes the first result.

    Returns:
        The outputs of each execution, and the nodes that each process called, in order.

    Raises:
        StuckError: No process can go on.
    """
    queues = {
        (channel.id, reader): deque[Any]()
        for channel in plan.channels
        for reader in channel.readers
    }
    channels = plan.channels_by_id()
    outputs: list[list[Any]] = []
    calls: dict[str, list[int]] = {program.process: [] for program in plan.programs}

    def run(program: Program) -> Iterator[bool]:
        """Yield whether something was done since the last yield."""
        slots: list[dict[int, Any]] = [{} for _ in executions]
        for execution, op in steps(program):
            while is_blocked(program.process, op):
                yield False
            step(program.process, op, slots[execution], executions[execution])
            yield True
        kept = program.ops[-1].used() if program.process == DRIVER else ()
        has_frees = any(isinstance(op, Free) for op in program.ops)
        assert all(set(each) == set(kept) for each in slots) or not has_frees

    def steps(program: Program) -> Iterator[tuple[int, Op]]:
        is_read = [isinstance(op, Read) for op in program.ops]
        middle = is_read.index(True) if program.process == DRIVER else len(program.ops)
        submit, collect = program.ops[:middle], program.ops[middle:]
        ahead = window if program.process == DRIVER else 1
        for execution in range(min(ahead, len(executions))):
            yield from ((execution, op) for op in submit)
        for execution in range(len(executions)):
            yield from ((execution, op) for op in collect)
            if execution + ahead < len(executions):
                yield from ((execution + ahead, op) for op in submit)

    def is_blocked(process: str, op: Op) -> bool:
        match op:
            case Read(channel=channel):
                return not queues[channel, process]
            case Write(channel=channel):
                spec = channels[channel]
                return any(len(queues[channel, to]) >= spec.slots for to in spec.readers)
            case _:
                return False

    def step(process: str, op: Op, slots: dict[int, Any], inputs: dict[Any, Any]) -> None:
        def argument(of: Slot | Const) -> Any:
            return slots[of.index] if isinstance(of, Slot) else constants[of.id]

        match op:
            case Input(key=key, out=out):
                slots[out] = inputs[key]
            case Read(channel=channel, outs=outs):
                slots.update(zip(outs, queues[channel, process].popleft(), strict=True))
            case Build(template=template, slots=parts, out=out):
                slots[out] = constants[template].fill([slots[part] for part in parts])
            case Call():
                calls[process].append(op.node)
                args = [argument(each) for each in op.args]
                kwargs = {name: argument(each) for name, each in op.kwargs}
                result = call_method(op.node, len(op.outs), args, kwargs)
                results = [result] if len(op.outs) == 1 else result
                slots.update(zip(op.outs, results, strict=True))
            case Write(slots=sent, channel=channel):
                for reader in channels[channel].readers:
                    queues[channel, reader].append([slots[each] for each in sent])
            case Output(slots=results):
                outputs.append([slots[result] for result in results])
            case Free(slots=dead):
                for slot in dead:
                    del slots[slot]

    running = [run(program) for program in plan.programs]
    while running:
        done = [next(each, None) for each in running]
        if not any(each is not False for each in done):
            raise StuckError
        running = [each for each, went in zip(running, done, strict=True) if went is not None]
    assert not any(queues.values())
    return outputs, calls
