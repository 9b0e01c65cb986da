# SPDX-License-Identifier: Apache-2.0
"""Sealing what a method returns, and opening what another gets.

``sealed`` keeps the tensors of a value here and returns an envelope. ``opened`` returns the value
of an envelope with its tensors: from another process they are pulled, here they are the very same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rcg.errors import Transfer
from rcg.rdt.contents import Whole, taken_apart
from rcg.rdt.custom import Objects, objects_of, pull
from rcg.rdt.envelope import Envelope
from rcg.rdt.groups import filled
from rcg.rdt.memberships import usable_groups
from rcg.rdt.objects import taken_out, with_objects
from rcg.rdt.process import Here, here
from rcg.rdt.pulling import Wanted
from rcg.rdt.store import Entry
from rcg.rdt.targets import checked_targets
from rcg.rdt.transports import OBJECT_STORE, Transport, find_transport
from rcg.rdt.writes import Versions

__all__ = ["opened", "opened_all", "opened_into", "sealed"]


def sealed(value: Any, transport: str, key: str, where: str) -> Any:
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
        return _sealed_objects(value, chosen, key, where)
    if "torch" not in sys.modules:
        return value
    ours = here()
    contents, payloads, versions = taken_apart(value, ours.codec)
    if not payloads:
        return value
    chosen.check_devices(contents.devices, where, value)
    return _kept(ours, Entry(key, value, contents, payloads, chosen.name, where, versions))


def _sealed_objects(value: Any, transport: Transport, key: str, where: str) -> Any:
    found = objects_of(value, transport, key, where)
    if found is None:
        return value
    contents, objects, release = found
    entry = Entry(key, value, contents, objects, transport.name, where, Versions(objects), release)
    return _kept(here(), entry)


def _kept(ours: Here, entry: Entry) -> Envelope:
    ours.store.add(entry)
    ours.keeper.watch_store()
    return Envelope(entry.key, ours.holder, entry.transport, entry.contents)


def opened(envelope: Envelope, transport: str | None = None) -> Any:
    """Return the value of an envelope, with its tensors; see ``opened_all``."""
    return opened_all([envelope], transport)[0]


def opened_all(values: Sequence[Any], transport: str | None = None) -> list[Any]:
    """Return values with those that are envelopes opened; what appears twice is opened once.

    Args:
        values: The values.
        transport: How the tensors travel, if not as each envelope says.

    Raises:
        ActorDiedError: Whoever held them is gone.
        Transfer: They are not there any more, or the transfer failed.
        ValueError: There is no group of both processes, or more than one.
    """
    ours = here()
    found: dict[str, Any] = {}
    wanted: dict[str, Wanted] = {}
    objects: dict[str, Envelope] = {}
    for envelope in values:
        if type(envelope) is not Envelope or envelope.key in found:
            continue
        if envelope.key in wanted or envelope.key in objects:
            continue
        if envelope.holder.key == ours.holder.key:
            found[envelope.key] = _of_our_own(ours, envelope)
            continue
        chosen = _transport_for(envelope, transport)
        if chosen.manager is not None:
            objects[envelope.key] = envelope
        else:
            group = _group_for(ours, envelope, chosen, is_asked_for=transport is not None)
            wanted[envelope.key] = Wanted(envelope, group)
    problems: list[Exception] = []
    if wanted:
        pulled = ours.connections.pull(list(wanted.values()))
        for each in wanted.values():
            payloads = pulled.pop(0)
            if isinstance(payloads, Exception):
                problems.append(payloads)
            elif not problems:
                found[each.envelope.key] = each.envelope.contents.put_back(payloads)
            del payloads
    if objects and not problems:
        values_of_objects = pull(ours.connections, [*objects.values()])
        for key in objects:
            value = values_of_objects.pop(0)
            if isinstance(value, Exception):
                problems.append(value)
            found[key] = value
            del value
    if problems:
        # No local name may hold what is raised: it would hold this frame, and with it those of the
        # user's method and the references in them, until Python collects cycles.
        found.clear()
        del problems[1:]
        raise problems.pop()
    return [found[each.key] if type(each) is Envelope else each for each in values]


def opened_into(envelope: Any, transport: str | None, out: Any, name: str = "out") -> Any:
    """Return the value of an envelope, with its tensors in memory of the user's.

    Args:
        envelope: The envelope.
        transport: How the tensors travel, if not as the envelope says.
        out: A tensor for a value that is one, or a list of tensors in the order of the value's.
        name: What errors call it.

    Raises:
        ValueError: The tensors do not fit; nothing has been written to them.
        TypeError: ``out`` has something else in it, or the value has no tensors.
        Exception: As ``opened_all``.
    """
    if type(envelope) is not Envelope or isinstance(envelope.contents, Objects):
        raise TypeError(f"{name}: the value has no tensors of torch's that could be received there")
    targets = [out] if not isinstance(out, list | tuple) else list(out)
    into = checked_targets(envelope.contents, targets, name)
    if into is None:
        targets[0].copy_(opened(envelope, transport).detach())
        return out
    ours = here()
    if envelope.holder.key == ours.holder.key:
        payloads: Sequence[Any] = filled(into, _entry_of(ours, envelope).payloads)
    else:
        chosen = _transport_for(envelope, transport)
        group = _group_for(ours, envelope, chosen, is_asked_for=transport is not None)
        found = ours.connections.pull([Wanted(envelope, group, into)])
        problems = [each for each in found if isinstance(each, Exception)]
        if problems:
            found.clear()
            raise problems.pop()  # no local name may hold it, see `opened_all`
        payloads = next(each for each in found if not isinstance(each, Exception))
    if isinstance(envelope.contents, Whole):
        return out
    value = envelope.contents.put_back(payloads)
    is_one = not isinstance(out, list | tuple) and isinstance(value, type(out))
    return out if is_one else value


def _of_our_own(ours: Here, envelope: Envelope) -> Any:
    return _with_same_tensors(_entry_of(ours, envelope))


def _entry_of(ours: Here, envelope: Envelope) -> Entry:
    entry = ours.store.find(envelope.key)
    if entry is None:
        raise Transfer(f"{ours.holder.label} made a value, but {ours.store.why_gone(envelope.key)}")
    lost = entry.lacks()
    if lost:
        raise Transfer(lost)
    return entry


def _transport_for(envelope: Envelope, asked: str | None) -> Transport:
    """Return how the tensors of an envelope travel.

    Raises:
        ValueError: The transport that is asked for cannot bring what was made for another.
    """
    made_for = envelope.transport
    transport = find_transport(asked or made_for)
    is_for_objects = isinstance(envelope.contents, Objects)
    if transport.name in (made_for, OBJECT_STORE) or not (
        is_for_objects or transport.manager is not None
    ):
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


def _with_same_tensors(entry: Entry) -> Any:
    """Return a copy of a value with the very same tensors in it."""
    value, contents = entry.value, entry.contents
    if isinstance(contents, Objects):
        return contents.put_back(entry.payloads)
    kind = sys.modules["torch"].Tensor
    return value if isinstance(value, kind) else with_objects(*taken_out(value, kind))
