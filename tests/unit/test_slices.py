# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors as strides over bytes, against torch's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rcg.rdt.places import Spans, places_of, raw_view
from rcg.rdt.slices import Region, pieces_of, regions_from, regions_of, rows_of, runs_of


@st.composite
def _cases(draw):
    shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=4))
    whole = [range(size) for size in shape]

    def split():
        ranges = list(whole)
        if shape:
            dim = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[dim] - 1))
            ranges[dim] = range(start, draw(st.integers(start + 1, shape[dim])))
        return ranges

    return shape, split(), split()


def _bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8)


@given(_cases())
def test_a_box_is_copied_from_where_it_lies_to_where_it_is_wanted(case) -> None:
    shape, has, wants = case
    box = [
        range(max(one.start, other.start), min(one.stop, other.stop))
        for one, other in zip(has, wants, strict=True)
    ]
    if any(not each for each in box):
        return
    full = torch.arange(1, int(np.prod(shape)) + 1, dtype=torch.int32).reshape(shape)
    source = full[tuple(slice(each.start, each.stop) for each in has)].contiguous()
    target = torch.zeros([len(each) for each in wants], dtype=torch.int32)
    expected = target.clone()
    inside = tuple(
        slice(b.start - w.start, b.stop - w.start) for b, w in zip(box, wants, strict=True)
    )
    expected[inside] = full[tuple(slice(each.start, each.stop) for each in box)]

    there, here = regions_of(box, (0, has), (0, wants), 4)
    here.of(_bytes(target)).copy_(there.of(_bytes(source)))
    assert torch.equal(target, expected)

    # The same in parts of a bounded size.
    for most_bytes in (1, 5, 12, 40, there.size):
        target.zero_()
        for part, place in pieces_of(there, here, most_bytes):
            assert part.size == place.size <= most_bytes
            place.of(_bytes(target)).copy_(part.of(_bytes(source)))
        assert torch.equal(target, expected)

    # The same run by run.
    target.zero_()
    runs = runs_of([(there, here)])
    flat_source, flat_target = _bytes(source), _bytes(target)
    for _, start, _, at, size in zip(*(each.tolist() for each in runs), strict=True):
        flat_target[at : at + size] = flat_source[start : start + size]
    assert torch.equal(target, expected)


def test_what_lies_side_by_side_in_both_is_one_run() -> None:
    has = [range(4), range(8)]
    there, here = regions_of([range(1, 3), range(8)], (0, has), (0, [range(1, 3), range(8)]), 2)
    assert there.is_contiguous and (there.start, there.size) == (16, 32)
    assert here.is_contiguous and (here.start, here.size) == (0, 32)


@pytest.mark.parametrize(
    "row",
    [
        (1, 0, 1, 0, 1, 0, 4),  # no such tensor
        (-1, 0, 1, 0, 1, 0, 4),
        (0, 93, 1, 0, 1, 0, 8),  # past its end
        (0, 0, 3, 48, 1, 0, 5),
        (0, 96, 2, -48, 1, 0, 4),  # backwards
        (0, 0, 0, 0, 1, 0, 4),
    ],
)
def test_slices_of_memory_that_is_not_the_tensors_are_refused(row) -> None:
    with pytest.raises(ValueError, match="no such slice"):
        regions_from(rows_of([Region(*row)]), [100])


def test_a_table_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong size"):
        regions_from(rows_of([Region(0, 0, 1, 0, 1, 0, 4)])[:-1], [100])


def test_no_span_leaves_memory_as_it_is_when_it_is_copied() -> None:
    base = torch.zeros(100, dtype=torch.uint8)
    targets = [torch.zeros(40, dtype=torch.uint8), base[20:80]]
    runs = runs_of([(Region(0, 8, 2, 20, 1, 0, 10), Region(1, 0, 1, 0, 2, 50, 10))])
    there = places_of([torch.zeros(50, dtype=torch.uint8)])
    spans = runs.spans(there, places_of(targets))
    assert spans.there[:, 0].tolist() == [there[0, 0] + 8, there[0, 0] + 28]
    assert spans.here[:, 0].tolist() == [base.data_ptr() + 20, base.data_ptr() + 70]
    assert spans.here[:, 1].tolist() == spans.there[:, 1].tolist() == [10, 10]
    for smaller in (there, places_of(targets)):
        few = smaller.copy()
        few[-1, 1] = 37
        with pytest.raises(ValueError, match="not inside of its tensor"):
            runs.spans(*((few, places_of(targets)) if smaller is there else (there, few)))
    with pytest.raises(ValueError, match="there is not"):
        runs.spans(there, places_of(targets[:1]))
    with pytest.raises(ValueError, match="60 bytes are no copy into 40"):
        Spans(places_of(targets[1:]), places_of(targets[:1]))
    for size in (79, 0):  # as engines do that sleep
        base.untyped_storage().resize_(size)
        for make in (places_of, lambda some: raw_view(some[1])):
            with pytest.raises(ValueError, match=f"needs 80 bytes of .* has {size}:"):
                make(targets)
