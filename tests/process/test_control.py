# SPDX-License-Identifier: Apache-2.0
"""The control socket against processes: floods, and peers that have no descriptors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from rcg.errors import OutOfDescriptors
from rcg.runtime.control.client import ControlClient
from tests.harness.peers import (
    GUARD_S,
    descriptors,
    none_left,
    says_what_is_lacking,
)
from tests.harness.served import Served
from tests.process.test_endpoint import ROOT, process_of

JOIN = """
import os, sys
sys.modules["ray"] = None  # which takes seconds to import, and is not needed here
from rcg.errors import OutOfDescriptors
from rcg.runtime.control.client import ControlClient
try:
    client = ControlClient("\\0" + sys.argv[1], *sys.argv[2:], "a0")
    print("joined")
except OutOfDescriptors as error:
    print(error.pid, error)
"""


def join_from_elsewhere(served: Served) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", JOIN, served.control.address[1:]),
            *(served.graph_id, served.control.secret),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_driver_without_descriptors_says_so_to_a_member_that_connects(served):
    joiner = join_from_elsewhere(served)
    with none_left():
        output, _ = joiner.communicate(timeout=GUARD_S)
    assert f"{os.getpid()} process {os.getpid()} has no file descriptor left" in output
    assert "RLIMIT_NOFILE" in output and "ulimit -n" in output
    # It goes on, and accepts members that come later.
    joiner = join_from_elsewhere(served)
    output, _ = joiner.communicate(timeout=GUARD_S)
    assert output == "joined\n"


def test_a_driver_that_cannot_watch_a_member_does_not_take_it_in(served):
    """One descriptor is enough to accept, and not to notice the member's death."""
    joiner = join_from_elsewhere(served)
    with none_left(spare=1):
        output, _ = joiner.communicate(timeout=GUARD_S)
    assert "has no file descriptor left" in output
    assert not served.control.lives.pids


@pytest.mark.parametrize("spare", range(6))
def test_a_member_without_descriptors_says_so(served, spare):
    """Each descriptor is the missing one once: the socket, what arrives, the pidfd."""
    with process_of(SERVE) as server:
        assert server.stdout is not None
        address, graph, secret = server.stdout.readline().split()
        before = descriptors()
        with none_left(spare):
            if spare < 5:
                with pytest.raises(OutOfDescriptors) as caught:
                    ControlClient("\0" + address, graph, secret, "a0")
                assert says_what_is_lacking(caught.value) and caught.value.pid == os.getpid()
                del caught
            else:
                ControlClient("\0" + address, graph, secret, "a0").close()
        gc.collect()
        assert descriptors() <= before


SERVE = """
import os, sys
sys.modules["ray"] = None
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.node.memory import Shared
fds = [os.memfd_create("x") for _ in range(3)]
control = GraphControl(
    "cafe" * 8, ["a0"], lambda _: Shared(fds[0], fds[1:]), lambda *_: None, lambda *_: None
)
control.open()
print(control.address[1:], control.service_id, control.secret, flush=True)
sys.stdin.read()
"""
