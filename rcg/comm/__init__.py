# SPDX-License-Identifier: Apache-2.0
"""Communicators: send, receive and collectives among the fixed ranks of a group.

``base``: the protocol, the store through which ranks meet, and what all communicators check;
``local_store``: such a store for threads; ``refusal``: why a rank's operations are refused.
``gloo``: tensors in main memory, over sockets; ``gloo_group`` builds its process groups and finds
the sockets whose shutdown ends a pending operation; ``sideline`` is a thread for operations that
may never end. ``nccl`` and ``cuda_ipc``: tensors of GPUs, each with a group of Gloo beside it that
reports lost ranks. ``rays``: users' objects with the methods of Ray's ``Communicator``.
``registry``: the names; ``reduction``: what a reduction computes for each dtype. The room knows
neither Ray nor graphs, and imports torch when a group is opened.
"""

from __future__ import annotations

from rcg.comm.base import Communicator, Membership, ReduceOp, Store

__all__ = ["Communicator", "Membership", "ReduceOp", "Store"]
