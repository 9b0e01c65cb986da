# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call in a program: values from slots, and constants.

>>> str(operand("s3")), operand("k1")
('s3', Const(id='k1'))
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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
