# SPDX-License-Identifier: Apache-2.0
"""Values that a graph takes and returns by reference: the bytes of their tensors are elsewhere.

What makes such references stands above the runtime (``rcg.rdt.refs``); these are their base
classes, by which a graph knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rcg.errors import ChannelTimeout
from rcg.options import Deadline


class ByReference:
    """A reference as an input of a graph: its value is got by the actors that read the input."""

    __slots__ = ()

    def as_input(self, readers: Sequence[Any], timeout_s: float | None) -> Any:
        """Wait until the value was made; returns what travels in place of the reference.

        Args:
            readers: Ray's handles of the actors that read the input.
            timeout_s: Seconds to wait; None sets no limit.

        Raises:
            ValueError: A reader cannot get the value.
            TimeoutError: It was not made in time.
            Exception: The exception of the method that should have made it.
        """
        raise NotImplementedError

    def hold_until(self, is_read: Callable[[], bool], what: Callable[[], str]) -> None:
        """Hold the value until readers have got it.

        Args:
            is_read: Whether they have; called on another thread, now and then.
            what: Returns what messages call the execution that takes it.
        """
        raise NotImplementedError


class HeldResult:
    """A result of which the tensors stay with the actor that made it.

    It is what travels: until ``reference`` is called, nobody looks after the tensors. One that is
    dropped before has them freed.
    """

    __slots__ = ()

    def reference(self) -> Any:
        """Return the reference that users get; always the same."""
        raise NotImplementedError


def has_references(values: Iterable[Any]) -> bool:
    """Return whether there is a reference among the inputs of a graph."""
    for value in values:  # noqa: SIM110 - every execution asks: a generator costs more
        if isinstance(value, ByReference):
            return True
    return False


def lower_inputs(
    values: Sequence[Any], readers_of: Callable[[int], Sequence[Any]], timeout_s: float | None
) -> tuple[list[Any], tuple[ByReference, ...]]:
    """Return the inputs of an execution as they travel, and the references among them.

    Args:
        values: The inputs.
        readers_of: Returns Ray's handles of the actors that read an input, by its position.
        timeout_s: Seconds to wait for the values of references; None sets no limit.

    Raises:
        ChannelTimeout: A value was not made in time.
        Exception: As ``ByReference.as_input``.
    """
    deadline = Deadline(timeout_s)
    lowered = list(values)
    references = []
    for at, value in enumerate(values):
        if not isinstance(value, ByReference):
            continue
        references.append(value)
        try:
            lowered[at] = value.as_input(readers_of(at), deadline.remaining_s())
        except TimeoutError:
            raise ChannelTimeout(
                f"{value!r} is an input of a compiled graph, and its value was not made within "
                f"{timeout_s:g} s. Nothing was submitted.",
                timeout_s=timeout_s or 0.0,
            ) from None
    return lowered, tuple(references)
