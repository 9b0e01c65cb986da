# SPDX-License-Identifier: Apache-2.0
"""The limits that the bench measures between processes."""

from __future__ import annotations

from rcg.bench import limits


def test_ping_pong_measures_every_round() -> None:
    with limits.PingPong() as ping_pong:
        times = ping_pong.round_trips_ns(100)
    assert len(times) == 100 and min(times) > 0
