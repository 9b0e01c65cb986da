# SPDX-License-Identifier: Apache-2.0
"""One agent of NIXL reads a tensor of another: ``python -m rcg.doctor.nixl``, for ``rcg doctor``.

It prints the time of a read in nanoseconds, or raises. It is a separate process for the same
reasons as ``rcg.doctor.gloo``.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any, Final

from rcg.rdt.nixl_agent import make_agent

ROUNDS: Final = 20
SIZE: Final = 1000  # bytes
TIMEOUT_S: Final = 20.0


def main() -> int:
    """Read the tensor again and again, and print the median time."""
    import torch

    holder, reader = make_agent("doctor-holder"), make_agent("doctor-reader")
    source, target = torch.ones(SIZE, dtype=torch.uint8), torch.zeros(SIZE, dtype=torch.uint8)
    offered = holder.register_memory([source])
    reader.register_memory([target])
    name = reader.add_remote_agent(holder.get_partial_agent_metadata(offered, True)).decode()
    there = reader.get_xfer_descs([(source.data_ptr(), SIZE, 0)], "DRAM")
    took = [_read(reader, reader.get_xfer_descs([target]), there, name) for _ in range(ROUNDS)]
    if not torch.equal(source, target):
        raise RuntimeError("what was read is not what was offered")
    print(int(statistics.median(took)))
    return 0


def _read(reader: Any, here: Any, there: Any, name: str) -> int:
    started_ns = time.monotonic_ns()
    transfer = reader.initialize_xfer("READ", here, there, name)
    state = reader.transfer(transfer)
    while state == "PROC":
        if time.monotonic_ns() - started_ns > TIMEOUT_S * 1e9:
            raise TimeoutError(f"a read did not end in {TIMEOUT_S:g} s")
        state = reader.check_xfer_state(transfer)
    if state != "DONE":
        raise RuntimeError("a read failed")
    took_ns = time.monotonic_ns() - started_ns
    reader.release_xfer_handle(transfer)
    return took_ns


if __name__ == "__main__":
    sys.exit(main())
