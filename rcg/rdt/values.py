# SPDX-License-Identifier: Apache-2.0
"""Sealing what a method returns, and opening what another gets.

``seal`` keeps the tensors of a value here and returns an envelope. ``open_all`` returns the value
of an envelope with its tensors: from another process they are pulled, here they are the very same.

The bytes of a tensor arrive as they lay where it was made. So they may be received where a tensor
of the user of the same type and shape lies the same way. A single tensor that lies otherwise, such
as a transposed one, is received and then copied.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from rcg.errors import Transfer
from rcg.rdt.collective_groups import usable_groups
from rcg.rdt.custom import Objects, pull_by_manager, take_apart_objects
from rcg.rdt.envelope import (
    Contents,
    Envelope,
    Registered,
    Whole,
    open_with,
    put_objects,
    take_apart,
    take_objects,
)
from rcg.rdt.parts import tensors_in
from rcg.rdt.process import Here, here
from rcg.rdt.pull import Wanted
from rcg.rdt.runs import fill
from rcg.rdt.store import Entry, Versions
from rcg.rdt.transports import NIXL, OBJECT_STORE, Transport, find_transport
from rcg.serialization.payloads import bytes_of
from rcg.serialization.tensors import lacking
from rcg.text import plural


def seal(value: Any, transport: str, key: str, where: str) -> Any:
    """Keep the tensors of a value here; returns its envelope, or the value if it has none.

    Args:
        value: What a method returned, or what is put.
        transport: How its tensors travel.
        key: The object's id, which the process that asked for it chose.
        where: What errors call it: ``the value of Worker.make``.

    Raises:
        TensorMismatch: A tensor is on a device that the transport does not serve.
        UnpicklableError: Some part of the value cannot be sent.
    """
    chosen = find_transport(transport)
    if chosen.manager is not None:
        return _seal_objects(value, chosen, key, where)
    if "torch" not in sys.modules:
        return value
    ours = here()
    contents, payloads = take_apart(value, ours.codec)
    if not payloads:
        return value
    chosen.check_devices(contents.devices, where, value)
    if chosen.name != NIXL:
        return _keep(ours, Entry(key, value, contents, payloads, chosen.name, where))
    offered = ours.nixl.offer(payloads)
    entry = Entry(key, value, contents, offered.payloads, chosen.name, where, offered.release)
    if offered.is_copy:  # writing to the tensors changes nothing for others
        entry.versions = Versions([])
    return _keep(ours, entry, offered.registered)


def _seal_objects(value: Any, transport: Transport, key: str, where: str) -> Any:
    found = take_apart_objects(value, transport, key, where)
    if found is None:
        return value
    contents, objects, release = found
    entry = Entry(key, value, contents, objects, transport.name, where, release)
    return _keep(here(), entry)


def _keep(ours: Here, entry: Entry, registered: Registered | None = None) -> Envelope:
    ours.store.add(entry)
    ours.keeper.watch_store()
    holder = ours.holder_now()
    return Envelope(entry.key, holder, entry.transport, entry.contents, registered)


def open_envelope(envelope: Envelope, transport: str | None = None) -> Any:
    """Return the value of an envelope, with its tensors; see ``open_all``."""
    return open_all([envelope], transport)[0]


open_with(open_envelope)


def open_all(values: Sequence[Any], transport: str | None = None) -> list[Any]:
    """Return values with those that are envelopes opened; what appears twice is opened once.

    Args:
        values: The values.
        transport: How the tensors travel, if not as each envelope says.

    Raises:
        ActorDiedError: The process that held them is gone.
        Transfer: They are not there any more, or the transfer failed.
        ValueError: There is no group of both processes, or more than one.
    """
    ours = here()
    found: dict[str, Any] = {}
    wanted: dict[str, Wanted] = {}
    for each in values:
        if type(each) is not Envelope or each.key in found or each.key in wanted:
            continue
        if each.holder.key == ours.holder.key:
            found[each.key] = _share_tensors(_entry_of(ours, each))
        else:
            wanted[each.key] = _question(ours, each, transport)
    pulled = _pull(ours, [*wanted.values()]) if wanted else {}
    problems = [each for each in pulled.values() if isinstance(each, Exception)]
    if problems:
        # No local name may hold what is raised: it would hold this frame, and with it those of the
        # user's method and the references in them, until Python collects cycles.
        found.clear()
        pulled.clear()
        del problems[1:]
        raise problems.pop()
    for key, question in wanted.items():
        found[key] = question.envelope.contents.put_back(pulled.pop(key))
    return [found[each.key] if type(each) is Envelope else each for each in values]


def open_into(envelope: Any, transport: str | None, out: Any, name: str = "out") -> Any:
    """Return the value of an envelope, with its tensors in memory of the user.

    Args:
        envelope: The envelope.
        transport: How the tensors travel, if not as the envelope says.
        out: A tensor for a value that is one, or a list of tensors in the order of the value's.
        name: What errors call it.

    Raises:
        ValueError: The tensors do not fit; nothing has been written to them.
        TypeError: ``out`` has something else in it, or the value has no tensors.
        Exception: As ``open_all``.
    """
    targets = [out] if not isinstance(out, list | tuple) else list(out)
    if type(envelope) is not Envelope or isinstance(envelope.contents, Objects):
        if _is_empty_like(envelope, out):
            return out
        raise TypeError(
            f"{name}: the value has no tensors of torch's with memory of their own that could be "
            "received there"
        )
    into = check_targets(envelope.contents, targets, name)
    ours = here()
    own = _entry_of(ours, envelope).payloads if envelope.holder.key == ours.holder.key else None
    if own is not None:
        _check_not_of_value(targets, own, name, may_be_same=into is not None)
    if into is None:
        targets[0].detach().copy_(open_envelope(envelope, transport).detach())
        return out
    payloads: Sequence[Any]
    if own is not None:
        payloads = fill(into, own)
    else:
        pulled = _pull(ours, [_question(ours, envelope, transport, into)])
        problems = [each for each in pulled.values() if isinstance(each, Exception)]
        if problems:
            pulled.clear()
            raise problems.pop()  # no local name may hold it, see `open_all`
        payloads = pulled[envelope.key]
    if isinstance(envelope.contents, Whole):
        return out
    value = envelope.contents.put_back(payloads)
    is_one = not isinstance(out, list | tuple) and isinstance(value, type(out))
    return out if is_one else value


def open_onto(envelope: Any, transport: str | None, targets: Any) -> Any:
    """Return the value of an envelope with tensors of the user in the places of its own.

    It is what Ray's ``set_target_for_ref`` and ``set_target_device_for_ref`` ask for. Tensors that
    share memory, or lie otherwise in memory than their targets, are received and then copied.

    Args:
        envelope: The envelope, or a value without tensors.
        transport: How the tensors travel, if not as the envelope says.
        targets: A tensor for each of the value's, in the order in which they are pickled; or the
            device on which they are made.

    Raises:
        ValueError: They do not fit, in Ray's words; nothing has been written to them. Or it is a
            value of a user's transport, which chooses the memory itself.
        Exception: As ``open_all``.
    """
    import torch

    if type(envelope) is not Envelope:
        if isinstance(targets, list):
            _check_in_rays_words(targets, [])
        return envelope
    contents = envelope.contents
    if isinstance(contents, Objects):
        raise ValueError(
            f"tensor transport {envelope.transport.upper()} chooses the memory itself: it does not "
            "receive into targets"
        )
    likeness, _ = _likeness(contents)
    data, tensors, references = take_objects(likeness, torch.Tensor)
    if isinstance(targets, torch.device):
        if all(_is_on(each, targets) for each in tensors):
            return open_envelope(envelope, transport)
        targets = [torch.empty_like(each, device=targets) for each in tensors]
    else:
        _check_in_rays_words(targets, tensors)
    are_alike = len(tensors) == len(contents.sizes) and all(
        _lies_like(*each) for each in zip(tensors, targets, contents.sizes, strict=True)
    )
    if are_alike and len(tensors):
        open_into(envelope, transport, list(targets), "tensor_buffer")
    else:
        found = take_objects(open_envelope(envelope, transport), torch.Tensor)[1]
        for tensor, target in zip(found, targets, strict=True):
            target.detach().copy_(tensor.detach())
    return put_objects(data, targets, references)


def _is_on(tensor: Any, device: Any) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def _check_in_rays_words(targets: Sequence[Any], tensors: Sequence[Any]) -> None:
    """Check the targets of ``set_target_for_ref``; programs know these errors by Ray's words.

    Raises:
        ValueError: They do not fit.
    """
    if len(targets) != len(tensors):
        raise ValueError(
            f"Length of tensor_buffers ({len(targets)}) does not match length from object metadata "
            f"({len(tensors)})."
        )
    for at, (target, tensor) in enumerate(zip(targets, tensors, strict=True)):
        for name in ("shape", "dtype"):
            found, expected = getattr(target, name), getattr(tensor, name)
            if found != expected:
                raise ValueError(
                    f"{name.capitalize()} of tensor_buffer at index {at} ({found}) does not match "
                    f"{name} from object metadata ({expected})."
                )
        if not target.is_contiguous():
            raise ValueError(f"Tensor buffer at index {at} is not contiguous.")
        why = _unfit(target)
        if why:
            raise ValueError(f"Tensor buffer at index {at} {why}.")
    _check_apart([f"Tensor buffer at index {at}" for at in range(len(targets))], targets)


def _pull(ours: Here, wanted: Sequence[Wanted]) -> dict[str, Any]:
    """Return the payloads of objects of other processes, or their errors, by the objects' ids."""
    plain: list[Wanted] = []
    by_nixl: list[Wanted] = []
    by_manager: list[Wanted] = []
    found: dict[str, Any] = {}
    for each in wanted:
        payloads = ours.ahead.take(each.envelope)
        if payloads is not None:
            found[each.envelope.key] = payloads if each.into is None else fill(each.into, payloads)
            continue
        is_nixl, manager = each.transport.name == NIXL, each.transport.manager
        (by_manager if manager is not None else by_nixl if is_nixl else plain).append(each)
    for some, pull in (
        (plain, ours.connections.pull),
        (by_nixl, ours.nixl.pull),
        (by_manager, partial(pull_by_manager, ours.connections)),
    ):
        if some and not any(isinstance(each, Exception) for each in found.values()):
            found.update(zip([each.envelope.key for each in some], pull(some), strict=True))
    return found


