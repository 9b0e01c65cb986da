# SPDX-License-Identifier: Apache-2.0
"""Random DAGs: drawn, written as a user would write them, and computed in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rcg.dag import InputNode, MultiOutputNode
from tests.soak import values

__all__ = ["Failed", "Recipe", "Step", "Trouble", "draw_recipe", "perform"]

_FAILURES_IN = 16  # a step that may fail does so for some of 16 remainders of a digest
_MAX_COPIES = 4


class Trouble(Exception):
    """What methods of a soak raise. It carries where, for what, and some ballast."""

    def __init__(self, node: int, digest: int, ballast: bytes) -> None:
        super().__init__(node, digest, ballast)
        self.node = node
        self.digest = digest


@dataclass(frozen=True, slots=True)
class Step:
    """What one call of a recipe does.

    Attributes:
        node: Its number in the recipe.
        op: forward, fresh, part, collect, create, split, keep or digest.
        fails_on: Digests of the arguments, modulo 16, for which it raises ``Trouble``.
        exits_at: The call, counted from 1, in which the process exits; None for never.
        token: Whose calls these are, for counting them.
    """

    node: int
    op: str
    fails_on: tuple[int, ...] = ()
    exits_at: int | None = None
    token: str = ""

    @property
    def returns(self) -> int:
        return 2 if self.op == "split" else 1


def perform(step: Step, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Do what a step does, in whatever process.

    Raises:
        Trouble: As the step says.
    """
    needs_digest = bool(step.fails_on) or step.op in ("create", "split", "keep", "digest")
    seen = values.digest([list(args), kwargs], step.node) if needs_digest else 0
    if seen % _FAILURES_IN in step.fails_on:
        raise Trouble(step.node, seen, b"b" * (seen % 30_000))
    match step.op:
        case "forward":
            return args[0]
        case "fresh":
            return values.fresh(args[0])
        case "part":
            return values.part(args[0])
        case "collect":
            return [list(args), kwargs]
        case "create":
            return values.draw(random.Random(seen), 1 << seen % 18 + 1)
        case "split":
            return args[0], seen
        case _:
            return seen


class Failed:
    """In place of a value: the troubles that may arrive for it, as (node, digest)."""

    def __init__(self, troubles: set[tuple[int, int]]) -> None:
        self.troubles = troubles


@dataclass(frozen=True, slots=True)
class Call:
    """One call: values are numbers, and a tuple of them is a container with them in it."""

    step: Step
    actor: int
    args: tuple[int | tuple[int, ...], ...]
    kwargs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A DAG over the actors of a pool.

    Values are numbered: the inputs first, then what each call returns.

    Attributes:
        keys: Of the inputs; None is the whole input.
        calls: In the order of their binds.
        outputs: Values.
        is_multi: Whether the outputs come as a list.
    """

    keys: tuple[int | str | None, ...]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]
    is_multi: bool

    @property
    def actors(self) -> set[int]:
        return {call.actor for call in self.calls}

    def with_exit(self, actor: int, at: int, token: str) -> Recipe:
        """Return it with one more call, in which the actor exits when it comes there the nth time.

        Its argument is an input, so the call is reached in every execution.
        """
        step = Step(len(self.calls), "digest", exits_at=at, token=token)
        number = len(self.keys) + sum(call.step.returns for call in self.calls)
        calls = (*self.calls, Call(step, actor, (0,), ()))
        return replace(self, calls=calls, outputs=(*self.outputs, number), is_multi=True)

    def bind(self, pool: Sequence[Any]) -> Any:
        """Return the root of the DAG."""
        with InputNode() as inp:
            nodes = [inp if key is None else inp[key] for key in self.keys]
            for call in self.calls:
                args = [_shape(arg, nodes) for arg in call.args]
                kwargs = {name: nodes[value] for name, value in call.kwargs}
                method = pool[call.actor].perform
                if call.step.returns == 1:
                    nodes.append(method.bind(call.step, *args, **kwargs))
                else:
                    made = method.options(num_returns=2).bind(call.step, *args, **kwargs)
                    nodes += [made[0], made[1]]
            if self.is_multi:
                return MultiOutputNode([nodes[output] for output in self.outputs])
            return nodes[self.outputs[0]]

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs in plain Python: values, or ``Failed``."""
        found = list(inputs)
        for call in self.calls:
            used = [value for arg in call.args for value in ((arg,) if type(arg) is int else arg)]
            used += [value for _, value in call.kwargs]
            troubles = [found[value].troubles for value in used if type(found[value]) is Failed]
            if troubles:
                found += [Failed(set().union(*troubles))] * call.step.returns
                continue
            args = [_shape(arg, found) for arg in call.args]
            try:
                result = perform(call.step, args, {k: found[v] for k, v in call.kwargs})
            except Trouble as trouble:
                result = Failed({(trouble.node, trouble.digest)})
                found += [result] * call.step.returns
            else:
                found += result if call.step.returns == 2 else [result]
        return [found[output] for output in self.outputs]


