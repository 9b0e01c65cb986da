# SPDX-License-Identifier: Apache-2.0
"""How a test, which runs on machine 0, does something to the other machines and to the switch.

The process that made the machines stays outside and does what it is asked for over a socket: one
line of JSON for a request, one for the answer. Inside, ``Hands`` asks; outside, ``serve`` does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.netns.world import World

__all__ = ["VARIABLE", "Failed", "Hands", "serve"]

VARIABLE: Final = "TESTS_NETNS_FD"
"""Holds the descriptor of the socket; a test that does not find it is not on a machine."""


class Failed(Exception):
    """A command failed; the text is what it printed."""


class Hands:
    """Asks the process outside.

    Args:
        connection: The socket to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rw")
        self._lock = threading.Lock()

    @classmethod
    def of_this_process(cls) -> Hands | None:
        """Return the hands of this process, if it runs on a machine of a ``World``."""
        fd = os.environ.get(VARIABLE)
        return None if fd is None else cls(socket.socket(fileno=int(fd)))

    def run(self, where: int | str, *argv: object, ok: Sequence[int] = (0,)) -> str:
        """Run a command on a machine, by its number, or on the ``"switch"``; returns its output.

        Args:
            where: The machine.
            *argv: The command.
            ok: The exit statuses that are no failures.

        Raises:
            Failed: It failed.
        """
        return self._ask(do="run", where=where, argv=list(map(str, argv)), ok=list(ok))

    def python(self, where: int | str, program: str, *arguments: object) -> str:
        """Run a program in Python; see ``run``."""
        return self.run(where, sys.executable, "-c", program, *arguments)

    def renew(self, number: int) -> None:
        """Have a machine lose its power, and replace it by a new one."""
        self._ask(do="renew", where=number)

    def bad_road(self, between: list[int]) -> None:
        """Lead what goes between machines over a road with faults; see ``tests.netns.road``."""
        self._ask(do="road", between=between)

    def good_road(self) -> None:
        """Undo ``bad_road``."""
        self._ask(do="good")

    def _ask(self, **request: Any) -> str:
        with self._lock:
            self._stream.write(json.dumps(request) + "\n")
            self._stream.flush()
            answer = json.loads(self._stream.readline())
        if not answer["ok"]:
            raise Failed(answer["text"])
        return str(answer["text"])


def serve(world: World, connection: socket.socket) -> None:
    """Carry out the requests of the other end, until it is closed."""
    from tests.netns.road import Road

    stream = connection.makefile("rw")
    road: Road | None = None
    try:
        for line in stream:
            request: Mapping[str, Any] = json.loads(line)
            ok, text = True, ""
            try:
                match request["do"]:
                    case "run":
                        where = request["where"]
                        machine = world.switch if where == "switch" else world.machines[where]
                        text = machine.run(request["argv"], request["ok"])
                    case "renew":
                        world.renew(request["where"])
                    case "road":
                        road = road or Road(world)
                        road.open(request["between"])
                    case "good" if road is not None:
                        road.close()
                        road = None
            except subprocess.CalledProcessError as error:
                ok, text = False, f"{error}\n{error.output}"
            except (OSError, ValueError, IndexError) as error:
                ok, text = False, repr(error)
            stream.write(json.dumps({"ok": ok, "text": text}) + "\n")
            stream.flush()
    finally:
        if road is not None:
            road.close()
