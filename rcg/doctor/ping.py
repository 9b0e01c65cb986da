# SPDX-License-Identifier: Apache-2.0
"""A ping through shared memory: ``python -m rcg.doctor.ping``, which ``rcg doctor`` runs.

It makes the segments of a small graph, sends frames to another process and back, and prints the
result as JSON. It is a separate process, so that any failure in it can be reported.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import sys
import time
from typing import Final

from rcg.channels import open_reader, open_writer
from rcg.channels.base import Reader, Writer
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan
from rcg.options import Options
from rcg.runtime.node.memory import Segments, Shared, default_memory_cap
from rcg.runtime.node.node import Node
from rcg.serialization import Codec

ROUNDS: Final = 200
UNCOUNTED: Final = 20
BLOCK_BYTES: Final = 1 << 20
CAP_BYTES: Final = 64 << 20
TIMEOUT_NS: Final = 10_000_000_000

PLAN: Final = """
plan positional=1 keywords=[] returns=one
actor a0 'Echo' ''
channel c0 driver -> a0 ring node=0 slots=2
channel c1 a0 -> driver ring node=1 slots=2
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c1 -> s1
  Output s1
program a0
  Read c0 -> s0
  Write s0 -> c1
  Free s0
"""


def main() -> int:
    """Run the ping and print ``{"made": ..., "round_trip_ns": ..., "cap_bytes": ...}``."""
    plan = Plan.from_text(PLAN)
    segments = Segments(plan, cap_bytes=CAP_BYTES)
    made = os.readlink(f"/proc/self/fd/{segments.board}")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _echo(segments, plan)
            status = 0
        finally:
            os._exit(status)
    times = _ping(segments, plan)
    _, status = os.waitpid(child, 0)
    found = {
        "made": "memfd_create" if "memfd" in made else "O_TMPFILE in /dev/shm",
        "round_trip_ns": int(statistics.median(times[UNCOUNTED:])),
        "cap_bytes": default_memory_cap(),
    }
    print(json.dumps(found))
    return os.waitstatus_to_exitcode(status)


def _ends(
    segments: Segments, plan: Plan, process: str, reads: str, writes: str
) -> tuple[Reader, Writer]:
    options = Options.from_environment()
    node = Node(
        Shared(segments.board, segments.arenas),
        segments.layout,
        process,
        options,
        Codec(pickle.Pickler),
        is_looping=False,
    )
    channels = plan.channels_by_id()
    return open_reader(channels[reads], 0, node), open_writer(channels[writes], 0, node)


def _echo(segments: Segments, plan: Plan) -> None:
    reader, writer = _ends(segments, plan, "a0", "c0", "c1")
    for _ in range(ROUNDS + 1):
        writer.write(reader.read(TIMEOUT_NS))


def _ping(segments: Segments, plan: Plan) -> list[int]:
    reader, writer = _ends(segments, plan, DRIVER, "c1", "c0")
    times = []
    for number in range(ROUNDS + 1):
        sent = os.urandom(BLOCK_BYTES if number == ROUNDS else 64)
        start = time.perf_counter_ns()
        writer.write(sent)
        found = reader.read(TIMEOUT_NS)
        times.append(time.perf_counter_ns() - start)
        if found != sent:
            raise RuntimeError(f"ping {number} came back changed")
    return times[:ROUNDS]


if __name__ == "__main__":
    sys.exit(main())