def _shape(arg: int | tuple[int, ...], nodes: Sequence[Any]) -> Any:
    """Return an argument as it is given: a value, or a container with values in it."""
    if type(arg) is int:
        return nodes[arg]
    first, *others = [nodes[value] for value in arg]
    return {"first": first, "others": [others, (1, *others)]}


def draw_recipe(rng: random.Random, actors: Sequence[int], most_calls: int = 8) -> Recipe:
    """Return a random DAG over some of these actors, from which nothing is left out."""
    keys: tuple[int | str | None, ...] = rng.choice([(None,), (None,), (0, 1), (0, "word"), ("x",)])
    # How many copies of a large value each value may hold, so that nothing grows without end.
    copies = [1] * len(keys)
    calls: list[Call] = []
    used: set[int] = set()

    def pick() -> int:
        value = rng.randrange(len(copies))
        used.add(value)
        return value

    for node in range(rng.randint(1, most_calls)):
        # Unused values come first, so that all calls are reached.
        new = [value for value in range(len(copies)) if value not in used]
        first = rng.choice(new) if new and (rng.random() < 0.6 or node < len(keys)) else pick()
        used.add(first)
        args: list[int | tuple[int, ...]] = [first]
        for _ in range(rng.choice([0, 0, 1, 2])):
            args.append(tuple(pick() for _ in range(2)) if rng.random() < 0.3 else pick())
        kwargs = tuple((name, pick()) for name in ("one", "two") if rng.random() < 0.15)
        flat = [value for arg in args for value in ((arg,) if type(arg) is int else arg * 2)]
        total = sum(copies[value] for value in [*flat, *(value for _, value in kwargs)])
        ops = ["forward", "fresh", "part", "create", "split", "keep", "digest"]
        op = rng.choice([*ops, "collect"] if total <= _MAX_COPIES else ops)
        few = rng.random() < 0.15
        fails_on = tuple(rng.sample(range(_FAILURES_IN), rng.randint(1, 4))) if few else ()
        calls.append(Call(Step(node, op, fails_on), rng.choice(actors), tuple(args), kwargs))
        match op:
            case "forward" | "fresh" | "part":
                copies.append(copies[first])
            case "collect":
                copies.append(total)
            case "create":
                copies.append(1)
            case "split":
                copies += [copies[first], 0]
            case _:
                copies.append(0)

    made = range(len(keys), len(copies))
    ends = [value for value in made if value not in used]
    spare = rng.choices(list(made), k=rng.randint(0, 2))
    outputs = tuple(dict.fromkeys(ends)) + tuple(spare if rng.random() < 0.3 else ())
    unused_keys = len(keys) - len(used & set(range(len(keys))))
    if unused_keys:  # one more call takes them in
        return draw_recipe(rng, actors, most_calls)
    is_multi = len(outputs) > 1 or rng.random() < 0.2
    return Recipe(keys, tuple(calls), outputs, is_multi)
