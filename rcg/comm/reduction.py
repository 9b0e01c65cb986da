# SPDX-License-Identifier: Apache-2.0
"""What a reduction computes, for each dtype: the same for every communicator on the CPU.

Most dtypes are reduced as they are. Others are carried: the bytes are taken for another dtype (the
parts of complex numbers, bool as bytes), or the numbers are converted to a wider one and back. The
result is what torch computes with ``+``, ``*``, ``maximum`` and ``minimum`` in the dtype itself,
except that the average of whole numbers does not overflow where a wider dtype exists.

Whole numbers are exact in any order. Of floating-point numbers a sum or product depends on the
order of ranks, which is the communicator's; ``reduced`` goes from rank 0 upwards. Whether MAX and
MIN of NaN are NaN depends on the communicator, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg.comm.base import ReduceOp

__all__ = ["Reduction", "as_bytes", "reduced", "reduction_of", "unsupported_reduction"]

_FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
_PARTS: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_WIDER: Final = {"int16": "int32", "uint16": "int32", "uint32": "int64"}
# Where the sum of 64 ranks fits.
_AVERAGED_IN: Final = {"uint8": "int32", "int8": "int32", "int32": "int64", "int64": "int64"}
_OF_BOOL: Final = {
    ReduceOp.SUM: ReduceOp.MAX,
    ReduceOp.PRODUCT: ReduceOp.MIN,
    ReduceOp.MAX: ReduceOp.MAX,
    ReduceOp.MIN: ReduceOp.MIN,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """How tensors of a dtype are reduced.

    Attributes:
        op: What is computed: never AVG.
        carrier: The dtype in which it is computed.
        is_view: Whether the carrier takes the bytes as they are. If not, the numbers are converted.
        has_quotient: Whether the result is then divided by the number of ranks.
    """

    op: ReduceOp
    carrier: Any
    is_view: bool = True
    has_quotient: bool = False

    def carried(self, tensor: Any) -> Any:
        """Return a contiguous tensor in the carrier: flat, and a view if ``is_view``."""
        flat = _flat(tensor)
        return flat.view(self.carrier) if self.is_view else flat.to(self.carrier)

    def memory_for(self, tensor: Any, is_copied: bool, reserved: Any = None) -> Any:
        """Return an uninitialized tensor for ``carried``, or None if that is a view.

        Args:
            tensor: What is carried.
            is_copied: Whether even a view is copied, because the tensor must stay as it is.
            reserved: An earlier result; it is returned if it has the right form.
        """
        import torch

        if self.is_view and not is_copied:
            return None
        count = self.carried(tensor).numel() if self.is_view else tensor.numel()
        if reserved is not None and (reserved.numel(), reserved.dtype) == (count, self.carrier):
            return reserved
        return torch.empty(count, dtype=self.carrier, device=tensor.device)

    def finish(self, carried: Any, size: int) -> None:
        """Divide the combined tensor of ``size`` ranks, in place, if the reduction says so."""
        if self.has_quotient:
            is_exact = carried.dtype.is_floating_point
            carried.detach().div_(size, rounding_mode=None if is_exact else "trunc")

    def store(self, output: Any, carried: Any) -> None:
        """Copy a result in the carrier to a tensor of the dtype itself."""
        if self.is_view:
            self.carried(output).copy_(carried)
        else:
            _flat(output).copy_(carried)


@functools.cache
def reduction_of(dtype: Any, op: ReduceOp) -> Reduction | str:
    """Return how a dtype is reduced, or why it cannot be."""
    import torch

    name = str(dtype).removeprefix("torch.")
    is_average = op is ReduceOp.AVG
    plain = ReduceOp.SUM if is_average else op
    if name in _FLOATS:
        return Reduction(plain, dtype, has_quotient=is_average)
    if name in _PARTS and plain is ReduceOp.SUM:
        return Reduction(plain, getattr(torch, _PARTS[name]), has_quotient=is_average)
    if name in _PARTS:
        return f"{op.name} of complex numbers ({name}) is not supported"
    if name == "bool" and not is_average:
        return Reduction(_OF_BOOL[op], torch.uint8)
    if name == "uint64" and op in (ReduceOp.SUM, ReduceOp.PRODUCT):
        return Reduction(op, torch.int64)  # wraps in the same way
    if name in _WIDER:
        wider = getattr(torch, _WIDER[name])
        return Reduction(plain, wider, is_view=False, has_quotient=is_average)
    if name in _AVERAGED_IN and is_average:
        wider = getattr(torch, _AVERAGED_IN[name])
        return Reduction(plain, wider, is_view=wider is dtype, has_quotient=True)
    if name in _AVERAGED_IN:
        return Reduction(op, dtype)
    return f"{op.name} of {name} is not supported; convert to a dtype that torch computes in"


def unsupported_reduction(dtype: Any, op: ReduceOp) -> str | None:
    """Return why a dtype cannot be reduced; None if it can."""
    found = reduction_of(dtype, op)
    return found if isinstance(found, str) else None


def reduced(tensors: Sequence[Any], op: ReduceOp) -> Any:
    """Return the tensors of all ranks combined, from rank 0 upwards: a new tensor of their shape.

    Raises:
        ValueError: The dtype cannot be reduced so.
    """
    import torch

    combine: dict[ReduceOp, Callable[..., Any]] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.MIN: torch.minimum,
    }
    first = tensors[0]
    how = reduction_of(first.dtype, op)
    if isinstance(how, str):
        raise ValueError(how)
    total = how.carried(first).clone()
    for tensor in tensors[1:]:
        combine[how.op](total, how.carried(tensor), out=total)
    how.finish(total, len(tensors))
    result = torch.empty_like(first.detach(), memory_format=torch.contiguous_format)
    how.store(result, total)
    return result


def as_bytes(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor, of any dtype and shape: a flat view of uint8."""
    import torch

    return _flat(tensor).view(torch.uint8)


def _flat(tensor: Any) -> Any:
    """Return a view [numel] of a contiguous tensor, whose stride is 1.

    A dimension of one element or none may have any stride. Tensor.view keeps it, and then refuses
    another dtype.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))
