# SPDX-License-Identifier: Apache-2.0
"""Submissions of one member, as the runtime makes them, with refs that only hold their state."""

from __future__ import annotations

from typing import Any

from rcg import _native

NEVER = 1 << 40  # a limit that is never reached
NEW, PENDING = _native.REF_NEW, _native.REF_PENDING


class Ref:
    """What stands for a result: as the runtime's, but for what it is good for."""

    __slots__ = ("execution", "state")

    def __init__(self) -> None:
        self.execution, self.state = NEW, NEW

    @property
    def facts(self) -> tuple[int, int]:
        return self.execution, self.state


class Submission:
    """One member's submissions, with the books that go with them."""

    def __init__(self, member: _native.Member, writers: list[_native.Writer]) -> None:
        self.member, self.writers = member, writers
        self.left: dict[int, int] = {}

    def __call__(self, *frames: Any, limit: int = NEVER, refs: Any = None) -> int | None:
        """Submit (kind, data, ...) on each ring, in order."""
        entries = tuple(
            (writer, *frame) for writer, frame in zip(self.writers, frames, strict=True)
        )
        refs = Ref() if refs is None else refs
        return self.member.submit(entries, limit, self.left, 1, refs)

    @property
    def seqs(self) -> list[int]:
        return [writer.seq for writer in self.writers]


def submission(board: Any, rings: list[int], number: int = 0) -> Submission:
    member = board.member(number)
    return Submission(member, [member.writer(ring, ring) for ring in rings])
