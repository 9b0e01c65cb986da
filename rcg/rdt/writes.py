# SPDX-License-Identifier: Apache-2.0
"""Noticing that a tensor is written to while a reference still needs it.

A method's tensors are kept, not copied, so whoever gets them later sees what was written meanwhile.
Torch counts the writes to a tensor (``_version``; views share it). The count is compared when a
method of the actor ends, so that the warning can name it, and when the tensor is sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Versions", "warn_of_write"]


class Versions:
    """The tensors of a value, and how often each had been written to.

    Args:
        tensors: The tensors; other objects are left out.
    """

    __slots__ = ("_tensors", "has_warned")

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._tensors = [(each, count) for each in tensors if (count := _count(each)) is not None]
        self.has_warned = False

    def written(self) -> Any:
        """Return a tensor that was written to since; None if there is none, or it was told."""
        if self.has_warned:
            return None
        for tensor, count in self._tensors:
            if tensor._version != count:
                self.has_warned = True
                return tensor
        return None


def warn_of_write(tensor: Any, maker: str, writer: Callable[..., Any] | None) -> None:
    """Warn that a tensor was written to, at the method that did.

    Args:
        tensor: The tensor.
        maker: What its value is called: ``The value of Worker.make``.
        writer: The method in which it was written to; None if that is not known.
    """
    code = getattr(writer, "__code__", None)
    by = "" if writer is None else f" by {writer.__qualname__}"
    text = (
        f"{maker} has a tensor of shape {list(tensor.shape)} that was written to{by} while a "
        "reference to it was alive: whoever gets it from now on sees what was written. Call "
        "rcg.experimental.wait_tensor_freed(tensor) before writing, or return tensor.clone()"
    )
    if code is None:
        warnings.warn(text, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


def _count(tensor: Any) -> int | None:
    try:
        found = tensor._version
    except (AttributeError, RuntimeError):  # no tensor of torch's, or one of inference mode
        return None
    return found if isinstance(found, int) else None
