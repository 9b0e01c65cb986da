# SPDX-License-Identifier: Apache-2.0
"""How the tensors of an object travel in runs, and the memory that they arrive in."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcg.rdt.envelope import take_apart
from rcg.rdt.runs import _join, _pad, _runs, fresh_memory, receive_in_runs, send_in_runs
from rcg.runtime.codec import make_codec

torch = pytest.importorskip("torch")

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("size", [0, 1, 4096, 4 << 20, (4 << 20) + 12_345])
def test_it_is_a_tensor_of_bytes_that_may_be_written_to(size):
    made = fresh_memory(size, "cpu")
    assert (made.dtype, made.shape, made.device.type) == (torch.uint8, (size,), "cpu")
    assert int(made.fill_(1).sum()) == size


@pytest.mark.skipif(
    not HUGE.exists() or "[never]" in HUGE.read_text(), reason="this kernel has no huge pages"
)
def test_large_ones_ask_for_huge_pages():
    made = fresh_memory(64 << 20, "cpu")
    inside = made.data_ptr() + (32 << 20)
    flags = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        start, dash, end = first.partition("-")
        if dash:
            is_it = int(start, 16) <= inside < int(end, 16)
        elif first == "VmFlags:" and is_it:
            flags = rest
    assert "hg" in flags.split()  # see proc_pid_smaps(5)


def test_small_tensors_travel_in_one_piece_at_aligned_places() -> None:
    small, large = 100, 1 << 20
    assert _runs([]) == []
    assert _runs([small, large, small, small, 0]) == [[0], [1], [2, 3, 4]]
    many = _runs([250_000] * 100)
    assert [at for run in many for at in run] == list(range(100))
    assert max(map(len, many)) * _pad(250_000) <= 16 << 20
    parts = [torch.full((size,), at, dtype=torch.uint8) for at, size in enumerate((3, 64, 65))]
    whole = _join(parts)
    assert whole.numel() == 64 + 64 + 128
    assert whole[0:3].tolist() == [0, 0, 0] and whole[64:128].eq(1).all()
    assert whole[128 : 128 + 65].eq(2).all()


def over_runs(value):
    """Return a value as it comes out of runs at the other end."""
    contents, payloads = take_apart(value, make_codec())
    sent = []
    send_in_runs(payloads, bool, lambda _, take: sent.append(take().clone()))
    arrived = iter(sent)
    received = receive_in_runs(
        contents.sizes, "cpu", None, lambda into: into.copy_(next(arrived).view(into.shape))
    )
    return contents.put_back(received)


def test_tensors_of_one_run_that_are_views_are_themselves_at_the_other_end() -> None:
    base = torch.arange(60.0)
    value = {
        "first": torch.arange(7),
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "shared": [base[10:20], base[15:40:5], base],
        "conjugated": torch.full((3,), 1 + 2j).conj(),
        "bfloat": torch.ones(5, dtype=torch.bfloat16)[2:],
        "storage": torch.arange(9, dtype=torch.uint8).untyped_storage(),
    }
    found = over_runs(value)
    storage = found.pop("storage")
    assert storage.nbytes() == 9 and list(storage) == list(range(9))
    for name in ("first", "transposed", "conjugated", "bfloat"):
        assert torch.equal(found[name], value[name]), name
        assert found[name].stride() == value[name].stride()
    assert all(map(torch.equal, found["shared"], value["shared"]))
    found["shared"][2][15] = -1  # they share their memory, as before
    assert found["shared"][0][5] == found["shared"][1][0] == -1
