# SPDX-License-Identifier: Apache-2.0
"""Tests of compiled graphs over machines that share nothing: ``make test-netns``.

Makes three machines (``tests.netns.world``) and runs pytest on the first one. The arguments are
pytest's; without any it runs ``tests/netns``. With ``--shell`` a shell is there instead, in which
pytest can be run several times over one Ray::

    python -m tests.netns -x tests/netns/test_deaths.py
    python -m tests.netns --shell
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Final

from tests.netns.hands import VARIABLE, serve
from tests.netns.world import World, reason_against

_MACHINES: Final = 3
# A Ray that takes a node for dead while its cable is out would hide what rcg does about it. A node
# that refuses connections is dead.
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,  # of no other Ray on this machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_num_prestart_python_workers": "0",
    "PYTHONPATH": os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(":"), os.getcwd()]),
    "RAY_DEDUP_LOGS": "0",
}


def main(arguments: list[str]) -> int:
    """Run the tests; returns the exit status."""
    against = reason_against()
    if against is not None:
        print(f"1 skipped in 0 s, all of tests/netns: {against}")
        return 0
    os.environ.update(_ENVIRONMENT)
    world = World(_MACHINES)
    ours, theirs = socket.socketpair()
    try:
        theirs.set_inheritable(True)
        argv = [sys.executable, "-m", "pytest", *arguments]
        tests = subprocess.Popen(
            world.machines[0].command(["sh"] if arguments == ["--shell"] else argv),
            env={**os.environ, VARIABLE: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        serve(world, ours)
        return tests.wait()
    finally:
        world.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["tests/netns"]))
