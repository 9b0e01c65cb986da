# SPDX-License-Identifier: Apache-2.0
"""``async def`` methods: called by a graph's loop thread, run on the actor's own event loop.

The thread waits for each, so a program runs in its order; other coroutines of the actor run
meanwhile, as they do beside any ``await``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

__all__ = ["Coroutines"]


class Coroutines:
    """Runs coroutines of one graph on an event loop of this process, one at a time.

    Args:
        loop: The actor's event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: concurrent.futures.Future[Any] | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._is_cancelled = False

    def blocking(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Return ``method`` as a function that waits for its coroutine, on any other thread."""

        def call(*args: Any, **kwargs: Any) -> Any:
            coroutine = self._coroutine = method(*args, **kwargs)
            future = self._future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            if self._is_cancelled:
                future.cancel()
            try:
                return future.result()
            finally:
                self._coroutine = self._future = None

        return call

    def cancel(self) -> None:
        """Cancel the coroutine that runs, and all to come: the graph ends. Any thread."""
        self._is_cancelled = True
        future = self._future
        if future is not None:
            future.cancel()

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return where the coroutine that runs is suspended: (frame, line), the method's first."""
        found = []
        awaited: Any = self._coroutine
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is None:
                break
            found.append((frame, frame.f_lineno))
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        return found
