# SPDX-License-Identifier: Apache-2.0
"""Gives the process that imports it a fake device, for which ``nccl`` and ``cuda_ipc`` work."""

from __future__ import annotations

from rcg.comm import registry
from rcg.rdt import gpu_memory
from tests.harness.fake_cuda import FakeMemory, IpcOnFake, NcclOnFake
from tests.harness.fake_device import DEVICE

for _name, _cls in (("nccl", NcclOnFake), ("cuda_ipc", IpcOnFake)):
    registry._registered[_name] = registry.Registered(_name, _cls.devices, _cls)
gpu_memory.shared[:] = [gpu_memory.GpuMemory(DEVICE, FakeMemory)]