def _question(
    ours: Here, envelope: Envelope, asked: str | None, into: Sequence[Any] | None = None
) -> Wanted:
    """Return the question for the tensors of an envelope; raises as ``open_all``."""
    transport = _transport_for(envelope, asked)
    group = _group_for(ours, envelope, transport, is_asked_for=asked is not None)
    return Wanted(envelope, transport, group, into)


def _entry_of(ours: Here, envelope: Envelope) -> Entry:
    entry = ours.store.find(envelope.key)
    if entry is None:
        raise Transfer(f"{ours.holder.label} made a value, but {ours.store.why_gone(envelope.key)}")
    entry.check()
    return entry


def _transport_for(envelope: Envelope, asked: str | None) -> Transport:
    """Return how the tensors of an envelope travel.

    Raises:
        ValueError: The transport that is asked for cannot bring what was made for another.
    """
    made_for = envelope.transport
    transport = find_transport(asked or made_for)
    is_for_objects = isinstance(envelope.contents, Objects)
    is_other = is_for_objects or transport.manager is not None or transport.name == NIXL
    if transport.name == made_for or transport.is_direct or not is_other:
        return transport
    raise ValueError(
        f"what {envelope.holder.label} made for the tensor transport {made_for.upper()} cannot be "
        f'got by {transport.name.upper()}: leave _tensor_transport out, or say "{OBJECT_STORE}"'
    )


