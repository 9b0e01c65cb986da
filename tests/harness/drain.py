# SPDX-License-Identifier: Apache-2.0
"""A drain of the recorder that runs on a thread of the test."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from rcg import _native
from rcg.trace.recorder import events_from
from tests.harness.board import Board

BATCH = 50_000  # the larger rings hold so many events, whenever the drain comes


class Running:
    """A drain that runs on a thread."""

    def __init__(self, board: Board, member: _native.Member, most: int = 10**7) -> None:
        self.drain = _native.Drain(member, board.fd, most)
        self._thread = threading.Thread(target=self.drain.run, args=(1_000_000,))
        self._thread.start()

    def stop(self) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """What it lost and what it has, for two members."""
        self.drain.stop()
        self._thread.join()
        found = [self.drain.take(number) for number in range(2)]
        return [(lost, events_from(records)) for lost, records in found]
