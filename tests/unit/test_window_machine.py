# SPDX-License-Identifier: Apache-2.0
"""The window against a model that remembers every execution and every output by itself."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rcg._native import release
from rcg.errors import CapacityExceededError
from rcg.runtime.driver.window import Reading, Window


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
        self.wanted: list[set[int]] = []  # by execution: outputs with a ref
        self.complete = 0

    @property
    def unreleased(self) -> int:
        return sum(1 for outputs in self.wanted if outputs)

    @property
    def running(self) -> int:
        return len(self.wanted) - self.complete

    @property
    def is_exceeded(self) -> bool:
        """Whether the user has to fetch a result first, as the documentation says."""
        if self.is_strict:
            return self.unreleased >= self.limit
        return self.unreleased >= self.limit + self.buffered_limit

    @rule()
    def look(self) -> None:
        if self.is_exceeded:
            before = self.window.free_until
            with pytest.raises(CapacityExceededError, match=str(self.unreleased)) as caught:
                self.window.look(len(self.wanted), self.complete)
            assert caught.value.limit == (self.limit if self.is_strict else self.buffered_limit)
            assert self.window.free_until == before
        else:
            self.window.look(len(self.wanted), self.complete)
            # Either there is room for one, or waiting for an execution to complete makes some.
            assert self.window.free_until > len(self.wanted) or self.running >= self.limit

    @rule(data=st.data())
    def look_with_old_numbers(self, data: st.DataObject) -> None:
        """Others submit, and results arrive, between asking for the numbers and using them."""
        submitted = data.draw(st.integers(0, len(self.wanted)))
        complete = data.draw(st.integers(0, min(submitted, self.complete)))
        if not self.is_exceeded:
            self.window.look(submitted, complete)

    @precondition(lambda self: len(self.wanted) < self.window.free_until)
    @rule()
    def submit(self) -> None:
        assert not self.is_exceeded and self.running < self.limit
        self.window.left[len(self.wanted)] = self.window.wanted  # as the native core does
        self.wanted.append(set(range(self.outputs)))

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.complete = data.draw(st.integers(self.complete, len(self.wanted)))

    @precondition(lambda self: self.unreleased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """An output is fetched, or its ref is dropped, perhaps long before it arrives."""
        left = [execution for execution, outputs in enumerate(self.wanted) if outputs]
        execution = data.draw(st.sampled_from(left))
        output = data.draw(st.sampled_from(range(self.outputs)))  # perhaps once more
        self.wanted[execution].discard(output)
        release(self.window.left, execution, output)

    @invariant()
    def counts_agree(self) -> None:
        window = self.window
        assert len(window.left) == self.unreleased
        assert window.buffered(self.complete) == sum(map(bool, self.wanted[: self.complete]))

    @invariant()
    def what_may_be_submitted_exceeds_no_limit(self) -> None:
        """Also if it was worked out from old numbers: the limit of the next `submit` holds."""
        most = self.limit if self.is_strict else self.limit + self.buffered_limit
        submitted = len(self.wanted)
        more = max(0, self.window.free_until - submitted)
        assert self.running + more <= max(self.limit, self.running)
        assert self.unreleased + more <= max(most, self.unreleased)


TestWindow = WindowMachine.TestCase


def test_a_full_window_says_it_in_rays_words() -> None:
    """Programs match them."""
    window = Window(limit=2, buffered_limit=10, outputs=1, is_strict=True)
    window.left.update({0: window.wanted, 1: window.wanted})
    with pytest.raises(CapacityExceededError) as raised:
        window.look(2, 0)
    assert str(raised.value) == (
        "The compiled graph can't have more than 2 in-flight executions, and you currently have 2 "
        "in-flight executions. Retrieve an output using ray.get before submitting more requests or "
        "increase `_max_inflight_executions`. "
        "`dag.experimental_compile(_max_inflight_executions=...)`"
    )


def test_memory_narrows_the_window_and_never_widens_it() -> None:
    window = Window(limit=4, buffered_limit=10, outputs=1)
    for room, admitted in ((None, 4), (1, 1), (3, 3), (4, 4), (9, 4)):
        window.look(0, 0, room)
        assert (window.admitted, window.free_until) == (admitted, admitted)


def test_the_users_limit_may_be_more_than_the_channels_hold() -> None:
    """Then it limits the unfetched, and the channels those in flight."""
    window = Window(limit=2, capacity=4, buffered_limit=0, outputs=1, is_strict=True)
    for number in range(3):
        window.look(number, number)
        assert window.free_until == min(number + 2, 4)
        window.left[number] = window.wanted
    window.look(3, 3)
    assert window.free_until == 4
    window.left[3] = window.wanted
    with pytest.raises(CapacityExceededError) as raised:
        window.look(4, 4)
    assert raised.value.limit == 4


def test_a_get_that_passes_over_too_many_is_refused_until_they_are_fetched() -> None:
    left = dict.fromkeys(range(4), 1)
    reading = Reading(2, left)
    reading.look(0)
    with pytest.raises(
        CapacityExceededError, match="more than 2 buffered results, and you"
    ) as raised:
        reading.look(2)
    assert raised.value.limit == 2
    reading.look(1)
    del left[0]
    reading.look(2)
    reading.look(0)  # read already, with those after it
    del left[1]
    reading.look(3)
