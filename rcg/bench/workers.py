# SPDX-License-Identifier: Apache-2.0
"""The actor that every contestant calls. A plain class: each contestant makes an actor of it."""

from __future__ import annotations

import os
import time
from typing import Any

from rcg.bench.methods import RowMethods
from rcg.bench.usage import Usage, read_usage

__rcg_user__ = True  # see rcg.frames


class Worker(RowMethods):
    """What rows call, and what figures ask for besides."""

    def hold(self, seconds: float) -> float:
        """Returns what it is given, so much later."""
        time.sleep(seconds)
        return seconds

    def hold_on(self, value: Any, seconds: float) -> Any:
        """Returns a value so much later."""
        time.sleep(seconds)
        return value

    def pid(self) -> int:
        """Returns the id of this process."""
        return os.getpid()

    def usage(self) -> Usage:
        """Returns what this process has used so far."""
        return read_usage()
