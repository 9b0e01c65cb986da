# SPDX-License-Identifier: Apache-2.0
"""What ``rcg doctor`` finds, on this machine and on worse ones."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rcg.doctor import Check, Report, examine, machine, software, transports
from rcg.doctor.transports import Ping, try_ping

ROOT = Path(__file__).parents[2]
PING = Ping("O_TMPFILE in /dev/shm", 2000, 1 << 30)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The ping takes a second; most tests are not about it."""
    monkeypatch.setattr(transports, "try_ping", lambda: PING)
    for name in [key for key in os.environ if key.startswith(("RCG_", "RAY_CGRAPH_"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def found(name: str) -> Check:
    [check] = [check for check in examine().checks if check.name == name]
    return check


def program(folder: Path, text: str) -> None:
    """Puts an nvidia-smi into a folder."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_this_machine_is_fine_and_the_ping_is_real():
    report = examine()
    assert report.problems == ()
    [memory] = [check for check in report.checks if check.name == "shared memory"]
    assert memory.state == "ok"
    assert "s there and back" in memory.found
    assert "rcg works here." in str(report)


def test_every_group_is_there_and_says_what_to_do(quick):
    report = examine()
    groups = list(dict.fromkeys(check.group for check in report.checks))
    assert groups == ["versions", "machine", "GPUs", "transports", "Ray"]
    names = {check.name for check in report.checks}
    assert {"python", "rcg", "ray", "numpy", "torch", "ipywidgets", "anywidget"} <= names
    assert {"cores", "memory", "/dev/shm", "address space", "pidfd_open", "nccl"} <= names
    assert not [c for c in report.checks if c.state == "missing" and not c.advice]


def test_it_loads_neither_ray_nor_torch():
    text = (
        "import sys, rcg.doctor as d; t = d.transports; t.try_ping = t.Ping; d.examine();"
        "print({'ray', 'torch', 'numpy', 'plotly', 'IPython'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "set()"


def test_json_is_the_same_data(quick):
    report = examine()
    data = json.loads(report.to_json())
    assert data["is_fine"] is True
    assert [check["name"] for check in data["checks"]] == [check.name for check in report.checks]
    assert Check(**data["checks"][0]) == report.checks[0]


def test_text_is_in_columns_with_advice_below():
    report = Report(
        (
            Check("machine", "cores", "ok", "2 of 2"),
            Check("machine", "memory", "warn", "little", "buy some"),
            Check("Ray", "hooks", "missing", "none", "pip install ray", is_needed=True),
        )
    )
    assert str(report).splitlines() == [
        "machine",
        "  ok       cores   2 of 2",
        "  warn     memory  little",
        "                   -> buy some",
        "",
        "Ray",
        "  missing  hooks   none",
        "                   -> pip install ray",
        "",
        "rcg cannot work here: see hooks above.",
    ]


def test_a_part_that_fails_is_told_and_the_others_go_on(quick):
    def broken():
        raise ZeroDivisionError("oh")
        yield

    quick.setattr(machine, "check_machine", lambda ping: broken())
    report = examine()
    [check] = [check for check in report.checks if check.group == "machine"]
    assert check.state == "warn"
    assert "ZeroDivisionError: oh" in check.found
    assert "pidfd_open" in str(report)


def test_shared_memory_that_does_not_work_is_a_problem(quick):
    quick.setattr(transports, "try_ping", lambda: Ping(failure="no room"))
    report = examine()
    assert [check.name for check in report.problems] == ["shared memory"]
    assert "no room" in str(report)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise OSError('no room')", "OSError: no room"),
        ("print('nonsense')", "JSONDecodeError"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_a_ping_that_fails_says_how(text, told, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{text}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(transports, "PING_TIMEOUT_S", 2)
    assert told in try_ping().failure


def test_a_small_shm_means_memfd(quick):
    quick.setattr(transports, "try_ping", lambda: Ping("memfd_create", 2000, 1 << 30))
    check = found("/dev/shm")
    assert check.state == "warn"
    assert "memfd_create" in check.advice


def test_packages_that_are_not_there(quick):
    for room in (software, transports):
        quick.setattr(room, "version_of", lambda name: None)
    report = examine()
    assert {check.name for check in report.problems} == {"ray", "numpy"}
    [torch] = [check for check in report.checks if check.name == "torch"]
    assert torch.state == "missing"
    assert "pip install torch" in torch.advice
    [gloo] = [check for check in report.checks if check.name == "gloo"]
    assert gloo.found == "not part of this release; this machine lacks torch for it"


def test_an_old_ray_is_told(quick):
    quick.setattr(software, "version_of", lambda name: "2.9.0rc1")
    assert found("ray").state == "warn"
    quick.setattr(software, "version_of", lambda name: "2.44.1")
    assert found("ray").state == "ok"


def test_gpus(quick, tmp_path):
    quick.setenv("PATH", str(tmp_path))
    assert found("NVIDIA").state == "missing"
    program(
        tmp_path, "echo 'NVIDIA H200, 143771 MiB, 570.1'; echo 'NVIDIA H200, 143771 MiB, 570.1'"
    )
    assert found("GPU 1").found == "NVIDIA H200, 143771 MiB, 570.1"
    program(tmp_path, "echo 'No devices were found' >&2; exit 6")
    assert found("NVIDIA").state == "warn"
    assert "No devices were found" in found("NVIDIA").found
    program(tmp_path, "exec sleep 60")
    quick.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    quick.setattr(machine, "NVIDIA_TIMEOUT_S", 1)
    assert "does not answer" in found("NVIDIA").found


def test_variables_that_rcg_does_not_understand(quick):
    assert found("variables").found == "none set"
    quick.setenv("RCG_WAIT", "futex")
    assert found("variables").found == "RCG_WAIT"
    quick.setenv("RCG_WIAT", "futex")
    assert "did you mean RCG_WAIT" in found("variables").found
    quick.setenv("RCG_PROGRESS", "perhaps")
    assert [check.name for check in examine().problems] == ["variables"]


def test_a_kernel_without_pidfds(quick):
    quick.delattr(os, "pidfd_open")
    check = found("pidfd_open")
    assert check.is_problem
    assert "kernel" in check.advice


def test_no_descriptors_are_left_open(quick):
    before = len(os.listdir("/proc/self/fd"))
    examine()
    assert len(os.listdir("/proc/self/fd")) == before
