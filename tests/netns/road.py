# SPDX-License-Identifier: Apache-2.0
"""A road between machines on which packets are late, lost, doubled or overtaken.

The kernel's own ``tc netem`` does that where it is built in. A road does it anywhere: each machine
gets a TUN device, this process passes their packets on, and routes to the other machines lead
there instead of over the switch. Addresses and connections stay as they are, so a road can be
opened and closed below a running graph.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import ipaddress
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tests.netns.world import World, address_of

__all__ = ["Road"]

_LOSS: Final = 0.01  # the share of packets
_DOUBLE: Final = 0.1
_DELAY_S: Final = 0.002  # and up to _JITTER_S more, at random
_JITTER_S: Final = 0.02
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_WITHOUT_HEADER: Final = 0x1001
_MOST_BYTES: Final = 65_536


def delays(chance: random.Random) -> list[float]:
    """Return when a packet arrives: never, once or twice. A late one is overtaken by others."""
    if chance.random() < _LOSS:
        return []
    times = 2 if chance.random() < _DOUBLE else 1
    return [_DELAY_S + chance.random() * _JITTER_S for _ in range(times)]


def carry(tuns: Mapping[bytes, int], stop: int) -> None:
    """Pass packets on until ``stop`` becomes readable.

    Args:
        tuns: A device for each address, as packets name it.
        stop: A descriptor.
    """
    chance = random.Random(1)
    late: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    poller = select.epoll()
    for fd in (*tuns.values(), stop):
        poller.register(fd, select.EPOLLIN)
    while True:
        wait_s = max(0.0, late[0][0] - time.monotonic()) if late else None
        for fd, _ in poller.poll(wait_s):
            if fd == stop:
                return
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(fd, _MOST_BYTES)
                    out = tuns.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if out is None:
                        continue  # IPv6 looks for routers, and there are none
                    for delay_s in delays(chance):
                        entry = (time.monotonic() + delay_s, next(numbers), out, packet)
                        heapq.heappush(late, entry)
        while late and late[0][0] <= time.monotonic():
            _, _, out, packet = heapq.heappop(late)
            with contextlib.suppress(OSError):  # a full queue, or a machine that is gone
                os.write(out, packet)


class Road:
    """Roads with faults between the machines of a world.

    Args:
        world: The machines.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[tuple[int, int]] = []
        self._process: subprocess.Popen[str] | None = None

    def open(self, between: Sequence[int]) -> None:
        """Lead all that goes between these machines over a road with faults.

        Raises:
            OSError: The kernel gives no devices.
        """
        self.close()
        machines = {each: self._world.machines[each] for each in between}
        ends = json.dumps({number: machine.first for number, machine in machines.items()})
        argv = [sys.executable, "-m", "tests.netns.road", ends]
        self._process = subprocess.Popen(
            self._world.switch.command(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise OSError("the road does not open")
        for number, machine in machines.items():
            device = f"road{number}"
            machine.run(["ip", "link", "set", device, "up"])
            for other in between:
                if other != number:
                    way = ["dev", device, "src", address_of(number)]
                    machine.run(["ip", "route", "replace", f"{address_of(other)}/32", *way])

    def close(self) -> None:
        """Let everything go over the switch again; what is on the way is lost. Idempotent."""
        if self._process is not None:
            self._process.communicate()  # its devices go with it, and the routes with these
            self._process = None


def _device(name: str) -> int:
    """Return a new TUN device of this network namespace."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_WITHOUT_HEADER))
    return fd


def main(ends: str) -> None:
    """Carry packets between machines, given as number -> process 1, until standard input ends."""
    tuns: dict[bytes, int] = {}
    for number, first in json.loads(ends).items():
        tuns[ipaddress.ip_address(address_of(int(number))).packed] = _device(f"road{number}")
        # A device that is moved stays the device of this descriptor.
        subprocess.run(["ip", "link", "set", f"road{number}", "netns", str(first)], check=True)
    print("ready", flush=True)
    carry(tuns, sys.stdin.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
