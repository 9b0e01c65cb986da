# SPDX-License-Identifier: Apache-2.0
"""The watch over a wait, on a clock of its own: when it asks, says something, and ends."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.options import Deadline
from rcg.runtime import watch as watch_module
from rcg.runtime.watch import Watch, ahead_s


@dataclass
class Clock:
    """Time goes on only while somebody sleeps."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + 1e-6  # a kernel wakes a little late, never early


@dataclass
class Graph:
    """A graph that notes when it is asked, and when something is said of it."""

    clock: Clock
    report_after_s: float | None
    answers_within_s: float = 0.5
    said: dict[int, object] = field(default_factory=dict)
    asked_s: list[tuple[float, float]] = field(default_factory=list)

    def get_id(self) -> str:
        return "abc"

    def hang(self) -> int:
        return 0

    def inquire(self, within_s: float) -> Any:
        self.asked_s.append((self.clock.now_s, within_s))
        return SimpleNamespace(text=lambda: f"asked {within_s > 0}")


times = st.floats(min_value=0, max_value=100).map(lambda s: round(s, 3))


@given(timeout_s=st.none() | times, after_s=st.none() | times, arrives_s=times)
def test_a_wait_ends_in_time_asks_ahead_and_speaks_once(
    timeout_s: float | None, after_s: float | None, arrives_s: float
) -> None:
    clock = Clock()
    graph, spoken = Graph(clock, after_s), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "time", clock)
        patch.setattr(watch_module, "say_why", lambda *args: spoken.append((clock.now_s, args[2])))
        began_s = clock.now_s
        deadline = Deadline(timeout_s, clock_ns=clock.monotonic_ns)
        watch = Watch(graph, deadline, SimpleNamespace(done=lambda: False))
        looks, error = 0, None
        while True:
            is_late, sleep_s = watch.is_late, watch.next_s()
            left_s = began_s + arrives_s - clock.now_s
            if left_s <= 0 or (not is_late and (sleep_s is None or left_s < sleep_s)):
                clock.now_s = max(clock.now_s, began_s + arrives_s)
                watch.end()
                break
            if is_late:
                error = watch.error("nothing came")
                break
            clock.sleep(sleep_s or 0.0)
            watch.look()
            looks += 1
            assert looks <= 5  # there are two things to do, and the end
        took_s = clock.now_s - began_s

    if error is None:
        assert took_s == pytest.approx(arrives_s, abs=1e-4)
        if after_s is not None and took_s > after_s:
            assert graph.report_after_s == pytest.approx(max(after_s, min(2 * took_s, 60.0)))
    else:
        assert timeout_s is not None and timeout_s <= took_s < timeout_s + 1e-4
        assert error.timeout_s == (timeout_s if timeout_s > 0.02 else 0.0)
        is_asked = timeout_s > 0.02
        assert not graph.asked_s or is_asked  # a poll makes a report only for who reads it
        assert error.report == f"asked {is_asked}"
        if is_asked:
            (at_s, within_s), *_ = graph.asked_s
            assert within_s == pytest.approx(ahead_s(graph, timeout_s), abs=1e-4)
            assert at_s - began_s == pytest.approx(timeout_s - within_s, abs=1e-4)
            assert 0 < within_s <= min(0.5, max(timeout_s / 4, 0.05), timeout_s / 2)
        assert str(error).count("asked") == 1 and pickle.loads(pickle.dumps(error)).report
    assert len(graph.asked_s) <= 1
    is_long = after_s is not None and took_s > after_s + 1e-4
    assert len(spoken) <= 1 and (not is_long or spoken)
    if spoken:
        assert spoken[0][1] == after_s and spoken[0][0] - began_s == pytest.approx(
            after_s, abs=1e-4
        )


def test_only_a_get_says_what_it_waits_for() -> None:
    graph = Graph(Clock(), report_after_s=0.0)
    watch = Watch(graph, Deadline(None))
    assert watch.next_s() is None
    watch.look()
    watch.end()
    assert graph.report_after_s == 0.0 and not graph.said and not graph.asked_s
