# SPDX-License-Identifier: Apache-2.0
"""Memory into which tensors are received: large ones lie in huge pages, if there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcg.rdt.groups import fresh_memory

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
