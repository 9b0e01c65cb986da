# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON, for example in saved traces, which may come from untrusted sources.

There is one object for each record and op, with its fields; what it looks like follows from its
class (``rcg.ir.record``). Plans on one node have no ``nodes``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

import rcg.checked as checked
from rcg.ir.channels import ActorSpec, ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.costs import Cost, Predicted
from rcg.ir.field_type import refuse, stored_list, stored_number, stored_text
from rcg.ir.ids import is_id
from rcg.ir.ops import Op
from rcg.ir.programs import PlanData, Program
from rcg.ir.record import Record

VERSION: Final = 2

_OPTIONAL: Final = frozenset(("nodes",))
_KEYS: Final = frozenset(("version", *(each.name for each in fields(PlanData)))) - _OPTIONAL

_Record = TypeVar("_Record", bound=Record)


def to_json(plan: PlanData) -> str:
    """Return a plan as JSON."""
    nodes = {"nodes": [each.to_data() for each in plan.nodes]} if plan.nodes else {}
    return json.dumps(
        {
            "version": VERSION,
            "programs": [
                {
                    "process": program.process,
                    "ops": [{"op": op.keyword, **op.to_data()} for op in program.ops],
                }
                for program in plan.programs
            ],
            "channels": [each.to_data() for each in plan.channels],
            "actors": [each.to_data() for each in plan.actors],
            "is_multi": plan.is_multi,
            "num_positional": plan.num_positional,
            "keywords": plan.keywords,
            "lanes": [each.to_data() for each in plan.lanes],
            "gates": [each.to_data() for each in plan.gates],
            "groups": [each.to_data() for each in plan.groups],
            "costs": [each.to_data() for each in plan.costs],
            "predicted": [each.to_data() for each in plan.predicted],
            **nodes,
        }
    )


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
    _check_keys("plan", data, _KEYS, _OPTIONAL)
    if not isinstance(data["is_multi"], bool):
        refuse("is_multi", data["is_multi"])
    return PlanData(
        programs=tuple([_program(each) for each in stored_list("programs", data["programs"])]),
        channels=_records(data, "channels", ChannelSpec),
        actors=_records(data, "actors", ActorSpec),
        is_multi=data["is_multi"],
        num_positional=stored_number("number of positional arguments", data["num_positional"]),
        keywords=tuple(
            [stored_text("keyword", each) for each in stored_list("keywords", data["keywords"])]
        ),
        lanes=_records(data, "lanes", Lane),
        gates=_records(data, "gates", Gate),
        groups=_records(data, "groups", Group),
        costs=_records(data, "costs", Cost),
        predicted=_records(data, "predicted", Predicted),
        nodes=_records(data, "nodes", ClusterNode),
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


def _records(data: Mapping[str, Any], name: str, record: type[_Record]) -> tuple[_Record, ...]:
    return tuple([record.from_data(each) for each in stored_list(name, data.get(name, []))])


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
    name = rest.pop("op", None)
    return Op.named(name).from_data(rest)
