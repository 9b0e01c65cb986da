# SPDX-License-Identifier: Apache-2.0
"""Binding a collective: from what its ranks give to a checked ``CollectiveRecord``.

Errors that concern a single collective are raised here, at the line of its ``bind``, in Ray's words
where Ray has some. Like ``rcg.dag.binding`` this room knows no nodes: its callers give records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rcg import cluster
from rcg.comm.base import ReduceOp
from rcg.dag.communicators import actors_by_rank
from rcg.dag.hints import collective_hint
from rcg.dag.records import (
    CallRecord,
    CollectiveRecord,
    Member,
    PartRecord,
    ResultRecord,
    ValueRecord,
    common_source,
    label_of,
)
from rcg.errors import GraphError
from rcg.ir.nodes import Site
from rcg.ir.ops import COLLECTIVES


@dataclass(frozen=True, slots=True)
class Receiver:
    """A member of a collective that gives nothing and only receives."""

    handle: Any


Entry = ValueRecord | Receiver

# Returns the record of a node, a Receiver for a handle, or None for any other value.
AsEntry = Callable[[object], Entry | None]


def bind_collective(
    kind: str,
    inputs: Any,
    *,
    op: object,
    root: object,
    transport: Any,
    as_entry: AsEntry,
    site: Site,
) -> CollectiveRecord:
    """Record a collective.

    Args:
        kind: One of ``rcg.ir.ops.COLLECTIVES``.
        inputs: A list with a node of each actor, or several such lists for an ``allreduce`` of
            several tensors.
        op: How tensors are combined; ignored by kinds that do not combine them.
        root: The position of the root; ignored by kinds that have none.
        transport: None for the default communicator, a name, or a communicator.
        as_entry: Returns the record of a node, a ``Receiver`` for a handle of an actor.
        site: Where the user called ``bind``.

    Raises:
        GraphError: Something in it cannot be.
    """
    return _Binding(kind, as_entry, site).bind(inputs, op, root, transport)


class _Binding:
    """The checks of one collective, and its record."""

    def __init__(self, kind: str, as_entry: AsEntry, site: Site) -> None:
        self._kind = kind
        self._class = COLLECTIVES[kind]
        self._as_entry = as_entry
        self._site = site

    def bind(self, inputs: Any, op: object, root: object, transport: Any) -> CollectiveRecord:
        kind, site = self._kind, self._site
        reduction = self._reduction(op) if self._class.is_reducing else None
        lists = self._lists(inputs)
        entries = [
            self._entries(each, f" at list at index {index}" if len(lists) > 1 else "")
            for index, each in enumerate(lists)
        ]
        self._check_same_actors(entries)
        checked_root = self._root(root, entries[0]) if self._class.has_root else None
        if kind != "broadcast":
            self._refuse_receivers(entries[0])
        members = tuple([self._member(ranked) for ranked in zip(*entries, strict=True)])
        hint = collective_hint(transport, node=kind, site=site)
        if hint.communicator is not None:
            self._check_communicator(hint.communicator, members)
        source = common_source(
            (record for member in members for record in member.inputs), taker=kind, site=site
        )
        record = CollectiveRecord(
            site=site,
            source=source,
            kind=kind,
            members=members,
            num_returns=len(lists),
            reduction=reduction,
            root=checked_root,
            transport=hint,
        )
        if source is not None:
            source.bound[record.order] = record.name, record.site
        return record

    def _fail(self, text: str) -> NoReturn:
        raise GraphError(text, node=self._kind, site=self._site)

    def _reduction(self, op: object) -> str:
        """Return the value of rcg's operation for rcg's or Ray's."""
        found = ReduceOp.of(op)
        if found is not None:
            return found.value
        names = ", ".join(f"ReduceOp.{name}" for name in ReduceOp.__members__)
        self._fail(f"Unexpected operation: {op!r}. {self._kind} takes one of {names}.")

    def _lists(self, inputs: Any) -> list[list[Any]]:
        """Return the inputs as lists, one for each tensor."""
        if not isinstance(inputs, list | tuple):
            self._fail(f"{self._kind} takes a list of nodes, got {type(inputs).__name__}")
        if not inputs:
            self._fail("Expected non-empty input list.")
        if not any(isinstance(each, list | tuple) for each in inputs):
            return [list(inputs)]
        if self._kind != "allreduce":
            self._fail(
                "Currently binding a nested list of dag nodes is only supported for allreduce"
            )
        for index, each in enumerate(inputs):
            if not isinstance(each, list | tuple):
                self._fail(f"Expected all inputs to be lists of nodes, but at {index} got {each!r}")
            if not each:
                where = f" at index {index}" if len(inputs) > 1 else ""
                self._fail(f"Expected non-empty input list{where}.")
        return [list(each) for each in inputs]

    def _entries(self, given: list[Any], where: str) -> list[Entry]:
        found = [self._as_entry(each) for each in given]
        entries = [entry for entry in found if entry is not None]
        if len(entries) < len(given):
            self._fail(f"Expected all input nodes to be DAGNode{where}, but got {given}.")
        records = [entry for entry in entries if not isinstance(entry, Receiver)]
        twice = [record for record in records if records.count(record) > 1]
        if twice:
            self._fail(
                f"Expected unique input nodes{where}, but found duplicates: "
                f"{', '.join(map(label_of, dict.fromkeys(twice)))}"
            )
        for record in records:
            if _handle_of(record) is None:
                self._fail(
                    f"Expected an actor handle from the input node{where}: {label_of(record)} is "
                    "not made by a method of an existing actor, so it has no member of a group"
                )
        keys = [_key_of(entry) for entry in entries]
        same = [entry for entry, key in zip(entries, keys, strict=True) if keys.count(key) > 1]
        if same:
            self._fail(
                f"Expected unique actor handles{where}, but found duplicate actor handles from "
                f"input nodes: {', '.join(map(_shown, same))}"
            )
        return entries

    def _check_same_actors(self, entries: Sequence[Sequence[Entry]]) -> None:
        first = entries[0]
        keys = [_key_of(entry) for entry in first]
        for index, each in enumerate(entries[1:], start=1):
            if len(each) != len(first):
                self._fail(
                    "Expected all input lists to have the same number of nodes. List at index 0 "
                    f"has length {len(first)}, but list at index {index} has length {len(each)}."
                )
            others = [_key_of(entry) for entry in each]
            if set(keys) != set(others):
                self._fail(
                    "Expected all input lists to have the same set of actor handles. List at index "
                    f"0 has {', '.join(map(_shown, first))}, but list at index {index} has "
                    f"{', '.join(map(_shown, each))}."
                )
            for position, (key, other) in enumerate(zip(keys, others, strict=True)):
                if key != other:
                    self._fail(
                        "Expected all input lists to have the same order of actor handles. List at "
                        f"index 0 has {_shown(first[position])} at position {position}, but list "
                        f"at index {index} has {_shown(each[position])} at position {position}."
                    )

    def _root(self, root: object, entries: Sequence[Entry]) -> int:
        if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < len(entries):
            self._fail(
                f"root of {self._kind} must be a position in its list, from 0 to "
                f"{len(entries) - 1}, found {root!r}"
            )
        entry = entries[root]
        if self._kind == "broadcast" and isinstance(entry, Receiver):
            self._fail(
                f"root {root} of broadcast is {entry.handle!r}, which has nothing to send: give a "
                "node of that actor"
            )
        return root

    def _refuse_receivers(self, entries: Sequence[Entry]) -> None:
        handles = [entry.handle for entry in entries if isinstance(entry, Receiver)]
        if handles:
            self._fail(
                f"Expected all input nodes to be DAGNode, but got {handles}: only in a broadcast "
                "there are members that give nothing."
            )

    def _member(self, entries: Sequence[Entry]) -> Member:
        handle = _handle_of(entries[0])
        inputs = tuple([entry for entry in entries if not isinstance(entry, Receiver)])
        return Member(handle=handle, label=cluster.actor_label(handle), inputs=inputs)

    def _check_communicator(self, communicator: Any, members: Sequence[Member]) -> None:
        own = [member.handle for member in members]
        try:
            actors = actors_by_rank(communicator)
        except ValueError as error:
            raise GraphError(str(error), node=self._kind, site=self._site) from error
        if set(map(cluster.actor_key, own)) != set(map(cluster.actor_key, actors)):
            self._fail(
                "Expected actor handles to match the custom communicator group: "
                f"{self._kind} has {own}, {type(communicator).__name__} has {actors}"
            )


def _handle_of(entry: Entry) -> Any | None:
    """Return the handle of the actor that has the value; None for the input of the DAG."""
    match entry:
        case Receiver(handle=handle) | CallRecord(handle=handle):
            return handle
        case PartRecord(call=call):
            return call.handle
        case ResultRecord(member=member):
            return member.handle
        case _:
            return None


def _key_of(entry: Entry) -> str:
    return cluster.actor_key(_handle_of(entry))


def _shown(entry: Entry) -> str:
    return repr(entry.handle) if isinstance(entry, Receiver) else label_of(entry)