def _group_for(ours: Here, envelope: Envelope, transport: Transport, *, is_asked_for: bool) -> str:
    """Return the group through which an envelope's tensors come; "" for none.

    Raises:
        ValueError: There is no group of both processes, or more than one.
        Transfer: It was closed.
        ActorDiedError: It was closed, and the process that holds the tensors is gone.
    """
    if not transport.needs_group:
        return ""
    holder, backend = envelope.holder, transport.name
    groups = ours.groups.with_member(holder.key, backend)
    names = [each.name for each in usable_groups(groups)]
    if len(names) == 1:
        return names[0]
    if names:
        raise ValueError(
            f"There are {len(names)} possible communicators for {holder.label} and "
            f"{ours.holder.label}: {', '.join(names)}. Destroy all but one"
        )
    if not is_asked_for and not ours.holder.actor:
        return ""  # a task, or a driver, which no group can have
    why = ours.groups.why_ended(holder.key, backend)
    if why:
        ours.connections.check_lives(holder)  # or no group would help
        raise Transfer(
            f"tensors of {holder.label} cannot come: {why}. The actors are usable: "
            "create_collective_group makes them a new group"
        )
    raise ValueError(
        f"No communicators found for actors {holder.label} and {ours.holder.label} with the tensor "
        f'transport {backend.upper()}: create_collective_group([...], backend="{backend}") makes '
        "one"
    )


