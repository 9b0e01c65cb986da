# SPDX-License-Identifier: Apache-2.0
"""The checks and their results, as data and as text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rcg.version import __version__

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its result.

    Attributes:
        group: ``versions``, ``machine``, ``GPUs``, ``transports``, ``other nodes``, ``Ray``.
        name: The name of the checked thing.
        state: ``ok``; ``warn``: it works with a restriction; ``missing``: it is absent or does not
            work.
        found: The finding.
        advice: What to do, or "".
        is_needed: Whether rcg needs it to work at all.
    """

    group: str
    name: str
    state: State
    found: str
    advice: str = ""
    is_needed: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether rcg cannot work because of this."""
        return self.is_needed and self.state == "missing"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The results of all checks. ``str()`` is the output of ``rcg doctor``."""

    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        """The checks that prevent rcg from working."""
        return tuple(check for check in self.checks if check.is_problem)

    def to_json(self) -> str:
        """Return JSON with ``rcg``, ``is_fine``, and ``checks`` with the fields of ``Check``."""
        checks = [asdict(check) for check in self.checks]
        data = {"rcg": __version__, "is_fine": not self.problems, "checks": checks}
        return json.dumps(data, indent=2)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines: list[str] = []
        group = None
        for check in self.checks:
            if check.group != group:
                group = check.group
                lines += ["", group]
            lines.append(f"  {check.state:<8} {check.name:<{width}}  {check.found}")
            if check.advice:
                lines.append(f"  {'':<8} {'':<{width}}  -> {check.advice}")
        names = ", ".join(check.name for check in self.problems)
        end = f"rcg cannot work here: see {names} above." if names else "rcg works here."
        lines += ["", end]
        return "\n".join(lines[1:])


def error_line(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def text_of(path: str) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
