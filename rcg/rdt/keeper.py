# SPDX-License-Identifier: Apache-2.0
"""The keeper of a process: it asks Ray who still holds an anchor, and frees what nobody holds.

Ray has no call-back for the end of a reference. But it says whether an object exists:
``ray.wait([ray.ObjectRef(id)], timeout=0, fetch_local=False)``, 1,000 ids in a millisecond (FACTS).
An anchor exists in the process that put it as long as anybody holds it. So a thread asks, often
while something changes and rarely while nothing does, and never for more than a small part of its
time.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from rcg import cluster
from rcg.log import Log
from rcg.rdt.store import Store

__all__ = ["Keeper"]

_log = Log()

_FIRST_S: Final = 0.02  # between two looks, while objects come and go
_LAST_S: Final = 0.5  # while nothing happens
_LONGER: Final = 1.25
_PART: Final = 20  # a look takes at most one part in so many of the time


class Keeper:
    """Frees the objects of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def look(self) -> None:
        """Look soon, and often for a while: objects have come, or may go. Any thread."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    made = threading.Thread(target=self._run, name="rcg-keeper", daemon=True)
                    made.start()
                    self._thread = made
        self._news.set()

    def _run(self) -> None:
        pause_s = _FIRST_S
        while True:
            if self._news.wait(pause_s):
                self._news.clear()
                pause_s = _FIRST_S
                time.sleep(_FIRST_S)
            started_s = time.monotonic()
            has_freed = False
            try:
                if cluster.is_connected():
                    has_freed = self._free()
                else:  # the session has ended, and all of its references with it
                    self._store.free([each.key for each in self._store.entries()])
            except Exception:  # noqa: BLE001 - Ray is going down, or the process is
                if cluster.is_connected():
                    _log.exception("rcg: the keeper of tensors cannot ask Ray")
            if not self._store.facts().held:
                pause_s = 3600.0  # until something comes
                continue
            busy_s = time.monotonic() - started_s
            pause_s = _FIRST_S if has_freed else min(pause_s * _LONGER, _LAST_S)
            pause_s = max(pause_s, busy_s * _PART)

    def _free(self) -> bool:
        entries = self._store.entries()
        if not entries:
            return False
        exist = cluster.which_exist([each.anchor for each in entries])
        gone = [each.key for each, is_there in zip(entries, exist, strict=True) if not is_there]
        del entries
        self._store.free(gone)
        return bool(gone)
