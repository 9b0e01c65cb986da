# SPDX-License-Identifier: Apache-2.0
"""What a sender of frames may get wrong: a gate ends the connection, and nothing else happens.

Each input is a stream of several frames that would be right, changed at random places and cut
anywhere, in pieces of any size. ``python -m tests.process.test_fuzz_gate 100000`` tries more.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import time
from typing import Final

from tests.harness.board import BYTES, PICKLE, pattern, reader, until
from tests.process.test_native_gate import CHANNEL, Nodes, claimed, head_of, socket_pair

SHARE: Final = 3_000  # of `make test`
_SIZES: Final = (0, 1, 7, 100, 4096, 4097, 70_000)
_WORDS: Final = (0, 1, 0xFF, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def frame(chance: random.Random, channel: int, execution: int, **lies: int) -> bytes:
    """Return a frame as a link sends it, whose head says something else if that is asked."""
    sizes = [chance.choice(_SIZES) for _ in range(chance.randrange(4))]
    data = pattern(chance.choice(_SIZES), execution)
    facts = {
        "kind": chance.choice((BYTES, PICKLE)),
        "small_bytes": sum(size for size in sizes if size <= 4096),
        "payload_bytes": len(data) + sum(sizes),
    }
    head = head_of(channel, execution, len(data), len(sizes), **facts | lies)
    table = b"".join(struct.pack("<Q", size << 1 | chance.randrange(2)) for size in sizes)
    ordered = sorted(sizes, key=lambda size: size > 4096)
    return head + table + data + b"".join(pattern(size) for size in ordered)


def stream(chance: random.Random, nexts: list[int]) -> bytes:
    """Return several frames, wrong in some way; ``nexts`` are the executions that come next."""
    left = nexts.copy()
    frames = []
    for _ in range(chance.randrange(1, 5)):
        ring = chance.randrange(2)
        lies: dict[str, int] = {}
        if chance.random() < 0.3:  # a sender that is wrong, with a sum that fits
            field = chance.choice(
                ("nbuffers", "payload_bytes", "small_bytes", "data_bytes", "kind")
            )
            most = 32 if field in ("nbuffers", "kind") else 64
            lies = {field: chance.choice(_WORDS) % (1 << most)}
        frames.append(frame(chance, CHANNEL + ring, left[ring], **lies))
        left[ring] += 1
    found = bytearray(b"".join(frames))
    for _ in range(chance.choice((0, 0, 1, 1, 2, 8))):
        at = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                word = struct.pack("<Q", chance.choice(_WORDS))
                found[at : at + 8] = word
            case 2:
                del found[at : at + chance.choice((1, 8, 64))]
            case _:
                found[at:at] = found[: chance.choice((1, 8, 64))]
        if not found:
            break
    return bytes(found[: chance.randrange(len(found) + 1)] if chance.random() < 0.5 else found)


def fuzz(count: int, chance: random.Random) -> tuple[int, int]:
    """Send inputs to a gate; returns how many frames it passed, and how many it refused."""
    nodes = Nodes(slots=16, cap_bytes=64 << 20)
    readers = [
        [reader(nodes.there.member(each), 0) for each in (1, 2)],
        [reader(nodes.there.member(1), 1)],
    ]
    nexts = [0, 0]
    try:
        for number in range(count):
            near, far = socket_pair()
            nodes.gate.add(far.detach(), number, [0, 1])
            sent = stream(chance, nexts)
            with near, contextlib.suppress(ConnectionError):
                at = 0
                while at < len(sent):
                    size = chance.choice((1, 63, 64, 65, 1000, 1 << 20))
                    near.sendall(sent[at : at + size])
                    at += size
            loss = nodes.losses.get(timeout=60)
            assert loss[0] == number, (number, loss)
            for ring, each in enumerate(readers):
                seq = nodes.gate_member.ring(ring)[0]
                for _ in range(seq - nexts[ring]):
                    for one in each:
                        one.read(60_000_000_000)
                nexts[ring] = seq
        until(lambda: claimed(nodes.gate_member) == 0)
        return nodes.gate.statistics()[0], len(nodes.refusals)
    finally:
        nodes.close()


def test_no_stream_does_more_than_end_its_connection(dice: random.Random):
    passed, _ = fuzz(SHARE, dice)
    assert passed > SHARE // 4  # most inputs begin right


if __name__ == "__main__":
    begun = time.monotonic()
    seed = int((sys.argv[2:] or [random.randrange(10**9)])[0])
    print(f"python -m tests.process.test_fuzz_gate {sys.argv[1]} {seed}")
    passed, refused = fuzz(int(sys.argv[1]), random.Random(seed))
    print(f"{passed} frames passed, {refused} refused, {time.monotonic() - begun:.0f} s")
