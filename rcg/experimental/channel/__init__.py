# SPDX-License-Identifier: Apache-2.0
"""The old path of hints and communicators; other names are ``ray.experimental.channel``'s."""

from __future__ import annotations

from rcg.experimental import names_behind
from rcg.experimental.channel import communicator, torch_tensor_type
from rcg.experimental.channel.communicator import Communicator
from rcg.experimental.channel.torch_tensor_type import TorchTensorType

__all__ = ["Communicator", "TorchTensorType", "communicator", "torch_tensor_type"]

__getattr__, __dir__ = names_behind(__name__, __all__)
