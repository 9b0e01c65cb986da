# SPDX-License-Identifier: Apache-2.0
"""What ``rcg doctor`` finds, on this machine and on worse ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rcg.doctor import Check, DoctorReport, examine, machine, software, transports
from rcg.doctor.transports import Ping
from tests.doctored import be_quick, found

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return be_quick(monkeypatch)


def test_every_group_is_there_and_says_what_to_do(quick):
    report = examine()
    groups = list(dict.fromkeys(check.group for check in report.checks))
    assert groups == ["versions", "machine", "GPUs", "transports", "Ray"]
    names = {check.name for check in report.checks}
    assert {"python", "rcg", "ray", "numpy", "torch", "ipywidgets", "anywidget"} <= names
    assert {"cores", "memory", "/dev/shm", "address space", "pidfd_open", "nccl"} <= names
    assert not [c for c in report.checks if c.state == "missing" and not c.advice]


def test_json_is_the_same_data(quick):
    report = examine()
    data = json.loads(report.to_json())
    assert data["is_fine"] is True
    assert [check["name"] for check in data["checks"]] == [check.name for check in report.checks]
    assert Check(**data["checks"][0]) == report.checks[0]


def test_text_is_in_columns_with_advice_below():
    report = DoctorReport(
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
    assert gloo.found == "this machine lacks torch for it"


@pytest.mark.parametrize(
    ("given", "state", "text"),
    [(50_000, "ok", "50 µs"), ("no route to host", "missing", "no route")],
)
def test_gloo_is_tried(quick, given, state, text):
    quick.setattr(transports, "try_gloo", lambda: given)
    check = found("gloo")
    assert check.state == state
    assert text in check.found


def test_an_old_ray_is_told(quick):
    quick.setattr(software, "version_of", lambda name: "2.9.0rc1")
    assert found("ray").state == "warn"
    quick.setattr(software, "version_of", lambda name: "2.44.1")
    assert found("ray").state == "ok"


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
