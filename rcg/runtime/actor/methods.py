# SPDX-License-Identifier: Apache-2.0
"""The user's methods as a graph's loop calls them: the plain ones, and those of ``async def``.

An ``async def`` method runs on the actor's own event loop. The loop's thread waits for it, so a
program runs in its order; other coroutines of the actor run meanwhile, as beside any ``await``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final

__rcg_plumbing__ = True  # see rcg.frames

_EVENT_LOOP: Final = "asyncio.events"  # the module that runs the steps of a coroutine

PLAIN: Final = "__rcg_plain__"
"""Where a method that an actor of rcg puts in place of the user's keeps the user's."""


def plain_of(method: Any) -> Any:
    """Return the user's own method behind one of ``rcg.rdt.methods``; others unchanged."""
    plain = getattr(getattr(method, "__func__", None), PLAIN, None)
    return method if plain is None else plain.__get__(method.__self__)


class Coroutines:
    """Runs coroutines of one graph on an actor's event loop, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: concurrent.futures.Future[Any] | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._is_cancelled = False
        self._thread = 0

    def blocking(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Return ``method`` as a function that waits for its coroutine, on any other thread."""

        def call(*args: Any, **kwargs: Any) -> Any:
            coroutine = self._coroutine = method(*args, **kwargs)
            future = asyncio.run_coroutine_threadsafe(self._run(coroutine), self._loop)
            self._future = future
            if self._is_cancelled:
                future.cancel()
            try:
                value, left = future.result()
            finally:
                self._coroutine = self._future = None
            if left is not None:
                raise left
            return value

        return call

    async def _run(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
        self._thread = threading.get_ident()
        try:
            return await coroutine, None
        except BaseException as error:
            if self._is_cancelled and isinstance(error, asyncio.CancelledError):
                raise
            # As a value: futures ask an exception whether it is true, drop the traceback of a
            # CancelledError, and one that ends programs would end the actor's event loop.
            return None, error

    def cancel(self) -> None:
        """Cancel the coroutine that runs, and all to come: the graph ends. Any thread."""
        self._is_cancelled = True
        future = self._future
        if future is not None:
            future.cancel()

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return the coroutine's stack, (frame, line), the method's first; [] if there is none.

        A suspended coroutine has its own stack; a running one that of its event loop.
        """
        found: list[tuple[FrameType, int]] = []
        awaited: Any = self._coroutine
        if getattr(awaited, "cr_running", False):
            frame = sys._current_frames().get(self._thread)
            while frame is not None and frame.f_globals.get("__name__") != _EVENT_LOOP:
                found.insert(0, (frame, frame.f_lineno))
                frame = frame.f_back
            return found
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is None:
                break
            found.append((frame, frame.f_lineno))
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        return found
