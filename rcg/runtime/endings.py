# SPDX-License-Identifier: Apache-2.0
"""How a process left a graph that had not told it to."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Ending", "How"]


class How(enum.Enum):
    """What happened to the process; the value is what people read."""

    DIED = "its process ended"
    LEFT = "it closed its connection"
    FAILED = "its loop failed"  # the process lives on


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process left.

    Attributes:
        how: What happened.
        why: Of a loop that failed: what it said, or what is known.
    """

    how: How
    why: str = ""

    def __str__(self) -> str:
        return f"{self.how.value}: {self.why}" if self.why else self.how.value
