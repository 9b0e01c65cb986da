# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a Gloo group send a tensor: ``python -m rcg.doctor.gloo``, run by ``rcg doctor``.

It prints the time of a round trip in nanoseconds, or raises. It is a separate process because torch
takes seconds to import, and because a broken Gloo may end its process.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import Final

from rcg.comm import Communicator, Membership
from rcg.comm.local_store import LocalStore
from rcg.comm.registry import find_communicator
from rcg.threads import start_thread

ROUNDS: Final = 20
TIMEOUT_S: Final = 20.0


def main() -> int:
    """Send a tensor forth and back between two threads, and print the median round trip."""
    opener = find_communicator("gloo")
    store = LocalStore()
    errors: list[BaseException] = []

    def echo() -> None:
        try:
            _echo(opener.open(Membership("doctor", 1, ("a", "b"), store, TIMEOUT_S)))
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            errors.append(error)

    thread = start_thread(threading.Thread(target=echo, daemon=True), "to send a tensor")
    try:
        group = opener.open(Membership("doctor", 0, ("a", "b"), store, TIMEOUT_S))
    except BaseException:
        if errors:
            raise errors[0] from None
        raise
    print(int(statistics.median(_round_trips(group))))
    thread.join(TIMEOUT_S)
    group.destroy()
    return 0


def _round_trips(group: Communicator) -> list[int]:
    import torch

    tensor, took = torch.ones(256), []
    for _ in range(ROUNDS):
        started = time.monotonic_ns()
        group.send([tensor], 1)
        group.recv([tensor], 1)
        took.append(time.monotonic_ns() - started)
    return took


def _echo(group: Communicator) -> None:
    import torch

    tensor = torch.empty(256)
    for _ in range(ROUNDS):
        group.recv([tensor], 0)
        group.send([tensor], 0)
    group.destroy()


if __name__ == "__main__":
    sys.exit(main())
