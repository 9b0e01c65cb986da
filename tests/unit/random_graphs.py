# SPDX-License-Identifier: Apache-2.0
"""Random graphs for hypothesis, and two ways to run one in plain Python.

``evaluate`` computes a graph node by node; ``interpret`` runs the programs of a plan against each
other over queues, as processes would. That both give the same is what the compiler promises.

With ``has_tensors``, values have hints, several actors may read one value over a communicator, and
there are collectives over random actors. A number stands for a tensor: methods return numbers, and
collectives combine numbers (``combined``). ``swaps`` lists what a broken compiler could make of a
plan: two rendezvous of an actor in each other's place.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from rcg.errors import InternalError
from rcg.ir.channels import RING, TENSOR, ActorSpec
from rcg.ir.containers import Template
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER, Const, Slot
from rcg.ir.nodes import (
    Argument,
    CollectiveCall,
    CommunicatorSpec,
    ConstArg,
    InputValue,
    MethodCall,
    NestedArg,
    Node,
    NodeArg,
    Part,
    Site,
    TensorHint,
    upstream_of,
)
from rcg.ir.ops import (
    COLLECTIVES,
    Build,
    Call,
    Collective,
    Copy,
    Free,
    Input,
    Op,
    Output,
    Pass,
    Read,
    Write,
)
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
def cases(
    draw: st.DrawFn,
    max_calls: int = 12,
    max_actors: int = 4,
    *,
    has_tensors: bool = False,
    kinds: Sequence[str] = tuple(COLLECTIVES),
) -> Case:
    """A graph that passes all checks, with its constants; ``kinds`` are those of collectives."""
    nodes: list[Node] = []
    numbers: dict[str, list[int]] = {}  # by actor, the ids of its values that are numbers
    values: list[int] = []  # ids of nodes that are values
    constants: dict[str, Any] = {}

    def add(node: Node) -> None:
        nodes.append(node)
        match node:
            case MethodCall(num_returns=several) | CollectiveCall(num_returns=several):
                if several > 1:
                    return
                values.append(node.id)
                if isinstance(node, MethodCall) or node.kind in _KEEPING:
                    numbers.setdefault(node.actor, []).append(node.id)
            case Part(call=of):
                values.append(node.id)
                owner = nodes[of]
                assert isinstance(owner, MethodCall | CollectiveCall)
                numbers.setdefault(owner.actor, []).append(node.id)
            case InputValue():
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

    actor_numbers = st.integers(0, max_actors - 1)
    if has_tensors:
        actor_numbers = st.sampled_from(draw(st.permutations(range(max_actors))))

    def add_call() -> None:
        actor = f"a{draw(actor_numbers)}"
        first: Argument = NodeArg(draw(st.sampled_from(values)))
        args = (first, *[argument() for _ in range(draw(st.integers(0, 2)))])
        kwargs = tuple((name, argument()) for name in draw(st.sets(st.sampled_from(["u", "a-b"]))))
        num_returns = draw(st.sampled_from([1, 1, 1, 2, 3]))
        call = MethodCall(len(nodes), actor, "f", args, kwargs, num_returns, site())
        add(call)
        add_parts(call)

    def add_parts(call: MethodCall | CollectiveCall) -> None:
        if call.num_returns > 1:
            indexes = st.integers(0, call.num_returns - 1)
            for index in draw(st.lists(indexes, min_size=1, unique=True)):
                add(Part(len(nodes), call.id, index, call.site))

    def add_collective(number: int) -> None:
        kind = draw(st.sampled_from(list(kinds)))
        chosen = st.lists(st.sampled_from(sorted(numbers)), min_size=1, unique=True)
        actors = draw(chosen)
        has_root = COLLECTIVES[kind].has_root
        root = draw(st.integers(0, len(actors) - 1)) if has_root else None
        count = draw(st.integers(1, 2)) if kind == "allreduce" else 1
        reduction = None
        if COLLECTIVES[kind].is_reducing:
            reduction = draw(st.sampled_from(["sum", "max", "min"]))
        ranks = []
        for rank, actor in enumerate(actors):
            own = st.sampled_from(numbers[actor])
            is_receiver = kind == "broadcast" and rank != root and draw(st.booleans())
            args = () if is_receiver else tuple(draw(own) for _ in range(count))
            ranks.append((rank, actor, args))
        hint = TensorHint("gloo", site())
        calls = []
        for rank, actor, args in ranks:
            call = CollectiveCall(
                *(len(nodes), number, actor, rank, kind, args, count, reduction, root, hint, site())
            )
            add(call)
            calls.append(call)
        for call in calls:
            add_parts(call)

    num_collectives = 0
    fewest = max_calls // 2 if has_tensors else 1  # a rendezvous needs some graph around it
    for _ in range(draw(st.integers(fewest, max_calls))):
        if has_tensors and numbers and draw(st.integers(0, 3)) == 0:
            add_collective(num_collectives)
            num_collectives += 1
        else:
            add_call()

    made = [node for node in values if not isinstance(nodes[node], InputValue)]
    is_multi = draw(st.integers(0, 3)) > 0 if has_tensors else draw(st.booleans())
    if has_tensors:
        made = made[-5:]
    outputs = (
        draw(st.lists(st.sampled_from(made), min_size=1, max_size=4))
        if is_multi
        else [draw(st.sampled_from(made))]
    )
    graph = _keep_reached(nodes, outputs, is_multi)
    return Case(_with_hints(draw, graph) if has_tensors else graph, constants)


@st.composite
def placements(draw: st.DrawFn, graph: Graph, most: int = 4) -> tuple[dict[str, str], str]:
    """The node of each actor of a graph, and that of its driver, of up to so many nodes."""
    names = st.sampled_from([f"node-{number}" for number in range(draw(st.integers(1, most)))])
    return {actor.id: draw(names) for actor in graph.actors}, draw(names)


_KEEPING = ("allreduce", "reducescatter", "broadcast")
"""The collectives whose results are numbers on all ranks."""


def _with_hints(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with hints at random values, and with users' communicators."""
    communicators: dict[tuple[str, ...], CommunicatorSpec] = {}
    ranks: dict[int, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node, CollectiveCall):
            ranks.setdefault(node.collective, []).append(node.actor)

    def of_user(members: Sequence[str], where: Site) -> TensorHint:
        key = tuple(members)
        spec = CommunicatorSpec(f"k{1000 + len(communicators)}", "gloo", key)
        const = communicators.setdefault(key, spec).const
        return TensorHint("gloo", where, communicator=const)

    chosen = {
        collective: of_user(actors, Site("case.py", 1))
        for collective, actors in ranks.items()
        if draw(st.integers(0, 3)) == 0
    }
    actors = [actor.id for actor in graph.actors]

    def hint(node: Node, ends: set[str]) -> TensorHint | None:
        transport = draw(st.sampled_from(["none", "auto", "shm", "gloo", "gloo", "gloo", "user"]))
        if transport == "none":
            return None
        if transport == "user":
            others = [actor for actor in actors if actor not in ends]
            more = draw(st.sets(st.sampled_from(others))) if others else set()
            found = of_user(draw(st.permutations(sorted(ends | more))), node.site)
        else:
            found = TensorHint(transport, node.site)
        return replace(
            found,
            device=draw(st.sampled_from(["default", "default", "cpu"])),
            is_static_shape=draw(st.booleans()),
        )

    readers: dict[int, set[str]] = {node.id: set() for node in graph.nodes}
    for node in graph.nodes:
        if isinstance(node, MethodCall | CollectiveCall):
            for value in upstream_of(node):
                readers[value].add(node.actor)
    nodes: list[Node] = []
    for node in graph.nodes:
        actor = graph.actor_of(node.id)
        ends = set(actors) if actor is None else {actor, *readers[node.id]}
        if isinstance(node, CollectiveCall):
            node = replace(node, communicates=chosen.get(node.collective, node.communicates))
        nodes.append(replace(node, hint=hint(node, ends)))
    return replace(graph, nodes=tuple(nodes), communicators=tuple(communicators.values()))


