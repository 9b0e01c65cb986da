# SPDX-License-Identifier: Apache-2.0
"""Ray's path of hints and communicators; other names are ``ray.experimental.channel``'s."""

from __future__ import annotations

from rcg.experimental import names_behind
from rcg.experimental.channel import (
    accelerator_context,
    communicator,
    cpu_communicator,
    nccl_group,
    shared_memory_channel,
    torch_tensor_type,
)
from rcg.experimental.channel.communicator import Communicator
from rcg.experimental.channel.cpu_communicator import CPUCommunicator
from rcg.experimental.channel.torch_tensor_type import TorchTensorType

__all__ = [
    "CPUCommunicator",
    "Communicator",
    "TorchTensorType",
    "accelerator_context",
    "communicator",
    "cpu_communicator",
    "nccl_group",
    "shared_memory_channel",
    "torch_tensor_type",
]

__getattr__, __dir__ = names_behind(__name__, __all__)
