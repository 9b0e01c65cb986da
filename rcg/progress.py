# SPDX-License-Identifier: Apache-2.0
"""The progress of long operations, shown in a terminal or a notebook.

Nothing is shown for work of less than a second, if output goes to a file or a pipe, or with
``RCG_PROGRESS=0``. A notebook shows tqdm's bar if tqdm and ipywidgets are installed, a terminal
shows tqdm's bar if tqdm is installed. Otherwise it is a line of text, which is overwritten and
removed.

>>> for part in progress(range(3), "adding"):
...     _ = part
>>> with progress(2, "building") as work:
...     work.start("building the second half")
...     work.advance()
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final, Generic, Self, TextIO, TypeVar

from rcg.options import is_progress_wanted

T = TypeVar("T")

SILENT_S: Final = 1.0
"""Work that is done by then shows nothing."""

REDRAW_S: Final = 0.1
"""Time between two drawings."""

WIDTH: Final = 30


def progress(work: Iterable[T] | int, label: str = "") -> Progress[T]:
    """Return an object that iterates over ``work`` and shows its progress.

    Args:
        work: What to go through, or how many steps there will be.
        label: What is being done.
    """
    items: Any = range(work) if isinstance(work, int) else work
    return Progress(len(items) if isinstance(items, Sized) else None, label, items=items)


def notice(text: str) -> None:
    """Print a line that is no error: on standard error, which is red in a notebook; there not."""
    stream = sys.stdout if _is_notebook() else sys.stderr
    if stream is not None:
        print(text, file=stream, flush=True)


class Progress(Generic[T]):
    """Counts steps and shows them, once they take long. Iterating counts each item as a step.

    Args:
        total: How many steps there will be, None if that is not known.
        label: What is being done.
        items: What iterating goes through.
        stream: Where text goes; None for standard error, which is red in a notebook, and there for
            standard output.
        clock: Seconds; tests pass their own.
    """

    def __init__(
        self,
        total: int | None,
        label: str = "",
        *,
        items: Iterable[T] = (),
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._label = label
        self._items = items
        self._clock = clock
        self._done = 0
        usual = sys.stdout if _is_notebook() else sys.stderr
        self._stream = usual if stream is None else stream
        self._look: _Line | _Tqdm | None = None
        self._is_shown = is_progress_wanted() and (self._stream.isatty() or _is_notebook())
        self._next = clock() + SILENT_S

    def start(self, label: str) -> None:
        """Say what is being done now."""
        self._label = label
        self._draw()

    def advance(self, steps: int = 1) -> None:
        """Count steps as done; never more than there are."""
        self._done += steps
        if self._total is not None:
            self._done = min(self._total, self._done)
        self._draw()

    def close(self) -> None:
        """Take away what is shown. Idempotent."""
        self._is_shown = False
        look, self._look = self._look, None
        if look is not None:
            look.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        try:
            for item in self._items:
                yield item
                self.advance()
        finally:
            self.close()

    def _draw(self) -> None:
        if not self._is_shown or (now := self._clock()) < self._next:
            return
        self._next = now + REDRAW_S
        if self._look is None:
            self._look = _look_of(self._stream, self._total)
        self._look.draw(self._done, self._label)


# --- what it looks like -------------------------------------------------------------------------


class _Line:
    """A line of text that is written over itself."""

    def __init__(self, stream: TextIO, total: int | None) -> None:
        self._stream = stream
        self._total = total
        # A terminal can erase a line; a notebook only writes over it.
        self._erase = "\r\x1b[2K" if stream.isatty() else "\r"
        self._width = 0

    def draw(self, done: int, label: str) -> None:
        if self._total:
            bar = ("#" * (WIDTH * done // self._total)).ljust(WIDTH, ".")
            text = f"[{bar}] {100 * done // self._total:3d} % {label}"
        else:
            text = f"{label}: {done}" if label else f"{done}"
        self._write(text)

    def close(self) -> None:
        self._write("")
        self._stream.write("\r")
        self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(self._erase + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text) if self._erase == "\r" else 0


class _Tqdm:
    """tqdm's bar, in a terminal or a notebook."""

    def __init__(self, stream: TextIO, total: int | None) -> None:
        from tqdm.auto import tqdm

        # No thread of tqdm's own that looks after bars: it would outlive the bar.
        bar = type("Bar", (tqdm,), {"monitor_interval": 0})
        self._bar: Any = bar(total=total, file=stream, leave=False, mininterval=0)

    def draw(self, done: int, label: str) -> None:
        self._bar.set_description(label, refresh=False)
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def _look_of(stream: TextIO, total: int | None) -> _Line | _Tqdm:
    needed = ("tqdm", "ipywidgets") if _is_notebook() else ("tqdm",)
    if all(importlib.util.find_spec(name) is not None for name in needed):
        return _Tqdm(stream, total)
    return _Line(stream, total)


def _is_notebook() -> bool:
    """Return whether this is the process of a Jupyter kernel; does not load IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
