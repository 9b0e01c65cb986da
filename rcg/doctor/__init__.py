# SPDX-License-Identifier: Apache-2.0
"""``rcg doctor``: what works on this machine, what does not, and what to do about it.

Checks are plain data first and text after. No check loads Ray, torch or another large package in
this process, and none raises: a failure is reported as a check. A ping between two separate
processes tests shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rcg.doctor import machine, software, transports
from rcg.doctor.report import Check, DoctorReport, told

__all__ = ["Check", "DoctorReport", "examine"]


def examine() -> DoctorReport:
    """Look at everything. Takes a second or two, most of it for the ping."""
    ping = transports.try_ping()
    groups: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("versions", software.check_versions),
        ("machine", lambda: machine.check_machine(ping)),
        ("GPUs", machine.check_gpus),
        ("transports", lambda: transports.check_transports(ping)),
        ("Ray", software.check_ray),
    ]
    checks: list[Check] = []
    for group, look in groups:
        try:
            checks.extend(look())
        except Exception as error:  # noqa: BLE001 - what went wrong is what a person wants to see
            found = f"not known: {told(error)}"
            checks.append(Check(group, "the rest of this part", "warn", found))
    return DoctorReport(tuple(checks))
