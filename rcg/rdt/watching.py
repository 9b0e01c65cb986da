# SPDX-License-Identifier: Apache-2.0
"""Calls that may wait for another process for ever: left behind when that process is gone."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Any, Final

from rcg.threads import start_thread
from rcg.wire.sockets import Connection

__all__ = ["Lost", "Running", "Watch"]

_LOOK_S: Final = 0.05


class Watch:
    """Says whether the process at the other end of a connection is gone.

    Args:
        connection: The connection.
        pidfd: Of that process, -1 for none.
        may_speak: Whether a message is nothing unusual.
        is_closed: Whether another thread has closed the connection, whose descriptors may be those
            of something else by then.
    """

    def __init__(
        self,
        connection: Connection,
        pidfd: int,
        *,
        may_speak: bool = True,
        is_closed: Callable[[], bool] = bool,
    ) -> None:
        self._is_closed = is_closed
        self._fd = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, 0 if may_speak else select.POLLIN)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)

    def look(self) -> None:
        """Raise if it is gone, or has said something."""
        if self._is_closed():
            raise Lost(has_spoken=False)
        ready = self._poll.poll(0)
        if ready:
            is_over = select.POLLHUP | select.POLLERR | select.POLLNVAL
            raise Lost(all(fd == self._fd and not events & is_over for fd, events in ready))


class Lost(Exception):
    """The process at the other end is gone, or has something to say."""

    def __init__(self, has_spoken: bool) -> None:
        super().__init__("the process at the other end is gone")
        self.has_spoken = has_spoken


class Running:
    """A call that runs on a thread of its own, which is left behind if nobody waits for it.

    Args:
        call: The call.

    Raises:
        OutOfThreads: No more threads can be started.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._values: list[Any] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="rcg-transfer", daemon=True)
        start_thread(self._thread, "to move tensors by a transport of the user's")

    def _run(self) -> None:
        try:
            self._values.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised by the one who waits
            self._errors.append(error)

    def result(self, watch: Watch) -> Any:
        """Return what the call returns, or raise what it raises.

        Raises:
            Lost: The process at the other end is gone, or has said something; the call goes on.
        """
        while True:
            self._thread.join(_LOOK_S)
            if self._errors:
                raise self._errors.pop()  # which holds this object
            if self._values:
                return self._values[0]
            watch.look()
