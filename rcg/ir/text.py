# SPDX-License-Identifier: Apache-2.0
"""The text form of a plan: a line for each record and op, read back by ``parse``.

The lines of records and ops follow from their classes (``rcg.ir.record``); this room only knows
their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rcg.ir.channels import ActorSpec, ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.costs import Cost, Predicted
from rcg.ir.line import Line
from rcg.ir.ops import Op
from rcg.ir.programs import PlanData, Program
from rcg.ir.record import Record

_RECORDS: Final[Mapping[str, type[Record]]] = {
    record.keyword: record
    for record in (ActorSpec, ClusterNode, Lane, Gate, Group, ChannelSpec, Cost, Predicted)
}


def text_of(plan: PlanData) -> str:
    """Return a plan as text that ``parse`` reads back, one line per op."""
    returns = "list" if plan.is_multi else "one"
    lines: list[object] = [
        f"plan positional={plan.num_positional} keywords={list(plan.keywords)} returns={returns}"
    ]
    lines += [*plan.actors, *plan.nodes, *plan.lanes, *plan.gates, *plan.groups]
    lines += [*plan.channels, *plan.costs, *plan.predicted, *plan.programs]
    return "\n".join(map(str, lines))


def parse(text: str) -> PlanData:
    """Read a plan from its text. Blank lines, indentation and trailing blanks do not matter.

    Raises:
        ValueError: A line is not understood; the text gives its number.
    """
    draft = _Draft()
    for number, line in _numbered_lines(text):
        try:
            draft.add(Line(line))
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"line {number} of the plan is not understood: {error}") from None
    return draft.plan()


@dataclass(slots=True)
class _Draft:
    """What has been read of a plan so far."""

    head: tuple[int, tuple[str, ...], bool] | None = None
    records: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _RECORDS})
    programs: list[tuple[str, list[Op]]] = field(default_factory=list)

    def add(self, line: Line) -> None:
        word = line.text.partition(" ")[0]
        if word in _RECORDS:
            line.expect(word)
            self.records[word].append(_RECORDS[word].parse(line))
        elif word == "plan":
            line.expect(word)
            self.head = _parse_head(line)
        elif word == "program":
            line.expect(word)
            self.programs.append((line.take("process"), []))
        elif self.programs:
            self.programs[-1][1].append(Op.named(line.take("word")).parse(line))
        else:
            raise ValueError(f"{line.text!r} comes before any program")
        line.end()

    def plan(self) -> PlanData:
        if self.head is None:
            raise ValueError("the text has no line that starts with 'plan'")
        positional, keywords, is_multi = self.head
        found = {name: tuple(records) for name, records in self.records.items()}
        return PlanData(
            programs=tuple([Program(process, tuple(ops)) for process, ops in self.programs]),
            channels=found[ChannelSpec.keyword],
            actors=found[ActorSpec.keyword],
            is_multi=is_multi,
            num_positional=positional,
            keywords=keywords,
            lanes=found[Lane.keyword],
            gates=found[Gate.keyword],
            groups=found[Group.keyword],
            costs=found[Cost.keyword],
            predicted=found[Predicted.keyword],
            nodes=found[ClusterNode.keyword],
        )


def _parse_head(line: Line) -> tuple[int, tuple[str, ...], bool]:
    line.expect("positional=")
    positional = line.number()
    line.expect("keywords=")
    keywords = line.strings()
    line.expect("returns=")
    returns = line.take("word")
    if returns not in ("one", "list"):
        raise ValueError(f"returns must be 'one' or 'list', found {returns!r}")
    return positional, keywords, returns == "list"


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): only a newline ends a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line
