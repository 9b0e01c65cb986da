# SPDX-License-Identifier: Apache-2.0
"""Gives the process that imports it a fake device, for which ``nccl`` and ``cuda_ipc`` work."""

from __future__ import annotations

from rcg.comm import registry
from tests.fake_cuda import IpcOnFake, NcclOnFake

for _name, _cls in (("nccl", NcclOnFake), ("cuda_ipc", IpcOnFake)):
    registry._registered[_name] = registry.Registered(_name, _cls.devices, _cls)