def _keep_reached(nodes: list[Node], outputs: list[int], is_multi: bool) -> Graph:
    reached: set[int] = set()
    ranks: dict[int, list[int]] = {}
    for node in nodes:
        if isinstance(node, CollectiveCall):
            ranks.setdefault(node.collective, []).append(node.id)
    stack = list(outputs)
    while stack:
        current = stack.pop()
        if current not in reached:
            reached.add(current)
            at = nodes[current]
            stack += upstream_of(at)
            if isinstance(at, CollectiveCall):
                stack += ranks[at.collective]
    kept = [node for node in nodes if node.id in reached]
    number = {node.id: position for position, node in enumerate(kept)}
    calls = [node for node in kept if isinstance(node, MethodCall | CollectiveCall)]
    collectives: dict[int, int] = {}
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
            case CollectiveCall():
                found = collectives.setdefault(node.collective, len(collectives))
                renumbered.append(
                    replace(
                        node,
                        id=number[node.id],
                        collective=found,
                        actor=actors[node.actor],
                        args=tuple(number[value] for value in node.args),
                    )
                )
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


def combined(
    kind: str, reduction: str | None, root: int | None, given: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """What each rank of a collective gets, if these are the numbers that each rank gives."""
    if kind == "broadcast":
        assert root is not None
        return [list(given[root]) for _ in given]
    reduced = {"sum": sum, "max": max, "min": min, None: tuple}[reduction]
    results = [reduced(each) for each in zip(*given, strict=True)]
    return [
        results if root is None or rank == root else [None for _ in results]
        for rank in range(len(given))
    ]


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
    ranks: dict[int, list[CollectiveCall]] = {}
    for node in case.graph.nodes:
        if isinstance(node, CollectiveCall):
            ranks.setdefault(node.collective, []).append(node)
    for node in case.graph.nodes:
        match node:
            case CollectiveCall(kind=kind, reduction=reduction, root=root):
                given = [[results[arg] for arg in rank.args] for rank in ranks[node.collective]]
                found = combined(kind, reduction, root, given)[node.rank]
                results.append(found if node.num_returns > 1 else found[0])
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

    The driver submits ``window`` executions before it takes the first result. The writer and all
    readers of a tensor channel, and all ranks of a collective, wait for each other. What crosses to
    another node gets there only if its gate passes it on.

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
    nodes, crossings = plan.nodes_by_process(), plan.crossings()
    arriving = {(channel, node): deque[Any]() for channel, to in crossings.items() for node in to}
    groups = {group.id: group.members for group in plan.groups}
    met: dict[Any, dict[str, list[Any]]] = {}  # by meeting: who came, with which values
    outputs: list[list[Any]] = []
    calls: dict[str, list[int]] = {program.process: [] for program in plan.programs}

    def run(program: Program) -> Iterator[bool]:
        """Yield whether something was done since the last yield."""
        slots: list[dict[int, Any]] = [{} for _ in executions]
        for execution, op in steps(program):
            meeting, members = meeting_of(program.process, op, execution)
            if members:
                given = [slots[execution][slot] for slot in op.used()]
                met.setdefault(meeting, {})[program.process] = given
            while is_blocked(program.process, op, meeting, members):
                yield False
            if members:
                take(program.process, op, slots[execution], met[meeting], members)
            else:
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

    def meeting_of(process: str, op: Op, execution: int) -> tuple[Any, Sequence[str]]:
        """Which others an op has to wait for, and a name for that."""
        match op:
            case Collective(group=group):
                name = frozenset((*op.tells, *op.hears)) or process
                return (name, op.node if name == process else 0, execution), groups[group]
            case Read(channel=channel) | Write(channel=channel):
                spec = channels[channel]
                if spec.kind == TENSOR:
                    return (channel, execution), (spec.writer, *spec.readers)
            case _:
                pass
        return None, ()

    def readers_on(node: str, channel: str) -> list[str]:
        return [reader for reader in channels[channel].readers if nodes[reader] == node]

    def next_queues(channel: str) -> list[deque[Any]]:
        """Those that the writer fills: of the readers on its node, and one for each other node."""
        near = readers_on(nodes[channels[channel].writer], channel)
        far = [arriving[channel, node] for node in crossings.get(channel, ())]
        return [queues[channel, reader] for reader in near] + far

    def is_blocked(process: str, op: Op, meeting: Any, members: Sequence[str]) -> bool:
        if members:
            return set(met[meeting]) != set(members)
        match op:
            case Read(channel=channel):
                return not queues[channel, process]
            case Write(channel=channel):
                return any(len(each) >= channels[channel].slots for each in next_queues(channel))
            case Pass(channel=channel) if channels[channel].kind == RING:
                to = readers_on(process, channel)
                is_full = any(len(queues[channel, each]) >= channels[channel].slots for each in to)
                return is_full or not arriving[channel, process]
            case _:
                return False

    def take(
        process: str,
        op: Op,
        slots: dict[int, Any],
        given: dict[str, list[Any]],
        members: Sequence[str],
    ) -> None:
        match op:
            case Collective():
                in_order = [given[member] for member in members]
                found = combined(op.word, op.reduction, op.root, in_order)
                slots.update(zip(op.outs, found[members.index(process)], strict=True))
            case Read(outs=outs):
                slots.update(zip(outs, given[members[0]], strict=True))
            case _:
                pass

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
                for queue in next_queues(channel):
                    queue.append([slots[each] for each in sent])
            case Pass(channel=channel) if channels[channel].kind == RING:
                frame = arriving[channel, process].popleft()
                for reader in readers_on(process, channel):
                    queues[channel, reader].append(frame)
            case Copy(slot=source, out=out):
                slots[out] = copy.deepcopy(slots[source])
            case Output(slots=results):
                outputs.append([slots[result] for result in results])
            case Free(slots=dead):
                for slot in dead:
                    del slots[slot]

    gates = {gate.id for gate in plan.gates}
    running = [run(program) for program in plan.programs if program.process not in gates]
    # The ops of a gate are in no order.
    running += [run(Program(gate, (op,))) for gate in gates for op in plan.program(gate).ops]
    while running:
        done = [next(each, None) for each in running]
        if not any(each is not False for each in done):
            raise StuckError
        running = [each for each, went in zip(running, done, strict=True) if went is not None]
    assert not any(queues.values())
    assert not any(arriving.values())
    return outputs, calls


# --- breaking a plan ----------------------------------------------------------------------------


def is_meeting(plan: Plan, op: Op) -> bool:
    """Whether an op is a rendezvous: a collective of several, or an end of a tensor channel."""
    channels = plan.channels_by_id()
    moved = (*op.channels_in, *op.channels_out)
    return bool(moved) and (
        isinstance(op, Collective) or any(channels[each].kind == TENSOR for each in moved)
    )


def swaps(plan: Plan) -> list[Plan]:
    """The plans in which two rendezvous of one process have changed places.

    Without its Frees, which would be in the way. Only plans that still pass their check.
    """
    found = []
    for at, program in enumerate(plan.programs):
        ops = [op for op in program.ops if not isinstance(op, Free)]
        meetings = [position for position, op in enumerate(ops) if is_meeting(plan, op)]
        for number, first in enumerate(meetings):
            for second in meetings[number + 1 :]:
                changed = list(ops)
                changed[first], changed[second] = ops[second], ops[first]
                programs = list(plan.programs)
                programs[at] = Program(program.process, tuple(changed))
                swapped = replace(plan, programs=tuple(programs))
                try:
                    swapped.check()
                except InternalError:
                    continue
                found.append(swapped)
    return found
