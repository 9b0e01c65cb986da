# SPDX-License-Identifier: Apache-2.0
"""The hints of users: how the tensors in a node's value travel to other processes.

A hint is checked where the user gives it, and every error names that line. This room must know
neither nodes nor records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from rcg.comm.base import Communicator
from rcg.comm.rays import is_communicator, missing_methods
from rcg.comm.registry import ACCELERATOR, communicator_names, device_types
from rcg.errors import GraphError
from rcg.ir.nodes import Site

_DEVICES: Final = {"default": "default", "cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}
"""What a hint may say beside the registered types of devices, and which type that is."""
_ACCELERATORS: Final = ("nccl", ACCELERATOR)
_SHARED_MEMORY: Final = "shm"
_RAYS_CPU: Final = "cpu"
"""Ray's name for communicators whose tensors travel through shared memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Hint:
    """A transport, as the user chose it.

    Attributes:
        transport: ``auto``, ``shm``, or the name of a communicator.
        site: Where the user chose it.
        communicator: The user's own communicator, if it is one.
        device: See ``rcg.ir.nodes.TensorHint``; so are the rest.
    """

    transport: str
    site: Site
    communicator: Any = None
    device: str = "default"
    is_static_shape: bool = False
    is_direct_return: bool = False


@dataclass(slots=True, eq=False)
class HintCell:
    """The place of a record for the hint of its value; a later hint replaces an earlier one.

    Attributes:
        hint: How its tensors travel in the graph.
        kept: How they travel after it, if they stay with the actor that makes them.
    """

    hint: Hint | None = None
    kept: str | None = None


class TorchTensorType:
    """A hint as an object, for ``node.with_type_hint``; Ray's older form of a hint.

    Args:
        transport: See ``DAGNode.with_tensor_transport``; so are the rest.
    """

    AUTO: Final = "auto"
    CPU: Final = _RAYS_CPU
    ACCELERATOR: Final = "accelerator"

    def __init__(
        self,
        transport: Any = AUTO,
        device: Any = "default",
        _static_shape: bool = False,
        _direct_return: bool | None = False,
    ) -> None:
        self.transport = transport
        self.device = device
        self.static_shape = bool(_static_shape)
        self.direct_return = bool(_direct_return)

    def __repr__(self) -> str:
        return (
            f"TorchTensorType(transport={self.transport!r}, device={str(self.device)!r}, "
            f"_static_shape={self.static_shape}, _direct_return={self.direct_return})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A hint as the user wrote it, not checked yet; see ``DAGNode.with_tensor_transport``."""

    transport: Any
    device: Any
    is_static_shape: bool = False
    is_direct_return: bool = False


def choice_of(type_hint: Any) -> Choice | None:
    """Return what a ``TorchTensorType``, or a type hint of Ray, chooses; None if it is neither."""
    if isinstance(type_hint, TorchTensorType):
        transport = _SHARED_MEMORY if type_hint.transport == _RAYS_CPU else type_hint.transport
        return Choice(transport, type_hint.device, type_hint.static_shape, type_hint.direct_return)
    match type(type_hint).__name__:
        case "TorchTensorType":
            # Ray knows "shm" as "auto" here; its "auto" is a type of its own.
            is_shared = type_hint.transport in ("auto", _RAYS_CPU)
            chosen = _SHARED_MEMORY if is_shared else type_hint.transport
            transport = type_hint.get_custom_communicator() or chosen
        case "AutoTransportType":
            transport = "auto"
        case _:
            return None
    is_static, is_direct = bool(type_hint._static_shape), bool(type_hint._direct_return)
    return Choice(transport, type_hint.device, is_static, is_direct)


def tensor_hint(choice: Choice, *, is_input: bool, node: str, site: Site) -> Hint:
    """Return the hint for a node's value.

    Raises:
        GraphError: There is no such transport or device, or not both together.
    """

    def fail(text: str) -> NoReturn:
        raise GraphError(text, node=node, site=site)

    transport, device = choice.transport, choice.device
    device = device.value if isinstance(device, enum.Enum) else device
    devices = {**_DEVICES, **{name: name for name in device_types()}}
    if not isinstance(device, str) or device not in devices:
        fail(f"Invalid device '{device}'. Valid options are: {_list_text(devices)}.")
    if isinstance(transport, str) and transport in _ACCELERATORS:
        if device == "cpu":
            fail("accelerator transport is not supported with CPU target device.")
        if is_input:
            fail(
                "DAG inputs cannot be transferred via accelerator because the driver cannot "
                "participate in the communicator group"
            )
    name, communicator = _chosen(transport, also=("auto", _SHARED_MEMORY), node=node, site=site)
    if communicator is not None and communicator.get_transport_name() == _RAYS_CPU:
        # Such a communicator serves collectives; from actor to actor Ray uses shared memory.
        name, communicator = _SHARED_MEMORY, None
    return Hint(
        transport=name,
        site=site,
        communicator=communicator,
        device=devices[device],
        is_static_shape=choice.is_static_shape,
        is_direct_return=choice.is_direct_return,
    )


def collective_hint(transport: Any, *, node: str, site: Site) -> Hint:
    """Return the transport of a collective; ``auto`` is the default communicator.

    Raises:
        GraphError: There is no such transport, or it cannot carry a collective.
    """
    if isinstance(transport, str) and transport == _SHARED_MEMORY:
        raise GraphError(
            f"{node} needs a communicator, and 'shm' is none: leave transport out, or give "
            f"{_list_text(communicator_names())} or a communicator of your own",
            node=node,
            site=site,
        )
    if transport is None:
        transport = "auto"
    name, communicator = _chosen(transport, also=("auto",), node=node, site=site)
    return Hint(transport=name, site=site, communicator=communicator)


def _chosen(transport: Any, *, also: tuple[str, ...], node: str, site: Site) -> tuple[str, Any]:
    """Return the name of a transport, and the communicator if it is the user's own."""
    names = (*also, *communicator_names())
    if isinstance(transport, str):
        if transport in _ACCELERATORS:
            return "nccl", None  # or what is registered in its place when the DAG is compiled
        if transport in names:
            return transport, None
    elif is_communicator(transport):
        return type(transport).__name__, transport
    _refuse(transport, names, node=node, site=site)


def _refuse(transport: Any, names: tuple[str, ...], *, node: str, site: Site) -> NoReturn:
    ours = transport if isinstance(transport, type) else type(transport)
    missing = missing_methods(transport)
    text = (
        f"Invalid transport type: {transport}. Transport must be one of {_list_text(names)} or an "
        "instance of Communicator type."
    )
    if issubclass(ours, Communicator):
        text += (
            f" {ours.__name__} is a class of rcg's communicators: register it with "
            "rcg.register_communicator(name, devices, cls), and give its name."
        )
    elif not isinstance(transport, str | type) and len(missing) <= 6:
        text += f" {ours.__name__} lacks {', '.join(missing)}."
    raise GraphError(text, node=node, site=site)


def _list_text(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
