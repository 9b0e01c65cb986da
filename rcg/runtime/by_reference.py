# SPDX-License-Identifier: Apache-2.0
"""Values that a graph takes and returns by reference: the bytes of their tensors are elsewhere.

What makes such references stands above the runtime (``rcg.rdt.refs``); these are their base
classes, by which a graph knows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from rcg.errors import ChannelTimeout
from rcg.options import Deadline


class NotMadeYet(Exception):
    """The value of a reference was not made in time."""


_kinds: Final[set[type]] = set()  # the classes of references


class ByReference:
    """A reference as an input of a graph: its value is got by the actors that read the input."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _kinds.add(cls)

    def when_made(self) -> Future[Any]:
        """Return a future that is done once the value was made, or failed."""
        raise NotImplementedError

    def as_input(self, readers: Sequence[Any], timeout_s: float | None) -> Any:
        """Wait until the value was made; returns what travels in place of the reference.

        Args:
            readers: Ray's handles of the actors that read the input.
            timeout_s: Seconds to wait; None sets no limit.

        Raises:
            ValueError: A reader cannot get the value.
            NotMadeYet: It was not made in time.
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

    It is what travels. Until ``keep`` or ``reference`` is called, it is only a description, of
    which there may be several; then the one that was asked has its tensors freed with it.
    """

    __slots__ = ()

    def keep(self) -> None:
        """Have the actor keep the tensors as long as this object lives, or its references."""
        raise NotImplementedError

    def reference(self) -> Any:
        """Return the reference that users get; the same one as long as it lives."""
        raise NotImplementedError

    def discard(self) -> None:
        """Have the actor free the tensors: nobody wants the result."""
        raise NotImplementedError


def has_references(values: Iterable[Any]) -> bool:
    """Return whether there is a reference among the inputs of a graph; every execution asks."""
    return not _kinds.isdisjoint(map(type, values))


async def wait_until_made(values: Iterable[Any], timeout_s: float | None) -> None:
    """Wait for the values of references among the inputs of a graph, without blocking the loop.

    Raises:
        ChannelTimeout: A value was not made in time.
        Exception: The exception of the method that should have made one.
    """
    made = {
        asyncio.wrap_future(each.when_made()): each
        for each in values
        if isinstance(each, ByReference)
    }
    try:
        done, late = await asyncio.wait(made, timeout=timeout_s)
        if late:
            raise _not_made(made[late.pop()], timeout_s)
        for future in done:
            future.result()
    finally:
        for future in made:
            if not future.cancel() and not future.cancelled():
                future.exception()  # or asyncio says that nobody has looked at it


def _not_made(value: Any, timeout_s: float | None) -> ChannelTimeout:
    return ChannelTimeout(
        f"{value!r} is an input of a compiled graph, and its value was not made within "
        f"{timeout_s:g} s. Nothing was submitted.",
        timeout_s=timeout_s or 0.0,
    )


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
        except NotMadeYet:
            raise _not_made(value, timeout_s) from None
    return lowered, tuple(references)
