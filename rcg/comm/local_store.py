# SPDX-License-Identifier: Apache-2.0
"""A store in memory, for ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rcg.errors import GroupAborted


class LocalStore:
    """A ``Store`` for threads; see ``rcg.comm.Store``. ``close`` closes it for all of them.

    >>> store = LocalStore()
    >>> store.set("address", b"here")
    >>> store.get(["address"]), store.has(["address", "other"]), store.add("count", 2)
    ([b'here'], False, 2)
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._objects: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        """Store a value; see ``Store``."""
        with self._changed:
            self._check()
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], timeout_s: float | None = None) -> list[bytes]:
        """Return the values of keys; see ``Store``."""

        def is_there() -> bool:
            return self._is_closed or all(key in self._values for key in keys)

        with self._changed:
            is_done = self._changed.wait_for(is_there, timeout_s)
            self._check()
            if not is_done:
                missing = [key for key in keys if key not in self._values]
                raise TimeoutError(f"no value of {', '.join(missing)} within {timeout_s} s")
            return [self._values[key] for key in keys]

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there; see ``Store``."""
        with self._changed:
            self._check()
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; see ``Store``."""
        with self._changed:
            self._check()
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = b"%d" % total
            self._changed.notify_all()
            return total

    def share(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the object of a key, the same for all threads; the first call makes it.

        Raises:
            GroupAborted: The store is closed.
        """
        with self._changed:
            self._check()
            if key not in self._objects:
                self._objects[key] = make()
            return self._objects[key]

    def close(self) -> None:
        """End every wait; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._is_closed:
            raise GroupAborted("the store of the group is closed")
