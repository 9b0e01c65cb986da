# SPDX-License-Identifier: Apache-2.0
"""The drivers of this user on this machine, and what their graphs do: for another process.

The endpoint of a driver listens at an abstract Unix address with the driver's pid in it. The kernel
lists these addresses, removes them with the process, and says whose process answers. Drivers of
other users, and of containers with a network of their own, are not found.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rcg.errors import PlacementError, RcgError
from rcg.runtime.control.joining import check_user, join
from rcg.runtime.observe.report import Report
from rcg.threads import run_together
from rcg.wire.messages import GRAPHS, AskGraphs, Reported
from rcg.wire.payloads import open_payloads

__all__ = ["Driver", "Graph", "find_drivers", "why_silent"]

_TABLE: Final = Path("/proc/net/unix")
_LISTENS: Final = 0x10000  # __SO_ACCEPTCON
_ADDRESS: Final = re.compile(r"@rcg-(\d+)-[0-9a-f]{16}")
_MOST_AT_ONCE: Final = 32
_MOST_COMMAND: Final = 200
_WHY: Final = {
    **dict.fromkeys("Tt", "it is stopped, by a signal or a debugger"),
    "D": "it waits for a device",
}


@dataclass(frozen=True, slots=True)
class Graph:
    """A live graph of another process.

    Attributes:
        at_s: When the report was made, on the machine's monotonic clock.
        report: What ``CompiledDAG.report(timeout=0)`` returns there.
    """

    at_s: float
    report: Report


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that has compiled graphs, or has not answered.

    Attributes:
        pid: Its process id.
        command: Its command line.
        graphs: Its live graphs, the oldest first.
        trouble: Why it has not answered, or "".
        address: Where it listens.
    """

    pid: int
    command: str
    graphs: tuple[Graph, ...] = ()
    trouble: str = ""
    address: str = ""


def find_drivers(pid: int | None = None, *, timeout_s: float = 2.0) -> list[Driver]:
    """Return the drivers of this user on this machine that have live graphs, or do not answer.

    They answer on the thread that serves their members, and their actors are not asked. A process
    of rcg that does not answer is returned although it may have no graph.

    Args:
        pid: Only this process.
        timeout_s: How long each may take. All are asked at once, up to 32.
    """
    found: dict[int, Driver] = {}  # of several endpoints of a process, each says all

    def ask(process: int, address: str) -> None:
        answer = _ask(process, address, timeout_s)
        if answer is not None:
            found[process] = answer

    asked = [partial(ask, *place) for place in _listening() if pid in (None, place[0])]
    run_together(asked, "rcg-top", _MOST_AT_ONCE)
    return [found[each] for each in sorted(found)]


def _listening() -> list[tuple[int, str]]:
    """Return the pid and the address of each endpoint of this network namespace."""
    found = []
    for line in _TABLE.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        match = _ADDRESS.fullmatch(fields[7]) if len(fields) == 8 else None
        if match and int(fields[3], 16) & _LISTENS:
            found.append((int(match[1]), "\0" + fields[7][1:]))
    return found


def _ask(pid: int, address: str, timeout_s: float) -> Driver | None:
    """Return what a process answers; None if it has no graphs, is another user's, or has ended."""

    def silent(why: str) -> Driver:
        return Driver(pid, _command_of(pid), trouble=why)

    opening = AskGraphs(graph=GRAPHS, secret=address)
    try:
        joined = join(address, opening, timeout_s, check_user, descriptors=1)
    except TimeoutError:
        return silent(why_silent(pid, timeout_s))
    except (PlacementError, OSError):
        return None  # of another user, ended, or without an answer to this question
    except (RcgError, ValueError) as error:
        return silent(f"cannot be asked: {error}")
    try:
        if not isinstance(joined.message, Reported):
            return None
        (payload,) = open_payloads(joined.answer)
        found: Any = json.loads(payload.decode())
        graphs = tuple(map(_graph_of, found["graphs"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return silent(f"its answer cannot be read: {error}")
    finally:
        joined.close()
    if not graphs:
        return None
    return Driver(pid, _command_of(pid), graphs, address=address)


def why_silent(pid: int, timeout_s: float) -> str:
    """Return why a process has not answered in time, as far as the kernel knows."""
    why = _WHY.get(_state_of(pid)) or (
        "native code that it runs holds Python's lock, or the machine is overloaded"
    )
    return f"does not answer within {timeout_s:g} s: {why}"


def _graph_of(found: Any) -> Graph:
    return Graph(float(found["at_s"]), Report.from_plain(found["report"]))


def _state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does, or ""."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _command_of(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.replace("\0", " ").strip()[:_MOST_COMMAND]
