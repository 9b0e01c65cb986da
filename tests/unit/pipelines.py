# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules as users bind them: plain graphs whose edges between stages are tensors.

Each function binds forward calls (F), backward calls (B), and where it splits the backward pass,
calls for the gradients of the weights (W), in the order in which a training script would. A call is
named by its letter and its microbatch, counted from 1: ``B3``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rcg.ir.graph import Graph
from rcg.ir.nodes import ConstArg, MethodCall, Node, NodeArg, TensorHint
from tests.unit.graphs_by_hand import call, graph, input_value, site


@dataclass
class Script:
    """A training script: what it has bound so far, on so many actors."""

    num_actors: int
    nodes: list[Node] = field(default_factory=list)
    transport: str = "gloo"

    def __post_init__(self) -> None:
        self.nodes.append(input_value(0))

    def bind(self, actor: int, name: str, *values: int) -> int:
        """Bind a call on an actor to values of other nodes, of the input if there are none."""
        node = len(self.nodes)
        hint = TensorHint(self.transport, site(node + 1))
        given = *(values or (0,)), ConstArg("k0")
        self.nodes.append(call(node, f"a{actor}", *given, method=name, hint=hint))
        return node

    def graph(self) -> Graph:
        """The graph of all calls; those that nothing uses are its outputs."""
        calls = [node for node in self.nodes if isinstance(node, MethodCall)]
        used = {each.node for node in calls for each in node.args if type(each) is NodeArg}
        return graph(*self.nodes, outputs=tuple(each.id for each in calls if each.id not in used))


def gpipe(stages: int, microbatches: int) -> Graph:
    """All forward calls, then all backward calls, those of the last microbatch first."""
    script = Script(stages)
    forward: dict[tuple[int, int], int] = {}
    for each in range(1, microbatches + 1):
        for stage in range(stages):
            before = (forward[stage - 1, each],) if stage else ()
            forward[stage, each] = script.bind(stage, f"F{each}", *before)
    for each in range(microbatches, 0, -1):
        gradient: tuple[int, ...] = ()
        for stage in range(stages - 1, -1, -1):
            gradient = (script.bind(stage, f"B{each}", forward[stage, each], *gradient),)
    return script.graph()


@dataclass(frozen=True)
class Step:
    """One call of a stage: forward, backward or weights (F, B, W), of a microbatch and a chunk."""

    letter: str
    microbatch: int
    chunk: int = 0


def bind_steps(actors: int, chunks: int, steps: list[list[Step]]) -> Graph:
    """Bind the steps of each actor in its order, as soon as what they take is bound.

    A model of ``actors * chunks`` layers: actor ``a`` has the layers ``a``, ``a + actors``, ...
    """
    script = Script(actors)
    bound: dict[tuple[str, int, int], int] = {}  # by letter, layer and microbatch
    last = actors * chunks - 1
    todo = [list(reversed(each)) for each in steps]
    while any(todo):
        before = len(bound)
        for actor, left in enumerate(todo):
            if not left:
                continue
            step = left[-1]
            layer = step.chunk * actors + actor
            needed = {
                "F": [("F", layer - 1)] if layer else [],
                "B": [("F", layer), *([("B", layer + 1)] if layer < last else [])],
                "W": [("F", layer), ("B", layer)],
            }[step.letter]
            keys = [(letter, at, step.microbatch) for letter, at in needed]
            if all(key in bound for key in keys):
                left.pop()
                name = f"{step.letter}{step.microbatch}" + ("'" * step.chunk)
                node = script.bind(actor, name, *(bound[key] for key in keys))
                bound[step.letter, layer, step.microbatch] = node
        if len(bound) == before:
            raise ValueError("these steps cannot be bound")
    return script.graph()


def one_forward_one_backward(stages: int, microbatches: int) -> Graph:
    """Each stage runs some forward calls ahead, then alternates (PipeDream-flush)."""
    steps = []
    for stage in range(stages):
        forward = [Step("F", each) for each in range(1, microbatches + 1)]
        backward = [Step("B", each) for each in range(1, microbatches + 1)]
        steps.append(_alternating(forward, backward, ahead=stages - 1 - stage))
    return bind_steps(stages, 1, steps)


def interleaved(actors: int, chunks: int, microbatches: int) -> Graph:
    """1F1B over several chunks of the model per actor; microbatches go in groups of ``actors``."""
    steps = []
    for actor in range(actors):
        order = [
            (group * actors + each + 1, chunk)
            for group in range(microbatches // actors)
            for chunk in range(chunks)
            for each in range(actors)
        ]
        forward = [Step("F", each, chunk) for each, chunk in order]
        backward = [Step("B", each, chunks - 1 - chunk) for each, chunk in order]
        ahead = (actors - actor - 1) * 2 + (chunks - 1) * actors
        steps.append(_alternating(forward, backward, ahead))
    return bind_steps(actors, chunks, steps)


def zero_bubble(stages: int, microbatches: int) -> Graph:
    """ZB-H1: 1F1B whose weights are computed as late as ``stages`` microbatches in flight allow."""
    steps = []
    for stage in range(stages):
        forward = [Step("F", each) for each in range(1, microbatches + 1)]
        backward = [Step("B", each) for each in range(1, microbatches + 1)]
        mine: list[Step] = []
        in_flight = weights = 0
        for step in _alternating(forward, backward, ahead=stages - 1 - stage):
            if step.letter == "F":
                in_flight += 1
            mine.append(step)
            is_full = in_flight == stages or step.microbatch > microbatches - (stages - stage)
            if step.letter == "B" and is_full:
                weights += 1
                in_flight -= 1
                mine.append(Step("W", weights))
        mine += [Step("W", each) for each in range(weights + 1, microbatches + 1)]
        steps.append(mine)
    return bind_steps(stages, 1, steps)


def _alternating(forward: list[Step], backward: list[Step], ahead: int) -> list[Step]:
    ahead = min(ahead, len(forward))
    steps = forward[:ahead]
    for more, back in zip(forward[ahead:], backward, strict=False):
        steps += [more, back]
    return steps + backward[len(forward) - ahead :]


PipelineMaker = Callable[..., Graph]
