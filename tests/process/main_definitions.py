# SPDX-License-Identifier: Apache-2.0
"""A user's script whose definitions go to another process and back; run by ``test_values``.

The other process has a ``__main__`` of its own, which knows nothing of these names, except for one
of the same name that is another class.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rcg.runtime.codec import make_codec
from tests.harness.board import Board, Ring, finish, reader_of, writer_of

OTHER = """
from rcg.runtime.codec import make_codec

class Namesake:
    pass

member = board.member(1)
codec = make_codec()
reader, writer = reader_of(member, 0), writer_of(member, 1, codec)
while (message := reader.read()) is not None:
    function, value = message
    writer.write((function(value), value))
"""


class Plain:
    def __init__(self, value: Any = 0) -> None:
        self.value = value


class Derived(Plain):
    counter = 0

    def bump(self) -> int:
        type(self).counter += 1
        return super().value + 1 if hasattr(super(), "value") else self.value + 1


class Namesake:
    name = "of the script"


class Dictionary(dict[str, int]):
    pass


class Mistake(ValueError):
    pass


@dataclass(frozen=True)
class Point:
    x: int
    y: Any = None


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    first: Any
    second: Any


def make_adder(amount: int) -> Any:
    def add(value: int) -> int:
        return value + amount

    return add


def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


def main() -> None:
    board = Board(2, [Ring(0, (1,), slots=2, slot_bytes=4096), Ring(1, (0,), slot_bytes=4096)])
    process = board.start(OTHER)
    member = board.member(0)
    codec = make_codec()
    writer, reader = writer_of(member, 0, codec), reader_of(member, 1)

    def there_and_back(function: Any, value: Any) -> tuple[Any, Any]:
        writer.write((function, value))
        answer: tuple[Any, Any] = reader.read()
        return answer

    big = np.arange(100_000)
    for value in (
        Plain(1),
        Plain(big),
        Plain([Plain(2), {"a": Derived(3)}]),
        Derived(4),
        Namesake(),
        Dictionary(a=6),
        Mistake("seven"),
        Point(8, big),
        Colour.RED,
        Pair(9, Colour.BLUE),
        np.array([Plain(1), None, Point(2)], dtype=object),
    ):
        kind = type(value)
        (is_there, made_there), back = there_and_back(
            lambda pair: (isinstance(pair[0], pair[1]), pair[1]), (value, kind)
        )
        print(kind.__name__, is_there, made_there is kind, isinstance(back[0], kind))

    kinds: list[Any] = [Plain, Derived, Namesake, Point, Pair]
    arguments = [(), (), (), (1,), (1, 2)]
    made, _ = there_and_back(
        lambda pairs: [kind(*given) for kind, given in pairs],
        list(zip(kinds, arguments, strict=True)),
    )
    print("made there", [isinstance(value, kind) for value, kind in zip(made, kinds, strict=True)])
    print("attributes", there_and_back(lambda kind: kind.name, Namesake)[0])
    print("equal", there_and_back(lambda point: point == Point(1, 2), Point(1, 2))[0])
    print("members", there_and_back(lambda colour: colour is Colour.RED, Colour.RED)[0])
    print("method", there_and_back(lambda derived: derived.bump(), Derived(4))[0])
    print("closure", there_and_back(make_adder(40), 2)[0])
    print("function", there_and_back(factorial, 5)[0])
    functions, back = there_and_back(
        lambda functions: [f(3) for f in functions], [factorial, make_adder(1), lambda n: -n]
    )
    print("functions", functions, [function(4) for function in back])
    print("inside", Point(1).__class__ is there_and_back(lambda _: Point(3), None)[0].__class__)
    print("array", there_and_back(lambda plain: plain.value.sum(), Plain(big))[0] == big.sum())
    del value, back, made
    writer.write(None)
    finish(process)


if __name__ == "__main__":
    main()
