# SPDX-License-Identifier: Apache-2.0
"""Envelopes: what travels in a task's reply in place of a value with tensors.

An envelope has the value without its tensors (``rcg.rdt.contents``), and the process that holds
these. Its own ObjectRef is the *anchor*: Ray counts who holds it. When nobody
does, the tensors are freed (``rcg.rdt.keeper``).

A user's method never sees an envelope. It is opened where it is unpickled, by the *opener* of the
process; in a context where somebody else will open it (``closed``), it stays one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from rcg.rdt.contents import Contents, Whole
from rcg.rdt.objects import taken_out
from rcg.serialization.payloads import LoneTable
from rcg.text import bytes_text, plural, short_label

__all__ = ["Envelope", "Holder", "closed", "open_with", "opened_by_methods"]


class Holder(NamedTuple):
    """The process that holds tensors.

    Attributes:
        address: Where it listens.
        key: The id of its store.
        secret: The secret of its store.
        label: What errors call it: ``Actor(Worker, 05224b2e...)``.
        actor: The id of the actor that it is, in hex; "" for another process.
        node: The id of its node.
    """

    address: str
    key: str
    secret: str
    label: str
    actor: str
    node: str

    def __repr__(self) -> str:
        return f"Holder({self.label})"  # the secret belongs in no log and in no error


class Envelope:
    """A value whose tensors are elsewhere.

    Args:
        key: The object's id, within the store of its holder.
        holder: The process that holds the tensors.
        transport: How they travel.
        contents: The value without its tensors.
    """

    __slots__ = ("contents", "holder", "key", "transport")

    def __init__(self, key: str, holder: Holder, transport: str, contents: Contents) -> None:
        self.key = key
        self.holder = holder
        self.transport = transport
        self.contents = contents

    def __reduce__(self) -> tuple[Any, ...]:
        # What is nested costs Ray's pickler most: for each object it asks several functions.
        contents = self.contents
        packed = tuple(contents.table) if type(contents) is Whole else contents
        return _arrived, (self.key, tuple(self.holder), self.transport, packed)

    def __repr__(self) -> str:
        sizes = self.contents.sizes
        return (
            f"Envelope of {plural(len(sizes), 'tensor')} with {bytes_text(sum(sizes))}, held by "
            f"{short_label(self.holder.label)}, for {self.transport}; "
            f"{bytes_text(len(taken_out(self, ())[0]))} travel"
        )


_opener: list[Callable[[Envelope], Any]] = []
# Whether an envelope that is unpickled now stays one.
_is_closed: Final[ContextVar[bool | None]] = ContextVar("rcg_rdt_closed", default=None)
# Whether this process opens the arguments of its methods itself, once they were unpickled.
_by_methods: Final[list[bool]] = []


def open_with(opener: Callable[[Envelope], Any]) -> None:
    """Set what opens envelopes in this process."""
    _opener[:] = [opener]


def opened_by_methods() -> None:
    """Have envelopes stay closed in this process, outside of methods: these open them."""
    _by_methods[:] = [True]


class closed:  # noqa: N801 - used as a function
    """Have envelopes that are unpickled within stay closed, or not.

    Args:
        is_closed: Whether they do.
    """

    __slots__ = ("_is_closed", "_token")

    def __init__(self, is_closed: bool) -> None:
        self._is_closed = is_closed

    def __enter__(self) -> None:
        self._token = _is_closed.set(self._is_closed)

    def __exit__(self, *_: object) -> None:
        _is_closed.reset(self._token)


def _arrived(key: str, holder: tuple[str, ...], transport: str, packed: Any) -> Any:
    contents = Whole(LoneTable(*packed)) if type(packed) is tuple else packed
    envelope = Envelope(key, Holder(*holder), transport, contents)
    is_closed = _is_closed.get()
    if is_closed or (is_closed is None and _by_methods):
        return envelope
    if not _opener:
        # Imported when it is needed: it is above this file, and a process may never need it.
        from rcg.rdt import opening

        open_with(opening.opened)
    return _opener[0](envelope)
