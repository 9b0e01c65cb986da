# SPDX-License-Identifier: Apache-2.0
"""The old path of ``TorchTensorType``; other names are Ray's."""

from __future__ import annotations

from rcg.dag.hints import TorchTensorType
from rcg.experimental import names_behind
from rcg.experimental.channel.communicator import Communicator

__all__ = ["Communicator", "TorchTensorType"]

__getattr__, __dir__ = names_behind(__name__, __all__)
