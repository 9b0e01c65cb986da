# SPDX-License-Identifier: Apache-2.0
"""What an execution takes, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import GraphError
from rcg.ir.signature import ExecutionSignature

# The keys of an input: all of it, or any of its parts.
KEYS = st.one_of(
    st.just([None]),
    st.lists(st.one_of(st.integers(0, 5), st.sampled_from("abc")), unique=True, min_size=1),
)


@given(KEYS)
def test_every_key_gets_its_argument_in_the_order_of_the_keys(keys):
    signature = ExecutionSignature.of(keys)
    args = [f"argument {i}" for i in range(signature.num_positional)]
    kwargs = {name: f"keyword {name}" for name in (*signature.keywords, "unasked")}
    expected = [
        kwargs[key] if isinstance(key, str) else args[0 if key is None else key] for key in keys
    ]
    assert signature.values(args, kwargs) == expected


@given(KEYS, st.integers(0, 8))
def test_no_other_number_of_positional_arguments_is_taken(keys, count):
    signature = ExecutionSignature.of(keys)
    kwargs = dict.fromkeys(signature.keywords)
    needed = (
        max([0 if key is None else key for key in keys if not isinstance(key, str)] or [-1]) + 1
    )
    if count == needed:
        signature.values(range(count), kwargs)
    else:
        with pytest.raises(GraphError, match=rf"{needed} positional args, got {count}(\.|$)"):
            signature.values(range(count), kwargs)


@given(KEYS)
def test_a_keyword_that_is_missing_is_named(keys):
    signature = ExecutionSignature.of(keys)
    args = range(signature.num_positional)
    for missing in signature.keywords:
        kwargs = {name: 1 for name in signature.keywords if name != missing}
        with pytest.raises(GraphError, match=f"must be called with kwarg `{missing}`"):
            signature.values(args, kwargs)