def _share_tensors(entry: Entry) -> Any:
    """Return a copy of a value with the very same tensors in it."""
    value, contents = entry.value, entry.contents
    if isinstance(contents, Objects):
        return contents.put_back(entry.payloads)
    kind = sys.modules["torch"].Tensor
    return value if isinstance(value, kind) else put_objects(*take_objects(value, kind))


def _is_empty_like(value: Any, out: Any) -> bool:
    """Return whether a value is one tensor without elements, as ``out`` is."""
    return (
        hasattr(value, "untyped_storage")
        and hasattr(out, "untyped_storage")
        and not value.numel()
        and (value.dtype, value.shape) == (out.dtype, out.shape)
    )


def _check_not_of_value(
    targets: Sequence[Any], payloads: Sequence[Any], name: str, *, may_be_same: bool
) -> None:
    """Check that receiving into targets writes to nothing that is still to be read.

    Args:
        targets: The user's tensors.
        payloads: The bytes of the value's tensors, which are in this process.
        name: What errors call the targets.
        may_be_same: Whether a target may be the tensor itself that it receives.

    Raises:
        ValueError: One shares memory with a tensor of the value.
    """
    for at, target in enumerate(targets):
        for place, payload in enumerate(payloads):
            start, end = payload.data_ptr(), payload.data_ptr() + payload.nbytes
            if may_be_same and at == place and target.data_ptr() == start:
                continue
            if target.device == payload.device and (
                target.data_ptr() < end and start < target.data_ptr() + target.nbytes
            ):
                each = f"{name}[{at}]" if len(targets) > 1 else name
                raise ValueError(
                    f"{each} shares memory with the value, which is held in this process: what is "
                    "received there would overwrite it"
                )


def check_targets(contents: Contents, targets: Sequence[Any], name: str) -> list[Any] | None:
    """Return the bytes of the user's tensors, into which a value's tensors are received.

    Returns:
        Tensors of uint8 [n] over their memory; None if the value is one tensor that lies otherwise
        in memory than the target, into which it can be copied.

    Raises:
        TypeError: One is no tensor.
        ValueError: They do not fit, or what is received there would be lost.
    """
    sizes = contents.sizes
    if len(targets) != len(sizes):
        raise ValueError(
            f"{name}: the value has {plural(len(sizes), 'tensor')} with memory of its own, and "
            f"there are {len(targets)} to receive into"
        )
    names = [f"{name}[{at}]" if len(targets) > 1 else name for at in range(len(targets))]
    for each, target in zip(names, targets, strict=True):
        if not hasattr(target, "untyped_storage"):
            raise TypeError(
                f"{each} is no tensor, found {type(target).__name__}: give a tensor, or a list of "
                "tensors in the order of the value's"
            )
        why = _unfit(target)
        if why:
            raise ValueError(f"{each} {why}")
    _check_apart(names, targets)
    if isinstance(contents, Whole):
        (target,) = targets
        _check_type(name, target, contents.table.dtype, contents.table.shape)
        return [bytes_of(target)]
    value, tensors = _likeness(contents)
    for each, target, size, found in zip(names, targets, sizes, tensors, strict=True):
        if found is None:
            raise ValueError(f"{each}: what the value has there is no dense tensor")
        _check_type(each, target, _type_name(found), tuple(found.shape))
        if not _lies_like(found, target, size):
            if value is found:
                return None
            raise ValueError(
                f"{each}: the value's tensor lies otherwise in memory (strides {found.stride()}): "
                "leave it out, or have the method return it contiguous"
            )
    return [bytes_of(each) for each in targets]


