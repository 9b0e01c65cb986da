# SPDX-License-Identifier: Apache-2.0
"""References to values whose tensors stay where they were made."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NamedTuple

from rcg import cluster
from rcg.frames import warn_user
from rcg.options import Deadline, timeout_from_user
from rcg.rdt.awaiting import future_of, holders_of, submit
from rcg.rdt.envelope import Envelope, closed
from rcg.rdt.process import existing, here
from rcg.rdt.transports import OBJECT_STORE, WithTransport, find_transport, with_transport
from rcg.rdt.values import open_all, open_into, seal


class TensorRef:
    """A reference to a value with tensors that stay in the process that made them.

    It stands for an ObjectRef of Ray's, and goes where that goes: into calls, containers, closures
    and other processes. In a call it is replaced by its value, of which the tensors come straight
    from the process that holds them. Users get it from methods with a ``tensor_transport`` and from
    ``put``.

    Args:
        inner: Ray's reference to the envelope.
        transport: How the tensors travel.
        maker: The id of the actor that makes the value, in hex; "" for another process.
        maker_label: What messages call it.
        key: The object's id in the store of that process.
    """

    __slots__ = (
        "__weakref__",
        "_arriving",
        "_has_warned",
        "_inner",
        "_key",
        "_label",
        "_maker",
        "_takers",
        "_transport",
    )

    def __init__(
        self, inner: Any, transport: str | WithTransport, maker: str, maker_label: str, key: str
    ) -> None:
        self._inner = inner
        self._key = key
        self._transport = str(transport)
        self._maker = maker
        self._label = maker_label
        self._takers: set[str] = set()  # the actors that it was passed to
        self._has_warned = False
        self._arriving: _Arriving | None = None
        ours = existing()
        if ours is not None and ours.holder.actor == maker:
            ours.note_ref(self)

    @property
    def inner(self) -> Any:
        """Ray's reference. Its value is an envelope: pass the ``TensorRef`` to calls, not this."""
        return self._inner

    def tensor_transport(self) -> str:
        """Return how the tensors travel, in upper case: ``GLOO``."""
        return self._transport.upper()

    @property
    def transport(self) -> str:
        """How the tensors travel, in lower case."""
        return self._transport

    @property
    def key(self) -> str:
        """The object's id in the store of the process that makes it."""
        return self._key

    @property
    def maker(self) -> str:
        """The id of the actor that makes the value, in hex; "" for another process."""
        return self._maker

    @property
    def maker_label(self) -> str:
        """What messages call it."""
        return self._label

    def hex(self) -> str:
        """Return the id in hex."""
        return str(self._inner.hex())

    def binary(self) -> bytes:
        """Return the id."""
        return bytes(self._inner.binary())

    def future(self) -> Future[Any]:
        """Return a ``concurrent.futures.Future`` of the value."""
        transport = self._transport
        return future_of(self._inner, lambda made: _open_here(made, transport))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.future()).__await__()

    def envelope(self, timeout: float | None = None) -> Any:
        """Return what travels in place of the value: everything but the bytes of its tensors.

        Printed, it says who holds the tensors and how much travels. A value without tensors travels
        as it is, and is returned.

        Args:
            timeout: Seconds to wait until the value has been made; None sets no limit.

        Raises:
            ray.exceptions.GetTimeoutError: It was not made in time.
            Exception: The exception of the user's method.
        """
        with closed(True):
            return cluster.get(self._inner, timeout_s=timeout_from_user(timeout, "timeout"))

    def was_cancelled(self) -> None:
        """Note that the call which makes the value was cancelled."""
        here().keeper.note_cancelled(self._inner)

    def note_passed_to(self, actor: str) -> None:
        """Note that it is passed to an actor; warns once where that is dangerous."""
        self._takers.add(actor)
        if self._has_warned or self._maker not in self._takers or len(self._takers) < 2:
            return
        self._has_warned = True
        warn_user(
            f"GPU ObjectRef({self.hex()}) is being passed back to the actor that created it "
            f"{self._label}. Note that GPU objects are mutable. If the tensor is modified, Ray's "
            "internal copy will also be updated, and subsequent passes to other actors will "
            "receive the updated version instead of the original.",
            UserWarning,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorRef) and bool(self._inner == other._inner)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return f"TensorRef({self.hex()}, {self._transport})"

    def __reduce__(self) -> tuple[Any, ...]:
        transport = with_transport(self._transport)
        return TensorRef, (self._inner, transport, self._maker, self._label, self._key)


class _Arriving(NamedTuple):
    """Values whose tensors did not arrive in time.

    Attributes:
        asked_with: The other references that they were asked for with, and the transport.
        targets: Where they are received; None for fresh memory.
        values: The values.
    """

    asked_with: tuple[Any, ...]
    targets: Any
    values: Future[list[Any]]

    def is_for(self, asked_with: tuple[Any, ...], targets: Any) -> bool:
        """Whether it is what is asked for now, into the very same tensors."""
        return (
            self.asked_with == asked_with
            and type(self.targets) is type(targets)
            and list(map(id, _list_of(self.targets))) == list(map(id, _list_of(targets)))
        )


