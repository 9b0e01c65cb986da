# SPDX-License-Identifier: Apache-2.0
"""A progress bar for a person who waits, and silence for everything that is not a terminal."""

from __future__ import annotations

from typing import TextIO

WIDTH = 30


class Progress:
    """Shows how much of a known number of steps is done.

    Nothing is written where `stream` is not a terminal.
    """

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = max(1, steps)
        self._done = 0
        self._stream = stream
        self._is_shown = stream.isatty()
        self._label = ""

    def start(self, label: str) -> None:
        """Says what is being done now."""
        self._label = label
        self._draw()

    def advance(self) -> None:
        """Counts one step as done."""
        self._done = min(self._steps, self._done + 1)
        self._draw()

    def close(self) -> None:
        """Takes the bar away."""
        if self._is_shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def _draw(self) -> None:
        if not self._is_shown:
            return
        filled = WIDTH * self._done // self._steps
        bar = "#" * filled + "." * (WIDTH - filled)
        self._stream.write(f"\r\x1b[2K[{bar}] {100 * self._done // self._steps:3d} % {self._label}")
        self._stream.flush()
