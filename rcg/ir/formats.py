# SPDX-License-Identifier: Apache-2.0
"""The two forms of a plan: text, and JSON for files such as saved traces.

The text has a line for each record and op, the JSON an object; what these look like follows from
their classes (``rcg.ir.record``). Both may come from untrusted sources. Plans on one node have no
``nodes``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import rcg.checked as checked
from rcg.ir.channels import ActorSpec, ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.costs import Cost, Predicted
from rcg.ir.fields import refuse, stored_list, stored_number, stored_text
from rcg.ir.ids import is_id
from rcg.ir.line import Line
from rcg.ir.ops import Op
from rcg.ir.programs import PlanData, Program
from rcg.ir.record import Record

VERSION: Final = 2
"""The version of the JSON."""

_RECORDS: Final[Mapping[str, type[Record]]] = {
    "actors": ActorSpec,
    "nodes": ClusterNode,
    "lanes": Lane,
    "gates": Gate,
    "groups": Group,
    "channels": ChannelSpec,
    "costs": Cost,
    "predicted": Predicted,
}
"""The fields of a plan that are records, in the order of the text."""

_BY_KEYWORD: Final = {record.keyword: (name, record) for name, record in _RECORDS.items()}
_FIELDS: Final = tuple(each.name for each in fields(PlanData))
_OPTIONAL: Final = frozenset(("nodes",))
_NEEDED: Final = frozenset(("version", *_FIELDS)) - _OPTIONAL


# --- text ---------------------------------------------------------------------------------------


def to_text(plan: PlanData) -> str:
    """Return a plan as text that ``from_text`` reads back."""
    returns = "list" if plan.is_multi else "one"
    lines: list[object] = [
        f"plan positional={plan.num_positional} keywords={list(plan.keywords)} returns={returns}"
    ]
    for name in _RECORDS:
        lines += getattr(plan, name)
    return "\n".join(map(str, (*lines, *plan.programs)))


def from_text(text: str) -> PlanData:
    """Read a plan from its text. Blank lines, indentation and trailing blanks do not matter.

    Raises:
        ValueError: A line is not understood; the text gives its number.
    """
    found: dict[str, Any] = {}
    records: dict[str, list[Any]] = {name: [] for name in _RECORDS}
    programs: list[tuple[str, list[Op]]] = []
    # Not splitlines(): only a newline ends a line.
    for number, line in enumerate(map(Line, text.split("\n")), start=1):
        word = line.text.partition(" ")[0]
        try:
            if word in _BY_KEYWORD:
                line.expect(word)
                name, record = _BY_KEYWORD[word]
                records[name].append(record.parse(line))
            elif word == "plan":
                found = _parse_head(line)
            elif word == "program":
                line.expect(word)
                programs.append((line.take("process"), []))
            elif word and not programs:
                raise ValueError(f"{line.text!r} comes before any program")
            elif word:
                programs[-1][1].append(Op.named(line.take("word")).parse(line))
            line.end()
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"line {number} of the plan is not understood: {error}") from None
    if not found:
        raise ValueError("the text has no line that starts with 'plan'")
    found |= {name: tuple(each) for name, each in records.items()}
    found["programs"] = tuple([Program(process, tuple(ops)) for process, ops in programs])
    return PlanData(**found)


def _parse_head(line: Line) -> dict[str, Any]:
    line.expect("plan")
    line.expect("positional=")
    positional = line.number()
    line.expect("keywords=")
    keywords = line.strings()
    line.expect("returns=")
    returns = line.take("word")
    if returns not in ("one", "list"):
        raise ValueError(f"returns must be 'one' or 'list', found {returns!r}")
    return {"num_positional": positional, "keywords": keywords, "is_multi": returns == "list"}


# --- JSON ---------------------------------------------------------------------------------------


def to_json(plan: PlanData) -> str:
    """Return a plan as JSON."""
    data: dict[str, Any] = {"version": VERSION}
    data |= {name: getattr(plan, name) for name in _FIELDS}
    data |= {name: [each.to_data() for each in data[name]] for name in _RECORDS}
    data["programs"] = [
        {"process": each.process, "ops": [{"op": op.keyword, **op.to_data()} for op in each.ops]}
        for each in plan.programs
    ]
    if not plan.nodes:
        del data["nodes"]
    return json.dumps(data)


def from_json(text: str) -> PlanData:
    """Read a plan from its JSON.

    Raises:
        ValueError: It is not JSON, or not a plan of this version, or a part of it is not of the
            type that it must have. Whether the plan makes sense says ``rcg.ir.check``.
    """
    data = checked.parse(text)
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        found = checked.found(version)
        raise ValueError(f"not a plan of version {VERSION}: found version {found}")
    _check_keys("plan", data, _NEEDED, _OPTIONAL)
    if not isinstance(data["is_multi"], bool):
        refuse("is_multi", data["is_multi"])
    programs = tuple([_program(each) for each in stored_list("programs", data["programs"])])
    keywords = [stored_text("keyword", each) for each in stored_list("keywords", data["keywords"])]
    records: dict[str, Any] = {
        name: tuple([record.from_data(each) for each in stored_list(name, data.get(name, []))])
        for name, record in _RECORDS.items()
    }
    return PlanData(
        programs=programs,
        is_multi=data["is_multi"],
        num_positional=stored_number("number of positional arguments", data["num_positional"]),
        keywords=tuple(keywords),
        **records,
    )


def _check_keys(
    what: str,
    data: Mapping[str, Any],
    needed: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> None:
    for name in sorted(needed - data.keys()):
        raise ValueError(f"not a plan: {what} without {name!r}")
    for name in data.keys() - needed - optional:
        raise ValueError(f"not a plan: {what} has no {checked.found(name)}")


def _program(data: object) -> Program:
    if not isinstance(data, dict):
        refuse("program", data)
    _check_keys("program", data, frozenset(("process", "ops")))
    if not is_id("process", data["process"]):
        refuse("id of a process", data["process"])
    return Program(data["process"], tuple([_op(each) for each in stored_list("ops", data["ops"])]))


def _op(data: object) -> Op:
    if not isinstance(data, dict):
        refuse("op", data)
    rest = dict(data)
    return Op.named(rest.pop("op", None)).from_data(rest)
