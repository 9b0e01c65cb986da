# SPDX-License-Identifier: Apache-2.0
"""What `rcg doctor` learns from other programs: a ping in a second process, nvidia-smi."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from rcg.doctor import examine, machine, transports
from rcg.doctor.transports import try_ping
from tests.harness.circles import core_has
from tests.harness.doctored import be_quick, found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return be_quick(monkeypatch)


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
    assert "; round trip " in memory.found and memory.found.endswith("s")
    assert "rcg works here." in str(report)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise OSError('no room')", "OSError: no room"),
        ("print('nonsense')", "JSONDecodeError"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_a_ping_that_fails_says_how(text, expected, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{text}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(transports, "PING_TIMEOUT_S", 2)
    assert expected in try_ping().failure


def test_gpus(quick, tmp_path):
    quick.setenv("PATH", str(tmp_path))
    assert found("NVIDIA").state == "missing"
    assert "values go through shared memory on a node" in found("NVIDIA").advice
    program(
        tmp_path, "echo 'NVIDIA H200, 143771 MiB, 570.1'; echo 'NVIDIA H200, 143771 MiB, 570.1'"
    )
    assert found("GPU 1").found == "NVIDIA H200, 143771 MiB, 570.1"
    assert 'with_tensor_transport("auto")' in found("GPU 0").advice
    program(tmp_path, "echo 'No devices were found' >&2; exit 6")
    assert found("NVIDIA").state == "warn"
    assert "No devices were found" in found("NVIDIA").found
    program(tmp_path, "exec sleep 60")
    quick.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    quick.setattr(machine, "NVIDIA_TIMEOUT_S", 1)
    assert "does not answer" in found("NVIDIA").found


@pytest.mark.parametrize("name", core_has("gloo", ["gloo", "nixl"]))
def test_tensors_travel_here(name):
    pytest.importorskip("torch")
    if name == "nixl":
        pytest.importorskip("nixl_cu12")
    assert type(transports.try_tensors(name)) is int
