# SPDX-License-Identifier: Apache-2.0
"""The window against a model that remembers every execution and every output by itself."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rcg.errors import CapacityExceededError
from rcg.runtime.window import Window


class WindowMachine(RuleBasedStateMachine):
    @initialize(
        limit=st.integers(1, 4),
        buffered_limit=st.integers(0, 4),
        outputs=st.integers(1, 3),
        is_strict=st.booleans(),
    )
    def open(self, limit: int, buffered_limit: int, outputs: int, is_strict: bool) -> None:
        self.window = Window(
            limit=limit, buffered_limit=buffered_limit, outputs=outputs, is_strict=is_strict
        )
        self.limit, self.buffered_limit, self.is_strict = limit, buffered_limit, is_strict
        self.outputs = outputs
        self.wanted: list[set[int]] = []  # by execution: outputs that somebody still wants
        self.complete = 0

    @property
    def unreleased(self) -> int:
        return sum(1 for outputs in self.wanted if outputs)

    @property
    def running(self) -> int:
        return len(self.wanted) - self.complete

    @property
    def is_exceeded(self) -> bool:
        """Whether the user has to fetch something first, by the words of the documentation."""
        if self.is_strict:
            return self.unreleased >= self.limit
        return self.unreleased >= self.limit + self.buffered_limit

    @rule()
    def look(self) -> None:
        if self.is_exceeded:
            before = self.window.free_until
            with pytest.raises(CapacityExceededError, match=str(self.unreleased)) as caught:
                self.window.look()
            assert caught.value.limit == (self.limit if self.is_strict else self.buffered_limit)
            assert self.window.free_until == before
        else:
            self.window.look()
            # Either there is room for one, or waiting for an execution to complete makes some.
            assert self.window.free_until > len(self.wanted) or self.running >= self.limit

    @precondition(lambda self: len(self.wanted) < self.window.free_until)
    @rule()
    def submit(self) -> None:
        assert not self.is_exceeded and self.running < self.limit
        assert self.window.submit() == len(self.wanted)
        self.wanted.append(set(range(self.outputs)))

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        complete = data.draw(st.integers(0, len(self.wanted)))  # may be old news
        self.window.arrive(complete)
        self.complete = max(self.complete, complete)

    @precondition(lambda self: self.unreleased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """An output is fetched, or its ref is dropped, perhaps long before it arrives."""
        left = [execution for execution, outputs in enumerate(self.wanted) if outputs]
        execution = data.draw(st.sampled_from(left))
        output = data.draw(st.sampled_from(range(self.outputs)))  # perhaps once more
        self.wanted[execution].discard(output)
        self.window.release(execution, output)

    @invariant()
    def counts_agree(self) -> None:
        window = self.window
        assert window.submitted == len(self.wanted)
        assert window.complete == self.complete
        assert window.submitted - window.released == self.unreleased
        assert window.is_full == (self.running >= self.limit)

    @invariant()
    def nothing_is_remembered_of_what_was_released(self) -> None:
        assert len(self.window._left) <= self.unreleased


TestWindow = WindowMachine.TestCase


def test_a_full_window_says_it_in_rays_words() -> None:
    """Programs match them."""
    window = Window(limit=2, buffered_limit=10, outputs=1, is_strict=True)
    window.submit()
    window.submit()
    with pytest.raises(CapacityExceededError) as raised:
        window.look()
    assert str(raised.value) == (
        "The compiled graph can't have more than 2 in-flight executions, and you currently have 2 "
        "in-flight executions. Retrieve an output using rcg.get before submitting more requests or "
        "increase `_max_inflight_executions`. "
        "`dag.experimental_compile(_max_inflight_executions=...)`"
    )
