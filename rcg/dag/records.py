# SPDX-License-Identifier: Apache-2.0
"""The DAG as the user wrote it: one frozen record per node.

The nodes that users hold (``rcg.dag.nodes``) wrap these records. Lowering, interpreting and
compiling read only the records and do not know the nodes. A record refers to the records whose
values it takes, never the other way, so a call that was bound and then dropped is garbage.
``InputRecord.bound`` lists calls for one warning, and holds only their names and places.

A record never changes, except that an input lists what is bound to it and that a value gets a hint
for its tensors. Each record has its site in the user's source, and a number from one counter per
process: creation order, which is the order in which an actor runs its calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rcg.dag.hints import Hint, HintCell
from rcg.errors import GraphError
from rcg.frames import cell_name, innermost_of_user
from rcg.ir.containers import Template
from rcg.ir.nodes import Site

# Process-wide on purpose: calls on one actor run in the order in which they were bound, whichever
# copy of its handle they were bound through.
_orders: Final = itertools.count()


def next_order() -> int:
    """Return the next number in creation order. Any thread may call."""
    return next(_orders)


def find_site() -> Site:
    """Return the file and line of the innermost frame outside of rcg.

    A cell of a notebook, which is compiled under a generated file name, is ``In [3]``.
    """
    frame, _ = innermost_of_user()
    file = frame.f_code.co_filename
    return Site(cell_name(file) or file, frame.f_lineno)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, kw_only=True)
class _Bound:
    """Something that the user made, with its number in creation order."""

    order: int = field(default_factory=next_order)
    site: Site


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Value(_Bound):
    """Something that has a value, with the hint for its tensors."""

    cell: HintCell = field(default_factory=HintCell)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputRecord(_Value):
    """The input of a DAG as a whole.

    Attributes:
        attributes: The parts of it that the user named, by key.
        bound: Name and place of every call or collective that depends on it, by its order.
    """

    attributes: dict[int | str, AttributeRecord] = field(default_factory=dict)
    bound: dict[int, tuple[str, Site]] = field(default_factory=dict)

    @property
    def source(self) -> InputRecord:
        """The input that this depends on, which is itself."""
        return self

    @property
    def name(self) -> str:
        """The displayed name."""
        return "InputNode"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AttributeRecord(_Value):
    """One positional (int) or keyword (str) argument of ``execute``.

    Attributes:
        accessor: How the user reached it: ``inp[key]`` is an item, ``inp.key`` an attribute. It
            matters only if an uncompiled DAG takes its arguments from a single object.
    """

    source: InputRecord
    key: int | str
    accessor: Literal["item", "attribute"]

    @property
    def name(self) -> str:
        """The displayed name."""
        return f"InputNode[{self.key!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An argument that is the same in every execution."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """A container with nodes inside, taken apart when it was bound."""

    template: Template
    nodes: tuple[ValueRecord, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CallRecord(_Value):
    """A call of an actor's method.

    Attributes:
        source: The input that it depends on, directly or not; None for a call of constants.
        handle: Ray's handle, which keeps the actor alive as long as the node.
        options: Ray's options of the call, for the uncompiled run.
    """

    source: InputRecord | None
    handle: Any
    label: str
    method: str
    args: tuple[RecordArgument, ...]
    kwargs: tuple[tuple[str, RecordArgument], ...]
    options: tuple[tuple[str, Any], ...]
    num_returns: int
    cost_s: float | None = None

    @property
    def name(self) -> str:
        """The displayed name."""
        return f"{self.label}.{self.method}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TaskRecord(_Value):
    """What only an uncompiled DAG has: a remote function, an actor to be made, or its method.

    Attributes:
        source: The input that it depends on, directly or not.
        label: The name of the function, of the class, or of class and method.
        submit: Takes the arguments, returns what Ray returns: ObjectRefs or a handle.
        args: The positional arguments; the first of a method is the actor's record.
        earlier: The call that was bound before this one to the same actor, and runs before it.
        refusal: Why it cannot be compiled, and what to do.
    """

    source: InputRecord | None
    label: str
    submit: Callable[..., Any]
    args: tuple[RecordArgument, ...]
    kwargs: tuple[tuple[str, RecordArgument], ...]
    earlier: TaskRecord | None
    refusal: str

    @property
    def name(self) -> str:
        """The displayed name."""
        return self.label


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartRecord(_Value):
    """One of the values of a call that returns several."""

    call: CallRecord
    index: int

    @property
    def source(self) -> InputRecord | None:
        """The input that this depends on."""
        return self.call.source

    @property
    def name(self) -> str:
        """The displayed name."""
        return f"{self.call.name}[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank of a collective, with its tensors; none where it only receives."""

    handle: Any
    label: str
    inputs: tuple[ValueRecord, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CollectiveRecord(_Bound):
    """A collective with all its members, so that a result that is used brings all of them with it.

    Attributes:
        source: The input that it depends on; None if it depends on none.
        members: Its ranks, in the user's order.
        num_returns: How many tensors each member gives and gets.
        root: The position of the member that sends or receives alone, for kinds that have one.
        transport: The transport of the collective itself.
        kind: As in ``rcg.ir.nodes.CollectiveCall``; so is ``reduction``.
    """

    source: InputRecord | None
    kind: str
    members: tuple[Member, ...]
    num_returns: int
    reduction: str | None
    root: int | None
    transport: Hint

    @property
    def name(self) -> str:
        """The displayed name."""
        return self.kind


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResultRecord(_Value):
    """What one member of a collective gets.

    Attributes:
        position: Which member it is.
        index: Which of the member's tensors it is, in a collective of several; else None.
    """

    collective: CollectiveRecord
    position: int
    index: int | None

    @property
    def source(self) -> InputRecord | None:
        """The input that this depends on."""
        return self.collective.source

    @property
    def member(self) -> Member:
        """The member that gets it."""
        return self.collective.members[self.position]

    @property
    def name(self) -> str:
        """The displayed name."""
        part = "" if self.index is None else f"[{self.index}]"
        return f"{self.collective.kind} of {self.member.label}{part}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OutputsRecord(_Bound):
    """Several outputs, in the user's order."""

    source: InputRecord | None
    outputs: tuple[ValueRecord, ...]

    @property
    def name(self) -> str:
        """The displayed name."""
        return "MultiOutputNode"


class DAGInputData:
    """Several arguments of ``execute`` as one value, for nodes that take the whole input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args = args
        self._kwargs = kwargs

    def __getitem__(self, key: int | str) -> Any:
        return self._args[key] if isinstance(key, int) else self._kwargs[key]


ValueRecord = InputRecord | AttributeRecord | CallRecord | TaskRecord | PartRecord | ResultRecord
RecordArgument = ValueRecord | Constant | Nested
Record = ValueRecord | CollectiveRecord | OutputsRecord


def label_of(record: Record) -> str:
    """Return a record's name and place: ``Stage.fwd (pipeline.py:12)``."""
    return f"{record.name} ({record.site})"


def maker_of(record: CallRecord | PartRecord | ResultRecord) -> CallRecord | Member:
    """Return what has the actor that makes the value of a record."""
    match record:
        case CallRecord():
            return record
        case PartRecord():
            return record.call
        case ResultRecord():
            return record.member


def nodes_of(argument: RecordArgument) -> tuple[ValueRecord, ...]:
    """Return the records in an argument."""
    match argument:
        case Constant():
            return ()
        case Nested(nodes=nodes):
            return nodes
        case _:
            return (argument,)


def upstream_of(record: Record) -> Iterator[Record]:
    """Yield the records that this one depends on directly, in order, repeats included.

    A part of the input takes no values: using ``inp[0]`` is not using ``inp``. What one member of a
    collective gets depends on what all members give.
    """
    match record:
        case InputRecord() | AttributeRecord():
            return
        case PartRecord(call=call):
            yield call
        case ResultRecord(collective=collective):
            yield collective
        case CollectiveRecord(members=members):
            for member in members:
                yield from member.inputs
        case OutputsRecord(outputs=outputs):
            yield from outputs
        case CallRecord(args=args, kwargs=kwargs) | TaskRecord(args=args, kwargs=kwargs):
            if isinstance(record, TaskRecord) and record.earlier is not None:
                yield record.earlier
            for argument in itertools.chain(args, (argument for _, argument in kwargs)):
                yield from nodes_of(argument)


def common_source(records: Iterable[ValueRecord], *, taker: str, site: Site) -> InputRecord | None:
    """Return the one input that all these depend on; None if they depend on none.

    Raises:
        GraphError: They depend on different ``InputNode``s; the error is about ``taker``, the node
            that uses them, which was bound at ``site``.
    """
    sources = [(record, record.source) for record in records if record.source is not None]
    if not sources:
        return None
    first, source = sources[0]
    for record, other in sources:
        if other is not source:
            raise GraphError(
                "Each DAG should only have one unique InputNode. "
                f"{taker} takes {label_of(first)} and {label_of(record)}, which come from "
                f"different InputNodes ({source.site} and {other.site}): bind all nodes of a DAG "
                "under the same one",
                node=taker,
                site=site,
            )
    return source


def reached_from(root: Record) -> list[Record]:
    """Return the root and everything that it depends on, in creation order."""
    found: set[Record] = {root}
    stack: list[Record] = [root]
    while stack:
        for above in upstream_of(stack.pop()):
            if above not in found:
                found.add(above)
                stack.append(above)
    return sorted(found, key=lambda record: record.order)
