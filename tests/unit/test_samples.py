# SPDX-License-Identifier: Apache-2.0
"""A sample of the bytes of tensors shows whether they were written to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.rdt.samples import Sample
from rcg.rdt.slices import Region

torch = pytest.importorskip("torch")


def test_every_write_to_few_bytes_is_found_where_one_looks() -> None:
    @given(
        st.lists(st.integers(0, 300), min_size=1, max_size=4).filter(any),
        st.data(),
    )
    def check(sizes, data) -> None:
        payloads = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
        sample = Sample(payloads, range(len(sizes)))
        assert sample.find_changed() is None
        number = data.draw(st.sampled_from([at for at, size in enumerate(sizes) if size]))
        at = data.draw(st.integers(0, sizes[number] - 1))
        payloads[number].numpy()[at] = 1
        assert sample.find_changed() == number
        assert sample.find_changed([Region(number, at, 1, 0, 1, 0, 1)]) == number
        assert (
            sample.find_changed(
                [
                    Region(each, 0, 1, 0, 1, 0, size)
                    for each, size in enumerate(sizes)
                    if each != number
                ]
            )
            is None
        )
        assert (
            Sample(payloads, [each for each in range(len(sizes)) if each != number]).find_changed()
            is None
        )

    check()


def test_of_many_bytes_a_long_write_is_always_found_and_a_short_one_sometimes() -> None:
    memory = torch.zeros((256 << 20) + 100, dtype=torch.uint8)
    found = 0
    for at in range(600):
        sample = Sample([memory], [0]) if at % 100 == 0 else sample
        place = 8192 * 37 * at
        window = [Region(0, place, 1, 0, 1, 0, 8192)]
        assert sample.find_changed(window) is None
        memory[place + 100] ^= 1
        found += sample.find_changed(window) is not None
        memory[place + 100] ^= 1
        memory[place + 7 : place + 7 + 8191] ^= 1
        assert sample.find_changed([Region(0, place, 1, 0, 1, 0, 8199)]) == 0
        memory[place + 7 : place + 7 + 8191] ^= 1
    assert 0 < found < 60  # one in 64
