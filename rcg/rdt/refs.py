# SPDX-License-Identifier: Apache-2.0
"""References to values whose tensors stay where they were made."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from rcg import cluster
from rcg.frames import warn_user
from rcg.options import Deadline, timeout_from_user
from rcg.rdt.awaiting import future_of, holders_of, submit
from rcg.rdt.collective_groups import groups_of, groups_with, usable_groups
from rcg.rdt.custom import check_reaches
from rcg.rdt.envelope import Envelope, ToOpen, closed
from rcg.rdt.nixl import check_has_nixl
from rcg.rdt.process import existing, here, key_of
from rcg.rdt.transports import NIXL, OBJECT_STORE, WithTransport, find_transport, with_transport
from rcg.rdt.values import open_all, open_into, open_onto, seal
from rcg.runtime.by_reference import ByReference, NotMadeYet


class Unanchored(Protocol):
    """What a reference is to as long as Ray has none to it: ``rcg.rdt.held.HeldTensors``.

    Attributes:
        sealed: Its envelope, or a value without tensors.
    """

    sealed: Any

    @property
    def is_anchored(self) -> bool:
        """Whether Ray has a reference to it by now."""

    def anchor(self) -> Any:
        """Return Ray's reference to what travels; the first call makes it."""


class TensorRef(ByReference, metaclass=cluster.RefType):
    """A reference to a value with tensors that stay in the process that made them.

    It stands for an ObjectRef of Ray's, and goes where that goes: into calls, containers, closures
    and other processes. In a call it is replaced by its value, of which the tensors come straight
    from the process that holds them. Users get it from methods with a ``tensor_transport`` and from
    ``put``.

    Args:
        inner: Ray's reference to the envelope; None for what is ``Unanchored``.
        transport: How the tensors travel.
        maker: The id of the actor that makes the value, in hex; "" for another process.
        maker_label: What messages call it.
        key: The object's id in the store of that process.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_arriving",
        "_has_warned",
        "_held",
        "_inner",
        "_key",
        "_label",
        "_maker",
        "_takers",
        "_target",
        "_transport",
    )

    def __init__(
        self, inner: Any, transport: str | WithTransport, maker: str, maker_label: str, key: str
    ) -> None:
        self._inner = inner
        self._held: Unanchored | None = None
        self._target: Any = None
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
        return self._inner if self._held is None else self._held.anchor()

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
        return str(self.inner.hex())

    def binary(self) -> bytes:
        """Return the id."""
        return bytes(self.inner.binary())

    def future(self) -> Future[Any]:
        """Return a ``concurrent.futures.Future`` of the value."""
        transport = self._transport
        return future_of(self.inner, lambda made: _open_here(made, transport))

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
            return _made([self], timeout_from_user(timeout, "timeout"))[0]

    def was_cancelled(self) -> None:
        """Note that the call which makes the value was cancelled."""
        here().keeper.note_cancelled(self.inner)

    def when_made(self) -> Future[Any]:
        """See ``ByReference``."""
        if self._held is None:
            return future_of(self.inner, lambda _: None)
        made: Future[Any] = Future()
        made.set_result(None)
        return made

    def as_input(self, readers: Sequence[Any], timeout_s: float | None) -> Any:
        """See ``ByReference``."""
        here().keeper.start()
        for handle in readers:
            self._check_taken(handle)
        if self._held is None and not cluster.ready_of([self._inner], timeout_s):
            raise NotMadeYet
        with closed(True):
            made = _made([self], None)[0]
        return ToOpen(made) if type(made) is Envelope else made

    def hold_until(self, is_read: Callable[[], bool], what: Callable[[], str]) -> None:
        """See ``ByReference``."""
        here().keeper.hold([self], [], what, is_read)

    def hold(self, held: Unanchored) -> None:
        """Hold what it is a reference to, of which Ray has none."""
        self._held = held

    def set_target(self, target: Any) -> None:
        """Have ``get``, in this process, receive the tensors there: see ``set_target_for_ref``."""
        self._target = target

    def target(self) -> Any:
        """Return the target that was set, as ``open_onto`` takes it; None if there is none now."""
        target = self._target
        if not isinstance(target, list):
            return target
        targets = [each() for each in target]
        return None if any(each is None for each in targets) else targets

    def note_passed_to(self, handle: Any) -> None:
        """Check that an actor can get the tensors, and note that it takes the reference.

        Warns once where that is dangerous.

        Raises:
            ValueError: It cannot.
        """
        self._takers.add(self._check_taken(handle))
        if self._has_warned or self._maker not in self._takers or len(self._takers) < 2:
            return
        self._has_warned = True
        back = f"ObjectRef({self.hex()}) is being passed back to the actor that created it"
        warn_user(
            f"RDT {back} {self._label}. Note that RDT objects are mutable. If the tensor is "
            "modified, Ray's internal copy will also be updated, and subsequent passes to other "
            "actors will receive the updated version instead of the original. (Earlier releases "
            f"of Ray say: GPU {back}.)",
            UserWarning,
        )

    def _check_taken(self, handle: Any) -> str:
        """Check that an actor can get the tensors; returns its id."""
        actor = cluster.actor_id(handle)
        if actor != self._maker:
            self._check_reaches(actor, handle)
        here().note_peer(actor, handle)
        return actor

    def _check_reaches(self, actor: str, handle: Any) -> None:
        transport = find_transport(self._transport)
        if transport.manager is not None:
            check_reaches(transport, handle)
        if transport.name == NIXL:
            check_has_nixl(here().note_peer(actor, handle))
        if not transport.needs_group or not self._maker:
            return
        if len(groups_with([actor, self._maker], transport.name)) == 1:
            return
        maker_key = key_of(self._maker)
        found = [
            each
            for each in groups_of(handle) or ()
            if each.backend == transport.name and maker_key in each.keys
        ]
        names = [each.name for each in usable_groups(found)]
        if len(names) == 1:
            return
        if names:
            raise ValueError(
                f"There are {len(names)} possible communicators for actors {self._label} and "
                f"{handle!r}: {', '.join(names)}. Destroy all but one"
            )
        raise ValueError(
            f"No communicators found for actors {self._label} and {handle!r}. Create a "
            "communicator with `ray.experimental.collective.create_collective_group` before "
            "calling actor tasks with a tensor transport"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorRef) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        held = self._held
        name = self._key if held is not None and not held.is_anchored else self.hex()
        return f"TensorRef({name}, {self._transport})"

    def __reduce__(self) -> tuple[Any, ...]:
        transport = with_transport(self._transport)
        return TensorRef, (self.inner, transport, self._maker, self._label, self._key)


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


def set_target_for_ref(ref: Any, target: Sequence[Any]) -> None:
    """Have ``get`` receive the tensors of a reference in memory that is there; Ray's function.

    ``get`` returns the value with these tensors in it. They are held weakly: if one is gone by
    then, the tensors come into fresh memory. It holds for this reference in this process, and
    replaces what was set before. ``get(ref, out=...)`` says it for one call.

    Args:
        ref: A ``TensorRef``.
        target: A contiguous tensor for each of the value's, in the order in which they are
            pickled, on any device; ``get`` compares shapes and dtypes, and raises ValueError.

    Raises:
        ValueError: ``ref`` is no ``TensorRef``.
    """
    _refuse_others(ref)
    ref.set_target([weakref.ref(each) for each in target])


def set_target_device_for_ref(ref: Any, target_device: Any) -> None:
    """Have ``get`` receive the tensors of a reference on a device; Ray's function.

    It holds for this reference in this process, and replaces what was set before.

    Args:
        ref: A ``TensorRef``.
        target_device: ``"cpu"``, ``"cuda:0"``, a ``torch.device``.

    Raises:
        ValueError: ``ref`` is no ``TensorRef``, or its transport does not serve the device.
    """
    _refuse_others(ref)
    import torch

    device = torch.device(target_device)
    devices = find_transport(ref.transport).devices
    if devices and device.type not in devices:
        raise ValueError(
            f"Tensor transport backend {ref.transport.upper()} does not support fetching onto "
            f"target device {target_device}."
        )
    ref.set_target(device)


def _refuse_others(ref: Any) -> None:
    if not isinstance(ref, TensorRef):
        raise ValueError(f"Ref {ref} is not an RDT object.")


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
        found = _made(refs, deadline.remaining_s())

    def open_found() -> list[Any]:
        if out is not None:
            return [open_into(found[0], transport, targets)]
        onto = [each.target() for each in refs]
        fresh = [None if target else made for made, target in zip(found, onto, strict=True)]
        values = open_all(fresh, transport)
        for at, target in enumerate(onto):
            if target:
                values[at] = open_onto(found[at], transport, target)
        return values

    remaining_s = deadline.remaining_s()
    first = refs[0]
    if (remaining_s is None and first._arriving is None) or _are_all_here(found):
        return open_found()
    asked_with = tuple(refs[1:]), transport
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


def _made(refs: Sequence[TensorRef], timeout_s: float | None) -> list[Any]:
    """Return what was made for references, once it is there; envelopes, where these stay closed."""
    waited = [each.inner for each in refs if each._held is None]
    found = iter(cluster.get(waited, timeout_s=timeout_s) if waited else ())
    return [next(found) if each._held is None else each._held.sealed for each in refs]


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