def without_bytes(tensor: Any) -> str:
    """Return why a tensor has no bytes that stand for its numbers alone; "" if it has."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "a nested one" if tensor.is_nested else tensor.layout
        return f"must be a dense tensor, found {'a quantized one' if tensor.is_quantized else kind}"
    has_storage = torch._C._has_storage(tensor)
    if not has_storage or tensor.untyped_storage().device.type == "meta":
        return f"has no memory that anything could be received into: it is on {tensor.device}"
    why = lacking(tensor)
    return f"has lost its memory: {why}" if why else ""


def _unfit(target: Any) -> str:
    """Return why what is received into a tensor would be lost there; "" if it would not."""
    why = without_bytes(target)
    if why or (target.is_contiguous() and not (target.is_conj() or target.is_neg())):
        return why
    if not target.is_contiguous():
        return "must be contiguous"
    return "must be resolved first (resolve_conj, resolve_neg): it shows other numbers than it has"


def check_all_apart(named: Sequence[tuple[str, Any]]) -> None:
    """Check that no two of several things that are received into share memory.

    Args:
        named: What errors call each, and a tensor or a list of tensors. What is unfit is left out:
            ``check_targets`` says why.

    Raises:
        ValueError: Two do.
    """
    if len(named) > 1:
        found = [(name, each) for name, out in named for each in tensors_in(out)]
        fit = [(name, each) for name, each in found if not _unfit(each)]
        _check_apart([name for name, _ in fit], [each for _, each in fit])


def _check_apart(names: Sequence[str], targets: Sequence[Any]) -> None:
    """Check that no two targets share memory, so that one would get what belongs to the other.

    Raises:
        ValueError: Two do.
    """
    places = sorted(
        (str(each.device), each.data_ptr(), each.nbytes, name)
        for name, each in zip(names, targets, strict=True)
        if each.numel()
    )
    for (device, start, size, name), (other_device, other_start, _, other) in pairwise(places):
        if device == other_device and other_start < start + size:
            raise ValueError(f"{name} and {other} share memory: only one could be received there")


def _check_type(name: str, target: Any, dtype: str, shape: tuple[int, ...]) -> None:
    found = _type_name(target), tuple(target.shape)
    if found != (dtype, shape):
        raise ValueError(
            f"{name} is of {found[0]} and shape {list(found[1])}, the value of {dtype} and shape "
            f"{list(shape)}"
        )


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _likeness(contents: Contents) -> tuple[Any, list[Any]]:
    """Return a value like the one that is to come, and its first tensor over each payload."""
    import torch

    payloads = [
        torch.empty(size, dtype=torch.uint8, device=device)
        for size, device in zip(contents.sizes, contents.devices, strict=True)
    ]
    value = contents.put_back(payloads)
    at_of = {each.untyped_storage().data_ptr(): at for at, each in enumerate(payloads)}
    found: list[Any] = [None] * len(payloads)
    for tensor in tensors_in(value):
        try:
            at = at_of.get(tensor.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # a sparse one has no storage
            continue
        if at is not None and (found[at] is None or tensor.nbytes > found[at].nbytes):
            found[at] = tensor
    return value, found


def _lies_like(tensor: Any, target: Any, size: int) -> bool:
    """Whether the bytes of a payload are those of a contiguous target."""
    is_plain = not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    return is_plain and tensor.is_contiguous() and tensor.nbytes == target.nbytes == size
