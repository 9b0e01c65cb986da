# SPDX-License-Identifier: Apache-2.0
"""The names that a plan uses (processes, channels, groups, constants), and the operands of a call.

| id | what it names |
|---|---|
| ``driver`` | the process that compiled the graph |
| ``a0`` | an actor |
| ``a0.comm`` | a lane: a second program of the actor ``a0`` |
| ``n1`` | a node of the cluster, and its gate: a lane in the host process of the node |
| ``c3`` | a channel |
| ``g0`` | a communicator group |
| ``k2`` | a constant or a template of the bindings |

>>> is_id("process", "a0.comm"), is_id("process", "c3"), is_id("channel", "c3")
(True, False, True)

An operand of a call is a value from a slot, or a constant:

>>> str(operand("s3")), operand("k1")
('s3', Const(id='k1'))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Slot:
    """The value in a slot."""

    index: int

    def __str__(self) -> str:
        return f"s{self.index}"


@dataclass(frozen=True, slots=True)
class Const:
    """A constant of the bindings."""

    id: str

    def __str__(self) -> str:
        return self.id


Operand = Slot | Const


def operand(text: str) -> Operand:
    """Return the operand with this text.

    Raises:
        ValueError: There is none.
    """
    if re.fullmatch(r"s\d{1,16}", text, re.ASCII):
        return Slot(int(text[1:]))
    if re.fullmatch(r"k\d{1,16}", text, re.ASCII):
        return Const(text)
    raise ValueError(f"{text!r} is neither a slot nor a constant")


DRIVER: Final = "driver"

PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""A user's name that the text form shows without quotes."""

IDS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in {
        "actor": r"a\d{1,9}",
        "lane": r"a\d{1,9}\.[a-z][a-z0-9_]*",
        "node": r"n\d{1,9}",
        "gate": r"n\d{1,9}",
        "process": r"driver|a\d{1,9}(?:\.[a-z][a-z0-9_]*)?|n\d{1,9}",
        "channel": r"c\d{1,9}",
        "group": r"g\d{1,9}",
        "const": r"k\d{1,9}",
    }.items()
}
"""The patterns of the ids, by sort."""


def is_id(sort: str, value: object) -> bool:
    """Return whether a value is an id of a sort, which is a key of ``IDS``."""
    return isinstance(value, str) and IDS[sort].fullmatch(value) is not None
