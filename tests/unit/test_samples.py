# SPDX-License-Identifier: Apache-2.0
"""A sample of the bytes of tensors shows whether they were written to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.rdt.samples import Sample
from rcg.rdt.slices import Region, rows_of

torch = pytest.importorskip("torch")


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.data())
def test_of_few_bytes_every_write_is_found_where_one_looks(sizes, data) -> None:
    payloads = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    sample = Sample(payloads, range(len(sizes)))
    assert sample.find_changed() is None
    number = data.draw(st.sampled_from(range(len(sizes))))
    at = data.draw(st.integers(0, sizes[number] - 1))
    payloads[number].numpy()[at] = 1
    assert sample.find_changed() == number
    assert sample.find_changed(rows_of([Region(number, at, 1, 0, 1, 0, 1)])) == number
    others = [each for each in range(len(sizes)) if each != number]
    whole = [Region(each, 0, 1, 0, 1, 0, sizes[each]) for each in others]
    assert sample.find_changed(rows_of(whole)) is None


def test_of_many_bytes_a_long_write_is_always_found_and_a_short_one_sometimes() -> None:
    memory = torch.zeros((64 << 20) + 100, dtype=torch.uint8)  # one line of 16 is in the sample
    sample, found = Sample([memory], [0]), 0
    for place in range(0, 64 << 20, 100_000):
        window = rows_of([Region(0, place, 1, 0, 1, 0, 8192)])
        assert sample.find_changed(window) is None
        memory[place + 4100] ^= 1
        found += sample.find_changed(window) is not None
        memory[place + 4100] ^= 1
        memory[place : place + 8192] ^= 1
        assert sample.find_changed(window) == 0
        memory[place : place + 8192] ^= 1
    assert 10 < found < 90  # 42 are to be expected, of 672
