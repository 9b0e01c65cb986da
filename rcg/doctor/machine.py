# SPDX-License-Identifier: Apache-2.0
"""The machine: cores, memory, addresses, GPUs."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from rcg.doctor.report import Check, State, error_line, text_of
from rcg.doctor.transports import SHM, Ping
from rcg.text import bytes_text

NVIDIA_TIMEOUT_S: Final = 20
FEW_DESCRIPTORS: Final = 1024


def check_machine(ping: Ping) -> Iterator[Check]:
    """Look at the system, cores, memory and limits."""
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    is_linux = sys.platform.startswith("linux")
    state: State = "ok" if is_linux else "missing"
    advice = "" if is_linux else "rcg needs Linux: futexes, memory files and pidfds"
    yield Check("machine", "system", state, system, advice, is_needed=True)
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
        advice = "processes stop when the quota is used up, so latency may jump"
    elif usable == 1:
        advice = (
            "all processes share one core, so each hop needs a context switch: provide more cores"
        )
    else:
        return Check("machine", "cores", "ok", found)
    return Check("machine", "cores", "warn", found, advice)


def _cpu_quota() -> float | None:
    """Return how many cores the control group (version 2) allows; None for no limit."""
    text = text_of("/sys/fs/cgroup/cpu.max").split()
    if len(text) != 2 or text[0] == "max":
        return None
    return int(text[0]) / int(text[1])


def _memory(ping: Ping) -> Check:
    lines = (line.split() for line in text_of("/proc/meminfo").splitlines())
    sizes = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    found = f"{bytes_text(sizes['MemAvailable:'])} of {bytes_text(sizes['MemTotal:'])} free"
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        allowed, used = (text_of(f"/sys/fs/cgroup/{name}").strip() for name in (limit, usage))
        if allowed.isdigit() and used.isdigit() and int(allowed) < 1 << 60:
            found += (
                f", the control group uses {bytes_text(int(used))} of {bytes_text(int(allowed))}"
            )
            break
    if ping.cap_bytes:
        found += f"; a graph may hold {bytes_text(ping.cap_bytes)} (RCG_MEMORY_CAP_BYTES)"
    return Check("machine", "memory", "ok", found)


def _shm(ping: Ping) -> Check:
    try:
        size = os.statvfs(SHM)
    except OSError as error:
        advice = "rcg uses memfd_create instead, but Ray needs /dev/shm"
        return Check("machine", SHM, "warn", error_line(error), advice)
    free, whole = (bytes_text(n * size.f_frsize) for n in (size.f_bavail, size.f_blocks))
    found = f"{free} of {whole} free"
    if ping.made == "memfd_create":
        advice = "rcg uses memfd_create instead; enlarge it for Ray's object store (--shm-size)"
        return Check("machine", SHM, "warn", found, advice)
    return Check("machine", SHM, "ok", found)


def _address_space() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    stack = next(line for line in text_of("/proc/self/maps").splitlines() if "[stack]" in line)
    width = int(stack.split("-")[0], 16).bit_length()
    if soft != resource.RLIM_INFINITY:
        found = f"limited to {bytes_text(soft)}"
        advice = "graphs reserve many more addresses than they use: `ulimit -v unlimited`"
        return Check("machine", "address space", "warn", found, advice)
    return Check("machine", "address space", "ok", f"{width} bits, no limit")


def check_gpus() -> Iterator[Check]:
    """List the GPUs with nvidia-smi, if it is installed."""
    command = shutil.which("nvidia-smi")
    if command is None:
        advice = "not needed: values go through shared memory on a node, over TCP between nodes"
        yield Check("GPUs", "NVIDIA", "missing", "nvidia-smi is not installed", advice)
        return
    asked = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [command, *asked], capture_output=True, text=True, timeout=NVIDIA_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("GPUs", "NVIDIA", "warn", f"nvidia-smi does not answer: {error_line(error)}")
        return
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        found = f"nvidia-smi lists none: {said[0] if said else f'status {done.returncode}'}"
        yield Check("GPUs", "NVIDIA", "warn", found)
        return
    advice = (
        'tensors go from GPU to GPU where the graph says `with_tensor_transport("auto")`; other '
        "values go through shared memory on a node, over TCP between nodes"
    )
    for number, line in enumerate(lines):
        yield Check("GPUs", f"GPU {number}", "ok", line, advice if number == 0 else "")
