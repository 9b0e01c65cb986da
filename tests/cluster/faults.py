# SPDX-License-Identifier: Apache-2.0
"""Ways and moments to die, and the resources that a process holds for graphs.

A test gives a ``Mortal`` its ``Fate`` before it compiles: every loop that reaches the moment comes
to a gate and stays there, until the test kills the actor (``slay``). So a death has its place in
the program, not in time, and one death can hit several graphs at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import rcg
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Collective, Read, Write
from rcg.runtime.actor import failpoints
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import activities
from tests.cluster.nodes import is_spread
from tests.cluster.stage import GUARD_S, Gate, Plain, segments_of, until

# Two come from outside, two happen in the process itself. The kernel's out-of-memory killer is the
# first of them. The driver watches one descriptor of a process, whatever ends that: so the kinds
# take turns in the core of the tests.
KINDS: Final = ("kill -9", "ray.kill", "exit", "segfault")
# No death: the loops only wait.
LIVES: Final = "lives"


class Fate:
    """The hook: has the loops of an actor die at a moment of one execution.

    Args:
        at: "inspect", "start", "groups", "stop", "read" (before the first op), "method", "write"
            (after the call) or "next" (after the write, before the next read). Where tensors
            travel: "tensor read", "tensor write" and "collective" (before such an op), "status"
            (in a collective: the others know the status of this rank) or "transfer" (in an op,
            before the communicator is entered).
        kind: One of ``KINDS``, or ``LIVES``. Deaths from outside are the test's to bring while the
            loops wait.
        gate: Where they wait.
        execution: Which one; for "next" the one that was written.
    """

    def __init__(self, at: str, kind: str, gate: Gate, execution: int = 0) -> None:
        self.at, self.kind, self.gate = at, kind, gate
        self.execution = execution + 1 if at == "next" else execution

    def __call__(self, point: failpoints.Failpoint) -> None:
        """Called by the runtime in the actor."""
        if point.kind in ("status", "transfer"):
            if (point.kind, point.execution) == (self.at, self.execution):
                self.meet()
        elif point.kind != "op":
            if point.kind == self.at:
                self.meet()
        elif point.execution == self.execution:
            match point.op:
                case Read() if self.at == "tensor read" and point.has_tensors:
                    self.meet()
                case Write() if self.at == "tensor write" and point.has_tensors:
                    self.meet()
                case Collective() if self.at == "collective":
                    self.meet()
                case Read() if self.at in ("read", "next"):
                    self.meet()
                case Write() if self.at == "write":
                    self.meet()
                case Call() if self.at == "method":
                    _due.now = True

    def meet(self) -> None:
        """Wait at the gate and die; external deaths come while it is closed."""
        self.gate.pass_through()
        if self.kind != LIVES:
            perish(self.kind)


# Whether the method that this thread calls next is the last one.
_due: Final = threading.local()


def perish(kind: str) -> None:
    """Die here and now."""
    if kind == "segfault":
        ctypes.string_at(0)
    os._exit(1)


class Living(Plain):
    """An actor that survives."""

    def double_held(self, x, gate):
        """Stop at the gate, but for small values."""
        if x >= 10:
            gate.pass_through()
        return 2 * x

    def full(self, n):
        """A tensor of n ones."""
        torch = importlib.import_module("torch")
        return torch.ones(n)

    def full_held(self, n, gate):
        """As ``full``, but stop at the gate first."""
        gate.pass_through()
        return self.full(n)

    def sum(self, *tensors):
        """The sum of all elements of tensors."""
        return float(sum(tensor.sum() for tensor in tensors))

    def tripled(self, tensor):
        return 3 * tensor

    def threads_in_gloo(self):
        """How many threads are in an operation of Gloo."""
        frames = sys._current_frames().values()
        return sum(
            any(
                "rcg/comm/gloo.py" in each.f_code.co_filename
                for each, _ in traceback.walk_stack(top)
            )
            for top in frames
        )

    def node(self):
        """The node of the cluster that it is on."""
        return rcg.cluster.node_id()

    def settle(self, is_hosting=False) -> dict[str, Any]:
        """Wait until no loop is left here; return what the process still holds for graphs."""
        return settled(is_hosting=is_hosting)


class Mortal(Living):
    """An actor that dies when its fate says so."""

    def expect(self, fate: Fate | None) -> int:
        """Take a fate, for the graphs that are compiled from now on; returns the process id."""
        failpoints.on_failpoint = fate
        return os.getpid()

    def first(self, x):
        if getattr(_due, "now", False):
            failpoints.on_failpoint.meet()
        return x + 1

    def second(self, x):
        return 10 * x

    def keep(self, x):
        """Hold on to the value, and to its memory."""
        self.kept.append(x)
        return len(self.kept)

    def perish(self, kind):
        """Die by an ordinary call, while the loops wait for something."""
        perish(kind)

    def leave_child(self):
        """Fork a child that pauses until it is killed, with all that it inherits; its pid."""
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        return child


Survivor = rcg.remote(num_cpus=0)(Living)
Victim = rcg.remote(num_cpus=0)(Mortal)


def slay(kind: str, victim: Any, pid: int, gate: Gate) -> None:
    """Kill an actor whose loops wait at the gate."""
    match kind:
        case "kill -9":
            os.kill(pid, signal.SIGKILL)
        case "ray.kill":
            rcg.kill(victim)
        case _:
            gate.open()


class Victims:
    """Actors to be killed; the next one starts while a test goes on, for it takes a second.

    Args:
        has_torch: Whether they import torch while they start.
    """

    def __init__(self, *, has_torch: bool = False) -> None:
        self._has_torch = has_torch
        self._spare: dict[int, list[Any]] = {}

    def take(self, threads: int = 1) -> Any:
        """Return an actor that nothing has happened to, with so many threads for calls."""
        spare = self._spare.setdefault(threads, [])
        spare.append(self._start(threads))
        return spare.pop(0) if len(spare) > 1 else self._start(threads)

    def give_back(self, victim: Any) -> None:
        """Let the next test have one that lives."""
        self._spare.setdefault(1, []).insert(0, victim)

    def _start(self, threads: int) -> Any:
        started = Victim.options(max_concurrency=threads).remote()
        if self._has_torch:
            started.full.remote(0)
        return started


def does(graph: Any, label: str) -> list[Activity]:
    """What the processes with this label do now, without gates, which always wait for frames."""
    session, gates = graph._engine.session, {gate.id for gate in graph.plan.gates}
    found = activities(session.views(patience_s=1.0), graph.plan)
    return [each for each in found if label in each.label and each.process not in gates]


def until_driver_waits(graph: Any) -> None:
    """Wait until a thread waits for a result of the graph."""

    def is_waiting() -> bool:
        found = [each.state for each in does(graph, DRIVER) if each.process == DRIVER]
        return found == ["waiting"]

    until(is_waiting)


def until_reading(graph: Any, label: str, execution: int) -> None:
    """Wait until the processes of this label wait for something to read."""

    def is_reading(each: Activity) -> bool:
        waits = each.state == "waiting" and each.op.startswith("Read")
        return waits and each.execution == execution

    until(lambda: all(map(is_reading, does(graph, label))))


def until_seen(graph: Any, label: str, op: str) -> None:
    """Wait until the driver knows that a process of this label is in an op.

    While the host of another node is stopped, the driver has only its earlier reports.
    """
    until(lambda: any(op in each.op for each in does(graph, label)))


def belongings() -> dict[str, Any]:
    """What this process holds for graphs: threads, sockets, watched processes, memory.

    ``connections`` are TCP sockets of the loopback device, of which Ray has none.
    """
    fds = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since
            fds.append(os.readlink(f"/proc/self/fd/{fd}"))
    sockets = Path("/proc/net/unix").read_text().splitlines()
    # Abstract addresses: those that the driver listens on, and what it accepted there.
    others = "@rcg-actor", "@rcg-tensors"
    ours = {
        line.split()[6]
        for line in sockets
        if "@rcg-" in line and not any(each in line for each in others)
    }
    tcp = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    loopback = {line[9] for line in tcp if line[1].startswith("0100007F:")}
    inodes = [fd.removeprefix("socket:[").removesuffix("]") for fd in fds]
    return {
        "threads": sorted(t.name for t in _threads_of_graphs()),
        "threads of Gloo": sum("gloo" in name for name in _kernel_threads()),
        "sockets": sum(inode in ours for inode in inodes),
        "connections": sum(inode in loopback for inode in inodes),
        "watched": sum("pidfd" in fd for fd in fds),
        "segments": len(segments_of("self")),
    }


def settled(*, is_hosting: bool = False) -> dict[str, Any]:
    """Wait until no loop is left in this process; returns its belongings.

    Args:
        is_hosting: Whether it may still host its node, for a graph that has not ended on another
            one; what a host has for that does not count.
    """
    of_hosts = ("rcg-control", "rcg-link-") if is_hosting else ()
    for thread in _threads_of_graphs():
        if not thread.name.startswith(of_hosts):
            thread.join(GUARD_S)
    gc.collect()
    found = belongings()
    if is_hosting:
        found["threads"] = [name for name in found["threads"] if not name.startswith(of_hosts)]
        found |= dict.fromkeys(("sockets", "watched", "segments"), 0)
    return found


NOTHING: Final = {
    "threads": [],
    "threads of Gloo": 0,
    "sockets": 0,
    "connections": 0,
    "watched": 0,
    "segments": 0,
}


def _threads_of_graphs() -> list[threading.Thread]:
    """The threads of graphs: a process has others for tensors by reference."""
    named = [t for t in threading.enumerate() if t.name.startswith("rcg-")]
    return [t for t in named if t.name not in ("rcg-tensors", "rcg-keeper")]


def _kernel_threads() -> list[str]:
    """The names of this process's threads, also of those that Python does not know."""
    found = []
    for comm in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # ended since
            found.append(comm.read_text())
    return found


