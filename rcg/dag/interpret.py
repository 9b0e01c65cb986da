# SPDX-License-Identifier: Apache-2.0
"""Running a DAG without compiling it: every call is an ordinary Ray task.

A DAG that could be compiled serves debugging and comparison: the nodes, their order on each actor
and the values are those of the compiled DAG, results are Ray's ObjectRefs.

A DAG with remote functions or class nodes cannot be compiled, and runs as ``ray.dag`` runs it. It
differs in two things. Nodes in containers arrive as ObjectRefs, as in any call of Ray's. And a
single argument of ``execute`` is the input itself, whose parts ``inp[0]``, ``inp["x"]`` and
``inp.x`` are taken from it; several arguments are a ``DAGInputData``.

This room knows nothing of graphs, plans or channels.

The tensors of a collective are in one process here, and are combined in the order of ranks. In a
compiled DAG the communicator decides the order. So results of both are the same to the last bit for
two ranks, and for operations whose order does not matter: ``max`` and ``min`` (see
``rcg.comm.reduction``), and whole numbers. With more ranks, sums, products and averages of
floating-point numbers may differ in the last bits. Where such a sum or product is NaN, it is NaN in
both, with any bits of a NaN. A user's communicator combines in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.comm.base import ReduceOp
from rcg.comm.reduction import reduced, unsupported_reduction
from rcg.dag.communicators import positions_by_rank
from rcg.dag.records import (
    AttributeRecord,
    CallRecord,
    CollectiveRecord,
    Constant,
    DAGInputData,
    InputRecord,
    Nested,
    OutputsRecord,
    PartRecord,
    Record,
    RecordArgument,
    ResultRecord,
    TaskRecord,
    label_of,
    maker_of,
    reached_from,
)
from rcg.errors import TensorMismatch
from rcg.ir.containers import Template
from rcg.ir.signature import ExecutionSignature
from rcg.rdt.calls import call_keep, hold_until_done, lower_arguments, references_in


@dataclass(frozen=True, slots=True)
class Combination:
    """A collective as plain data; ``root`` is a rank, the rest as in ``CollectiveRecord``.

    Attributes:
        name: The name and the place of the collective, for errors.
        labels: What errors call each rank.
        given: How many tensors each rank gives.
    """

    kind: str
    name: str
    labels: tuple[str, ...]
    given: tuple[int, ...]
    num_returns: int
    reduction: str | None
    root: int | None

    def results(self, *tensors: Any) -> list[Any]:
        """Return what each rank gets, one after another.

        Raises:
            TensorMismatch: One is no tensor, tensors that must agree do not, or they cannot be
                reduced or taken apart.
            ImportError: torch is not installed.
        """
        inputs = self._by_rank(tensors)
        size = len(inputs)
        if self.kind == "broadcast":
            return [inputs[self.root or 0][0]] * size
        for column in range(self.num_returns):
            self._check_agreement([tensors[column] for tensors in inputs])
        columns = [self._column([each[n] for each in inputs]) for n in range(self.num_returns)]
        return [column[rank] for rank in range(size) for column in columns]

    def _by_rank(self, tensors: Sequence[Any]) -> list[list[Any]]:
        torch = _torch()
        rest = list(tensors)
        inputs: list[list[Any]] = []
        for label, count in zip(self.labels, self.given, strict=True):
            given, rest = rest[:count], rest[count:]
            for each in given:
                if not isinstance(each, torch.Tensor):
                    raise TensorMismatch(
                        f"Expected a torch tensor for each input node of {self.name}, but that of "
                        f"{label} gave {type(each).__name__}",
                        expected="torch.Tensor",
                        found=type(each).__name__,
                    )
            inputs.append([each.detach() for each in given])
        return inputs

    def _check_agreement(self, tensors: Sequence[Any]) -> None:
        kinds = [(tuple(each.shape), str(each.dtype)) for each in tensors]
        for label, kind in zip(self.labels, kinds, strict=True):
            if kind != kinds[0]:
                raise TensorMismatch(
                    f"the tensors of {self.name} must have the same shape and dtype at all ranks, "
                    f"but {self.labels[0]} and {label} differ",
                    expected=kinds[0],
                    found=kind,
                )
        shape = list(tensors[0].shape)
        if self.kind == "reducescatter" and (not shape or shape[0] % len(tensors)):
            raise TensorMismatch(
                "Expected the first dimension of the input tensor to be divisible by the world "
                f"size {len(tensors)}, but the shape is {shape} in {self.name}",
                expected=f"a multiple of {len(tensors)}",
                found=shape,
            )

    def _column(self, tensors: list[Any]) -> list[Any]:
        """Return what each rank gets for one tensor of each."""
        torch = _torch()
        size = len(tensors)
        if self.reduction is None:
            combined = torch.cat([torch.atleast_1d(each) for each in tensors])
        else:
            combined = self._reduce(tensors, ReduceOp(self.reduction))
        if self.kind == "reducescatter":
            return [each.clone() for each in torch.chunk(combined, size)]
        if self.root is not None:
            return [combined if rank == self.root else None for rank in range(size)]
        return [combined] * size

    def _reduce(self, tensors: Sequence[Any], op: ReduceOp) -> Any:
        why = unsupported_reduction(tensors[0].dtype, op)
        if why is not None:
            raise TensorMismatch(f"{self.name}: {why}", found=tensors[0].dtype)
        # As at a rank of a compiled graph: memory with all the numbers in their order.
        return reduced([each.resolve_conj().resolve_neg().contiguous() for each in tensors], op)


Resolve = Callable[[RecordArgument, Mapping[Record, Any]], Any]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("collectives need torch: `pip install 'rcg[torch]'`") from error
    return torch


def interpret(root: Record, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Submit every call that ``root`` depends on to its actor, in creation order.

    It does not wait for results. Arguments are counted as in the compiled DAG, if it could be
    compiled. As in Ray, a DAG with several arguments also accepts one object that contains them
    (``execute([1, 2])`` for ``inp[0]`` and ``inp[1]``).

    Returns:
        The ObjectRef of the root's value, or a list of them for several outputs; an output that is
        the input is returned as its value.

    Raises:
        GraphError: The number or the names of the arguments are not those of the DAG.
    """
    records = reached_from(root)
    resolve: Resolve
    if any(isinstance(record, TaskRecord) for record in records):
        values, resolve = _inputs_as_ray(records, args, kwargs), _resolve_as_ray
    else:
        values, resolve = _inputs(records, args, kwargs), _resolve
    for record in records:
        match record:
            case CallRecord():
                given, named = _arguments(record, values, resolve)
                values[record] = _submit(record, given, named)
            case TaskRecord(submit=submit):
                given, named = _arguments(record, values, resolve)
                values[record] = submit(*given, **named)
            case PartRecord(call=call, index=index):
                values[record] = values[call][index]
            case CollectiveRecord():
                values[record] = _combine(record, values)
            case ResultRecord(collective=collective, position=position, index=index):
                values[record] = values[collective][position][index or 0]
            case OutputsRecord(outputs=outputs):
                return [_output(each, values[each]) for each in outputs]
            case InputRecord() | AttributeRecord():
                pass
    return _output(root, values[root])


