# SPDX-License-Identifier: Apache-2.0
"""What a process keeps of tensors that it has freed, and reading those of another process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rcg.rdt.peer_memory import copy, may_read, read
from rcg.rdt.places import Spans, places_of
from tests.harness.interpreter import printed

torch = pytest.importorskip("torch")

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


OWNER = """
import sys

import torch

numbers = torch.arange(251, dtype=torch.uint8)
tensors = [
    (numbers + at % 5).repeat(each // 251 + 1)[:each].clone() for at, each in enumerate(SIZES)
]
print(*[each.data_ptr() for each in tensors], flush=True)
sys.stdin.readline()
tensors[0].untyped_storage().resize_(0)
print("freed", flush=True)
sys.stdin.readline()
"""


def test_memory_of_another_process_is_read_and_what_is_gone_is_an_error() -> None:
    sizes = [40 << 20, 0, 1, *range(3000)]  # the first has pages of its own, which go with it
    program = OWNER.replace("SIZES", repr(sizes))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        addresses = [int(each) for each in owner.stdout.readline().split()]
        assert may_read(owner.pid)
        numbers = torch.arange(251, dtype=torch.uint8)
        read_here = [torch.full((each,), 255, dtype=torch.uint8) for each in sizes]
        copied_here = [torch.full((each,), 255, dtype=torch.uint8) for each in sizes]
        here = places_of(read_here)
        there = here.copy()
        there[:, 0] = addresses
        read(owner.pid, Spans(there, here))
        copy(Spans(here, places_of(copied_here)))
        for at, size in enumerate(sizes):
            expected = (numbers + at % 5).repeat(size // 251 + 1)[:size]
            assert torch.equal(read_here[at], expected)
            assert torch.equal(copied_here[at], expected)
        print(file=owner.stdin, flush=True)
        assert owner.stdout.readline() == "freed\n"
        with pytest.raises(OSError, match="Bad address"):
            read(owner.pid, Spans(there[:1], here[:1]))
        print(file=owner.stdin, flush=True)
        pid = owner.pid
    assert not may_read(pid) and not may_read(0)
    with pytest.raises(ProcessLookupError):
        read(pid, Spans(there[:1], here[:1]))


FORK = """
import os

import torch

from rcg.rdt.lent import lend, open_block, freeze

torch.set_num_threads(1)  # a forked child has none of them


def opened(tensor):
    (place,) = freeze([tensor], lambda *_: False)
    return open_block(place.fd, place.start, tensor.numel())


ours = [torch.frombuffer(lend(1 << 20), dtype=torch.uint8).fill_(1) for _ in range(2)]
sent = opened(ours[0])  # the other one is sent later
child = os.fork()
if not child:
    for each in ours:
        each.fill_(2)
    os._exit(0)
os.waitpid(child, 0)
print(*[int(each.max()) for each in (*ours, sent, opened(ours[1]))])
"""


@pytest.mark.full
def test_what_a_forked_child_writes_to_lent_memory_stays_there() -> None:
    assert printed(FORK) == "1 1 1 1"
