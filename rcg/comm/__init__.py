# SPDX-License-Identifier: Apache-2.0
"""Communicators: send, receive and collectives among the fixed ranks of a group."""

from __future__ import annotations

from rcg.comm.base import Communicator, Membership, ReduceOp, Store

__all__ = ["Communicator", "Membership", "ReduceOp", "Store"]
