# SPDX-License-Identifier: Apache-2.0
"""Sealing what a method returns, and opening what another gets.

``sealed`` keeps the tensors of a value here and returns an envelope. ``opened`` returns the value
of an envelope with its tensors: from another process they are pulled, here they are the very same.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from rcg import cluster
from rcg.errors import TensorMismatch, Transfer
from rcg.rdt.contents import taken_apart
from rcg.rdt.envelope import Envelope, Holder
from rcg.rdt.groups import Group
from rcg.rdt.process import Here, here, is_listening
from rcg.rdt.store import Entry
from rcg.rdt.transports import find_transport

__all__ = ["opened", "opened_all", "sealed"]


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
    if "torch" not in sys.modules:
        return value
    devices = find_transport(transport).devices
    ours = here()
    contents, payloads = taken_apart(value, ours.codec)
    if not payloads:
        return value
    found = sorted(set(contents.devices))
    if len(found) > 1:
        raise TensorMismatch(
            "All tensors in an RDT object must have the same device type. "
            f"{where} has tensors on {', '.join(found)}",
            expected="one type of device",
            found=", ".join(found),
        )
    if devices is not None and found[0] not in devices:
        raise TensorMismatch(
            f"Tensor transport backend {transport.upper()} does not support tensor transfer on "
            f"device {found[0]}. {where} has tensors there: move them to "
            f"{' or '.join(sorted(devices))}, or choose another tensor_transport",
            expected=", ".join(sorted(devices)),
            found=found[0],
        )
    ours.store.add(Entry(key, value, contents, payloads, transport))
    ours.keeper.watch_store()
    return Envelope(key, ours.holder, transport, contents)


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
    wanted: dict[str, tuple[Envelope, str]] = {}
    for envelope in values:
        if type(envelope) is not Envelope or envelope.key in found or envelope.key in wanted:
            continue
        if envelope.holder.key == ours.holder.key:
            found[envelope.key] = _of_our_own(ours, envelope)
            continue
        chosen, group = transport or envelope.transport, ""
        if find_transport(chosen).needs_group:
            group = _group_with(ours, envelope.holder, chosen, is_asked_for=transport is not None)
        wanted[envelope.key] = envelope, group
    if wanted:
        pulled = ours.connections.pull(list(wanted.values()))
        for (key, (envelope, _)), payloads in zip(wanted.items(), pulled, strict=True):
            if isinstance(payloads, Exception):
                raise payloads
            found[key] = envelope.contents.put_back(payloads)
    return [found[each.key] if type(each) is Envelope else each for each in values]


def _of_our_own(ours: Here, envelope: Envelope) -> Any:
    entry = ours.store.find(envelope.key)
    if entry is None:
        raise Transfer(f"the tensors of object {envelope.key} are not here any more")
    return _with_same_tensors(entry.value)


def _group_with(ours: Here, holder: Holder, backend: str, *, is_asked_for: bool) -> str:
    groups: list[Group] = ours.groups.with_member(holder.key, backend)
    if len(groups) > 1:
        # One of which a member is gone has been replaced.
        groups = [each for each in groups if all(map(is_listening, each.keys))] or groups
    if len(groups) == 1:
        return groups[0].name
    if len(groups) > 1:
        names = ", ".join(each.name for each in groups)
        raise ValueError(
            f"There are {len(groups)} possible communicators for {holder.label} and "
            f"{ours.holder.label}: {names}. Destroy all but one"
        )
    if not is_asked_for and not ours.holder.actor:
        return ""  # a task, or a driver, which no group can have
    raise ValueError(
        f"No communicators found for actors {holder.label} and {ours.holder.label} with the tensor "
        f'transport {backend.upper()}: create_collective_group([...], backend="{backend}") makes '
        "one"
    )


class _Pickler(cluster.by_value_pickler()):  # type: ignore[misc]
    def __init__(self, file: Any, tensors: list[Any]) -> None:
        super().__init__(file, 5)
        self._tensors = tensors
        self._kind: Any = sys.modules["torch"].Tensor

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._kind):
            return None
        self._tensors.append(obj)
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: list[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, place: Any) -> Any:
        return self._tensors[place]


def _with_same_tensors(value: Any) -> Any:
    """Return a copy of a value with the very same tensors in it."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return value
    tensors: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, tensors).dump(value)
    file.seek(0)
    return _Unpickler(file, tensors).load()
