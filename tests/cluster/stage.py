# SPDX-License-Identifier: Apache-2.0
"""The actor of these tests, and a gate: how a test holds a method without sleeping.

Methods that must not finish yet pass a ``Gate``, which the test opens. A closed gate is a locked
file and "somebody came to it" is a byte in a pipe, so both work from any process, and they end with
the process that holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import rcg
from rcg.dag import InputNode

# A guard against hanging, for waits that are over in milliseconds.
GUARD_S = 120
ROOT = Path(__file__).parents[2]

# A line of Ray's own: "(raylet) WARNING: 12 PYTHON worker processes have been started ...".
_RAYS_LINE = re.compile(r"^(?:\x1b\[\d+m)?\(raylet[^)\n]*\)(?:\x1b\[0m)? .*\n?", re.MULTILINE)


class Gate:
    """Closed at first; ``open`` lets all visitors through, now and later.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock, self._pipe = str(folder / "lock"), str(folder / "pipe")
        os.mkfifo(self._pipe)
        # Both ways, so that neither side ever waits for the other to open it.
        self._came = os.open(self._pipe, os.O_RDWR)
        self._held = os.open(self._lock, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def __reduce__(self) -> Any:
        return Passage, self.paths

    @property
    def paths(self) -> tuple[str, str]:
        """The arguments with which a program makes its own ``Passage``."""
        return self._lock, self._pipe

    def wait_for(self, visitors: int = 1) -> None:
        """Block until this many more visitors have come to the gate."""
        for _ in range(visitors):
            assert select.select([self._came], [], [], GUARD_S)[0], "nobody comes"
            os.read(self._came, 1)

    def open(self) -> None:
        """Let all visitors through."""
        fcntl.flock(self._held, fcntl.LOCK_UN)

    def close(self) -> None:
        """Open it for good and let go of the files."""
        os.close(self._held)
        os.close(self._came)


class Passage:
    """A gate in the process of a visitor."""

    def __init__(self, lock: str, pipe: str) -> None:
        self._lock, self._pipe = lock, pipe

    def __reduce__(self) -> Any:
        return Passage, (self._lock, self._pipe)

    def announce(self) -> None:
        """Report a visitor."""
        pipe = os.open(self._pipe, os.O_WRONLY)
        os.write(pipe, b"x")
        os.close(pipe)

    def pass_through(self) -> None:
        """Report a visitor, and wait until the gate is open."""
        self.announce()
        lock = os.open(self._lock, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.close(lock)


def eventually(check: Callable[[], object], within_s: float = GUARD_S) -> None:
    """Wait until something holds, which is a matter of milliseconds."""
    until = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


class Refusal(Exception):
    """What ``Stage.fail`` raises."""


class Plain:
    """What the actors of these tests do."""

    def __init__(self, name: str = "stage") -> None:
        self.name = name
        self.calls: list[Any] = []
        self.kept: list[Any] = []

    def echo(self, x):
        return x

    def add(self, x, y):
        return x + y

    def double(self, x):
        return 2 * x

    def note(self, x):
        """Remember the call and pass on the value."""
        self.calls.append(x)
        return x

    def noted(self, *_):
        """What ``note`` was called with, in order."""
        return list(self.calls)

    def forget(self):
        self.calls.clear()

    def tell(self, *args, **kwargs):
        """The name of the actor, and the arguments."""
        return self.name, args, kwargs

    @rcg.method(num_returns=2)
    def split(self, x):
        return x, -x

    def pass_gate(self, x, gate):
        gate.pass_through()
        return x

    def pass_gate_when(self, x, trigger, gate):
        """Stop at the gate for one value only."""
        if type(x) is type(trigger) and x == trigger:
            gate.pass_through()
        return x

    def pass_gate_for(self, x, kind, gate):
        """Stop at the gate for values of one type only."""
        if type(x) is kind:
            gate.pass_through()
        return x

    def fail(self, x):
        raise Refusal(f"no {x}")

    def fail_when(self, x, trigger):
        if x == trigger:
            raise Refusal(f"no {x}")
        return x

    def hold_gate(self, gate):
        """Keep the actor busy, as an ordinary call."""
        gate.pass_through()
        return "passed"

    def pid(self, *_):
        return os.getpid()

    def thread(self, *_):
        """Which thread runs this."""
        return threading.current_thread().name

    def join_threads(self, graph_id):
        """Wait until the threads that run this graph here have ended."""
        mine = [t for t in threading.enumerate() if t.name.endswith(graph_id[:6])]
        for thread in mine:
            thread.join(GUARD_S)
        return [thread.name for thread in mine if thread.is_alive()]

    def die(self, x):
        os._exit(3)

    def die_when(self, x, trigger):
        if x == trigger:
            os._exit(3)
        return x


Stage = rcg.remote(num_cpus=0)(Plain)


def compile_echo(actor: Any, **options: Any) -> Any:
    """A graph that gives its input back."""
    with InputNode() as inp:
        dag = actor.echo.bind(inp)
    return dag.experimental_compile(**options)


def compile_one(actor: Any, method: str = "echo", *constants: Any, **options: Any) -> Any:
    """A graph of one method, of the input and of constants."""
    with InputNode() as inp:
        dag = getattr(actor, method).bind(inp, *constants)
    return dag.experimental_compile(**options)


def compile_gated(actor: Any, gate: Gate, **options: Any) -> Any:
    """A graph that gives its input back: the value 0 stops at the gate; others pass at once."""
    with InputNode() as inp:
        dag = actor.pass_gate_when.bind(inp, 0, gate)
    return dag.experimental_compile(**options)


def resources() -> dict[str, int]:
    """How many threads, open files and mappings of shared memory this process has."""
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "segments": len(segments_of("self")),
    }


def segments_of(pid: int | str) -> set[int]:
    """The nameless segments of graphs in shared memory that a process has mapped, by inode.

    Memory of ``rcg.empty`` outside of graphs belongs to none. Ray's own store is nameless too; its
    files had a name once, before they were deleted.
    """
    found = set()
    with contextlib.suppress(OSError):  # it is gone
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            _, _, _, _, inode, *path = line.split(maxsplit=5)
            names = ("/dev/shm/#", "/memfd:rcg")
            if path and path[0].startswith(names) and "rcg-empty" not in path[0]:
                found.add(int(inode))
    return found


class Place(NamedTuple):
    """The mapping that an array lies in: which file, and what may be done to it here."""

    inode: int
    mode: str


def place_of(array: Any) -> Place:
    """Where the bytes of an array or tensor of this process are; inode 0 is ordinary memory."""
    at = array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, _, _, inode, *_ = line.split()
        low, high = (int(end, 16) for end in addresses.split("-"))
        if low <= at < high:
            return Place(int(inode), mode)
    raise AssertionError("it lies nowhere")


def is_shared(array: Any) -> bool:
    """Whether the bytes of an array or tensor of this process lie in a segment of a graph."""
    return place_of(array).inode in segments_of("self")


def mapped_by(segments: set[int]) -> list[int]:
    """The processes of this machine that have any of these segments mapped."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if segments_of(pid) & segments]


def until(condition: Callable[[], bool]) -> None:
    """Wait until it is true; the test's guard ends the wait."""
    while not condition():
        os.sched_yield()


class Company:
    """Actors that tests share; made when first asked for."""

    def __init__(self) -> None:
        self._members: list[Any] = []

    def __call__(self, count: int) -> list[Any]:
        """Return so many actors, the same ones each time, with nothing noted."""
        while len(self._members) < count:
            self._members.append(Stage.remote(f"stage{len(self._members)}"))
        chosen = self._members[:count]
        rcg.get([member.forget.remote() for member in chosen])
        return chosen


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Start ``call`` on a thread; returns a function that waits for it and gives its result."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            outcome.extend((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(GUARD_S)
        assert not thread.is_alive(), "the thread hangs"
        value, error = outcome
        if error is not None:
            raise error
        return value

    return result


async def awaited(ref: Any) -> Any:
    """Await a result, as a coroutine."""
    return await ref


def own_output(printed: str) -> str:
    """Return what a program printed itself: Ray adds lines, even with ``log_to_driver=False``."""
    return _RAYS_LINE.sub("", printed)


def session_address() -> str:
    """Where a driver in another process finds this Ray session."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def joining() -> dict[str, str]:
    """Return the environment of a program whose ``init()``, called or implied, joins this session.

    Starting a Ray takes longer than most of what is done with it.
    """
    return {**os.environ, "RAY_ADDRESS": session_address()}


class Driver:
    """A program of its own that joins this Ray session: ``ray`` is rcg, ``say`` prints a line.

    Args:
        source: The program.
        folder: Where to keep it.
        *arguments: What it finds in ``sys.argv[1:]``.
    """

    PRELUDE = """\
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the tests
import rcg as ray
from rcg.dag import InputNode, MultiOutputNode

def say(*words):
    print(*words, flush=True)

"""
    CONNECT = """\
ray.init(address={address!r}, log_to_driver=False, logging_level="error")

"""

    def __init__(
        self, source: str, folder: Path, *arguments: object, joins: bool = True, stdin: Any = None
    ) -> None:
        program = folder / "driver.py"
        head = self.PRELUDE
        if joins:
            head += self.CONNECT.format(address=session_address())
        program.write_text(head + source)
        self.errors_at = folder / "stderr.txt"
        with self.errors_at.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(program), *map(str, arguments)],
                cwd=ROOT,  # so that its actors find this module too
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=stdin,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self.errors_at.read_text()

    def line(self) -> str:
        """Wait for the next line that the program says."""
        assert self.process.stdout is not None
        while said := self.process.stdout.readline():
            if own_output(said):
                return said.rstrip("\n")
        raise AssertionError(f"the program ended: {self.process.wait(GUARD_S)}\n{self.stderr}")

    def expect(self, *lines: str) -> None:
        """The program says exactly this next."""
        for line in lines:
            said = self.line()
            assert said == line, f"expected {line!r}, found {said!r}\n{self.stderr}"

    def interrupt(self) -> None:
        """Press Ctrl-C once its main thread waits for something."""
        stat = Path(f"/proc/{self.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(GUARD_S)

    def finish(self, code: int = 0) -> str:
        """Wait for an end without a traceback; return the remaining output."""
        assert self.process.stdout is not None
        if self.process.stdin is not None:
            self.process.stdin.close()
        # `communicate` would lose what was read ahead of the last line.
        rest = in_thread(self.process.stdout.read)()
        self.process.wait(GUARD_S)
        said = f"--- stdout\n{rest}\n--- stderr\n{self.stderr}"
        assert self.process.returncode == code, said
        assert "Traceback" not in self.stderr, said
        assert "Exception ignored" not in self.stderr, said
        return own_output(rest)

    def end(self) -> None:
        """Clean up after a test, however it ended."""
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