def _list_of(targets: Any) -> Sequence[Any]:
    return targets if isinstance(targets, list | tuple) else [targets]


class Deferred(NamedTuple):
    """A reference among the arguments of a constructor."""

    ref: TensorRef

    def open(self) -> Any:
        """Return the value, by a transport that works here."""
        with closed(True):
            made = cluster.get(self.ref.inner)
        return _open_here(made, self.ref.transport)


def get_tensors(
    refs: Sequence[TensorRef], timeout_s: float | None, transport: str | None, out: Any = None
) -> list[Any]:
    """Return the values of references.

    Args:
        refs: The references.
        timeout_s: For the producers to have finished, and for the tensors to arrive; None sets no
            limit. What did not arrive goes on arriving: the next call for the same references
            takes it.
        transport: How the tensors travel; None for the transport of each.
        out: Where the tensors of a single reference are received; None for fresh memory.

    Raises:
        ValueError: This process is not in a group that the transport of one needs.
        ray.exceptions.GetTimeoutError: They were not made in time, or did not arrive.
        Exception: The exception of the user's method.
    """
    chosen = None if transport is None else find_transport(transport).name
    for ref in refs:
        named = chosen or ref._transport
        ours = existing()
        if find_transport(named).needs_group and not (ours and ours.groups.all()):
            raise ValueError(
                "Currently ray.get() only supports OBJECT_STORE and NIXL tensor transport, got "
                f"TensorTransportEnum.{named.upper()}, please specify the correct tensor transport "
                f'in ray.get(): write get(ref, _tensor_transport="{OBJECT_STORE}"), because this '
                "process is in no collective group"
            )
    return _get_values(refs, timeout_s, chosen, out)


def _open_here(made: Any, transport: str) -> Any:
    """Return the value of what a method has made, by a transport that works here.

    Args:
        made: An envelope, or a value without tensors.
        transport: How its tensors travel, where that is possible.
    """
    ours = existing()
    is_reachable = bool(ours and ours.groups.all())
    needs_group = find_transport(transport).needs_group
    return open_all([made], OBJECT_STORE if needs_group and not is_reachable else None)[0]


def _get_values(
    refs: Sequence[TensorRef], timeout_s: float | None, transport: str | None, out: Any
) -> list[Any]:
    deadline = Deadline(timeout_s)
    # The user may change the list while the tensors are still arriving.
    targets = list(out) if isinstance(out, list) else out
    with closed(True):
        found = cluster.get([each.inner for each in refs], timeout_s=deadline.remaining_s())

    def open_found() -> list[Any]:
        if out is None:
            return open_all(found, transport)
        return [open_into(found[0], transport, targets)]

    remaining_s = deadline.remaining_s()
    first = refs[0]
    if (remaining_s is None and first._arriving is None) or _are_all_here(found):
        return open_found()
    asked_with = tuple(each.inner for each in refs[1:]), transport
    arriving, first._arriving = first._arriving, None
    if arriving is None or not arriving.is_for(asked_with, targets):
        arriving = _Arriving(asked_with, targets, submit(holders_of(found), open_found))
    futures.wait([arriving.values], remaining_s)
    if not arriving.values.done():
        first._arriving = arriving
        labels = dict.fromkeys(each.holder.label for each in found if type(each) is Envelope)
        raise cluster.get_timeout(
            f"the value was made, but its tensors did not arrive within {timeout_s:g} s from "
            f"{', '.join(labels)}, which may be stopped, or busy sending. They go on arriving"
            f"{'' if out is None else ', and are written to `out`'}: get it again"
        )
    try:
        return arriving.values.result()
    finally:
        del arriving  # it has the error that is raised, which has this frame


def _are_all_here(found: Sequence[Any]) -> bool:
    ours = existing()
    return all(
        type(each) is not Envelope or (ours is not None and each.holder.key == ours.holder.key)
        for each in found
    )


def put_tensors(value: Any, transport: str) -> TensorRef:
    """Keep the tensors of a value here; returns a reference to it.

    Raises:
        ValueError: The transport is unknown, or needs a group that this process is not in; or this
            is a task.
        TensorMismatch: A tensor is on a device that the transport does not serve.
    """
    chosen = find_transport(transport)
    if cluster.is_in_task():
        raise ValueError(
            "a task cannot keep tensors for others, because its process may end at any time. Put "
            "the value in an actor or the driver, or without a _tensor_transport"
        )
    ours = here()
    ours.keeper.start()
    if chosen.needs_group and not any(g.backend == chosen.name for g in ours.groups.all()):
        raise ValueError(
            f"{ours.holder.label} does not have tensor transport {transport.upper()} available: it "
            "is in no collective group. Put the value in an actor of the group, or with "
            f'_tensor_transport="{OBJECT_STORE}"'
        )
    key = ours.new_key()
    envelope = seal(value, chosen.name, key, "The value")
    inner = cluster.put(envelope)
    ref = TensorRef(inner, chosen.name, ours.holder.actor, ours.holder.label, key)
    if type(envelope) is Envelope:
        ours.keeper.keep(inner, key, ours.holder)
    return ref
