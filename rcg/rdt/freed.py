# SPDX-License-Identifier: Apache-2.0
"""Waiting until nobody needs a tensor any more, so that it can be written to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from rcg.error_text import describe_error
from rcg.frames import warn_user
from rcg.options import timeout_from_user
from rcg.rdt.process import existing
from rcg.rdt.store import Entry, memory_of

__all__ = ["taking", "wait_tensor_freed"]


# The objects of this process that the running call has taken as arguments.
_taken: Final[ContextVar[frozenset[str]]] = ContextVar("rcg_rdt_taken", default=frozenset())


@contextlib.contextmanager
def taking(keys: frozenset[str]) -> Iterator[None]:
    """Have a call run that has taken objects of this process as arguments.

    Args:
        keys: The ids of the objects.
    """
    token = _taken.set(keys)
    try:
        yield
    finally:
        _taken.reset(token)


def wait_tensor_freed(tensor: Any, timeout: float | None = None) -> None:
    """Wait until no reference and no pending call needs a tensor that this actor has returned.

    After it the tensor may be written to: nobody sees that. It is about the tensor's memory, so any
    view of the tensor will do.

    Args:
        tensor: The tensor.
        timeout: Seconds; None sets no limit.

    Raises:
        TypeError: ``tensor`` is no torch tensor, or a sparse or nested one.
        TimeoutError: It is still needed; the text says which objects need it.
    """
    if not hasattr(tensor, "untyped_storage"):
        raise TypeError(f"wait_tensor_freed takes a torch tensor, found {type(tensor).__name__}")
    try:
        shape = list(tensor.shape)
        memory = memory_of(tensor)
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            "wait_tensor_freed tells tensors by their memory, and this one has none of its own: "
            f"{describe_error(error)}. Wait for the tensors that it consists of"
        ) from None
    timeout_s = timeout_from_user(timeout, "timeout")
    ours = existing()
    if ours is None:
        return  # this process has never kept one
    has_warned: list[bool] = []
    taken_here = _taken.get()

    def meanwhile(entries: list[Entry]) -> None:
        if not has_warned:
            has_warned.append(True)
            own = [each.key for each in entries if ours.holds_ref_to(each)]
            if own:
                warn_user(
                    f"wait_tensor_freed waits for {', '.join(own)}, and this process itself holds "
                    "a reference to it: drop that (`del ref`)",
                    UserWarning,
                )
            taken = [each.key for each in entries if each.key in taken_here]
            if taken:
                warn_user(
                    f"wait_tensor_freed waits for {', '.join(taken)}, which the call that waits "
                    "has itself taken as an argument: it is freed when the call ends, not before",
                    UserWarning,
                )

    ours.keeper.look()
    left = ours.store.wait_freed(memory, timeout_s, meanwhile)
    if left:
        objects = ", ".join(f"object {each.key} ({each.transport})" for each in left)
        raise TimeoutError(
            f"Tensor of shape {shape} not freed from RDT object store after "
            f"{timeout_s} s: {objects} still has references, or calls that depend on it"
        )
