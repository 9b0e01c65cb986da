# SPDX-License-Identifier: Apache-2.0
"""``rcg doctor``: what works on this machine, what does not, and what to do about it.

The results are plain data with a text form. No check loads Ray, torch or another large package in
this process. No check raises: a failure is a result. A ping between two separate processes tests
shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rcg.doctor import machine, nodes, software, transports
from rcg.doctor.report import Check, DoctorReport, error_line

__all__ = ["Check", "DoctorReport", "examine"]


def examine() -> DoctorReport:
    """Run all checks. This takes one or two seconds, mostly for the ping."""
    ping = transports.try_ping()
    groups: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("versions", software.check_versions),
        ("machine", lambda: machine.check_machine(ping)),
        ("GPUs", machine.check_gpus),
        ("transports", lambda: transports.check_transports(ping)),
        ("other nodes", nodes.check_nodes),
        ("Ray", software.check_ray),
    ]
    checks: list[Check] = []
    for group, look in groups:
        try:
            checks.extend(look())
        except Exception as error:  # noqa: BLE001 - any failure is a result
            found = f"not known: {error_line(error)}"
            checks.append(Check(group, "the rest of this part", "warn", found))
    return DoctorReport(tuple(checks))
