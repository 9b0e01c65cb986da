# SPDX-License-Identifier: Apache-2.0
"""The names of tensor transports, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rcg.comm.registry import communicator_names, find_communicator

__all__ = ["OBJECT_STORE", "Transport", "find_transport"]

OBJECT_STORE: Final = "object_store"
"""Tensors are copied through memory that both processes have; any process of the node can."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A tensor transport.

    Attributes:
        name: Its name, in lower case.
        devices: The types of devices whose tensors it takes; None for all.
        needs_group: Whether both processes must be members of a group.
    """

    name: str
    devices: frozenset[str] | None
    needs_group: bool


_found: Final = {OBJECT_STORE: Transport(OBJECT_STORE, None, needs_group=False)}


def find_transport(name: object) -> Transport:
    """Return the transport of a name, in upper or lower case.

    Raises:
        ValueError: There is none of that name.
    """
    if isinstance(name, str):
        plain = name.lower()
        found = _found.get(plain)
        if found is not None:
            return found
        if plain in communicator_names():
            devices = find_communicator(plain).devices
            return _found.setdefault(plain, Transport(plain, devices, needs_group=True))
    known = ", ".join([*communicator_names(), OBJECT_STORE])
    raise ValueError(f"Invalid tensor transport: {name}. Known are {known}")
