# SPDX-License-Identifier: Apache-2.0
"""Calls that may wait for another process for ever: left behind when that process is gone."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Lost", "Watch", "watched"]

_LOOK_S: Final = 0.05


class Watch:
    """Says whether the process at the other end of a connection is gone.

    Args:
        connection: The connection.
        pidfd: Of that process, -1 for none.
        may_speak: Whether a message is nothing unusual.
    """

    def __init__(self, connection: socket.socket, pidfd: int, *, may_speak: bool = True) -> None:
        self._fd = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, 0 if may_speak else select.POLLIN)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)

    def look(self) -> None:
        """Raise if it is gone, or has said something."""
        ready = self._poll.poll(0)
        if ready:
            is_over = select.POLLHUP | select.POLLERR | select.POLLNVAL
            raise Lost(all(fd == self._fd and not events & is_over for fd, events in ready))


class Lost(Exception):
    """The process at the other end is gone, or has something to say."""

    def __init__(self, has_spoken: bool) -> None:
        super().__init__("the process at the other end is gone")
        self.has_spoken = has_spoken


def watched(call: Callable[[], Any], watch: Watch) -> Any:
    """Return what a call returns, made on a thread that is left behind when the watch raises."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised by the one who waits
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="rcg-transfer", daemon=True)
    thread.start()
    while True:
        thread.join(_LOOK_S)
        if outcome:
            value, error = outcome[0]
            if error is not None:
                raise error
            return value
        watch.look()
