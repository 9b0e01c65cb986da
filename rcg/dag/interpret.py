# SPDX-License-Identifier: Apache-2.0
"""Running a DAG without compiling it: every call is an ordinary Ray task.

This serves debugging and comparison with the compiled DAG: the nodes, their order on each actor and
the values are the same (``rcg.dag.combine`` says what to expect of collectives); results are Ray's
ObjectRefs. This room knows nothing of graphs, plans or channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rcg import cluster
from rcg.dag import communicators
from rcg.dag.combine import Combination
from rcg.dag.records import (
    AttributeRecord,
    CallRecord,
    CollectiveRecord,
    Constant,
    InputRecord,
    Nested,
    OutputsRecord,
    PartRecord,
    Record,
    RecordArgument,
    ResultRecord,
    label_of,
    reached_from,
)
from rcg.ir.containers import Template
from rcg.ir.signature import ExecutionSignature
from rcg.rdt.calls import hold_until_done, lower_arguments, references_in


def interpret(root: Record, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Submit every call that ``root`` depends on to its actor, in creation order.

    It does not wait for results. Arguments are counted as in the compiled DAG. As in Ray, a DAG
    with several arguments also accepts one object that contains them (``execute([1, 2])`` for
    ``inp[0]`` and ``inp[1]``).

    Args:
        root: The record of the node that ``execute`` was called on.
        args: The positional arguments.
        kwargs: The keyword arguments.

    Returns:
        The ObjectRef of the root's value, or a list of them for several outputs; an output that is
        the input is returned as its value.

    Raises:
        GraphError: The number or the names of the arguments are not those of the DAG.
    """
    records = reached_from(root)
    values = _inputs(records, args, kwargs)
    for record in records:
        match record:
            case CallRecord():
                values[record] = _submit(record, values)
            case PartRecord(call=call, index=index):
                values[record] = values[call][index]
            case CollectiveRecord():
                values[record] = _combine(record, values)
            case ResultRecord(collective=collective, position=position, index=index):
                values[record] = values[collective][position][index or 0]
            case OutputsRecord(outputs=outputs):
                return [values[output] for output in outputs]
            case InputRecord() | AttributeRecord():
                pass
    return values[root]


def _inputs(
    records: Sequence[Record], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[Record, Any]:
    """Return the value of every input record for these arguments."""
    whole = [record for record in records if isinstance(record, InputRecord)]
    attributes = [record for record in records if isinstance(record, AttributeRecord)]
    inputs: list[Record] = [*whole, *attributes]
    signature = ExecutionSignature.of([None] * len(whole) + [record.key for record in attributes])

    is_one_object = len(args) == 1 and not kwargs
    if is_one_object and signature.num_positional + len(signature.keywords) > 1:
        return {record: _take(args[0], record) for record in attributes}
    return dict(zip(inputs, signature.values(args, kwargs), strict=True))


def _take(given: Any, record: AttributeRecord) -> Any:
    if record.accessor == "attribute":
        return getattr(given, str(record.key))
    return given[record.key]


def _submit(call: CallRecord, values: Mapping[Record, Any]) -> Any:
    method = getattr(call.handle, call.method)
    if call.options:
        method = method.options(**dict(call.options))
    args = [_resolve(argument, values) for argument in call.args]
    kwargs = {key: _resolve(argument, values) for key, argument in call.kwargs}
    return _sent(method.remote, args, kwargs, label_of(call), call.handle)


def _sent(
    remote: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    what: str,
    handle: Any = None,
) -> Any:
    """Call a method, or a task, which gets the values of references to tensors.

    Args:
        remote: Ray's ``remote``.
        args: The arguments.
        kwargs: The keyword arguments.
        what: The call, for people.
        handle: The actor; None for a task.
    """
    taken = references_in(args, kwargs)
    if not taken:
        return remote(*args, **kwargs)
    args, kwargs = lower_arguments(tuple(args), kwargs, handle)
    made = remote(*args, **kwargs)
    hold_until_done(taken, made, lambda: what)
    return made


def _combine(record: CollectiveRecord, values: Mapping[Record, Any]) -> list[list[Any]]:
    """Submit the collective as a task of its own; returns the ObjectRefs of each member."""
    members, count = record.members, record.num_returns
    positions = communicators.positions_by_rank(
        record.transport.communicator, [member.handle for member in members]
    )
    by_rank = [members[position] for position in positions]
    combination = Combination(
        kind=record.kind,
        name=label_of(record),
        labels=tuple([f"rank {rank} ({member.label})" for rank, member in enumerate(by_rank)]),
        given=tuple([len(member.inputs) for member in by_rank]),
        num_returns=count,
        reduction=record.reduction,
        root=None if record.root is None else positions.index(record.root),
    )
    tensors = [values[value] for member in by_rank for value in member.inputs]
    total = count * len(members)
    task = _RESULTS_TASK.options(num_returns=total)
    refs = _sent(task.remote, [combination, *tensors], {}, label_of(record))
    listed = refs if total > 1 else [refs]
    return [
        listed[count * rank : count * (rank + 1)]
        for rank in map(positions.index, range(len(members)))
    ]


def _results(combination: Combination, *tensors: Any) -> Any:
    """Return what each member of a collective gets; runs in a separate task."""
    found = combination.results(*tensors)
    return found if len(found) > 1 else found[0]


def _resolve(argument: RecordArgument, values: Mapping[Record, Any]) -> Any:
    match argument:
        case Constant(value=value):
            return value
        case Nested(template=template, nodes=nodes):
            parts = [values[node] for node in nodes]
            return _sent(_FILL_TASK.remote, [template, *parts], {}, "an argument of a DAG")
        case _:
            return values[argument]


def _fill(template: Template, *values: Any) -> Any:
    """Return the container with its values in place; runs in a separate task."""
    return template.fill(values)


# Ray waits for refs that are arguments, not for refs inside a container. A task in between gets
# them as arguments, so the method sees values, as in a compiled DAG, and nobody blocks here.
_FILL_TASK: Final = cluster.remote(num_cpus=0)(_fill)
_RESULTS_TASK: Final = cluster.remote(num_cpus=0)(_results)
