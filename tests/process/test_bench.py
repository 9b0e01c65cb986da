# SPDX-License-Identifier: Apache-2.0
"""The limits that the bench measures between processes."""

from __future__ import annotations

from contextlib import closing

import pytest

from rcg.bench import limits


def test_ping_pong_measures_every_round() -> None:
    with closing(limits.PingPong()) as ping_pong:
        times = ping_pong.round_trips_ns(100)
    assert len(times) == 100 and min(times) > 0


@pytest.mark.parametrize("size_bytes", [1, 3_000_000])
def test_a_message_comes_back_by_tcp(size_bytes: int) -> None:
    with closing(limits.TcpPingPong(size_bytes)) as ping_pong:
        ping_pong.message[:] = bytes([7]) * size_bytes
        for _ in range(3):
            ping_pong.round_trip()
        assert ping_pong.answer == ping_pong.message
        other = ping_pong.process
        assert other.poll() is None
    assert other.wait(60) == 0


def test_a_tcp_ping_pong_whose_other_side_has_ended_says_so() -> None:
    with closing(limits.TcpPingPong(1)) as ping_pong:
        ping_pong.process.kill()
        ping_pong.process.wait()
        with pytest.raises(ConnectionError):
            ping_pong.round_trip()