def check_ended(actors: list[Any]) -> None:
    """The loops of actors have ended by themselves, and nothing of them is left.

    An actor that hosts its node does so until the graph has ended on all nodes and has been torn
    down: the driver still needs its report.
    """
    is_hosting = is_spread()
    found = rcg.get([each.settle.remote(is_hosting) for each in actors])
    assert found == [NOTHING for _ in actors], found


def heard_without(victim: Any, actors: list[Any]) -> list[Any]:
    """The actors that hear of a graph's end while the victim is stopped.

    The members of another node hear it from its host, which may be the victim.
    """
    node, *nodes = rcg.get([each.node.remote() for each in (victim, *actors)])
    home = rcg.cluster.node_id()  # of which this process is the host
    return [actor for actor, at in zip(actors, nodes, strict=True) if home == at or at != node]


@contextlib.contextmanager
def leaving_nothing(session: pytest.Session, survivors: list[Any]) -> Iterator[None]:
    """The block leaves nothing of any graph in this process and in the survivors.

    If a test of the session has failed meanwhile, nothing is checked, and the next test gets new
    survivors.
    """
    before, failed = belongings(), session.testsfailed
    yield
    if session.testsfailed > failed:
        for survivor in survivors:
            rcg.kill(survivor)
        survivors[:] = [Survivor.remote() for _ in survivors]
        return
    for held in rcg.get([survivor.settle.remote() for survivor in survivors]):
        assert held == NOTHING
    gc.collect()

    def is_all_gone() -> bool:
        now = belongings()
        threads, earlier = set(now.pop("threads")), set(before["threads"])
        return threads <= earlier and all(count <= before[name] for name, count in now.items())

    until(is_all_gone)
