# SPDX-License-Identifier: Apache-2.0
"""What ``rcg doctor`` finds, on this machine and on worse ones."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest

from rcg.cli import main
from rcg.doctor import Check, DoctorReport, examine, machine, nodes, reach, software, transports
from rcg.doctor.transports import Ping
from rcg.wire.addresses import TcpAddress
from tests.harness.doctored import be_quick, found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return be_quick(monkeypatch)


def test_every_group_is_there_and_says_what_to_do(quick):
    report = examine()
    groups = list(dict.fromkeys(check.group for check in report.checks))
    assert groups == ["versions", "machine", "GPUs", "transports", "other nodes", "Ray"]
    names = {check.name for check in report.checks}
    assert {"python", "rcg", "ray", "numpy", "torch", "ipywidgets", "anywidget"} <= names
    assert {"cores", "memory", "/dev/shm", "address space", "pidfd_open", "nccl"} <= names
    assert not [c for c in report.checks if c.state == "missing" and not c.advice]


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


def test_a_part_that_fails_is_reported_and_the_others_run(quick):
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
    assert "pip install 'rcg[torch]'" in torch.advice
    [gloo] = [check for check in report.checks if check.name == "gloo"]
    assert gloo.found == "this machine lacks torch for it"


@pytest.mark.parametrize("name", ["gloo", "nixl"])
@pytest.mark.parametrize(
    ("given", "state", "text"),
    [(50_000, "ok", "50 µs"), ("no route to host", "missing", "no route")],
)
def test_what_moves_tensors_is_tried(quick, name, given, state, text):
    quick.setattr(transports, "version_of", lambda name: "1.0")
    quick.setattr(transports, "try_tensors", lambda which: given if which == name else "")
    check = found(name)
    assert check.state == state
    assert text in check.found


def test_an_old_ray_is_a_warning(quick):
    quick.setattr(software, "version_of", lambda name: "2.9.0rc1")
    assert found("ray").state == "warn"
    quick.setattr(software, "version_of", lambda name: "2.44.1")
    assert found("ray").state == "ok"


def test_the_program_that_draws_for_graphviz_is_looked_for_as_well(quick):
    quick.setattr(software, "version_of", lambda name: "0.21")
    quick.setattr(software.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert (found("graphviz").found, found("dot").state) == ("0.21", "ok")
    assert found("dot").found == "/usr/bin/dot, the program that draws for graphviz"
    quick.setattr(software.shutil, "which", lambda name: None)
    assert (found("graphviz").state, found("dot").state) == ("ok", "missing")
    assert "apt install graphviz" in found("dot").advice


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


# Other nodes


def named(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_it_says_where_it_would_listen_for_other_nodes(monkeypatch):
    monkeypatch.delenv("RCG_PORT_RANGE", raising=False)
    monkeypatch.delenv("RCG_PEER_TIMEOUT", raising=False)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    checks = named(nodes.check_nodes("127.0.0.1"))
    assert checks["address"].state == "warn"  # other machines do not reach it
    assert "any free port; listening at port" in checks["ports"].found
    assert checks["silence allowed"].found == "15 s (RCG_PEER_TIMEOUT)"
    assert checks["TLS"].found.startswith("off (RAY_USE_TLS)")
    assert not any(check.is_problem for check in checks.values())


def test_wrong_variables_and_foreign_addresses_are_problems(monkeypatch):
    monkeypatch.setenv("RCG_PORT_RANGE", "many")
    monkeypatch.setenv("RCG_PEER_TIMEOUT", "long")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.delenv("RAY_TLS_SERVER_CERT", raising=False)
    checks = named(nodes.check_nodes("127.0.0.1"))
    assert (checks["ports"].state, checks["silence allowed"].state) == ("missing", "missing")
    assert checks["TLS"].state == "missing"
    assert "RAY_TLS_SERVER_CERT" in checks["TLS"].found
    monkeypatch.delenv("RCG_PORT_RANGE")
    assert "no address of this machine" in named(nodes.check_nodes("192.0.2.77"))["ports"].found


@contextlib.contextmanager
def listening(count: int) -> Iterator[tuple[list[str], threading.Thread]]:
    lines: list[str] = []
    is_up = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if "--connect" in line:
            is_up.set()

    thread = threading.Thread(target=lambda: reach.listen("127.0.0.1", say, count=count))
    thread.start()
    assert is_up.wait(20)
    yield lines, thread
    thread.join(20)


def test_one_node_reaches_another(monkeypatch, capsys):
    monkeypatch.delenv("RCG_PORT_RANGE", raising=False)
    with listening(1) as (lines, thread):
        target = lines[1].split()[-1]
        assert main(["doctor", "--connect", target]) == 0
        thread.join(20)
        assert lines[2:] == [f"port {target.rpartition(':')[2]} was reached from 127.0.0.1"]
    assert capsys.readouterr().out.startswith(f"ok      tcp://{target}  works")
    # No process listens there any more.
    assert main(["doctor", "--connect", target]) == 1
    assert "connection refused" in capsys.readouterr().out


def test_something_else_at_a_port_is_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = TcpAddress("127.0.0.1", other.getsockname()[1])
        ((_, is_fine, verdict),) = reach.try_connect([address], timeout_s=0.2)
    assert not is_fine and verdict.startswith("something else listens there")


def test_a_range_of_ports_is_tried_and_a_missing_port_is_an_error(monkeypatch, capsys):
    monkeypatch.setenv("RCG_PORT_RANGE", "20000-20002")
    tried = [str(each) for each in reach.target_of("127.0.0.1")]
    assert tried == [f"tcp://127.0.0.1:{port}" for port in (20000, 20001, 20002)]
    assert [each.port for each in reach.target_of("[::1]:80")] == [80]
    monkeypatch.delenv("RCG_PORT_RANGE")
    assert main(["doctor", "--connect", "127.0.0.1"]) == 2
    assert "which port?" in capsys.readouterr().err
    assert main(["doctor", "--connect", "127.0.0.1:http"]) == 2
