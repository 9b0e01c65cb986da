# SPDX-License-Identifier: Apache-2.0
"""Ray's path of tensors by reference; other names are ``ray.experimental.rdt``'s."""

from rcg.experimental import names_behind
from rcg.rdt.methods import wait_tensor_freed
from rcg.rdt.nixl_memory import (
    deregister_nixl_memory,
    register_nixl_memory,
    register_nixl_memory_pool,
    set_nixl_cuda_stream,
)
from rcg.rdt.refs import set_target_device_for_ref, set_target_for_ref
from rcg.rdt.transports import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)

__all__ = [
    "CommunicatorMetadata",
    "FetchRequest",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "deregister_nixl_memory",
    "register_nixl_memory",
    "register_nixl_memory_pool",
    "register_tensor_transport",
    "set_nixl_cuda_stream",
    "set_target_device_for_ref",
    "set_target_for_ref",
    "wait_tensor_freed",
]

__getattr__, __dir__ = names_behind(__name__, __all__)
