# SPDX-License-Identifier: Apache-2.0
"""Finishing a clean-up although Ctrl-C is pressed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from rcg.errors import OutOfThreads
from rcg.log import Log
from rcg.threads import start_thread

_log = Log()


def run_uninterrupted(
    call: Callable[[Callable[[str], object]], list[str]],
) -> tuple[list[str], bool]:
    """Run an idempotent ``call`` to its end; returns its result, and whether Ctrl-C was pressed.

    Its warnings are logged on the calling thread: if that is in a log handler, no other thread
        could
    log.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(_log.warning), False
    interrupted = False
    results: list[list[str]] = []

    def run(said: SimpleQueue[str | None]) -> None:
        try:
            results.append(call(said.put))
        finally:
            said.put(None)

    while True:
        try:
            # Ctrl-C may come before, in or after the start, so the next turn calls once more.
            said: SimpleQueue[str | None] = SimpleQueue()
            thread = threading.Thread(target=run, args=(said,), name="rcg-teardown", daemon=True)
            try:
                start_thread(thread, "to tear a compiled graph down")
            except OutOfThreads:
                return call(_log.warning), interrupted
            while (text := said.get()) is not None:
                _log.warning(text)
            thread.join()
            return (results[-1] if results else []), interrupted
        except KeyboardInterrupt:
            interrupted = True
