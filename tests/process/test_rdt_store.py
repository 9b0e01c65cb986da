# SPDX-License-Identifier: Apache-2.0
"""What a process keeps of tensors that it has freed."""

from __future__ import annotations

import pytest

from tests.interpreter import printed

pytest.importorskip("torch")

PROGRAM = """
import time

import torch

from rcg.rdt import keeper as keepers
from rcg.rdt.envelope import take_apart
from rcg.rdt.store import Entry, Store
from rcg.runtime.codec import make_codec


class News:
    def take_ended(self):
        return set()


def resident_mb():
    with open("/proc/self/status") as status:
        (line,) = [each for each in status if each.startswith("RssAnon")]
    return int(line.split()[1]) >> 10


def make_and_free():
    for number in range(20):
        tensor = torch.ones(5 << 20)
        contents, payloads = take_apart(tensor, make_codec())
        store.add(Entry(str(number), tensor, contents, payloads, "gloo", "it"))
    kept.append(bytearray(4 << 20))  # behind the tensors in the heap, so it cannot shrink
    store.free([str(number) for number in range(20)])


keepers.IDLE_S = 0.1
store = Store("tensors-1", lambda size: keeper.note_freed(size))
keeper = keepers.Keeper(store, "tensors-1", News())
kept = []
before = resident_mb()
keeper.note_freed = lambda size: None
make_and_free()  # from now on the C library keeps blocks of this size
make_and_free()
most = resident_mb() - before
del keeper.note_freed
make_and_free()
until = time.monotonic() + 60
while resident_mb() - before > 40:
    assert time.monotonic() < until, resident_mb() - before
    time.sleep(0.01)
print(most > 300)
"""


def test_memory_of_freed_tensors_goes_back_to_the_system() -> None:
    assert printed(PROGRAM) == "True"
