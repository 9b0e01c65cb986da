# SPDX-License-Identifier: Apache-2.0
"""What a collective computes, for the run of a DAG without compiling it.

All tensors are in one process here, and are combined in the order of ranks. In a compiled DAG the
communicator decides the order. So results of both are the same to the last bit for two ranks, and
for operations whose order does not matter: ``max`` and ``min`` (see ``rcg.comm.reduction``), and
whole numbers. With more ranks, sums, products and averages of floating-point numbers may differ in
the last bits. Where such a sum or product is NaN, it is NaN in both, with any bits of a NaN. A
communicator of the user's combines as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcg.comm.base import ReduceOp
from rcg.comm.reduction import reduced, unsupported_reduction
from rcg.errors import TensorMismatch


@dataclass(frozen=True, slots=True)
class Combination:
    """A collective as plain data; see ``rcg.dag.records.CollectiveRecord``.

    Attributes:
        kind: One of ``rcg.ir.ops.COLLECTIVES``.
        name: The name and the place of the collective, for errors.
        labels: What errors call each rank.
        given: How many tensors each rank gives.
        num_returns: How many each rank gets.
        reduction: See the record; so is ``root``, here a rank.
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

        Args:
            *tensors: What each rank gives, one after another.

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
            combined = self._reduced(tensors, ReduceOp(self.reduction))
        if self.kind == "reducescatter":
            return [each.clone() for each in torch.chunk(combined, size)]
        if self.root is not None:
            return [combined if rank == self.root else None for rank in range(size)]
        return [combined] * size

    def _reduced(self, tensors: Sequence[Any], op: ReduceOp) -> Any:
        why = unsupported_reduction(tensors[0].dtype, op)
        if why is not None:
            raise TensorMismatch(f"{self.name}: {why}", found=tensors[0].dtype)
        return reduced(tensors, op)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("collectives need torch: `pip install torch`") from error
    return torch
