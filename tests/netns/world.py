# SPDX-License-Identifier: Apache-2.0
"""Machines on this machine: namespaces of the kernel, joined by a switch.

::

    machine 0 --veth--+
    machine 1 --veth--+-- switch (a bridge, in a network namespace of its own)
    machine 2 --veth--+

A machine has its own network, processes, mounts, host name and System V memory, and a fresh
``/dev/shm`` and ``/tmp/ray``, so nothing can be shared by accident. Its monotonic clock is hours
away from the others', as those of machines are that were not started together. Its process 1 reads
from a pipe, and ends with the process that made the machine; with process 1 all others end. So
nothing is left of a machine, however the tests end, and no name is taken that another run could
need.

This module runs outside of the machines. ``hands`` is how a test inside asks for something here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["CLOCK_STEP_S", "SUBNET", "Machine", "World", "address_of", "reason_against"]

SUBNET: Final = "10.97.31"
_SPACES: Final = ("--net", "--mount", "--uts", "--ipc", "--pid", "--time")
CLOCK_STEP_S: Final = 10_000
"""How far the monotonic clock of a machine is ahead of that of the machine before, in seconds."""
_PREPARE: Final = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys  # which network devices there are
mount -t tmpfs tmpfs /dev/shm
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
hostname "$1"
ip link set lo up
exec "$2" -c "$3"
"""
# The kernel collects orphans, whose parent process 1 becomes. A shell's `read` would end with them.
_FIRST: Final = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


def address_of(number: int) -> str:
    """Return the address of a machine."""
    return f"{SUBNET}.{number + 1}"


def reason_against() -> str | None:
    """Return why there can be no machines here; None if there can."""
    if os.geteuid():
        return "only root may make network namespaces"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no {program} (packages iproute2 and util-linux)"
    tried = subprocess.run(
        ["unshare", *_SPACES, "--fork", "ip", "link", "add", "tried", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"the kernel makes no namespaces: {tried.stderr.strip()}" if tried.returncode else None


class Machine:
    """A machine, without a network yet.

    Args:
        name: Its host name.
        entered: What commands enter of it; processes of other machines have names outside only.
        ahead_s: How far its monotonic clock is ahead of this one.
    """

    def __init__(self, name: str, entered: Sequence[str] = _SPACES, ahead_s: int = 0) -> None:
        self.name = name
        self._entered = entered
        first = ["unshare", *_SPACES, f"--monotonic={ahead_s}", "--fork"]
        self._holder = subprocess.Popen(
            [*first, "sh", "-c", _PREPARE, "sh", name, sys.executable, _FIRST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise OSError(f"machine {name} does not start: {self._holder.wait()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.first = int(children.read_text())

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this machine."""
        inside = ["--target", str(self.first), *self._entered, f"--wdns={os.getcwd()}"]
        return ["nsenter", *inside, *argv]

    def run(self, argv: Sequence[str], ok: Sequence[int] = (0,)) -> str:
        """Run a command there; returns what it printed.

        Raises:
            CalledProcessError: It failed.
        """
        found = subprocess.run(
            self.command(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if found.returncode not in ok:
            raise subprocess.CalledProcessError(found.returncode, argv, found.stdout)
        return found.stdout

    def end(self) -> None:
        """End all its processes, and so the machine. Idempotent."""
        self._holder.communicate()  # what process 1 reads ends


class World:
    """A switch and machines, numbered from 0.

    Args:
        count: How many machines.
    """

    def __init__(self, count: int) -> None:
        self.machines: list[Machine] = []
        self.switch = Machine("switch", ("--net",))
        try:
            self.switch.run(["ip", "link", "add", "bridge", "type", "bridge"])
            self.switch.run(["ip", "link", "set", "bridge", "up"])
            for number in range(count):
                self.machines.append(self._attached(number))
        except BaseException:
            self.end()
            raise

    def _attached(self, number: int) -> Machine:
        machine = Machine(f"machine{number}", ahead_s=number * CLOCK_STEP_S)
        try:
            port = f"port{number}"
            cable = ["ip", "link", "add", port, "type", "veth"]
            self.switch.run([*cable, "peer", "name", "out", "netns", str(machine.first)])
            self.switch.run(["ip", "link", "set", port, "master", "bridge", "up"])
            machine.run(["ip", "address", "add", f"{address_of(number)}/24", "dev", "out"])
            machine.run(["ip", "link", "set", "out", "up"])
        except BaseException:
            machine.end()
            raise
        return machine

    def renew(self, number: int) -> None:
        """Replace a machine by a new one with the same address: all that ran there ends."""
        self.machines[number].end()
        # Its link may outlive it for a moment.
        with contextlib.suppress(subprocess.CalledProcessError):
            self.switch.run(["ip", "link", "delete", f"port{number}"])
        self.machines[number] = self._attached(number)

    def end(self) -> None:
        """End all of it. Idempotent."""
        for machine in (*self.machines, self.switch):
            machine.end()