def _output(record: Record, value: Any) -> Any:
    """Return the ObjectRef of an output: of a reference, where its tensors stay with its actor."""
    if not isinstance(record, CallRecord | PartRecord | ResultRecord) or record.cell.kept is None:
        return value
    handle = maker_of(record).handle
    return cluster.put(call_keep(handle, value, record.cell.kept, f"The value of {record.name}"))


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
        given = args[0]
        return {
            each: getattr(given, str(each.key)) if each.accessor == "attribute" else given[each.key]
            for each in attributes
        }
    return dict(zip(inputs, signature.values(args, kwargs), strict=True))


def _inputs_as_ray(
    records: Sequence[Record], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[Record, Any]:
    """Return the value of every input record of a DAG that cannot be compiled."""
    is_one_object = len(args) == 1 and not kwargs
    given = args[0] if is_one_object else DAGInputData(*args, **kwargs)
    values: dict[Record, Any] = {}
    for record in records:
        match record:
            case InputRecord():
                values[record] = given
            case AttributeRecord(key=str(key), accessor="attribute") if is_one_object:
                values[record] = getattr(given, key)
            case AttributeRecord(key=key):
                values[record] = given[key]
    return values


def _arguments(
    record: CallRecord | TaskRecord, values: Mapping[Record, Any], resolve: Resolve
) -> tuple[list[Any], dict[str, Any]]:
    args = [resolve(argument, values) for argument in record.args]
    return args, {key: resolve(argument, values) for key, argument in record.kwargs}


def _submit(call: CallRecord, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    method = getattr(call.handle, call.method)
    if call.options:
        method = method.options(**dict(call.options))
    return _call(method.remote, args, kwargs, label_of(call), call.handle)


def _call(
    remote: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    what: str,
    handle: Any = None,
) -> Any:
    """Call a method, or a task if there is no handle, with the values of references to tensors."""
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
    handles = [member.handle for member in members]
    positions = positions_by_rank(record.transport.communicator, handles)
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
    refs = _call(task.remote, [combination, *tensors], {}, label_of(record))
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
            return _call(_FILL_TASK.remote, [template, *parts], {}, "an argument of a DAG")
        case _:
            return values[argument]


def _resolve_as_ray(argument: RecordArgument, values: Mapping[Record, Any]) -> Any:
    """Return an argument in which nodes in containers are ObjectRefs."""
    if isinstance(argument, Nested):
        return argument.template.fill([values[node] for node in argument.nodes])
    return _resolve(argument, values)


def _fill(template: Template, *values: Any) -> Any:
    """Return the container with its values in place; runs in a separate task."""
    return template.fill(values)


# Ray waits for refs that are arguments, not for refs inside a container. A task in between gets
# them as arguments, so the method sees values, as in a compiled DAG, and nobody blocks here.
_FILL_TASK: Final = cluster.remote(num_cpus=0)(_fill)
_RESULTS_TASK: Final = cluster.remote(num_cpus=0)(_results)
