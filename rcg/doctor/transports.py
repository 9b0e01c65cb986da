# SPDX-License-Identifier: Apache-2.0
"""The transports of values between processes: tries which of them work here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rcg.doctor.report import Check, error_line
from rcg.doctor.software import version_of
from rcg.text import time_text

PING_TIMEOUT_S: Final = 60
SHM: Final = "/dev/shm"
INFINIBAND: Final = "/sys/class/infiniband"
GDRCOPY: Final = "/dev/gdrdrv"
UCX: Final = frozenset({"UCX_TLS", "UCX_NET_DEVICES", "NIXL_PLUGIN_DIR"})
"""Variables that change how NIXL moves bytes."""


@dataclass(frozen=True, slots=True)
class Ping:
    """The result of ``rcg.doctor.ping``, or the reason why there is none."""

    made: str = ""
    round_trip_ns: int = 0
    cap_bytes: int = 0
    failure: str = ""


def try_ping() -> Ping:
    """Run the ping in a separate process. A failure is a result."""
    try:
        done = _run("rcg.doctor.ping")
        if done.returncode < 0:
            return Ping(failure=f"ended by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            return Ping(failure=_last_line(done))
        return Ping(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Ping(failure=f"no answer within {PING_TIMEOUT_S} s")
    except Exception as error:  # noqa: BLE001 - every failure is the result
        return Ping(failure=error_line(error))


def _run(module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module]
    return subprocess.run(command, capture_output=True, text=True, timeout=PING_TIMEOUT_S)


def _last_line(failed: subprocess.CompletedProcess[str]) -> str:
    said = failed.stderr.strip().splitlines()
    return said[-1] if said else f"ended with status {failed.returncode}"


def check_transports(ping: Ping) -> Iterator[Check]:
    """Check what channels and handles need, and which transports of tensors work here."""
    if ping.failure:
        advice = "all channels need it; the cause may be a missing item below, or memory above"
        yield Check("transports", "shared memory", "missing", ping.failure, advice, is_needed=True)
    else:
        found = f"works, with {ping.made}; round trip {time_text(ping.round_trip_ns)}"
        yield Check("transports", "shared memory", "ok", found, is_needed=True)
    unnamed = "files without a name in /dev/shm; otherwise memfd_create"
    in_memory = "memory files if /dev/shm is small"
    attempts: list[tuple[str, str, bool, Callable[[], int]]] = [
        ("O_TMPFILE", unnamed, False, lambda: os.open(SHM, os.O_TMPFILE | os.O_RDWR, 0o600)),
        ("memfd_create", in_memory, False, lambda: os.memfd_create("rcg-doctor")),
        ("local sockets", "passing memory to other processes", True, _received_descriptor),
        ("pidfd_open", "immediate notice of deaths", True, lambda: os.pidfd_open(os.getpid())),
    ]
    for name, purpose, is_needed, attempt in attempts:
        try:
            os.close(attempt())
            yield Check("transports", name, "ok", purpose, is_needed=is_needed)
        except (OSError, AttributeError) as error:
            found = error_line(error)
            advice = f"for {purpose}: check the kernel's version and seccomp filters"
            yield Check("transports", name, "missing", found, advice, is_needed=is_needed)
    yield _gloo()
    yield from _of_gpus()


def _of_gpus() -> Iterator[Check]:
    """Check whether the machine has what the transports of GPUs need, without initializing one."""
    there = {
        "torch": version_of("torch"),
        "CuPy": version_of("cupy-cuda12x") or version_of("cupy-cuda13x") or version_of("cupy"),
        "a GPU": shutil.which("nvidia-smi"),
    }
    lacking = " and ".join(name for name, found in there.items() if not found)
    advice = (
        "tensors go through shared memory on a node, over TCP or gloo between nodes; it needs "
        "`pip install 'rcg[gpu]'` and a GPU"
    )
    for name in ("nccl", "cuda_ipc"):
        if lacking:
            found = f"this machine lacks {lacking} for it"
            yield Check("transports", name, "missing", found, advice)
        else:
            yield Check("transports", name, "ok", f"CuPy {there['CuPy']} and a GPU; not tried")
    yield _nixl()


def _nixl() -> Check:
    """Check whether tensors can be read by NIXL, and say what it finds here."""
    advice = 'without it, tensor_transport="auto" reads tensors over shared memory and TCP'
    if not any(map(version_of, ("nixl", "nixl-cu12", "nixl-cu13"))):
        return Check("transports", "nixl", "missing", "pip install 'rcg[nixl]'", advice)
    found = try_tensors("nixl")
    if not isinstance(found, int):
        return Check("transports", "nixl", "missing", found, advice)
    devices = sorted(os.listdir(INFINIBAND)) if os.path.isdir(INFINIBAND) else []
    notes = [
        f"works; a read takes {time_text(found)}",
        f"RDMA: {', '.join(devices) or 'no device'}",
        f"GDRCopy: {'there' if os.path.exists(GDRCOPY) else 'not there'}",
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name in UCX),
    ]
    return Check("transports", "nixl", "ok", "; ".join(notes))


def _gloo() -> Check:
    """Check whether tensors travel over Gloo, if torch is there."""
    if not version_of("torch"):
        advice = "it moves tensors of torch, in and between nodes: pip install 'rcg[torch]'"
        return Check("transports", "gloo", "missing", "this machine lacks torch for it", advice)
    found = try_tensors("gloo")
    if isinstance(found, int):
        return Check("transports", "gloo", "ok", f"works; round trip {time_text(found)}")
    advice = "tensors go through shared memory and TCP; collectives need another communicator"
    return Check("transports", "gloo", "missing", found, advice)


def try_tensors(name: str) -> int | str:
    """Send tensors in a process of its own.

    Returns:
        The time in nanoseconds, of a round trip or a read, or why it failed.
    """
    try:
        done = _run(f"rcg.doctor.{name}")
        return _last_line(done) if done.returncode else int(done.stdout)
    except Exception as error:  # noqa: BLE001 - every failure is the result
        return error_line(error)


def _received_descriptor() -> int:
    """Send a descriptor over a connection to an abstract address; return what arrives."""
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
        if not descriptors:
            raise OSError("descriptors do not arrive")
        return descriptors[0]
