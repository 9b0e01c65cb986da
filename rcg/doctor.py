# SPDX-License-Identifier: Apache-2.0
"""What works here, what does not, and what to do about it: ``rcg doctor``.

Checks are plain data first and text after. None of them loads Ray, torch or anything else that is
heavy in this process, and none raises: a check that fails is told as one. Shared memory is tried
for real, by a ping between two processes of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from rcg.options import Options, is_progress_wanted
from rcg.version import __version__

__all__ = ["Check", "Report", "examine"]

State = Literal["ok", "warn", "missing"]

PING_TIMEOUT_S: Final = 60
NVIDIA_TIMEOUT_S: Final = 20
OLDEST_PYTHON: Final = (3, 11)
OLDEST_RAY: Final = (2, 44)
FEW_DESCRIPTORS: Final = 1024
SHM: Final = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        group: ``versions``, ``machine``, ``GPUs``, ``transports``, ``Ray``.
        name: What it is.
        state: ``ok``; ``warn``, it works and something should be known; ``missing``, it is not
            there or does not work.
        found: What was found.
        advice: What to do, if anything.
        is_needed: Whether rcg does not work at all without it.
    """

    group: str
    name: str
    state: State
    found: str
    advice: str = ""
    is_needed: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether rcg cannot work because of this."""
        return self.is_needed and self.state == "missing"


@dataclass(frozen=True, slots=True)
class Report:
    """All checks. ``str()`` is what ``rcg doctor`` prints."""

    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        """What keeps rcg from working."""
        return tuple(check for check in self.checks if check.is_problem)

    def to_json(self) -> str:
        """Return it as JSON: ``rcg``, ``is_fine`` and ``checks``, the fields of ``Check`` each."""
        data = {
            "rcg": __version__,
            "is_fine": not self.problems,
            "checks": [asdict(check) for check in self.checks],
        }
        return json.dumps(data, indent=2)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines: list[str] = []
        group = None
        for check in self.checks:
            if check.group != group:
                group = check.group
                lines += ["", group]
            lines.append(f"  {check.state:<8} {check.name:<{width}}  {check.found}")
            if check.advice:
                lines.append(f"  {'':<8} {'':<{width}}  -> {check.advice}")
        problems = self.problems
        if problems:
            names = ", ".join(check.name for check in problems)
            lines += ["", f"rcg cannot work here: see {names} above."]
        else:
            lines += ["", "rcg works here."]
        return "\n".join(lines[1:])


def examine() -> Report:
    """Look at everything. Takes a second or two, most of it for the ping."""
    ping = _ping()
    groups: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("versions", _versions),
        ("machine", lambda: _machine(ping)),
        ("GPUs", _gpus),
        ("transports", lambda: _transports(ping)),
        ("Ray", _ray),
    ]
    checks: list[Check] = []
    for group, look in groups:
        try:
            checks.extend(look())
        except Exception as error:  # noqa: BLE001 - what went wrong is what a person wants to see
            found = f"not known: {_told(error)}"
            checks.append(Check(group, "the rest of this part", "warn", found))
    return Report(tuple(checks))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


# --- versions -----------------------------------------------------------------------------------

_FOR_NOTEBOOKS: Final = "pip install 'rcg[notebook]'"
# Packages that rcg can do without: what they are for, and how to get them.
_OPTIONAL: Final = {
    "torch": ("tensors", "pip install torch"),
    "ipywidgets": ("interactive views", _FOR_NOTEBOOKS),
    "anywidget": ("interactive views", _FOR_NOTEBOOKS),
    "plotly": ("interactive charts", _FOR_NOTEBOOKS),
    "jupyterlab": ("notebooks", _FOR_NOTEBOOKS),
    "tqdm": ("progress bars", _FOR_NOTEBOOKS),
    "pandas": ("traces as DataFrames", "pip install pandas"),
}


def _versions() -> Iterator[Check]:
    python = platform.python_version()
    is_new = sys.version_info >= OLDEST_PYTHON
    yield Check(
        "versions",
        "python",
        "ok" if is_new else "missing",
        python,
        "" if is_new else "rcg needs Python 3.11 or newer",
        is_needed=True,
    )
    yield Check("versions", "rcg", "ok", f"{__version__} in {Path(__file__).parent}")
    yield _native_core()
    yield _package("ray", OLDEST_RAY)
    yield _package("numpy")
    for name, (purpose, advice) in _OPTIONAL.items():
        version = _version(name)
        if version is None:
            advice = f"only for {purpose}: {advice}"
            yield Check("versions", name, "missing", "not installed", advice)
        else:
            yield Check("versions", name, "ok", version)
    if importlib.util.find_spec("rcg_widgets") is None:
        advice = "only for interactive views: install rcg again"
        yield Check("versions", "rcg_widgets", "missing", "not installed", advice)
    else:
        yield Check("versions", "rcg_widgets", "ok", "installed")


def _native_core() -> Check:
    try:
        from rcg import _native
    except ImportError as error:
        return Check(
            "versions",
            "native core",
            "missing",
            _told(error),
            "it is for Linux on x86-64 and aarch64: install rcg again there, or `make setup` in a "
            "checkout",
            is_needed=True,
        )
    found = f"ABI {_native.ABI_VERSION}, {platform.machine()}"
    return Check("versions", "native core", "ok", found, is_needed=True)


def _package(name: str, oldest: tuple[int, int] | None = None) -> Check:
    version = _version(name)
    if version is None:
        advice = f"pip install {name}"
        return Check("versions", name, "missing", "not installed", advice, is_needed=True)
    if oldest is not None and _numbers(version) < oldest:
        least = ".".join(map(str, oldest))
        advice = f"rcg is tested from {least} on: pip install --upgrade {name}"
        return Check("versions", name, "warn", version, advice)
    return Check("versions", name, "ok", version, is_needed=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split(".")[:2]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


# --- machine ------------------------------------------------------------------------------------


def _machine(ping: _Ping) -> Iterator[Check]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    is_linux = sys.platform.startswith("linux")
    advice = "" if is_linux else "rcg needs Linux: futexes, memory files and pidfds"
    yield Check(
        "machine", "system", "ok" if is_linux else "missing", system, advice, is_needed=True
    )
    yield _cores()
    yield _memory(ping)
    yield _shm(ping)
    yield _address_space()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FEW_DESCRIPTORS
    advice = f"`ulimit -n {FEW_DESCRIPTORS}`, if there will be many graphs" if few else ""
    found = f"{soft} of {hard} at most" if soft >= 0 else "no limit"
    yield Check("machine", "open files", "warn" if few else "ok", found, advice)


def _cores() -> Check:
    usable, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{usable} of {all_cores} usable"
    quota = _cpu_quota()
    if quota is not None and quota < usable:
        found += f", {quota:g} by the control group"
        advice = "processes are stopped when the quota is used up: expect jumps in latency"
        return Check("machine", "cores", "warn", found, advice)
    if usable == 1:
        advice = "all processes take turns, so every hop costs a switch: give it more cores"
        return Check("machine", "cores", "warn", found, advice)
    return Check("machine", "cores", "ok", found)


def _cpu_quota() -> float | None:
    """Return how many cores the control group (version 2) allows, None for no limit."""
    text = _text("/sys/fs/cgroup/cpu.max").split()
    if len(text) != 2 or text[0] == "max":
        return None
    return int(text[0]) / int(text[1])


def _memory(ping: _Ping) -> Check:
    lines = (line.split() for line in _text("/proc/meminfo").splitlines())
    sizes = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    found = f"{_size(sizes['MemAvailable:'])} of {_size(sizes['MemTotal:'])} free"
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        allowed, used = (_text(f"/sys/fs/cgroup/{name}").strip() for name in (limit, usage))
        if allowed.isdigit() and used.isdigit() and int(allowed) < 1 << 60:
            found += f", the control group uses {_size(int(used))} of {_size(int(allowed))}"
            break
    if ping.cap_bytes:
        found += f"; a graph may hold {_size(ping.cap_bytes)} (RCG_MEMORY_CAP_BYTES)"
    return Check("machine", "memory", "ok", found)


def _shm(ping: _Ping) -> Check:
    try:
        size = os.statvfs(SHM)
    except OSError as error:
        advice = "rcg uses memfd_create instead; Ray itself wants /dev/shm"
        return Check("machine", SHM, "warn", _told(error), advice)
    found = f"{_size(size.f_bavail * size.f_frsize)} of {_size(size.f_blocks * size.f_frsize)} free"
    if ping.made == "memfd_create":
        advice = "rcg uses memfd_create instead; for Ray's own store give it more (--shm-size)"
        return Check("machine", SHM, "warn", found, advice)
    return Check("machine", SHM, "ok", found)


def _address_space() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    stack = next(line for line in _text("/proc/self/maps").splitlines() if "[stack]" in line)
    width = int(stack.split("-")[0], 16).bit_length()
    if soft != resource.RLIM_INFINITY:
        found = f"limited to {_size(soft)}"
        advice = "graphs reserve far more addresses than they use memory: `ulimit -v unlimited`"
        return Check("machine", "address space", "warn", found, advice)
    return Check("machine", "address space", "ok", f"{width} bits, no limit")


# --- GPUs ---------------------------------------------------------------------------------------


def _gpus() -> Iterator[Check]:
    advice = "rcg moves values through the memory of the host in this release"
    command = shutil.which("nvidia-smi")
    if command is None:
        yield Check("GPUs", "NVIDIA", "missing", "nvidia-smi is not here", f"not needed: {advice}")
        return
    asked = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [command, *asked], capture_output=True, text=True, timeout=NVIDIA_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("GPUs", "NVIDIA", "warn", f"nvidia-smi does not answer: {_told(error)}")
        return
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        found = f"nvidia-smi finds none: {said[0] if said else f'status {done.returncode}'}"
        yield Check("GPUs", "NVIDIA", "warn", found)
        return
    for number, line in enumerate(lines):
        yield Check("GPUs", f"GPU {number}", "ok", line, advice if number == 0 else "")


# --- transports ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ping:
    """What ``rcg.channels.ping`` found, or why it found nothing."""

    made: str = ""
    round_trip_ns: int = 0
    cap_bytes: int = 0
    failure: str = ""


def _ping() -> _Ping:
    command = [sys.executable, "-m", "rcg.channels.ping"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PING_TIMEOUT_S)
        if done.returncode < 0:
            return _Ping(failure=f"ended by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return _Ping(failure=said[-1] if said else f"ended with status {done.returncode}")
        return _Ping(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return _Ping(failure=f"no answer within {PING_TIMEOUT_S} s")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return _Ping(failure=_told(error))


def _transports(ping: _Ping) -> Iterator[Check]:
    if ping.failure:
        advice = "all channels are made of it; what is missing below, or in memory above, is why"
        yield Check("transports", "shared memory", "missing", ping.failure, advice, is_needed=True)
    else:
        trip = f"{ping.round_trip_ns / 1e3:.1f} us there and back"
        found = f"works, by {ping.made}; {trip}"
        yield Check("transports", "shared memory", "ok", found, is_needed=True)
    for name, purpose, is_needed, attempt in (
        ("O_TMPFILE", "files without a name in /dev/shm; else memfd_create", False, _unnamed_file),
        ("memfd_create", "memory files where /dev/shm is small", False, _memory_file),
        ("local sockets", "handing memory to other processes", True, _abstract_socket),
        ("pidfd_open", "being told of a death at once", True, _pidfd),
    ):
        try:
            attempt()
            yield Check("transports", name, "ok", purpose, is_needed=is_needed)
        except (OSError, AttributeError) as error:
            advice = f"for {purpose}: look at the kernel's version and at seccomp filters"
            yield Check("transports", name, "missing", _told(error), advice, is_needed=is_needed)
    torch, has_gpu = _version("torch"), shutil.which("nvidia-smi") is not None
    lacking = {
        "gloo": [] if torch else ["torch"],
        "nccl": [*([] if torch else ["torch"]), *([] if has_gpu else ["a GPU"])],
        "nixl": [*([] if _version("nixl") else ["nixl"]), *([] if has_gpu else ["a GPU"])],
    }
    for name, things in lacking.items():
        found = "not part of this release"
        found += f"; this machine lacks {' and '.join(things)} for it" if things else ""
        yield Check("transports", name, "missing", found, "all actors of a graph on one node")


def _unnamed_file() -> None:
    os.close(os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _memory_file() -> None:
    os.close(os.memfd_create("rcg-doctor", os.MFD_CLOEXEC))


def _abstract_socket() -> None:
    """Hand a descriptor over a connection to an abstract address."""
    with contextlib.ExitStack() as stack:
        kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        listener.bind(f"\0rcg-doctor-{os.getpid()}-{os.urandom(8).hex()}")
        listener.listen(1)
        sender = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        sender.connect(listener.getsockname())
        receiver = stack.enter_context(listener.accept()[0])
        with tempfile.TemporaryFile() as file:
            socket.send_fds(sender, [b"."], [file.fileno()])
        _, descriptors, _, _ = socket.recv_fds(receiver, 1, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if not descriptors:
            raise OSError("descriptors do not arrive")


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


# --- Ray ----------------------------------------------------------------------------------------

# What `rcg.cluster` uses of Ray's handles beside its documented functions, and what it is for.
_HOOKS: Final = {
    "__ray_call__": "running rcg's loop in an actor",
    "__ray_ready__": "waiting for an actor",
    "_ray_method_signatures": "checking arguments when a DAG is made",
    "_ray_method_num_returns": "several return values",
}


def _ray() -> Iterator[Check]:
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        yield Check(
            "Ray", "hooks", "missing", "Ray is not installed", "pip install ray", is_needed=True
        )
        return
    source = _text(str(Path(found.origin).parent / "actor.py"))
    for name, purpose in _HOOKS.items():
        if name in source:
            yield Check("Ray", name, "ok", purpose)
        else:
            # Some releases make them elsewhere; rcg looks at the handle itself.
            yield Check("Ray", name, "warn", f"not seen in this Ray's actor.py; for {purpose}")
    yield _environment()
    hook = os.environ.get("RAY_RUNTIME_ENV_HOOK", "")
    if hook:
        advice = "it runs when Ray starts, and may give actors another rcg than this one"
        yield Check("Ray", "RAY_RUNTIME_ENV_HOOK", "warn", hook, advice)


def _environment() -> Check:
    """Whether rcg understands the variables that are set for it."""
    name = "variables"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            Options.from_environment()
            is_progress_wanted()
        except (TypeError, ValueError) as error:
            return Check(
                "Ray", name, "missing", str(error), "correct it or unset it", is_needed=True
            )
    if told:
        found = "; ".join(str(warning.message) for warning in told)
        return Check("Ray", name, "warn", found)
    given = [key for key in os.environ if key.startswith(("RCG_", "RAY_CGRAPH_"))]
    return Check("Ray", name, "ok", ", ".join(sorted(given)) or "none set")


# --- small things -------------------------------------------------------------------------------


def _text(path: str) -> str:
    """Return what a file says, nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _size(count: Any) -> str:
    """Return a number of bytes as people read it.

    >>> _size(64 << 20), _size(3 << 29)
    ('64 MiB', '1.5 GiB')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
