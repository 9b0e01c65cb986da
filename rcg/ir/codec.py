# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON, for example in saved traces, which may come from untrusted sources.

Version 2 has one object for each record and op, with its fields; its earliest plans lack costs, and
plans on one node have no ``nodes``.
Version 1, of plans without lanes, gates and groups, is read as well; it also stored what follows
from the channels (``reach``), which is not used. Its channels carry one value each, stored as
itself and not as a list. What the JSON of a record looks like follows from its class
(``rcg.ir.record``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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

_KEYS: Final = frozenset(
    ("version", "programs", "channels", "actors", "is_multi", "num_positional", "keywords")
)
_KEYS_OF_1: Final = frozenset(("reach",))
_KEYS_OF_2: Final = frozenset(("lanes", "gates", "groups"))
_KEYS_OF_LATER: Final = frozenset(("costs", "predicted", "nodes"))

# Fields that hold one value in plans whose channels carry one value each, and a list today.
_NODE: Final = ("node", "nodes")
_SLOT_OF_OP: Final[Mapping[object, tuple[str, str]]] = {
    "Read": ("out", "outs"),
    "Write": ("slot", "slots"),
}

_Record = TypeVar("_Record", bound=Record)


def to_json(plan: PlanData) -> str:
    """Return a plan as JSON of the newest version."""
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
    """Read a plan from its JSON, of any version.

    Raises:
        ValueError: It is not JSON, or not a plan of a known version, or a part of it is not of the
            type that it must have. Whether the plan makes sense says ``rcg.ir.check``.
    """
    data = checked.parse(text)
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(version, bool) or version not in (1, VERSION):
        found = checked.found(version)
        raise ValueError(f"not a plan of version 1 to {VERSION}: found version {found}")
    if version == 1:
        _check_keys("plan", data, _KEYS, _KEYS_OF_1)
    else:
        _check_keys("plan", data, _KEYS | _KEYS_OF_2, _KEYS_OF_LATER)
    if not isinstance(data["is_multi"], bool):
        refuse("is_multi", data["is_multi"])
    return PlanData(
        programs=tuple([_program(each) for each in stored_list("programs", data["programs"])]),
        channels=tuple(
            [
                ChannelSpec.from_data(_listed(each, _NODE))
                for each in stored_list("channels", data["channels"])
            ]
        ),
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
    ignored: frozenset[str] = frozenset(),
) -> None:
    for name in sorted(needed - data.keys()):
        raise ValueError(f"not a plan: {what} without {name!r}")
    for name in data.keys() - needed - ignored:
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
    fields = dict(data)
    name = fields.pop("op", None)
    if isinstance(name, str) and name in _SLOT_OF_OP:
        fields = _listed(fields, _SLOT_OF_OP[name])
    return Op.named(name).from_data(fields)


def _listed(data: Any, names: tuple[str, str]) -> Any:
    """Return a record's fields with the one that held a value as the list of that value."""
    one, several = names
    if not isinstance(data, dict) or one not in data or several in data:
        return data
    return {**{name: value for name, value in data.items() if name != one}, several: [data[one]]}
