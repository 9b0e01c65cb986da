# SPDX-License-Identifier: Apache-2.0
"""NIXL without a cluster: the blocks of a pool, and what is said where it is missing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import Unavailable
from rcg.rdt import nixl_agent
from rcg.rdt.nixl import _Pool
from rcg.rdt.nixl_agent import make_agent

torch = pytest.importorskip("torch")


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.booleans()), max_size=40
    )
)
def test_blocks_of_a_pool_never_overlap_and_all_come_back(steps) -> None:
    pool = _Pool(torch.zeros(2048, dtype=torch.uint8))
    taken = []
    for sizes, gives_back in steps:
        if gives_back and taken:
            pool.give_back(taken.pop(0))
        before = list(pool._free)
        blocks = pool.take(sizes)
        if blocks is None:
            assert pool._free == before
            continue
        assert [size for _, size in blocks] == sizes
        taken.append(blocks)
        used = sorted(block for some in taken for block in some)
        assert all(start % 64 == 0 and start + size <= 2048 for start, size in used)
        assert all(start + size <= later for (start, size), (later, _) in pairwise(used))
    for blocks in taken:
        pool.give_back(blocks)
    assert pool._free == [(0, 2048)]


def test_without_the_package_one_sentence_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(nixl_agent, "_package", lambda: "")
    with pytest.raises(Unavailable, match=r"NIXL needs a package: pip install 'rcg\[nixl\]'$"):
        make_agent("here")
