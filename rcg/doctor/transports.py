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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rcg.doctor.report import Check, error_line
from rcg.doctor.software import version_of
from rcg.text import time_text

PING_TIMEOUT_S: Final = 60
SHM: Final = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Ping:
    """The result of ``rcg.doctor.ping``, or the reason why there is none."""

    made: str = ""
    round_trip_ns: int = 0
    cap_bytes: int = 0
    failure: str = ""


def try_ping() -> Ping:
    """Run the ping in a separate process. A failure is a result."""
    command = [sys.executable, "-m", "rcg.doctor.ping"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PING_TIMEOUT_S)
        if done.returncode < 0:
            return Ping(failure=f"ended by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return Ping(failure=said[-1] if said else f"ended with status {done.returncode}")
        return Ping(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Ping(failure=f"no answer within {PING_TIMEOUT_S} s")
    except Exception as error:  # noqa: BLE001 - every failure is the result
        return Ping(failure=error_line(error))


def check_transports(ping: Ping) -> Iterator[Check]:
    """Check what channels and handles need, and list transports that this release lacks."""
    if ping.failure:
        advice = "all channels need it; the cause may be a missing item below, or memory above"
        yield Check("transports", "shared memory", "missing", ping.failure, advice, is_needed=True)
    else:
        trip = f"round trip {time_text(ping.round_trip_ns)}"
        found = f"works, with {ping.made}; {trip}"
        yield Check("transports", "shared memory", "ok", found, is_needed=True)
    for name, purpose, is_needed, attempt in (
        (
            "O_TMPFILE",
            "files without a name in /dev/shm; otherwise memfd_create",
            False,
            _unnamed_file,
        ),
        ("memfd_create", "memory files if /dev/shm is small", False, _memory_file),
        ("local sockets", "passing memory to other processes", True, _abstract_socket),
        ("pidfd_open", "immediate notice of deaths", True, _pidfd),
    ):
        try:
            attempt()
            yield Check("transports", name, "ok", purpose, is_needed=is_needed)
        except (OSError, AttributeError) as error:
            advice = f"for {purpose}: check the kernel's version and seccomp filters"
            yield Check(
                "transports", name, "missing", error_line(error), advice, is_needed=is_needed
            )
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
    advice = "tensors go through shared memory or over gloo; `pip install rcg[gpu]`, and a GPU"
    for name in ("nccl", "cuda_ipc"):
        if lacking:
            found = f"this machine lacks {lacking} for it"
            yield Check("transports", name, "missing", found, advice)
        else:
            yield Check("transports", name, "ok", f"CuPy {there['CuPy']} and a GPU; not tried")
    advice = "between nodes, tensors go over gloo, and values over TCP"
    yield Check("transports", "nixl", "missing", "not part of this release", advice)


def _gloo() -> Check:
    """Check whether tensors travel over Gloo, if torch is there."""
    if not version_of("torch"):
        advice = "tensors go through shared memory without it: pip install torch"
        return Check("transports", "gloo", "missing", "this machine lacks torch for it", advice)
    found = try_gloo()
    if isinstance(found, int):
        return Check("transports", "gloo", "ok", f"works; round trip {time_text(found)}")
    return Check("transports", "gloo", "missing", found, "tensors go through shared memory")


def try_gloo() -> int | str:
    """Send a tensor over Gloo in a process of its own.

    Returns:
        The round trip in nanoseconds, or why it failed.
    """
    command = [sys.executable, "-m", "rcg.doctor.gloo"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PING_TIMEOUT_S)
        if not done.returncode:
            return int(done.stdout)
        told = done.stderr.strip().splitlines()
        return told[-1] if told else f"ended with status {done.returncode}"
    except Exception as error:  # noqa: BLE001 - every failure is the result
        return error_line(error)


def _unnamed_file() -> None:
    os.close(os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _memory_file() -> None:
    os.close(os.memfd_create("rcg-doctor", os.MFD_CLOEXEC))


def _abstract_socket() -> None:
    """Send a descriptor over a connection to an abstract address."""
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
