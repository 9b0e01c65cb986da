# SPDX-License-Identifier: Apache-2.0
"""`rcg doctor` without its ping, which takes a second."""

from __future__ import annotations

import os

import pytest

from rcg.doctor import Check, examine, transports
from rcg.doctor.transports import Ping

PING = Ping("O_TMPFILE in /dev/shm", 2000, 1 << 30)


def be_quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace the ping, and forget the variables that rcg reads."""
    monkeypatch.setattr(transports, "try_ping", lambda: PING)
    monkeypatch.setattr(transports, "try_tensors", lambda name: 50_000)
    for name in [key for key in os.environ if key.startswith(("RCG_", "RAY_CGRAPH_"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def found(name: str) -> Check:
    [check] = [check for check in examine().checks if check.name == name]
    return check
