# SPDX-License-Identifier: Apache-2.0
"""The results of a graph as a thread sees them that passes them on. It does not keep the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from rcg.channels.base import GraphEnded
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.serialization import Encoded


class ResultFeed:
    """Waits for results of a graph on behalf of handles.

    Args:
        session: The running graph.
        buffers: Where results arrive.
    """

    def __init__(self, session: Session, buffers: Sequence[OutputBuffer]) -> None:
        self._session = session
        self._buffers = buffers
        self.encode: Callable[[Any], Encoded] = session.node.encode

    def on_close(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once when the graph is torn down; it must not block."""
        self._session.on_close(call)

    def forget_close(self, call: Callable[[], None]) -> None:
        """Undo ``on_close``."""
        self._session.forget_close(call)

    def places(self) -> list[Any]:
        """Return the position of each output; a wait from there ends with the next result."""
        return [(buffer.reader, buffer.arrived) for buffer in self._buffers]

    def wait(self, places: list[Any], seen: int) -> int:
        """Wait until an output has a new result, and take the results that arrived.

        Args:
            places: What ``places`` returned before the caller looked for results.
            seen: What the last call returned; 0 at first. ``interrupt`` ends a wait.

        Raises:
            RuntimeError: This process is a fork of the one that compiled the graph.
        """
        with contextlib.suppress(GraphEnded):
            seen = self._session.node.wait_any(places, None, seen)
        for buffer in self._buffers:
            buffer.take_pending()
        return seen

    def interrupt(self) -> None:
        """End the waits of this process, which look again; any thread.

        Raises:
            RuntimeError: This process is a fork of the one that compiled the graph.
        """
        self._session.node.interrupt()
