# SPDX-License-Identifier: Apache-2.0
"""The class of the actors of all contestants. Each contestant makes its own actors of it."""

from __future__ import annotations

import os
import time
from typing import Any

from rcg.bench.methods import RowMethods
from rcg.bench.usage import Usage, read_usage

__rcg_user__ = True  # see rcg.frames


class Worker(RowMethods):
    """The methods that rows and figures call."""

    def hold(self, seconds: float) -> float:
        """Return the argument after that many seconds."""
        time.sleep(seconds)
        return seconds

    def hold_on(self, value: Any, seconds: float) -> Any:
        """Return a value after some seconds."""
        time.sleep(seconds)
        return value

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def usage(self) -> Usage:
        """Return the usage of this process."""
        return read_usage()
