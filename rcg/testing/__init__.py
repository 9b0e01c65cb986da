# SPDX-License-Identifier: Apache-2.0
"""For tests of programs that use rcg: communicators without processes, sockets and Ray.

``LocalCommunicator`` and ``OrderedLocalCommunicator`` work among threads of one process, which meet
through a ``LocalStore``. They pass the suite that rcg's own communicators pass::

    store = LocalStore()
    labels = ("first", "second")

    def run(rank):
        group = LocalCommunicator.open(Membership("example", rank, labels, store))
        tensor = torch.ones(3)
        group.allreduce(tensor, ReduceOp.SUM)
        group.destroy()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
"""

from __future__ import annotations

from rcg.comm import Membership, ReduceOp
from rcg.comm.local_store import LocalStore
from rcg.testing.local import LocalCommunicator, OrderedLocalCommunicator

__all__ = [
    "LocalCommunicator",
    "LocalStore",
    "Membership",
    "OrderedLocalCommunicator",
    "ReduceOp",
]
