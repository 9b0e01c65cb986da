# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster on the machines of a world, and what tests do to it from machine 0."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Final

import rcg
from tests.cluster.faults import Mortal
from tests.netns.hands import Hands
from tests.netns.world import address_of

__all__ = ["Cluster", "Worker", "actor_on"]

_PORT: Final = 6379
_RAY: Final = (sys.executable, "-m", "ray.scripts.scripts")


class Tenant(Mortal):
    """What actors of these tests do beside the others' methods."""

    def set(self, name: str, value: str | None) -> int:
        """Set a variable of this process's environment, or remove it; returns the process id."""
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        return os.getpid()

    def spot(self, *_: Any) -> str:
        """Return the host name of the machine."""
        return os.uname().nodename

    def total(self, array: Any) -> int:
        """Return the sum of an array."""
        return int(array.sum())

    def occupy(self, host: str, ports: list[int]) -> None:
        """Listen at ports, as long as this process lives."""
        self.kept += [socket.create_server((host, port)) for port in ports]

    def use(self, graph: Any, value: Any) -> Any:
        """Execute a graph of another process."""
        return rcg.get(graph.execute(value), timeout=60)


Worker = rcg.remote(num_cpus=0)(Tenant)


def actor_on(number: int, cls: Any = Worker, **options: Any) -> Any:
    """Return a new actor on a machine."""
    return cls.options(resources={f"machine{number}": 0.001}, **options).remote()


class Cluster:
    """Ray on the first machines of a world.

    Args:
        hands: What reaches the other machines.
    """

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.count = 0

    @property
    def address(self) -> str:
        """Where drivers connect."""
        return f"{address_of(0)}:{_PORT}"

    def grow(self, count: int) -> None:
        """Have Ray run on so many machines."""
        while self.count < count:
            if not self.has_ray(self.count):  # an earlier run of the same shell may have left it
                self.start(self.count)
            self.count += 1

    def has_ray(self, number: int) -> bool:
        """Whether Ray runs on a machine."""
        return self.hands.run(number, "pgrep", "-c", "raylet", ok=(0, 1)).strip() != "0"

    def start(self, number: int) -> None:
        """Start the Ray of one machine."""
        where = [f"--address={self.address}"]
        if not number:
            where = ["--head", f"--port={_PORT}", "--include-dashboard=false"]
        resources = f'{{"machine{number}": 1000}}'
        own = [f"--node-ip-address={address_of(number)}", f"--resources={resources}"]
        size = ["--num-cpus=8", "--object-store-memory=200000000", "--disable-usage-stats"]
        self.hands.run(number, *_RAY, "start", *where, *own, *size)

    # --- machines

    def kill(self, number: int, *pids: int, how: int = signal.SIGKILL) -> None:
        """Send a signal to processes of a machine, by the ids that they have there."""
        self.hands.run(number, "kill", f"-{int(how)}", *pids)

    def unplug(self, number: int) -> None:
        """Pull the cable of a machine: nothing comes back, not even that."""
        self.hands.run("switch", "ip", "link", "set", f"port{number}", "down")

    def plug(self, number: int) -> None:
        """Put the cable back."""
        self.hands.run("switch", "ip", "link", "set", f"port{number}", "up")
